// Base-two exponentials into a scratch row in the core's own cache, the next row prefetched meanwhile, and the output
// written once with non-temporal stores.
// @tune LANES = 16
// @tune UNROLL = 4, 2
// @tune DEGREE = 5, 6
// @tune FETCH = 1, 0
#include <omp.h>
#include <cstdint>
#if defined(__AVX__)
#include <immintrin.h>
#endif
#include <cstring>
#include "problem.h"

using vec = float __attribute__((vector_size(4 * LANES)));
using ivec = int __attribute__((vector_size(4 * LANES)));
using loose = float __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }
static inline void store(float* p, vec v) { *reinterpret_cast<loose*>(p) = v; }
static inline vec broadcast(float v) { return v - vec{}; }

static inline vec load_part(const float* p, long count, float fill) {
    vec v = broadcast(fill);
    std::memcpy(&v, p, count * sizeof(float));
    return v;
}

constexpr float LOG2_E = 1.44269504f;

// 2^t for t <= 0 with a polynomial of degree DEGREE on |f| <= 1/2. Gives 0 below -150, keeps NaN.
static inline vec exp2_negative(vec t) {
    t = t < -150.0f ? broadcast(-150.0f) : t;
    const vec shifted = t + 12582912.0f;
    const vec f = t - (shifted - 12582912.0f);
#if DEGREE == 6
    vec p = f * 1.53533620e-4f + 1.33988750e-3f;
    p = p * f + 9.61843692e-3f;
    p = p * f + 5.55033237e-2f;
    p = p * f + 2.40226477e-1f;
    p = p * f + 6.93147182e-1f;
#else
    static_assert(DEGREE == 5, "coefficients are written down for degrees 5 and 6");
    vec p = f * 1.32647273e-3f + 9.67151299e-3f;
    p = p * f + 5.55073358e-2f;
    p = p * f + 2.40222424e-1f;
    p = p * f + 6.93147004e-1f;
#endif
    p = p * f + 1.0f;
    ivec bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + (191 << 23);
    vec scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return p * scale * 5.42101086e-20f;
}

static float largest_of(const float* in) {
    vec top[UNROLL];
    for (vec& t : top) t = broadcast(-__builtin_inff());
    long i = 0;
    for (; i + UNROLL * LANES <= X_DIM1; i += UNROLL * LANES)
#pragma GCC unroll 8
        for (long u = 0; u < UNROLL; ++u) {
            const vec v = load(in + i + u * LANES);
            top[u] = v > top[u] ? v : top[u];
        }
    for (; i < X_DIM1; i += LANES) {
        const long left = X_DIM1 - i;
        const vec v = left < LANES ? load_part(in + i, left, -__builtin_inff()) : load(in + i);
        top[0] = v > top[0] ? v : top[0];
    }
    float best = -__builtin_inff();
    for (const vec& t : top)
        for (long lane = 0; lane < LANES; ++lane) best = t[lane] > best ? t[lane] : best;
    return best;
}

static double total_of(const vec (&sums)[UNROLL]) {
    double sum = 0;
    for (const vec& s : sums)
        for (long lane = 0; lane < LANES; ++lane) sum += s[lane];
    return sum;
}

// Writes e^(x * LOG2_E - shift) to `to` and returns the sum; prefetches the row `next` meanwhile.
static double exponentials(const float* in, float largest, float* to, const float* next) {
    const float shift = largest * LOG2_E;
    vec sums[UNROLL] = {};
    long i = 0;
    for (; i + UNROLL * LANES <= X_DIM1; i += UNROLL * LANES)
#pragma GCC unroll 8
        for (long u = 0; u < UNROLL; ++u) {
            if (FETCH) __builtin_prefetch(next + i + u * LANES, 0, 2);
            const vec e = exp2_negative(load(in + i + u * LANES) * LOG2_E - shift);
            store(to + i + u * LANES, e);
            sums[u] += e;
        }
    for (; i < X_DIM1; i += LANES) {
        const long left = X_DIM1 - i < LANES ? X_DIM1 - i : LANES;
        const vec e = exp2_negative(load_part(in + i, left, -__builtin_inff()) * LOG2_E - shift);
        std::memcpy(to + i, &e, left * sizeof(float));
        sums[0] += e;
    }
    return total_of(sums);
}

// Non-temporal store where the processor has one: the line is not fetched first and does not evict the next row.
static void write_scaled(const float* from, float scale, float* to) {
    long i = 0;
#if defined(__AVX512F__)
    const __m512 s = _mm512_set1_ps(scale);
    for (; i < X_DIM1 && reinterpret_cast<std::uintptr_t>(to + i) % 64; ++i) to[i] = from[i] * scale;
    for (; i + 16 <= X_DIM1; i += 16) _mm512_stream_ps(to + i, _mm512_mul_ps(_mm512_loadu_ps(from + i), s));
#elif defined(__AVX__)
    const __m256 s = _mm256_set1_ps(scale);
    for (; i < X_DIM1 && reinterpret_cast<std::uintptr_t>(to + i) % 32; ++i) to[i] = from[i] * scale;
    for (; i + 8 <= X_DIM1; i += 8) _mm256_stream_ps(to + i, _mm256_mul_ps(_mm256_loadu_ps(from + i), s));
#endif
    for (; i < X_DIM1; ++i) to[i] = from[i] * scale;
}

constexpr long PITCH = (X_DIM1 + 31) / 16 * 16;

extern "C" size_t workspace_bytes(void) { return omp_get_max_threads() * PITCH * sizeof(float); }

extern "C" void launch(const float* x, float* out, void* workspace) {
#pragma omp parallel
    {
        float* scratch = static_cast<float*>(workspace) + omp_get_thread_num() * PITCH;
#pragma omp for schedule(static)
        for (long row = 0; row < X_DIM0; ++row) {
            const float* in = x + row * X_DIM1;
            const float* next = row + 1 < X_DIM0 ? in + X_DIM1 : in;
            const double sum = exponentials(in, largest_of(in), scratch, next);
            write_scaled(scratch, static_cast<float>(1 / sum), out + row * X_DIM1);
        }
    }
}
