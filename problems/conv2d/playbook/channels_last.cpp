// Weights transposed so that filters are contiguous; all filters of one place advance together, GROUP taps at a time.
// @tune GROUP = 4, 1, 2
#include "problem.h"

constexpr long HIGH = X_DIM2, WIDE = X_DIM3;
constexpr long FILTERS = CONV1_WEIGHT_DIM0, CHANNELS = CONV1_WEIGHT_DIM1;
constexpr long TAPS_Y = CONV1_WEIGHT_DIM2, TAPS_X = CONV1_WEIGHT_DIM3;
constexpr long LINES = (HIGH + 2 * PADDING - TAPS_Y) / STRIDE + 1;
constexpr long PLACES = (WIDE + 2 * PADDING - TAPS_X) / STRIDE + 1;
constexpr long STEPS = CHANNELS * TAPS_Y * TAPS_X;

static void turn_weights(const float* weight, float* turned) {
    for (long filter = 0; filter < FILTERS; ++filter)
        for (long step = 0; step < STEPS; ++step) turned[step * FILTERS + filter] = weight[filter * STEPS + step];
}

// All filters at one place: every input value is multiplied with a row of weights. GROUP taps of a row at a time.
static void at_place(const float* image, const float* __restrict turned, const float* bias, long line, long place,
                     float* __restrict sums) {
    const long top = line * STRIDE - PADDING, left = place * STRIDE - PADDING;
    const long first_x = left < 0 ? -left : 0, last_x = left + TAPS_X > WIDE ? WIDE - left : TAPS_X;
    for (long filter = 0; filter < FILTERS; ++filter) sums[filter] = bias[filter];
    for (long channel = 0; channel < CHANNELS; ++channel)
        for (long ty = 0; ty < TAPS_Y; ++ty) {
            if (top + ty < 0 || top + ty >= HIGH) continue;
            const float* in = image + (channel * HIGH + top + ty) * WIDE + left;
            const float* taps = turned + (channel * TAPS_Y + ty) * TAPS_X * FILTERS;
            long tx = first_x;
            for (; tx + GROUP <= last_x; tx += GROUP)
                for (long filter = 0; filter < FILTERS; ++filter) {
                    float sum = sums[filter];
#pragma GCC unroll 8
                    for (long g = 0; g < GROUP; ++g) sum += in[tx + g] * taps[(tx + g) * FILTERS + filter];
                    sums[filter] = sum;
                }
            for (; tx < last_x; ++tx)
                for (long filter = 0; filter < FILTERS; ++filter) sums[filter] += in[tx] * taps[tx * FILTERS + filter];
        }
}

extern "C" size_t workspace_bytes(void) { return (STEPS + 1) * FILTERS * sizeof(float); }

extern "C" void launch(const float* x, const float* conv1_weight, const float* conv1_bias, float* out, void* workspace) {
    float* turned = static_cast<float*>(workspace);
    float* sums = turned + STEPS * FILTERS;
    turn_weights(conv1_weight, turned);
    for (long image = 0; image < X_DIM0; ++image)
        for (long line = 0; line < LINES; ++line)
            for (long place = 0; place < PLACES; ++place) {
                at_place(x + image * CHANNELS * HIGH * WIDE, turned, conv1_bias, line, place, sums);
                for (long filter = 0; filter < FILTERS; ++filter)
                    out[((image * FILTERS + filter) * LINES + line) * PLACES + place] = sums[filter];
            }
}
