// While the squared distances are added up, the parameters for the same position are prefetched, and with AHEAD the values that
// many bytes further on.
// @tune LANES = 16
// @tune UNROLL = 4, 2
// @tune AHEAD = 0, 2048
// @tune SHARE = 1, 0
#include <cmath>
#include <omp.h>
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
static Moments moments_of(const float* in, long count, const float* weight, const float* bias) {
    if (count <= 0) return {0, 0, 0};
    constexpr long STEP = LANES / 2;
    const long summed = count / (UNROLL * STEP) * (UNROLL * STEP);
    wide sums[UNROLL] = {};
    for (long i = 0; i < summed; i += UNROLL * STEP)
#pragma GCC unroll 8
        for (long u = 0; u < UNROLL; ++u) {
            if (AHEAD) __builtin_prefetch(reinterpret_cast<const char*>(in + i + u * STEP) + AHEAD);
            sums[u] += widened(in + i + u * STEP);
        }
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
                __builtin_prefetch(weight + i + u * LANES, 0, 2);
                __builtin_prefetch(bias + i + u * LANES, 0, 2);
                const vec d = load(in + i + u * LANES) - high - low;
                parts[u] += d * d;
            }
        for (const vec& p : parts)
            for (long lane = 0; lane < LANES; ++lane) squares += p[lane];
    }
    for (long i = squared; i < count; ++i) squares += (in[i] - mean) * (in[i] - mean);
    return {static_cast<double>(count), mean, squares};
}

[[maybe_unused]] static Moments merged(Moments a, Moments b) {
    const double count = a.count + b.count;
    if (count == 0) return a;
    const double distance = b.mean - a.mean;
    return {count, a.mean + distance * (b.count / count),
            a.squares + b.squares + distance * distance * (a.count * b.count / count)};
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

extern "C" size_t workspace_bytes(void) { return X_DIM0 * omp_get_max_threads() * sizeof(Moments); }

// SHARE: all cores work on one sample, each on its piece, and exchange moments. Without it, each core takes whole samples.
extern "C" void launch(const float* x, const float* ln_weight, const float* ln_bias, float* out, void* workspace) {
    Moments* pieces = static_cast<Moments*>(workspace);
#pragma omp parallel
    {
        const long cores = omp_get_num_threads(), core = omp_get_thread_num();
        const long sharing = SHARE ? cores : 1, place = SHARE ? core : 0;
        const long piece = (SIZE / sharing + 63) / 64 * 64;
        const long begin = place * piece < SIZE ? place * piece : SIZE;
        const long end = begin + piece < SIZE && place + 1 < sharing ? begin + piece : SIZE;
        for (long sample = SHARE ? 0 : core; sample < X_DIM0; sample += SHARE ? 1 : cores) {
            const float* in = x + sample * SIZE + begin;
            Moments m = moments_of(in, end - begin, ln_weight + begin, ln_bias + begin);
#if SHARE
            pieces[sample * cores + core] = m;
#pragma omp barrier
            m = {0, 0, 0};
            for (long c = 0; c < cores; ++c) m = merged(m, pieces[sample * cores + c]);
#endif
            normalise(in, ln_weight + begin, ln_bias + begin, end - begin, m, out + sample * SIZE + begin);
        }
    }
    (void)pieces;
}
