// Results are rounded by the processor's own instruction. Vectors of LANES values, tokens on all cores.
// @tune LANES = 16, 8
// @tune UNROLL = 4, 2
// @tune SPLIT = 65536, 16384, 0
#include <cmath>
#include <cstring>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif
#include "problem.h"

using vec = float __attribute__((vector_size(4 * LANES)));
using words = std::uint32_t __attribute__((vector_size(4 * LANES)));
using shorts = std::uint16_t __attribute__((vector_size(2 * LANES)));

// LANES values of bfloat16 as floats: the upper halves of their bits.
static inline vec widened(const bf16* p) {
    shorts narrow;
    std::memcpy(&narrow, p, sizeof narrow);
    const words wide = __builtin_convertvector(narrow, words) << 16;
    vec v;
    std::memcpy(&v, &wide, sizeof v);
    return v;
}

// Rounds to nearest even, with the processor's own instruction where it has one: it makes zeros of subnormal results. A NaN keeps
// its upper half, with the quiet bit set.
static inline void store(bf16* p, vec v) {
#if defined(__AVX512BF16__) && LANES == 16
    const __m256bh narrow = _mm512_cvtneps_pbh((__m512)v);
#else
    words wide;
    std::memcpy(&wide, &v, sizeof wide);
    const words rounded = wide + 0x7fffu + ((wide >> 16) & 1u);
    const words found = (wide & 0x7fffffffu) > 0x7f800000u ? wide | 0x400000u : rounded;
    const shorts narrow = __builtin_convertvector(found >> 16, shorts);
#endif
    std::memcpy(p, &narrow, sizeof narrow);
}

constexpr long WIDTH = X_DIM1;

static float sum_of_squares(const bf16* in) {
    vec parts[UNROLL] = {};
    constexpr long WHOLE = WIDTH / (UNROLL * LANES) * (UNROLL * LANES);
    for (long i = 0; i < WHOLE; i += UNROLL * LANES)
#pragma GCC unroll 8
        for (long u = 0; u < UNROLL; ++u) {
            const vec v = widened(in + i + u * LANES);
            parts[u] += v * v;
        }
    float sum = 0;
    for (long i = WHOLE; i < WIDTH; ++i) sum += static_cast<float>(in[i]) * static_cast<float>(in[i]);
    for (long u = 1; u < UNROLL; ++u) parts[0] += parts[u];
    for (long lane = 0; lane < LANES; ++lane) sum += parts[0][lane];
    return sum;
}

static void normalise(const bf16* in, const bf16* weight, bf16* to) {
    const float scale = 1 / std::sqrt(sum_of_squares(in) / WIDTH + static_cast<float>(EPS));
    constexpr long WHOLE = WIDTH / LANES * LANES;
    for (long i = 0; i < WHOLE; i += LANES) store(to + i, widened(in + i) * scale * widened(weight + i));
    for (long i = WHOLE; i < WIDTH; ++i) to[i] = static_cast<float>(in[i]) * scale * static_cast<float>(weight[i]);
}

extern "C" void launch(const bf16* x, const bf16* weight, bf16* out, void*) {
#pragma omp parallel for schedule(static) if (X_NUMEL > SPLIT)
    for (long token = 0; token < X_DIM0; ++token) normalise(x + token * WIDTH, weight, out + token * WIDTH);
}
