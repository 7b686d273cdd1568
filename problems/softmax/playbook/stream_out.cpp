// Each core keeps the exponentials of its row in a scratch row that stays in its own cache, and writes the output once,
// with non-temporal stores.
// @tune LANES = 16
// @tune UNROLL = 4, 2
// @tune STREAM = 1, 0
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

// Writes e^(x - largest) to `to` and returns the sum.
static double exponentials(const float* in, float largest, float* to) {
    vec sums[UNROLL] = {};
    long i = 0;
    for (; i + UNROLL * LANES <= X_DIM1; i += UNROLL * LANES)
#pragma GCC unroll 8
        for (long u = 0; u < UNROLL; ++u) {
            const vec e = exp_negative(load(in + i + u * LANES) - largest);
            store(to + i + u * LANES, e);
            sums[u] += e;
        }
    for (; i < X_DIM1; i += LANES) {
        const long left = X_DIM1 - i < LANES ? X_DIM1 - i : LANES;
        const vec e = exp_negative(load_part(in + i, left, -__builtin_inff()) - largest);
        std::memcpy(to + i, &e, left * sizeof(float));
        sums[0] += e;
    }
    return total_of(sums);
}

#if STREAM
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
#else
static void write_scaled(const float* from, float scale, float* to) {
    for (long i = 0; i < X_DIM1; ++i) to[i] = from[i] * scale;
}
#endif

constexpr long PITCH = (X_DIM1 + 31) / 16 * 16;

extern "C" size_t workspace_bytes(void) { return omp_get_max_threads() * PITCH * sizeof(float); }

extern "C" void launch(const float* x, float* out, void* workspace) {
#pragma omp parallel
    {
        float* scratch = static_cast<float*>(workspace) + omp_get_thread_num() * PITCH;
#pragma omp for schedule(static)
        for (long row = 0; row < X_DIM0; ++row) {
            const float* in = x + row * X_DIM1;
            const double sum = exponentials(in, largest_of(in), scratch);
            write_scaled(scratch, static_cast<float>(1 / sum), out + row * X_DIM1);
        }
    }
}
