// Both moments in single-precision lanes and one pass, BLOCK values at a time, as distances from the mean so far.
// @tune LANES = 16
// @tune UNROLL = 4, 2
// @tune BLOCK = 4096, 1024
// @tune SHARE = 1, 0
#include <cmath>
#include <omp.h>
#include "problem.h"

#ifndef EPS
#define EPS 1e-5
#endif

using vec = float __attribute__((vector_size(4 * LANES)));
using loose = float __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

constexpr long SIZE = LN_WEIGHT_NUMEL;

struct Moments {
    double count, mean, squares;
};

static inline vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }
static inline void store(float* p, vec v) { *reinterpret_cast<loose*>(p) = v; }

[[maybe_unused]] static Moments merged(Moments a, Moments b) {
    const double count = a.count + b.count;
    if (count == 0) return a;
    const double distance = b.mean - a.mean;
    return {count, a.mean + distance * (b.count / count),
            a.squares + b.squares + distance * distance * (a.count * b.count / count)};
}

// Both moments of one block in one pass, in single precision, as distances from `origin`, a value near its mean.
static Moments block_moments(const float* in, long count, float origin) {
    const long whole = count / (UNROLL * LANES) * (UNROLL * LANES);
    vec sums[UNROLL] = {}, parts[UNROLL] = {};
    for (long i = 0; i < whole; i += UNROLL * LANES)
#pragma GCC unroll 8
        for (long u = 0; u < UNROLL; ++u) {
            const vec d = load(in + i + u * LANES) - origin;
            sums[u] += d;
            parts[u] += d * d;
        }
    double sum = 0, squares = 0;
    for (long i = whole; i < count; ++i) {
        const double d = static_cast<double>(in[i]) - origin;
        sum += d;
        squares += d * d;
    }
    for (long u = 1; u < UNROLL; ++u) {
        sums[0] += sums[u];
        parts[0] += parts[u];
    }
    for (long lane = 0; lane < LANES; ++lane) {
        sum += sums[0][lane];
        squares += parts[0][lane];
    }
    const double within = squares - sum * sum / count;
    return {static_cast<double>(count), origin + sum / count, within > 0 ? within : 0};
}

// Blocks are measured from the mean of all before them; the first one from the mean of its first few values.
static Moments moments_of(const float* in, long count) {
    if (count <= 0) return {0, 0, 0};
    const long first = count < 64 ? count : 64;
    double start_mean = 0;
    for (long i = 0; i < first; ++i) start_mean += in[i];
    Moments m = {0, start_mean / first, 0};
    for (long start = 0; start < count; start += BLOCK)
        m = merged(m, block_moments(in + start, count - start < BLOCK ? count - start : BLOCK,
                                    static_cast<float>(m.mean)));
    return m;
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
            Moments m = moments_of(in, end - begin);
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
