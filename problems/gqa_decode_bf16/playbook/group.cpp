// The queries of a group together: every key and value is read and widened once for all of them. One core.
#include <cmath>
#include <cstring>
#include <limits>
#include "problem.h"

constexpr long SEQUENCES = Q_DIM0, HEADS = Q_DIM1, DEPTH = Q_DIM2;
constexpr long PAGE = K_CACHE_DIM1, KV = K_CACHE_DIM2, PAGES = BLOCK_TABLE_DIM1;
constexpr long ROWS = HEADS / KV, LANES = 16, WIDTH = DEPTH / LANES;
static_assert(DEPTH % LANES == 0, "a head is a number of whole vectors");

using vec = float __attribute__((vector_size(4 * LANES)));
using words = std::uint32_t __attribute__((vector_size(4 * LANES)));
using shorts = std::uint16_t __attribute__((vector_size(2 * LANES)));

static inline vec widened(const bf16* p) {
    shorts narrow;
    std::memcpy(&narrow, p, sizeof narrow);
    const words wide = __builtin_convertvector(narrow, words) << 16;
    vec v;
    std::memcpy(&v, &wide, sizeof v);
    return v;
}

static inline float total_of(vec v) {
    float sum = 0;
    for (long lane = 0; lane < LANES; ++lane) sum += v[lane];
    return sum;
}

// What a part of the keys gives for the query heads of one group: running maxima, sums of weights, weighted values.
struct Part {
    float top[ROWS], total[ROWS];
    vec sums[ROWS][WIDTH];
};

// Pages `first` to `last` of a sequence, for the queries that share key head `kv`.
static void attend(const bf16* query, const bf16* k_cache, const bf16* v_cache, const std::int32_t* pages, long kv, long first,
                   long last, long length, Part& part) {
    const float scale = 1 / std::sqrt(static_cast<float>(DEPTH));
    vec wanted[ROWS][WIDTH];
    for (long r = 0; r < ROWS; ++r) {
        part.top[r] = -std::numeric_limits<float>::infinity();
        part.total[r] = 0;
        for (long w = 0; w < WIDTH; ++w) {
            wanted[r][w] = widened(query + r * DEPTH + w * LANES) * scale;
            part.sums[r][w] = vec{};
        }
    }
    for (long page = first; page < last; ++page) {
        const long keys = length - page * PAGE < PAGE ? length - page * PAGE : PAGE;
        const long base = (pages[page] * PAGE * KV + kv) * DEPTH;
        float weights[ROWS][PAGE];
        for (long key = 0; key < keys; ++key) {
            const bf16* row = k_cache + base + key * KV * DEPTH;
            vec wide[WIDTH];
#pragma GCC unroll 8
            for (long w = 0; w < WIDTH; ++w) wide[w] = widened(row + w * LANES);
            for (long r = 0; r < ROWS; ++r) {
                vec sum = wanted[r][0] * wide[0];
#pragma GCC unroll 8
                for (long w = 1; w < WIDTH; ++w) sum += wanted[r][w] * wide[w];
                weights[r][key] = total_of(sum);
            }
        }
        for (long r = 0; r < ROWS; ++r) {
            float top = part.top[r];
            for (long key = 0; key < keys; ++key) top = weights[r][key] > top ? weights[r][key] : top;
            const float keep = std::exp(part.top[r] - top);
            part.total[r] *= keep;
            for (long w = 0; w < WIDTH; ++w) part.sums[r][w] *= keep;
            for (long key = 0; key < keys; ++key) part.total[r] += weights[r][key] = std::exp(weights[r][key] - top);
            part.top[r] = top;
        }
        for (long key = 0; key < keys; ++key) {
            const bf16* row = v_cache + base + key * KV * DEPTH;
            vec wide[WIDTH];
#pragma GCC unroll 8
            for (long w = 0; w < WIDTH; ++w) wide[w] = widened(row + w * LANES);
            for (long r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
                for (long w = 0; w < WIDTH; ++w) part.sums[r][w] += weights[r][key] * wide[w];
        }
    }
}

extern "C" void launch(const bf16* q, const bf16* k_cache, const bf16* v_cache, const std::int32_t* block_table,
                       const std::int32_t* lengths, bf16* out, void*) {
    for (long sequence = 0; sequence < SEQUENCES; ++sequence)
        for (long kv = 0; kv < KV; ++kv) {
            Part part;
            const long at = (sequence * HEADS + kv * ROWS) * DEPTH;
            attend(q + at, k_cache, v_cache, block_table + sequence * PAGES, kv, 0, (lengths[sequence] + PAGE - 1) / PAGE,
                   lengths[sequence], part);
            for (long r = 0; r < ROWS; ++r)
                for (long d = 0; d < DEPTH; ++d) out[at + r * DEPTH + d] = part.sums[r][d / LANES][d % LANES] / part.total[r];
        }
}
