// Layer normalisation of each sample, as the formula is written: mean, variance, result. One core, one value at a time.
#include <cmath>
#include "problem.h"

#ifndef EPS
#define EPS 1e-5
#endif

constexpr long SIZE = LN_WEIGHT_NUMEL;

extern "C" void launch(const float* x, const float* ln_weight, const float* ln_bias, float* out, void*) {
    for (long sample = 0; sample < X_DIM0; ++sample) {
        const float* in = x + sample * SIZE;
        float* to = out + sample * SIZE;
        double mean = 0;
        for (long i = 0; i < SIZE; ++i) mean += in[i];
        mean /= SIZE;
        double variance = 0;
        for (long i = 0; i < SIZE; ++i) variance += (in[i] - mean) * (in[i] - mean);
        const double scale = 1 / std::sqrt(variance / SIZE + EPS);
        for (long i = 0; i < SIZE; ++i)
            to[i] = static_cast<float>((in[i] - mean) * scale) * ln_weight[i] + ln_bias[i];
    }
}
