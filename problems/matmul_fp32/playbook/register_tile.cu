// A thread keeps 8 x 8 results in registers: sixteen values from shared memory feed sixty-four multiply-adds.
#include "problem.h"
// @tune DEPTH = 16, 8, 32
// @launch product(a, b, out) grid(ceil_div(N, 128), ceil_div(M, 128)) block(256)

#define PITCH (DEPTH + 4)
// A block's tile is 128 x 128, a thread's 8 x 8: rows STEP apart so that the reads of a warp fall into different banks.
#define TILE 128
#define THREADS 256
struct Place { int row, column; };
__device__ __forceinline__ Place place_of_thread() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return {warp / 2 * 32 + lane / 8, warp % 2 * 64 + lane % 8 * 4};      // rows +4*i, columns +32*j
}
// sum += left (TILE x DEPTH, pitch PITCH) * right (DEPTH x TILE)
__device__ __forceinline__ void multiply(float (&sum)[8][8], const float* left, const float* right, Place at) {
#pragma unroll
    for (int k = 0; k < DEPTH; k += 4) {
        float4 l[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) l[i] = *(const float4*)(left + (at.row + 4 * i) * PITCH + k);
#pragma unroll
        for (int d = 0; d < 4; ++d) {
            float4 r[2] = {*(const float4*)(right + (k + d) * TILE + at.column), *(const float4*)(right + (k + d) * TILE + at.column + 32)};
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float v = d == 0 ? l[i].x : d == 1 ? l[i].y : d == 2 ? l[i].z : l[i].w;
                sum[i][0] += v * r[0].x, sum[i][1] += v * r[0].y, sum[i][2] += v * r[0].z, sum[i][3] += v * r[0].w;
                sum[i][4] += v * r[1].x, sum[i][5] += v * r[1].y, sum[i][6] += v * r[1].z, sum[i][7] += v * r[1].w;
            }
        }
    }
}
__device__ __forceinline__ void write_tile(float* out, const float (&sum)[8][8], int row0, int column0, Place at) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int row = row0 + at.row + 4 * i;
        if (row >= M) continue;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int column = column0 + at.column + 32 * j;
            float* to = out + (long long)row * N + column;
#if N % 4 == 0
            if (column < N) *(float4*)to = make_float4(sum[i][4 * j], sum[i][4 * j + 1], sum[i][4 * j + 2], sum[i][4 * j + 3]);
#else
#pragma unroll
            for (int c = 0; c < 4; ++c)
                if (column + c < N) to[c] = sum[i][4 * j + c];
#endif
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) product(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out) {
    __shared__ __align__(16) float left[TILE * PITCH], right[DEPTH * TILE];
    const int row0 = blockIdx.y * TILE, column0 = blockIdx.x * TILE;
    const Place at = place_of_thread();
    float sum[8][8] = {};
    for (int k0 = 0; k0 < K; k0 += DEPTH) {
#pragma unroll
        for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
            const int r = i / DEPTH, c = i % DEPTH;
            left[r * PITCH + c] = row0 + r < M && k0 + c < K ? a[(long long)(row0 + r) * K + k0 + c] : 0;
        }
#pragma unroll
        for (int i = threadIdx.x; i < DEPTH * TILE; i += THREADS) {
            const int r = i / TILE, c = i % TILE;
            right[i] = k0 + r < K && column0 + c < N ? b[(long long)(k0 + r) * N + column0 + c] : 0;
        }
        __syncthreads();
        multiply(sum, left, right, at);
        __syncthreads();
    }
    write_tile(out, sum, row0, column0, at);
}
