// The next token is fetched while this one's result is written, past the caches. Vectors of LANES values, tokens on all cores.
// @tune LANES = 16, 8
// @tune UNROLL = 4, 2
// @tune SPLIT = 65536, 16384, 0
#include <cmath>
#include <cstring>
#if defined(__SSE2__)
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

// Rounds to nearest even; a NaN keeps its upper half, with the quiet bit set.
static inline shorts narrowed(vec v) {
    words wide;
    std::memcpy(&wide, &v, sizeof wide);
    const words rounded = wide + 0x7fffu + ((wide >> 16) & 1u);
    const words found = (wide & 0x7fffffffu) > 0x7f800000u ? wide | 0x400000u : rounded;
    return __builtin_convertvector(found >> 16, shorts);
}

// Writes LANES values to an aligned place, past the caches where the processor can.
static inline void stream(bf16* p, shorts v) {
#if defined(__AVX__) && LANES == 16
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)v);
#elif defined(__SSE2__) && LANES == 8
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), (__m128i)v);
#else
    std::memcpy(p, &v, sizeof v);
#endif
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

static void normalise(const bf16* in, const bf16* weight, bf16* to, const bf16* next) {
    const float scale = 1 / std::sqrt(sum_of_squares(in) / WIDTH + static_cast<float>(EPS));
    long i = 0;
    for (; i < WIDTH && reinterpret_cast<std::uintptr_t>(to + i) % sizeof(shorts); ++i)
        to[i] = static_cast<float>(in[i]) * scale * static_cast<float>(weight[i]);
    for (; i + LANES <= WIDTH; i += LANES) {
        __builtin_prefetch(next + i, 0, 3);
        stream(to + i, narrowed(widened(in + i) * scale * widened(weight + i)));
    }
    for (; i < WIDTH; ++i) to[i] = static_cast<float>(in[i]) * scale * static_cast<float>(weight[i]);
}

extern "C" void launch(const bf16* x, const bf16* weight, bf16* out, void*) {
#pragma omp parallel if (X_NUMEL > SPLIT)
    {
#pragma omp for schedule(static)
        for (long token = 0; token < X_DIM0; ++token) {
            const long next = token + 1 < X_DIM0 ? token + 1 : token;
            normalise(x + token * WIDTH, weight, out + token * WIDTH, x + next * WIDTH);
        }
#if defined(__SSE2__)
        _mm_sfence();
#endif
    }
}
