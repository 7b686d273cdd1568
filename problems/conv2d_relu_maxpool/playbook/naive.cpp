// Convolution, then ReLU, then pooling, one output after the other, every tap tested against the borders. One core.
#include "problem.h"

constexpr long HIGH = X_DIM2, WIDE = X_DIM3;
constexpr long FILTERS = CONV1_WEIGHT_DIM0, CHANNELS = CONV1_WEIGHT_DIM1;
constexpr long TAPS_Y = CONV1_WEIGHT_DIM2, TAPS_X = CONV1_WEIGHT_DIM3;
constexpr long LINES = (HIGH + 2 * PADDING - TAPS_Y) / STRIDE + 1;
constexpr long PLACES = (WIDE + 2 * PADDING - TAPS_X) / STRIDE + 1;

// One output of the convolution; taps in the padding count as zero.
static float convolved(const float* image, const float* weight, float bias, long line, long place) {
    float sum = bias;
    for (long channel = 0; channel < CHANNELS; ++channel)
        for (long ty = 0; ty < TAPS_Y; ++ty)
            for (long tx = 0; tx < TAPS_X; ++tx) {
                const long y = line * STRIDE - PADDING + ty;
                const long xx = place * STRIDE - PADDING + tx;
                if (y >= 0 && y < HIGH && xx >= 0 && xx < WIDE)
                    sum += image[(channel * HIGH + y) * WIDE + xx] * weight[(channel * TAPS_Y + ty) * TAPS_X + tx];
            }
    return sum;
}

// One filter over one image.
static void plane(const float* image, const float* weight, float bias, float* to) {
    for (long line = 0; line < LINES; ++line)
        for (long place = 0; place < PLACES; ++place)
            to[line * PLACES + place] = convolved(image, weight, bias, line, place);
}

static void rectify(float* values) {
    for (long i = 0; i < LINES * PLACES; ++i) values[i] = values[i] < 0 ? 0 : values[i];
}

static void pool(const float* values, float* to) {
    for (long line = 0; line < OUT_DIM2; ++line)
        for (long place = 0; place < OUT_DIM3; ++place) {
            const float* window = values + line * POOL_STRIDE * PLACES + place * POOL_STRIDE;
            float top = window[0];
            for (long dy = 0; dy < POOL_KERNEL; ++dy)
                for (long dx = 0; dx < POOL_KERNEL; ++dx) {
                    const float v = window[dy * PLACES + dx];
                    if (v > top || v != v) top = v;
                }
            to[line * OUT_DIM3 + place] = top;
        }
}

extern "C" size_t workspace_bytes(void) { return X_DIM0 * FILTERS * LINES * PLACES * sizeof(float); }

extern "C" void launch(const float* x, const float* conv1_weight, const float* conv1_bias, float* out, void* workspace) {
    for (long image = 0; image < X_DIM0; ++image)
        for (long filter = 0; filter < FILTERS; ++filter) {
            const float* in = x + image * CHANNELS * HIGH * WIDE;
            const float* weight = conv1_weight + filter * CHANNELS * TAPS_Y * TAPS_X;
            const long index = image * FILTERS + filter;
            float* values = static_cast<float*>(workspace) + index * LINES * PLACES;
            plane(in, weight, conv1_bias[filter], values);
            rectify(values);
            pool(values, out + index * OUT_DIM2 * OUT_DIM3);
        }
}
