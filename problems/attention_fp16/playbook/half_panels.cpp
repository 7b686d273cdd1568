// Slices of keys as before, with keys and values kept in half precision and converted when a tile loads them.
// @tune ROWS = 6, 8
// @tune COLUMNS = 4, 2, 3
// @require ROWS * COLUMNS >= 12
// @require ROWS * COLUMNS % 12 == 0
// @require ROWS * COLUMNS <= 24
// @tune SLICES = 4, 2
// @tune GROUP = 16, 8
// @tune DEGREE = 5
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

static inline vec widened(const half* p) {
#if defined(__AVX512F__)
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
    vec v;
    for (long lane = 0; lane < LANES; ++lane) v[lane] = static_cast<float>(p[lane]);
    return v;
#endif
}

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
constexpr long BAND = GROUP * ROWS;
constexpr long SLICE = SLICES * WIDTH;
constexpr long HEAD = DEPTH * SPAN + KEYS * DEEP;

// ROWS x WIDTH sums of products in registers: rows of `a` are DISTANCE apart, rows of `b` PITCH apart, results APART apart.
// They are added to what is there.
template <long DISTANCE, long PITCH, long APART>
static void tile(const float* a, const half* b, long steps, float* to) {
    vec sums[ROWS][COLUMNS];
#pragma GCC unroll 16
    for (long r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
        for (long c = 0; c < COLUMNS; ++c) sums[r][c] = load(to + r * APART + c * LANES);
    for (long step = 0; step < steps; ++step) {
        vec across[COLUMNS];
#pragma GCC unroll 8
        for (long c = 0; c < COLUMNS; ++c) across[c] = widened(b + step * PITCH + c * LANES);
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
static void make_panels(const half* keys, const half* values, long begin, long end, half* panels) {
    for (long row = begin; row < end; ++row)
        if (row < DEPTH) {
            half* to = panels + row * SPAN;
            for (long key = 0; key < SPAN; ++key) to[key] = key < KEYS ? keys[key * DEPTH + row] : half(0);
        } else {
            const half* from = values + (row - DEPTH) * BREADTH;
            half* to = panels + DEPTH * SPAN + (row - DEPTH) * DEEP;
            for (long d = 0; d < DEEP; ++d) to[d] = d < BREADTH ? from[d] : half(0);
        }
}

// BAND queries in single precision, scaled; rows past the last one are zero.
static void load_queries(const half* from, long count, float factor, float* to) {
    for (long r = 0; r < BAND; ++r)
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

// Running maximum and sum of one query over the slices of keys seen so far.
struct Running {
    float top, total;
};

// Turns the `count` scores of a slice, in units of ln 2, into weights; shrinks `sums` where the maximum rises.
static void weigh(float* scores, long count, Running& running, float* sums) {
    for (long key = count; key < SLICE; ++key) scores[key] = -__builtin_inff();
    vec tops = broadcast(running.top);
    for (long key = 0; key < SLICE; key += LANES) {
        const vec s = load(scores + key);
        tops = s > tops ? s : tops;
    }
    float top = running.top;
    for (long lane = 0; lane < LANES; ++lane) top = tops[lane] > top ? tops[lane] : top;
    if (top > running.top) {
        const vec shrink = exp2_negative(broadcast(running.top) - top);
        for (long d = 0; d < DEEP; d += LANES) store(sums + d, load(sums + d) * shrink);
        running = {top, running.total * shrink[0]};
    }
    vec weights = {};
    for (long key = 0; key < SLICE; key += LANES) {
        const vec e = exp2_negative(load(scores + key) - top);
        store(scores + key, e);
        weights += e;
    }
    for (long lane = 0; lane < LANES; ++lane) running.total += weights[lane];
}

// BAND queries against slices of keys, ROWS queries at a time while a slice is near. `buffer` holds queries, scores and sums.
static void attend(const half* queries, long count, const half* panels, float* buffer, half* to) {
    float* wide = buffer;
    float* scores = wide + BAND * DEPTH;
    float* sums = scores + ROWS * SLICE;
    Running running[BAND];
    for (Running& r : running) r = {-__builtin_inff(), 0};
    load_queries(queries, count, 1.44269504f / std::sqrt(static_cast<float>(DEPTH)), wide);
    std::memset(sums, 0, BAND * DEEP * sizeof(float));
    for (long first = 0; first < KEYS; first += SLICE)
        for (long row = 0; row < BAND && row < count; row += ROWS) {
            const long keys = KEYS - first < SLICE ? KEYS - first : SLICE;
            std::memset(scores, 0, ROWS * SLICE * sizeof(float));
            for (long key = 0; key < keys; key += WIDTH)
                tile<DEPTH, SPAN, SLICE>(wide + row * DEPTH, panels + first + key, DEPTH, scores + key);
            for (long r = 0; r < ROWS; ++r)
                weigh(scores + r * SLICE, keys, running[row + r], sums + (row + r) * DEEP);
            for (long d = 0; d < DEEP; d += WIDTH)
                tile<SLICE, DEEP, DEEP>(scores, panels + DEPTH * SPAN + first * DEEP + d, keys, sums + row * DEEP + d);
        }
    for (long row = 0; row < count; ++row) {
        const float scale = 1 / running[row].total;
        long d = 0;
        for (; d + LANES <= BREADTH; d += LANES) store(to + row * BREADTH + d, load(sums + row * DEEP + d) * scale);
        for (; d < BREADTH; ++d) to[row * BREADTH + d] = static_cast<half>(sums[row * DEEP + d] * scale);
    }
}

constexpr long BUFFER = BAND * (DEPTH + DEEP) + ROWS * SLICE;

extern "C" size_t workspace_bytes(void) {
    return PAIRS * HEAD * sizeof(half) + omp_get_max_threads() * BUFFER * sizeof(float) + 128;
}

extern "C" void launch(const half* q, const half* k, const half* v, half* out, void* workspace) {
    half* panels = static_cast<half*>(workspace);
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
            for (long query = 0; query < QUERIES; query += BAND) {
                const long first = head * QUERIES + query;
                attend(q + first * DEPTH, QUERIES - query < BAND ? QUERIES - query : BAND, panels + head * HEAD, buffer,
                       out + first * BREADTH);
            }
    }
}
