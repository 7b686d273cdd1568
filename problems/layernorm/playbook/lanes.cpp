// Sums in UNROLL vectors of LANES values; the mean by vectors of doubles, so that large means cost no accuracy.
// @tune LANES = 16, 8
// @tune UNROLL = 4, 2, 1
#include <cmath>
#include "problem.h"

#ifndef EPS
#define EPS 1e-5
#endif

using vec = float __attribute__((vector_size(4 * LANES)));
using loose = float __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
using wide = double __attribute__((vector_size(4 * LANES)));
using half_loose = float __attribute__((vector_size(2 * LANES), aligned(4), may_alias));

constexpr long SIZE = LN_WEIGHT_NUMEL;
// At most this many squares are added in single precision: one large value must not absorb all later ones.
constexpr long RUN = 4096;

struct Moments {
    double count, mean, squares;
};

static inline vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }
static inline void store(float* p, vec v) { *reinterpret_cast<loose*>(p) = v; }

static inline wide widened(const float* p) {
    return __builtin_convertvector(*reinterpret_cast<const half_loose*>(p), wide);
}

// Mean of `count` values by vectors of doubles, then the squared distances from it.
static Moments moments_of(const float* in, long count) {
    if (count <= 0) return {0, 0, 0};
    constexpr long STEP = LANES / 2;
    const long summed = count / (UNROLL * STEP) * (UNROLL * STEP);
    wide sums[UNROLL] = {};
    for (long i = 0; i < summed; i += UNROLL * STEP)
#pragma GCC unroll 8
        for (long u = 0; u < UNROLL; ++u) sums[u] += widened(in + i + u * STEP);
    double sum = 0;
    for (long i = summed; i < count; ++i) sum += in[i];
    for (const wide& s : sums)
        for (long lane = 0; lane < STEP; ++lane) sum += s[lane];
    const double mean = sum / count;

    const float high = static_cast<float>(mean);
    const float low = static_cast<float>(mean - high);
    const long squared = count / (UNROLL * LANES) * (UNROLL * LANES);
    double squares = 0;
    for (long start = 0; start < squared; start += RUN) {
        const long stop = start + RUN < squared ? start + RUN : squared;
        vec parts[UNROLL] = {};
        for (long i = start; i < stop; i += UNROLL * LANES)
#pragma GCC unroll 8
            for (long u = 0; u < UNROLL; ++u) {
                const vec d = load(in + i + u * LANES) - high - low;
                parts[u] += d * d;
            }
        for (const vec& p : parts)
            for (long lane = 0; lane < LANES; ++lane) squares += p[lane];
    }
    for (long i = squared; i < count; ++i) squares += (in[i] - mean) * (in[i] - mean);
    return {static_cast<double>(count), mean, squares};
}

static void normalise(const float* in, const float* weight, const float* bias, long count, Moments m, float* to) {
    const float high = static_cast<float>(m.mean);
    const float low = static_cast<float>(m.mean - high);
    const float scale = static_cast<float>(1 / std::sqrt(m.squares / m.count + EPS));
    const long whole = count / LANES * LANES;
    for (long i = 0; i < whole; i += LANES)
        store(to + i, (load(in + i) - high - low) * scale * load(weight + i) + load(bias + i));
    for (long i = whole; i < count; ++i) to[i] = (in[i] - high - low) * scale * weight[i] + bias[i];
}

extern "C" void launch(const float* x, const float* ln_weight, const float* ln_bias, float* out, void*) {
    for (long sample = 0; sample < X_DIM0; ++sample) {
        const float* in = x + sample * SIZE;
        normalise(in, ln_weight, ln_bias, SIZE, moments_of(in, SIZE), out + sample * SIZE);
    }
}
