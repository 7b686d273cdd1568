// The taps that lie inside the image are computed once per output; the inner loops do not test.
#include "problem.h"

constexpr long HIGH = X_DIM2, WIDE = X_DIM3;
constexpr long FILTERS = CONV1_WEIGHT_DIM0, CHANNELS = CONV1_WEIGHT_DIM1;
constexpr long TAPS_Y = CONV1_WEIGHT_DIM2, TAPS_X = CONV1_WEIGHT_DIM3;
constexpr long LINES = (HIGH + 2 * PADDING - TAPS_Y) / STRIDE + 1;
constexpr long PLACES = (WIDE + 2 * PADDING - TAPS_X) / STRIDE + 1;

static long larger_of(long a, long b) { return a > b ? a : b; }
static long smaller_of(long a, long b) { return a < b ? a : b; }

// One output of the convolution over the taps that lie inside the image.
static float convolved(const float* image, const float* weight, float bias, long line, long place) {
    const long top = line * STRIDE - PADDING, left = place * STRIDE - PADDING;
    const long first_y = larger_of(0, -top), last_y = smaller_of(TAPS_Y, HIGH - top);
    const long first_x = larger_of(0, -left), last_x = smaller_of(TAPS_X, WIDE - left);
    float sum = bias;
    for (long channel = 0; channel < CHANNELS; ++channel)
        for (long ty = first_y; ty < last_y; ++ty) {
            const float* in = image + (channel * HIGH + top + ty) * WIDE + left;
            const float* tap = weight + (channel * TAPS_Y + ty) * TAPS_X;
            for (long tx = first_x; tx < last_x; ++tx) sum += in[tx] * tap[tx];
        }
    return sum;
}

// One filter over one image.
static void plane(const float* image, const float* weight, float bias, float* to) {
    for (long line = 0; line < LINES; ++line)
        for (long place = 0; place < PLACES; ++place)
            to[line * PLACES + place] = convolved(image, weight, bias, line, place);
}

extern "C" void launch(const float* x, const float* conv1_weight, const float* conv1_bias, float* out, void*) {
    for (long image = 0; image < X_DIM0; ++image)
        for (long filter = 0; filter < FILTERS; ++filter) {
            const float* in = x + image * CHANNELS * HIGH * WIDE;
            const float* weight = conv1_weight + filter * CHANNELS * TAPS_Y * TAPS_X;
            const long index = image * FILTERS + filter;
            plane(in, weight, conv1_bias[filter], out + index * LINES * PLACES);
        }
}
