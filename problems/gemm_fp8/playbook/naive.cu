// One thread an element of the result: a sum for each block in single precision, times its two scales.
#include "problem.h"
// @tune ROWS = 8, 4, 16
// @launch product(a, b, scale_a, scale_b, out) grid(ceil_div(N, 32), ceil_div(M, ROWS)) block(32, ROWS)

#define BLOCKS (K / SCALE_BLOCK)

extern "C" __global__ void product(const __nv_fp8_e4m3* a, const __nv_fp8_e4m3* b, const float* scale_a, const float* scale_b,
                                   __nv_bfloat16* out) {
    const int row = blockIdx.y * ROWS + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
    if (row >= M || column >= N) return;
    float sum = 0;
    for (int block = 0; block < BLOCKS; ++block) {
        float part = 0;
        for (int k = block * SCALE_BLOCK; k < (block + 1) * SCALE_BLOCK; ++k)
            part += (float)a[(long long)row * K + k] * (float)b[(long long)column * K + k];
        sum += part * scale_a[(long long)block * M + row] * scale_b[column / SCALE_BLOCK * BLOCKS + block];
    }
    out[(long long)row * N + column] = __float2bfloat16(sum);
}
