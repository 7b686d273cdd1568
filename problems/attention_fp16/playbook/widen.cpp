// Keys, turned so that neighbours are contiguous, and values of a head in single precision once; both products then run along
// contiguous rows, GROUP of them at a time.
// @tune GROUP = 4, 1, 8
#include <cmath>
#include <limits>
#include "problem.h"

using half = q_t;

// Every head of every sample is one pair of keys and values.
constexpr long PAIRS = Q_DIM0 * Q_DIM1, QUERIES = Q_DIM2, DEPTH = Q_DIM3;
constexpr long KEYS = K_DIM2, BREADTH = V_DIM3;

// to[i] += the sum of factors[g] * rows[g * pitch + i]
static void add_rows(const float* factors, const float* __restrict rows, long pitch, long group, long count,
                     float* __restrict to) {
    if (group == GROUP)
        for (long i = 0; i < count; ++i) {
            float sum = to[i];
#pragma GCC unroll 8
            for (long g = 0; g < GROUP; ++g) sum += factors[g] * rows[g * pitch + i];
            to[i] = sum;
        }
    else
        for (long g = 0; g < group; ++g)
            for (long i = 0; i < count; ++i) to[i] += factors[g] * rows[g * pitch + i];
}

static void attend(const half* query, const float* turned, const float* values, float* scores, float* sums, half* to) {
    const float scale = 1 / std::sqrt(static_cast<float>(DEPTH));
    float factors[DEPTH];
    for (long d = 0; d < DEPTH; ++d) factors[d] = static_cast<float>(query[d]) * scale;
    for (long key = 0; key < KEYS; ++key) scores[key] = 0;
    for (long d = 0; d < DEPTH; d += GROUP)
        add_rows(factors + d, turned + d * KEYS, KEYS, DEPTH - d < GROUP ? DEPTH - d : GROUP, KEYS, scores);
    float top = -std::numeric_limits<float>::infinity();
    for (long key = 0; key < KEYS; ++key) top = scores[key] > top ? scores[key] : top;
    float total = 0;
    for (long key = 0; key < KEYS; ++key) {
        scores[key] = std::exp(scores[key] - top);
        total += scores[key];
    }
    for (long d = 0; d < BREADTH; ++d) sums[d] = 0;
    for (long key = 0; key < KEYS; key += GROUP)
        add_rows(scores + key, values + key * BREADTH, BREADTH, KEYS - key < GROUP ? KEYS - key : GROUP, BREADTH, sums);
    for (long d = 0; d < BREADTH; ++d) to[d] = static_cast<half>(sums[d] / total);
}

extern "C" size_t workspace_bytes(void) { return (KEYS * (DEPTH + BREADTH + 1) + BREADTH) * sizeof(float); }

extern "C" void launch(const half* q, const half* k, const half* v, half* out, void* workspace) {
    float* turned = static_cast<float*>(workspace);
    float* values = turned + KEYS * DEPTH;
    float* scores = values + KEYS * BREADTH;
    float* sums = scores + KEYS;
    for (long head = 0; head < PAIRS; ++head) {
        for (long key = 0; key < KEYS; ++key)
            for (long d = 0; d < DEPTH; ++d)
                turned[d * KEYS + key] = static_cast<float>(k[(head * KEYS + key) * DEPTH + d]);
        for (long i = 0; i < KEYS * BREADTH; ++i) values[i] = static_cast<float>(v[head * KEYS * BREADTH + i]);
        for (long query = 0; query < QUERIES; ++query)
            attend(q + (head * QUERIES + query) * DEPTH, turned, values, scores, sums,
                   out + (head * QUERIES + query) * BREADTH);
    }
}
