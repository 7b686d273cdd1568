// Every element is converted once: b into scratch space, a row of a at a time. Then an ordinary single-precision product with
// rows of b in the inner loop, DEPTH of them at a time so that the sums are loaded and stored less.
// @tune DEPTH = 4, 1, 8
#if defined(__F16C__)
#include <immintrin.h>
#endif
#include "problem.h"

using half = a_t;
#if defined(__AVX512F__)
constexpr long LANES = 16;
#else
constexpr long LANES = 8;
#endif
using vec = float __attribute__((vector_size(4 * LANES)));
using loose = float __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }
static inline void store(float* p, vec v) { *reinterpret_cast<loose*>(p) = v; }

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

extern "C" size_t workspace_bytes(void) { return (K * N + N) * sizeof(float); }

extern "C" void launch(const half* a, const half* b, half* out, void* workspace) {
    float* __restrict wide = static_cast<float*>(workspace);
    float* __restrict sums = wide + K * N;
    constexpr long WHOLE = K * N / LANES * LANES;
    for (long i = 0; i < WHOLE; i += LANES) store(wide + i, widened(b + i));
    for (long i = WHOLE; i < K * N; ++i) wide[i] = static_cast<float>(b[i]);

    for (long row = 0; row < M; ++row) {
        const half* in = a + row * K;
        for (long column = 0; column < N; ++column) sums[column] = 0;
        long step = 0;
        for (; step + DEPTH <= K; step += DEPTH) {
            float factors[DEPTH];
            for (long d = 0; d < DEPTH; ++d) factors[d] = static_cast<float>(in[step + d]);
            for (long column = 0; column < N; ++column) {
                float sum = sums[column];
#pragma GCC unroll 8
                for (long d = 0; d < DEPTH; ++d) sum += factors[d] * wide[(step + d) * N + column];
                sums[column] = sum;
            }
        }
        for (; step < K; ++step)
            for (long column = 0; column < N; ++column)
                sums[column] += static_cast<float>(in[step]) * wide[step * N + column];
        for (long column = 0; column < N; ++column) out[row * N + column] = static_cast<half>(sums[column]);
    }
}
