// A block brings square tiles of both matrices into shared memory, where each element serves a whole row or column of threads.
#include "problem.h"
// @tune TILE = 32, 16
// @launch product(a, b, out) grid(ceil_div(N, TILE), ceil_div(M, TILE)) block(TILE, TILE)

extern "C" __global__ void __launch_bounds__(TILE * TILE) product(const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ out) {
    __shared__ float left[TILE][TILE], right[TILE][TILE];               // widened once, on the way in
    const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int k = 0; k < K; k += TILE) {
        left[y][x] = row < M && k + x < K ? __half2float(a[(long long)row * K + k + x]) : 0;
        right[y][x] = k + y < K && column < N ? __half2float(b[(long long)(k + y) * N + column]) : 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; ++i) sum += left[y][i] * right[i][x];
        __syncthreads();
    }
    if (row < M && column < N) out[(long long)row * N + column] = __float2half(sum);
}
