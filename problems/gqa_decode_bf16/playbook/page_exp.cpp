// The exponentials of a page's scores as one vector for each query; groups on all cores, sequences in parts.
// @tune PARTS = 2, 1, 4
#include <cmath>
#include <cstring>
#include <limits>
#include "problem.h"

constexpr long SEQUENCES = Q_DIM0, HEADS = Q_DIM1, DEPTH = Q_DIM2;
constexpr long PAGE = K_CACHE_DIM1, KV = K_CACHE_DIM2, PAGES = BLOCK_TABLE_DIM1;
constexpr long ROWS = HEADS / KV, LANES = 16, WIDTH = DEPTH / LANES;
static_assert(DEPTH % LANES == 0, "a head is a number of whole vectors");
static_assert(PAGE == LANES, "a page's scores are one vector");

using vec = float __attribute__((vector_size(4 * LANES)));
using ivec = std::int32_t __attribute__((vector_size(4 * LANES)));
using words = std::uint32_t __attribute__((vector_size(4 * LANES)));
using shorts = std::uint16_t __attribute__((vector_size(2 * LANES)));

static inline vec broadcast(float v) { return v - vec{}; }

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

static inline float largest_of(vec v) {
    float top = v[0];
    for (long lane = 1; lane < LANES; ++lane) top = v[lane] > top ? v[lane] : top;
    return top;
}

// e^x for x <= 0, to about one unit in the last place: 2^n * e^r with |r| <= ln(2)/2. Gives 0 below -104, keeps NaN.
static inline vec exp_negative(vec x) {
    x = x < -104.0f ? broadcast(-104.0f) : x;
    const vec shifted = x * 1.44269504f + 12582912.0f;
    const vec n = shifted - 12582912.0f;
    vec r = x - n * 0.693145752f;
    r = r - n * 1.42860677e-6f;
    vec p = r * 1.38146128e-3f + 8.36871006e-3f;
    p = p * r + 4.16683890e-2f;
    p = p * r + 1.66665211e-1f;
    p = p * r + 0.49999994f;
    p = p * (r * r) + r + 1.0f;
    ivec bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + (191 << 23);
    vec scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return p * scale * 5.42101086e-20f;
}

// What a part of the keys gives for the query heads of one group: running maxima, sums of weights, weighted values.
struct Part {
    float top[ROWS], total[ROWS];
    vec sums[ROWS][WIDTH];
};

// The products of the group's queries with a page's keys; -inf where there is no key.
static void scores_of(const vec (&wanted)[ROWS][WIDTH], const bf16* keys, long count, vec (&scores)[ROWS]) {
    for (vec& s : scores) s = broadcast(-std::numeric_limits<float>::infinity());
    for (long key = 0; key < count; ++key) {
        vec wide[WIDTH];
#pragma GCC unroll 8
        for (long w = 0; w < WIDTH; ++w) wide[w] = widened(keys + key * KV * DEPTH + w * LANES);
        for (long r = 0; r < ROWS; ++r) {
            vec sum = wanted[r][0] * wide[0];
#pragma GCC unroll 8
            for (long w = 1; w < WIDTH; ++w) sum += wanted[r][w] * wide[w];
            scores[r][key] = total_of(sum);
        }
    }
}

// Adds a page's values, weighted, to the sums.
static void add_values(const vec (&weights)[ROWS], const bf16* values, long count, Part& part) {
    for (long key = 0; key < count; ++key) {
        vec wide[WIDTH];
#pragma GCC unroll 8
        for (long w = 0; w < WIDTH; ++w) wide[w] = widened(values + key * KV * DEPTH + w * LANES);
        for (long r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
            for (long w = 0; w < WIDTH; ++w) part.sums[r][w] += weights[r][key] * wide[w];
    }
}

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
        const long count = length - page * PAGE < PAGE ? length - page * PAGE : PAGE;
        const long base = (pages[page] * PAGE * KV + kv) * DEPTH;
        vec weights[ROWS];
        scores_of(wanted, k_cache + base, count, weights);
        for (long r = 0; r < ROWS; ++r) {
            const float peak = largest_of(weights[r]), top = peak > part.top[r] ? peak : part.top[r];
            const float keep = std::exp(part.top[r] - top);
            weights[r] = exp_negative(weights[r] - top);
            part.total[r] = part.total[r] * keep + total_of(weights[r]);
            for (long w = 0; w < WIDTH; ++w) part.sums[r][w] *= keep;
            part.top[r] = top;
        }
        add_values(weights, v_cache + base, count, part);
    }
}

extern "C" size_t workspace_bytes(void) { return SEQUENCES * KV * PARTS * sizeof(Part) + alignof(Part); }

static void merge(const Part* parts, bf16* out) {
    for (long r = 0; r < ROWS; ++r) {
        float top = parts[0].top[r], total = 0;
        for (long p = 1; p < PARTS; ++p) top = parts[p].top[r] > top ? parts[p].top[r] : top;
        vec sums[WIDTH] = {};
        for (long p = 0; p < PARTS; ++p) {
            if (parts[p].total[r] == 0) continue;
            const float keep = std::exp(parts[p].top[r] - top);
            total += parts[p].total[r] * keep;
            for (long w = 0; w < WIDTH; ++w) sums[w] += parts[p].sums[r][w] * keep;
        }
        for (long d = 0; d < DEPTH; ++d) out[r * DEPTH + d] = sums[d / LANES][d % LANES] / total;
    }
}

extern "C" void launch(const bf16* q, const bf16* k_cache, const bf16* v_cache, const std::int32_t* block_table,
                       const std::int32_t* lengths, bf16* out, void* workspace) {
    const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(workspace);
    Part* parts = reinterpret_cast<Part*>((start + alignof(Part) - 1) / alignof(Part) * alignof(Part));
#pragma omp parallel
    {
#pragma omp for collapse(3) schedule(static)
        for (long sequence = 0; sequence < SEQUENCES; ++sequence)
            for (long kv = 0; kv < KV; ++kv)
                for (long p = 0; p < PARTS; ++p) {
                    const long pages = (lengths[sequence] + PAGE - 1) / PAGE;
                    attend(q + (sequence * HEADS + kv * ROWS) * DEPTH, k_cache, v_cache, block_table + sequence * PAGES, kv,
                           pages * p / PARTS, pages * (p + 1) / PARTS, lengths[sequence],
                           parts[(sequence * KV + kv) * PARTS + p]);
                }
#pragma omp for schedule(static)
        for (long group = 0; group < SEQUENCES * KV; ++group) merge(parts + group * PARTS, out + group * ROWS * DEPTH);
    }
}
