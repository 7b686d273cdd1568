// The naive port with rows of the result distributed over the cores, CHUNK at a time.
// @tune CHUNK = 8, 1
#include "problem.h"

using half = a_t;

extern "C" void launch(const half* a, const half* b, half* out, void*) {
#pragma omp parallel for schedule(dynamic, CHUNK)
    for (long row = 0; row < M; ++row)
        for (long column = 0; column < N; ++column) {
            float sum = 0;
            for (long step = 0; step < K; ++step)
                sum += static_cast<float>(a[row * K + step]) * static_cast<float>(b[step * N + column]);
            out[row * N + column] = static_cast<half>(sum);
        }
}
