// A tile of POSITIONS neighbouring outputs by VECTORS vectors of filters stays in registers over all taps; a padded copy of the
// input and weights with filters contiguous come first.
// @tune POSITIONS = 8, 4, 14
// @tune VECTORS = 3, 6, 2
// @require POSITIONS * VECTORS >= 12
// @require POSITIONS * VECTORS <= 28
// @require POSITIONS * VECTORS != 16
#include <cstring>
#include "problem.h"

constexpr long HIGH = X_DIM2, WIDE = X_DIM3;
constexpr long FILTERS = CONV1_WEIGHT_DIM0, CHANNELS = CONV1_WEIGHT_DIM1;
constexpr long TAPS_Y = CONV1_WEIGHT_DIM2, TAPS_X = CONV1_WEIGHT_DIM3;
constexpr long LINES = (HIGH + 2 * PADDING - TAPS_Y) / STRIDE + 1;
constexpr long PLACES = (WIDE + 2 * PADDING - TAPS_X) / STRIDE + 1;
#if defined(__AVX512F__)
constexpr long LANES = 16;
#else
constexpr long LANES = 8;
#endif
using vec = float __attribute__((vector_size(4 * LANES)));
using loose = float __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }
static inline void store(float* p, vec v) { *reinterpret_cast<loose*>(p) = v; }
static inline vec broadcast(float v) { return v - vec{}; }

constexpr long STEPS = CHANNELS * TAPS_Y * TAPS_X;
constexpr long BLOCK = VECTORS * LANES;
constexpr long DEEP = (FILTERS + BLOCK - 1) / BLOCK * BLOCK;
constexpr long LENGTH = (PLACES + POSITIONS - 1) / POSITIONS * POSITIONS;
constexpr long TALL = HIGH + 2 * PADDING;
constexpr long REACH = (LENGTH - 1) * STRIDE + TAPS_X;
constexpr long BROAD = REACH > WIDE + 2 * PADDING ? REACH : WIDE + 2 * PADDING;
constexpr long IMAGE = CHANNELS * TALL * BROAD;

// Weights with filters contiguous, block after block of BLOCK filters, each padded with zeros; then the biases.
static void turn_weights(const float* weight, const float* bias, long begin, long end, float* turned) {
    for (long filter = begin; filter < end; ++filter) {
        float* to = turned + filter / BLOCK * BLOCK * STEPS + filter % BLOCK;
        for (long step = 0; step < STEPS; ++step) to[step * BLOCK] = filter < FILTERS ? weight[filter * STEPS + step] : 0;
        turned[DEEP * STEPS + filter] = filter < FILTERS ? bias[filter] : 0;
    }
}

// One row of one channel of one image, with its padding; `index` counts the padded rows of all images.
static void pad_row(const float* x, long index, float* padded) {
    const long y = index % TALL - PADDING;
    float* to = padded + index * BROAD;
    for (long i = 0; i < BROAD; ++i) to[i] = 0;
    if (y >= 0 && y < HIGH) std::memcpy(to + PADDING, x + (index / TALL * HIGH + y) * WIDE, WIDE * sizeof(float));
}

// POSITIONS neighbouring outputs of BLOCK filters, kept in registers; written with filters contiguous, DEEP apart.
static void tile(const float* in, const float* weight, const float* bias, float* to) {
    vec sums[POSITIONS][VECTORS];
#pragma GCC unroll 16
    for (long p = 0; p < POSITIONS; ++p)
#pragma GCC unroll 8
        for (long v = 0; v < VECTORS; ++v) sums[p][v] = load(bias + v * LANES);
    for (long channel = 0; channel < CHANNELS; ++channel)
        for (long ty = 0; ty < TAPS_Y; ++ty) {
            const float* row = in + (channel * TALL + ty) * BROAD;
            for (long tx = 0; tx < TAPS_X; ++tx, weight += BLOCK) {
                vec taps[VECTORS];
#pragma GCC unroll 8
                for (long v = 0; v < VECTORS; ++v) taps[v] = load(weight + v * LANES);
#pragma GCC unroll 16
                for (long p = 0; p < POSITIONS; ++p) {
                    const vec value = broadcast(row[p * STRIDE + tx]);
#pragma GCC unroll 8
                    for (long v = 0; v < VECTORS; ++v) sums[p][v] += value * taps[v];
                }
            }
        }
#pragma GCC unroll 16
    for (long p = 0; p < POSITIONS; ++p)
#pragma GCC unroll 8
        for (long v = 0; v < VECTORS; ++v) store(to + p * DEEP + v * LANES, sums[p][v]);
}

// One row of outputs for all filters: LENGTH positions, filters contiguous.
static void convolve_row(const float* padded, const float* turned, long image, long line, float* to) {
    const float* in = padded + image * IMAGE + line * STRIDE * BROAD;
    for (long filter = 0; filter < DEEP; filter += BLOCK)
        for (long place = 0; place < LENGTH; place += POSITIONS)
            tile(in + place * STRIDE, turned + filter * STEPS, turned + DEEP * STEPS + filter, to + place * DEEP + filter);
}

// From filters contiguous to positions contiguous.
static void write_row(const float* from, long count, float* to, long plane) {
    for (long filter = 0; filter < FILTERS; ++filter)
        for (long place = 0; place < count; ++place) to[filter * plane + place] = from[place * DEEP + filter];
}

constexpr long BUFFER = LENGTH * DEEP;

extern "C" size_t workspace_bytes(void) {
    return (DEEP * (STEPS + 1) + X_DIM0 * IMAGE + BUFFER) * sizeof(float);
}

extern "C" void launch(const float* x, const float* conv1_weight, const float* conv1_bias, float* out, void* workspace) {
    float* turned = static_cast<float*>(workspace);
    float* padded = turned + DEEP * (STEPS + 1);
    float* buffer = padded + X_DIM0 * IMAGE;
    turn_weights(conv1_weight, conv1_bias, 0, DEEP, turned);
    for (long row = 0; row < X_DIM0 * CHANNELS * TALL; ++row) pad_row(x, row, padded);
    for (long image = 0; image < X_DIM0; ++image)
        for (long line = 0; line < LINES; ++line) {
            convolve_row(padded, turned, image, line, buffer);
            write_row(buffer, PLACES, out + (image * FILTERS * LINES + line) * PLACES, LINES * PLACES);
        }
}
