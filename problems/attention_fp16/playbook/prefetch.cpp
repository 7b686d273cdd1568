// While the exponentials of a row are computed, its share of the values is prefetched; NEAR: 3 into the first cache, 2 into
// the second.
// @tune ROWS = 6, 8
// @tune COLUMNS = 4, 2, 3
// @require ROWS * COLUMNS >= 12
// @require ROWS * COLUMNS % 12 == 0
// @require ROWS * COLUMNS <= 24
// @tune DEGREE = 5
// @tune NEAR = 3, 2
#include <cmath>
#include <cstring>
#include <omp.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif
#include "problem.h"

using half = q_t;

// Every head of every sample is one pair of keys and values.
constexpr long PAIRS = Q_DIM0 * Q_DIM1, QUERIES = Q_DIM2, DEPTH = Q_DIM3;
constexpr long KEYS = K_DIM2, BREADTH = V_DIM3;

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

static inline void store(half* p, vec v) {
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
    for (long lane = 0; lane < LANES; ++lane) p[lane] = static_cast<half>(v[lane]);
#endif
}

constexpr long WIDTH = COLUMNS * LANES;
constexpr long SPAN = (KEYS + WIDTH - 1) / WIDTH * WIDTH;
constexpr long DEEP = (BREADTH + WIDTH - 1) / WIDTH * WIDTH;
constexpr long HEAD = DEPTH * SPAN + KEYS * DEEP;

// ROWS x WIDTH sums of products in registers: rows of `a` are DISTANCE apart, rows of `b` PITCH apart, results APART apart.
template <long DISTANCE, long PITCH, long APART>
static void tile(const float* a, const float* b, long steps, float* to) {
    vec sums[ROWS][COLUMNS] = {};
    for (long step = 0; step < steps; ++step) {
        vec across[COLUMNS];
#pragma GCC unroll 8
        for (long c = 0; c < COLUMNS; ++c) across[c] = load(b + step * PITCH + c * LANES);
#pragma GCC unroll 16
        for (long r = 0; r < ROWS; ++r) {
            const vec down = broadcast(a[r * DISTANCE + step]);
#pragma GCC unroll 8
            for (long c = 0; c < COLUMNS; ++c) sums[r][c] += down * across[c];
        }
    }
#pragma GCC unroll 16
    for (long r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
        for (long c = 0; c < COLUMNS; ++c) store(to + r * APART + c * LANES, sums[r][c]);
}

// Keys of a head transposed to DEPTH rows of SPAN, then values as KEYS rows of DEEP, padded with zeros. Rows `begin` to `end` of it.
static void make_panels(const half* keys, const half* values, long begin, long end, float* panels) {
    for (long row = begin; row < end; ++row)
        if (row < DEPTH) {
            float* to = panels + row * SPAN;
            for (long key = 0; key < SPAN; ++key) to[key] = key < KEYS ? static_cast<float>(keys[key * DEPTH + row]) : 0;
        } else {
            const half* from = values + (row - DEPTH) * BREADTH;
            float* to = panels + DEPTH * SPAN + (row - DEPTH) * DEEP;
            for (long d = 0; d < DEEP; ++d) to[d] = d < BREADTH ? static_cast<float>(from[d]) : 0;
        }
}

// ROWS queries in single precision, scaled; rows past the last one are zero.
static void load_queries(const half* from, long count, float factor, float* to) {
    for (long r = 0; r < ROWS; ++r)
        for (long d = 0; d < DEPTH; ++d)
            to[r * DEPTH + d] = r < count ? static_cast<float>(from[r * DEPTH + d]) * factor : 0;
}

// 2^t for t <= 0: a polynomial of degree DEGREE on |f| <= 1/2. Gives 0 below -150, keeps NaN.
static inline vec exp2_negative(vec t) {
    t = t < -150.0f ? broadcast(-150.0f) : t;
    const vec shifted = t + 12582912.0f;
    const vec f = t - (shifted - 12582912.0f);
#if DEGREE == 5
    vec p = f * 1.32647273e-3f + 9.67151299e-3f;
    p = p * f + 5.55073358e-2f;
    p = p * f + 2.40222424e-1f;
    p = p * f + 6.93147004e-1f;
#else
    static_assert(DEGREE == 4, "coefficients are written down for degrees 4 and 5");
    vec p = f * 9.58285294e-3f + 5.59064262e-2f;
    p = p * f + 2.40240991e-1f;
    p = p * f + 6.93124175e-1f;
#endif
    p = p * f + 1.0f;
    ivec bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + (191 << 23);
    vec scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return p * scale * 5.42101086e-20f;
}

// Turns KEYS scores, in units of ln 2, into weights and returns their sum.
// Meanwhile prefetches one of ROWS parts of the values.
static float weigh(float* scores, const char* values, long part) {
    const float none = -__builtin_inff();
    for (long key = KEYS; key < SPAN; ++key) scores[key] = none;
    vec tops = broadcast(none);
    for (long key = 0; key < SPAN; key += LANES) {
        const vec s = load(scores + key);
        tops = s > tops ? s : tops;
    }
    float top = none;
    for (long lane = 0; lane < LANES; ++lane) top = tops[lane] > top ? tops[lane] : top;
    vec sums = {};
    for (long key = 0; key < SPAN; key += LANES) {
        constexpr long STEP = DEEP * KEYS * sizeof(float) / ROWS / (SPAN / LANES);
        const char* ahead = values + (part * (SPAN / LANES) + key / LANES) * STEP;
        for (long line = 0; line < STEP; line += 64) __builtin_prefetch(ahead + line, 0, NEAR);
        const vec e = exp2_negative(load(scores + key) - top);
        store(scores + key, e);
        sums += e;
    }
    float total = 0;
    for (long lane = 0; lane < LANES; ++lane) total += sums[lane];
    return total;
}

static void save(const float* sums, const float (&totals)[ROWS], long count, half* to) {
    for (long r = 0; r < count; ++r) {
        const float scale = 1 / totals[r];
        long d = 0;
        for (; d + LANES <= BREADTH; d += LANES) store(to + r * BREADTH + d, load(sums + r * DEEP + d) * scale);
        for (; d < BREADTH; ++d) to[r * BREADTH + d] = static_cast<half>(sums[r * DEEP + d] * scale);
    }
}

// ROWS queries against all keys: scores, weights, weighted values. `buffer` holds queries, scores and sums.
static void attend(const half* queries, long count, const float* panels, float* buffer, half* to) {
    float* wide = buffer;
    float* scores = wide + ROWS * DEPTH;
    float* sums = scores + ROWS * SPAN;
    load_queries(queries, count, 1.44269504f / std::sqrt(static_cast<float>(DEPTH)), wide);
    for (long key = 0; key < SPAN; key += WIDTH) tile<DEPTH, SPAN, SPAN>(wide, panels + key, DEPTH, scores + key);
    float totals[ROWS];
    for (long r = 0; r < ROWS; ++r) totals[r] = weigh(scores + r * SPAN, reinterpret_cast<const char*>(panels + DEPTH * SPAN), r);
    for (long d = 0; d < DEEP; d += WIDTH)
        tile<SPAN, DEEP, DEEP>(scores, panels + DEPTH * SPAN + d, KEYS, sums + d);
    save(sums, totals, count, to);
}

constexpr long BUFFER = ROWS * (DEPTH + SPAN + DEEP);

extern "C" size_t workspace_bytes(void) {
    return PAIRS * HEAD * sizeof(float) + omp_get_max_threads() * BUFFER * sizeof(float) + 128;
}

extern "C" void launch(const half* q, const half* k, const half* v, half* out, void* workspace) {
    float* panels = static_cast<float*>(workspace);
    float* buffers = reinterpret_cast<float*>(panels + (PAIRS * HEAD + 31) / 32 * 32);
    constexpr long PART = 32;
#pragma omp parallel
    {
        float* buffer = buffers + omp_get_thread_num() * BUFFER;
#pragma omp for collapse(2) schedule(static)
        for (long head = 0; head < PAIRS; ++head)
            for (long row = 0; row < DEPTH + KEYS; row += PART)
                make_panels(k + head * KEYS * DEPTH, v + head * KEYS * BREADTH, row,
                            row + PART < DEPTH + KEYS ? row + PART : DEPTH + KEYS, panels + head * HEAD);
#pragma omp for collapse(2) schedule(static)
        for (long head = 0; head < PAIRS; ++head)
            for (long query = 0; query < QUERIES; query += ROWS) {
                const long first = head * QUERIES + query;
                attend(q + first * DEPTH, QUERIES - query < ROWS ? QUERIES - query : ROWS, panels + head * HEAD, buffer,
                       out + first * BREADTH);
            }
    }
}
