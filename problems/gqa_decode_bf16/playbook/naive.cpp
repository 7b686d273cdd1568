// One query head after the other, as the formula is written: scores, softmax, weighted sum of the values. One core.
#include <cmath>
#include <limits>
#include "problem.h"

constexpr long SEQUENCES = Q_DIM0, HEADS = Q_DIM1, DEPTH = Q_DIM2;
constexpr long PAGE = K_CACHE_DIM1, KV = K_CACHE_DIM2, PAGES = BLOCK_TABLE_DIM1;

// The place of a sequence's key or value in the cache.
static long place(const std::int32_t* pages, long key, long head) {
    return ((pages[key / PAGE] * PAGE + key % PAGE) * KV + head) * DEPTH;
}

extern "C" size_t workspace_bytes(void) { return PAGES * PAGE * sizeof(float); }

extern "C" void launch(const bf16* q, const bf16* k_cache, const bf16* v_cache, const std::int32_t* block_table,
                       const std::int32_t* lengths, bf16* out, void* workspace) {
    float* scores = static_cast<float*>(workspace);
    const float scale = 1 / std::sqrt(static_cast<float>(DEPTH));
    for (long sequence = 0; sequence < SEQUENCES; ++sequence)
        for (long head = 0; head < HEADS; ++head) {
            const std::int32_t* pages = block_table + sequence * PAGES;
            const long kv = head / (HEADS / KV), keys = lengths[sequence];
            const bf16* query = q + (sequence * HEADS + head) * DEPTH;
            float top = -std::numeric_limits<float>::infinity();
            for (long key = 0; key < keys; ++key) {
                const bf16* row = k_cache + place(pages, key, kv);
                float sum = 0;
                for (long d = 0; d < DEPTH; ++d) sum += static_cast<float>(query[d]) * static_cast<float>(row[d]);
                scores[key] = sum * scale;
                top = scores[key] > top ? scores[key] : top;
            }
            float total = 0;
            for (long key = 0; key < keys; ++key) total += scores[key] = std::exp(scores[key] - top);
            for (long d = 0; d < DEPTH; ++d) {
                float sum = 0;
                for (long key = 0; key < keys; ++key)
                    sum += scores[key] * static_cast<float>(v_cache[place(pages, key, kv) + d]);
                out[(sequence * HEADS + head) * DEPTH + d] = sum / total;
            }
        }
}
