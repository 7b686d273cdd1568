// A transposed copy of b turns each element of the result into a dot product
// of two rows, taken in UNROLL vectors.
// @tune UNROLL = 4, 2
#include <cstring>
#include "problem.h"

#if defined(__AVX512F__)
constexpr long LANES = 16;
#else
constexpr long LANES = 8;
#endif
using vec = float __attribute__((vector_size(4 * LANES)));
using loose = float __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }

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

extern "C" void launch(const float* a, const float* b, float* out, void* workspace) {
    float* turned = static_cast<float*>(workspace);
    for (long step = 0; step < K; ++step)
        for (long column = 0; column < N; ++column) turned[column * K + step] = b[step * N + column];
    for (long row = 0; row < M; ++row)
        for (long column = 0; column < N; ++column) out[row * N + column] = dot(a + row * K, turned + column * K);
}
