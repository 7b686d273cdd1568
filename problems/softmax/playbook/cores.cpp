// The three passes of the naive port, with rows dealt out to the cores CHUNK at a time.
// @tune CHUNK = 1, 4, 16
#include <cmath>
#include <limits>
#include "problem.h"

extern "C" void launch(const float* x, float* out, void*) {
#pragma omp parallel for schedule(dynamic, CHUNK)
    for (long row = 0; row < X_DIM0; ++row) {
        const float* in = x + row * X_DIM1;
        float* to = out + row * X_DIM1;
        float largest = -std::numeric_limits<float>::infinity();
        for (long i = 0; i < X_DIM1; ++i) largest = in[i] > largest ? in[i] : largest;
        double sum = 0;
        for (long i = 0; i < X_DIM1; ++i) {
            to[i] = std::exp(in[i] - largest);
            sum += to[i];
        }
        const float scale = static_cast<float>(1 / sum);
        for (long i = 0; i < X_DIM1; ++i) to[i] *= scale;
    }
}
