// The naive port with rows of the result distributed over the cores, CHUNK at a time.
// @tune CHUNK = 8, 1
#include "problem.h"

extern "C" void launch(const float* a, const float* b, float* out, void*) {
#pragma omp parallel for schedule(dynamic, CHUNK)
    for (long row = 0; row < M; ++row)
        for (long column = 0; column < N; ++column) {
            float sum = 0;
            for (long step = 0; step < K; ++step)
                sum += a[row * K + step] * b[step * N + column];
            out[row * N + column] = sum;
        }
}
