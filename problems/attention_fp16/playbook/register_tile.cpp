// ROWS queries at a time: tiles of ROWS x COLUMNS vectors of scores, and then of outputs, stay in registers.
// @tune ROWS = 6, 8, 12
// @tune COLUMNS = 4, 2, 3
// @require ROWS * COLUMNS >= 12
// @require ROWS * COLUMNS % 12 == 0
// @require ROWS * COLUMNS <= 24
#include <cmath>
#include <limits>
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
using loose = float __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }
static inline void store(float* p, vec v) { *reinterpret_cast<loose*>(p) = v; }
static inline vec broadcast(float v) { return v - vec{}; }

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

// Turns scores into weights and returns their sum.
static float weigh(float* scores) {
    float top = -std::numeric_limits<float>::infinity();
    for (long key = 0; key < KEYS; ++key) top = scores[key] > top ? scores[key] : top;
    float total = 0;
    for (long key = 0; key < KEYS; ++key) {
        scores[key] = std::exp(scores[key] - top);
        total += scores[key];
    }
    return total;
}

static void save(const float* sums, const float (&totals)[ROWS], long count, half* to) {
    for (long r = 0; r < count; ++r) {
        const float scale = 1 / totals[r];
        for (long d = 0; d < BREADTH; ++d) to[r * BREADTH + d] = static_cast<half>(sums[r * DEEP + d] * scale);
    }
}

// ROWS queries against all keys: scores, weights, weighted values. `buffer` holds queries, scores and sums.
static void attend(const half* queries, long count, const float* panels, float* buffer, half* to) {
    float* wide = buffer;
    float* scores = wide + ROWS * DEPTH;
    float* sums = scores + ROWS * SPAN;
    load_queries(queries, count, 1 / std::sqrt(static_cast<float>(DEPTH)), wide);
    for (long key = 0; key < SPAN; key += WIDTH) tile<DEPTH, SPAN, SPAN>(wide, panels + key, DEPTH, scores + key);
    float totals[ROWS];
    for (long r = 0; r < ROWS; ++r) totals[r] = weigh(scores + r * SPAN);
    for (long d = 0; d < DEEP; d += WIDTH)
        tile<SPAN, DEEP, DEEP>(scores, panels + DEPTH * SPAN + d, KEYS, sums + d);
    save(sums, totals, count, to);
}

constexpr long BUFFER = ROWS * (DEPTH + SPAN + DEEP);

extern "C" size_t workspace_bytes(void) { return (HEAD + BUFFER) * sizeof(float); }

extern "C" void launch(const half* q, const half* k, const half* v, half* out, void* workspace) {
    float* panels = static_cast<float*>(workspace);
    for (long head = 0; head < PAIRS; ++head) {
        make_panels(k + head * KEYS * DEPTH, v + head * KEYS * BREADTH, 0, DEPTH + KEYS, panels);
        for (long query = 0; query < QUERIES; query += ROWS) {
            const long first = head * QUERIES + query;
            attend(q + first * DEPTH, QUERIES - query < ROWS ? QUERIES - query : ROWS, panels, panels + HEAD,
                   out + first * BREADTH);
        }
    }
}
