// One element of the result after the other: a sum for each block, times its two scales. One core.
#include "problem.h"

extern "C" void launch(const fp8_e4m3* a, const fp8_e4m3* b, const float* scale_a, const float* scale_b, bf16* out, void*) {
    constexpr long BLOCKS = K / SCALE_BLOCK;
    for (long row = 0; row < M; ++row)
        for (long column = 0; column < N; ++column) {
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
