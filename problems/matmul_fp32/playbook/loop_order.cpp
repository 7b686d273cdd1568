// Rows of b and of the result in the inner loop, DEPTH rows of b at a time so that the result is loaded and stored less.
// @tune DEPTH = 4, 1, 8
#include "problem.h"

extern "C" void launch(const float* __restrict a, const float* __restrict b, float* __restrict out, void*) {
    for (long row = 0; row < M; ++row) {
        float* to = out + row * N;
        const float* in = a + row * K;
        for (long column = 0; column < N; ++column) to[column] = 0;
        long step = 0;
        for (; step + DEPTH <= K; step += DEPTH)
            for (long column = 0; column < N; ++column) {
                float sum = to[column];
#pragma GCC unroll 8
                for (long d = 0; d < DEPTH; ++d) sum += in[step + d] * b[(step + d) * N + column];
                to[column] = sum;
            }
        for (; step < K; ++step)
            for (long column = 0; column < N; ++column) to[column] += in[step] * b[step * N + column];
    }
}
