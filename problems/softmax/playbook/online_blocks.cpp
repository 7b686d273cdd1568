// One pass for maximum and sum, BLOCK values at a time while they are in the first-level cache; a second pass
// computes the exponential again and writes the result. Nothing is written and read back.
// @tune LANES = 16
// @tune UNROLL = 4, 2
// @tune BLOCK = 4096, 1024, 16384
#include <cmath>
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

static float largest_of(const float* in, long count) {
    vec top[UNROLL];
    for (vec& t : top) t = broadcast(-__builtin_inff());
    long i = 0;
    for (; i + UNROLL * LANES <= count; i += UNROLL * LANES)
#pragma GCC unroll 8
        for (long u = 0; u < UNROLL; ++u) {
            const vec v = load(in + i + u * LANES);
            top[u] = v > top[u] ? v : top[u];
        }
    for (; i < count; i += LANES) {
        const long left = count - i;
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

static double sum_of(const float* in, long count, float largest) {
    vec sums[UNROLL] = {};
    long i = 0;
    for (; i + UNROLL * LANES <= count; i += UNROLL * LANES)
#pragma GCC unroll 8
        for (long u = 0; u < UNROLL; ++u) sums[u] += exp_negative(load(in + i + u * LANES) - largest);
    for (; i < count; i += LANES) {
        const long left = count - i < LANES ? count - i : LANES;
        sums[0] += exp_negative(load_part(in + i, left, -__builtin_inff()) - largest);
    }
    return total_of(sums);
}

struct Moments {
    float largest;
    double sum;
};

// Maximum and sum of e^(x - largest) in one pass, BLOCK values at a time.
static Moments moments_of(const float* in) {
    Moments m = {-__builtin_inff(), 0};
    for (long start = 0; start < X_DIM1; start += BLOCK) {
        const long count = X_DIM1 - start < BLOCK ? X_DIM1 - start : BLOCK;
        const float here = largest_of(in + start, count);
        if (here > m.largest) {
            m.sum *= std::exp(m.largest - here);
            m.largest = here;
        }
        m.sum += sum_of(in + start, count, m.largest);
    }
    return m;
}

static void write_row(const float* in, Moments m, float* to) {
    const float scale = static_cast<float>(1 / m.sum);
    long i = 0;
    for (; i + UNROLL * LANES <= X_DIM1; i += UNROLL * LANES)
#pragma GCC unroll 8
        for (long u = 0; u < UNROLL; ++u)
            store(to + i + u * LANES, exp_negative(load(in + i + u * LANES) - m.largest) * scale);
    for (; i < X_DIM1; i += LANES) {
        const long left = X_DIM1 - i < LANES ? X_DIM1 - i : LANES;
        const vec e = exp_negative(load_part(in + i, left, 0) - m.largest) * scale;
        std::memcpy(to + i, &e, left * sizeof(float));
    }
}

extern "C" void launch(const float* x, float* out, void*) {
#pragma omp parallel for schedule(static)
    for (long row = 0; row < X_DIM0; ++row) {
        const float* in = x + row * X_DIM1;
        write_row(in, moments_of(in), out + row * X_DIM1);
    }
}
