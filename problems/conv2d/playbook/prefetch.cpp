// Transposed tiles on all cores, weights prefetched AHEAD steps early.
// @tune POSITIONS = 8, 4, 14
// @tune VECTORS = 3, 6, 2
// @require POSITIONS * VECTORS >= 12
// @require POSITIONS * VECTORS <= 28
// @require POSITIONS * VECTORS != 16
// @tune AHEAD = 8, 24
#include <cstring>
#include <omp.h>
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
using ivec = int __attribute__((vector_size(4 * LANES)));
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
                for (long v = 0; v < BLOCK; v += 16) __builtin_prefetch(weight + AHEAD * BLOCK + v);
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

// Interleaves vectors half the set apart; as many rounds as LANES has bits transpose LANES x LANES values.
static inline void interleave(vec (&v)[LANES]) {
#if defined(__AVX512F__)
    constexpr ivec LOW = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
#else
    constexpr ivec LOW = {0, 8, 1, 9, 2, 10, 3, 11};
#endif
    constexpr ivec UPPER = LOW + static_cast<int>(LANES / 2);
    vec next[LANES];
#pragma GCC unroll 8
    for (long i = 0; i < LANES / 2; ++i) {
        next[2 * i] = __builtin_shuffle(v[i], v[i + LANES / 2], LOW);
        next[2 * i + 1] = __builtin_shuffle(v[i], v[i + LANES / 2], UPPER);
    }
#pragma GCC unroll 16
    for (long i = 0; i < LANES; ++i) v[i] = next[i];
}

static inline void transpose(vec (&v)[LANES]) {
    interleave(v);
    interleave(v);
    interleave(v);
    if constexpr (LANES == 16) interleave(v);
}

// From filters contiguous to positions contiguous, LANES by LANES; rows of `from` are readable up to a multiple of LANES.
static void write_row(const float* from, long count, float* to, long plane) {
    for (long filter = 0; filter < FILTERS; filter += LANES)
        for (long place = 0; place < count; place += LANES) {
            vec v[LANES];
#pragma GCC unroll 16
            for (long i = 0; i < LANES; ++i) v[i] = load(from + (place + i) * DEEP + filter);
            transpose(v);
            float* corner = to + filter * plane + place;
            if (place + LANES <= count && filter + LANES <= FILTERS) {
#pragma GCC unroll 16
                for (long i = 0; i < LANES; ++i) store(corner + i * plane, v[i]);
            } else {
                const long width = count - place < LANES ? count - place : LANES;
                for (long i = 0; i < LANES && filter + i < FILTERS; ++i)
                    for (long lane = 0; lane < width; ++lane) corner[i * plane + lane] = v[i][lane];
            }
        }
}

constexpr long BUFFER = (LENGTH + LANES - 1) / LANES * LANES * DEEP;

extern "C" size_t workspace_bytes(void) {
    return (DEEP * (STEPS + 1) + X_DIM0 * IMAGE + omp_get_max_threads() * BUFFER) * sizeof(float);
}

extern "C" void launch(const float* x, const float* conv1_weight, const float* conv1_bias, float* out, void* workspace) {
    float* turned = static_cast<float*>(workspace);
    float* padded = turned + DEEP * (STEPS + 1);
    float* buffers = padded + X_DIM0 * IMAGE;
#pragma omp parallel
    {
        float* buffer = buffers + omp_get_thread_num() * BUFFER;
#pragma omp for schedule(static) nowait
        for (long filter = 0; filter < DEEP; filter += LANES)
            turn_weights(conv1_weight, conv1_bias, filter, filter + LANES, turned);
#pragma omp for schedule(static)
        for (long row = 0; row < X_DIM0 * CHANNELS * TALL; ++row) pad_row(x, row, padded);
#pragma omp for collapse(2) schedule(static)
        for (long image = 0; image < X_DIM0; ++image)
            for (long line = 0; line < LINES; ++line) {
                convolve_row(padded, turned, image, line, buffer);
                write_row(buffer, PLACES, out + (image * FILTERS * LINES + line) * PLACES, LINES * PLACES);
            }
    }
}
