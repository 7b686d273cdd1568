// The naive port with tiles of the result distributed over the cores, COLUMNS columns of a row at a time.
// @tune COLUMNS = 32, 128
#include "problem.h"

extern "C" void launch(const fp8_e4m3* a, const fp8_e4m3* b, const float* scale_a, const float* scale_b, bf16* out, void*) {
    constexpr long BLOCKS = K / SCALE_BLOCK;
#pragma omp parallel for collapse(2) schedule(static)
    for (long row = 0; row < M; ++row)
        for (long first = 0; first < N; first += COLUMNS)
            for (long column = first; column < first + COLUMNS && column < N; ++column) {
                float sum = 0;
                for (long block = 0; block < BLOCKS; ++block) {
                    float part = 0;
                    for (long step = block * SCALE_BLOCK; step < (block + 1) * SCALE_BLOCK; ++step)
                        part += static_cast<float>(a[row * K + step]) * static_cast<float>(b[column * K + step]);
                    sum += part * scale_a[block * M + row] * scale_b[column / SCALE_BLOCK * BLOCKS + block];
                }
                out[row * N + column] = sum;
            }
}
