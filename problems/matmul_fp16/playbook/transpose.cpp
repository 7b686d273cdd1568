// A transposed copy of b, in single precision, turns each element of the result into a dot product
// of two rows, taken in UNROLL vectors.
// @tune UNROLL = 4, 2
#include <cstring>
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
static inline void store(float* p, vec v) { *reinterpret_cast<loose*>(p) = v; }

extern "C" size_t workspace_bytes(void) { return (N + 1) * K * sizeof(float); }

static float dot(const float* u, const float* v) {
    vec sums[UNROLL] = {};
    constexpr long WHOLE = K / (UNROLL * LANES) * (UNROLL * LANES);
    for (long i = 0; i < WHOLE; i += UNROLL * LANES)
#pragma GCC unroll 8
        for (long s = 0; s < UNROLL; ++s) sums[s] += load(u + i + s * LANES) * load(v + i + s * LANES);
    float rest = 0;
    for (long i = WHOLE; i < K; ++i) rest += u[i] * v[i];
    for (long s = 1; s < UNROLL; ++s) sums[0] += sums[s];
    for (long lane = 0; lane < LANES; ++lane) rest += sums[0][lane];
    return rest;
}

extern "C" void launch(const half* a, const half* b, half* out, void* workspace) {
    float* turned = static_cast<float*>(workspace);
    float* in = turned + N * K;
    for (long step = 0; step < K; ++step)
        for (long column = 0; column < N; ++column) turned[column * K + step] = static_cast<float>(b[step * N + column]);
    for (long row = 0; row < M; ++row) {
        constexpr long CONVERTED = K / LANES * LANES;
        for (long i = 0; i < CONVERTED; i += LANES) store(in + i, widened(a + row * K + i));
        for (long i = CONVERTED; i < K; ++i) in[i] = static_cast<float>(a[row * K + i]);
        for (long column = 0; column < N; ++column)
            out[row * N + column] = static_cast<half>(dot(in, turned + column * K));
    }
}
