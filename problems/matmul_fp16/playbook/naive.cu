// One thread an element of the result, summed in single precision.
#include "problem.h"
// @tune ROWS = 8, 4, 16
// @launch product(a, b, out) grid(ceil_div(N, 32), ceil_div(M, ROWS)) block(32, ROWS)

extern "C" __global__ void product(const __half* a, const __half* b, __half* out) {
    const int row = blockIdx.y * ROWS + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
    if (row >= M || column >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += __half2float(a[(long long)row * K + k]) * __half2float(b[(long long)k * N + column]);
    out[(long long)row * N + column] = __float2half(sum);
}
