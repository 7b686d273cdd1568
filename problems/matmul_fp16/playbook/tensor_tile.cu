// The block tile in half precision, multiplied by the tensor cores: eight warps, 64 x 32 results each.
#include <mma.h>
#include "problem.h"
// @tune DEPTH = 32, 64
// @launch product(a, b, out) grid(ceil_div(N, 128), ceil_div(M, 128)) block(256)

#define ROWS 128
#define COLUMNS 128
#define LEFT_PITCH (DEPTH + 8)                       // 16 bytes of padding per row: a warp's reads hit different banks
#define RIGHT_PITCH (COLUMNS + 8)
#define THREADS 256

using namespace nvcuda;

extern "C" __global__ void __launch_bounds__(THREADS, 2) product(const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ out) {
    __shared__ __align__(128) __half left[ROWS * LEFT_PITCH], right[DEPTH * RIGHT_PITCH];
    __shared__ __align__(128) float staged[THREADS / 32][16 * 16];
    const int row0 = blockIdx.y * ROWS, column0 = blockIdx.x * COLUMNS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / 4 * 64, column = warp % 4 * 32;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[4][2];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) wmma::fill_fragment(sum[i][j], 0.0f);
    const __half zero = __float2half(0);
    for (int k0 = 0; k0 < K; k0 += DEPTH) {
        for (int i = threadIdx.x; i < ROWS * DEPTH / 2; i += THREADS) {
            const int r = i / (DEPTH / 2), c = i % (DEPTH / 2) * 2;
            const __half* from = a + (long long)(row0 + r) * K + k0 + c;
            const __half x = row0 + r < M && k0 + c < K ? from[0] : zero, y = row0 + r < M && k0 + c + 1 < K ? from[1] : zero;
            *(__half2*)(left + r * LEFT_PITCH + c) = __halves2half2(x, y);
        }
        for (int i = threadIdx.x; i < DEPTH * COLUMNS / 2; i += THREADS) {
            const int r = i / (COLUMNS / 2), c = i % (COLUMNS / 2) * 2;
            const __half* from = b + (long long)(k0 + r) * N + column0 + c;
            const __half x = k0 + r < K && column0 + c < N ? from[0] : zero, y = k0 + r < K && column0 + c + 1 < N ? from[1] : zero;
            *(__half2*)(right + r * RIGHT_PITCH + c) = __halves2half2(x, y);
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> r[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) wmma::load_matrix_sync(r[j], right + k * RIGHT_PITCH + column + 16 * j, RIGHT_PITCH);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> l;
                wmma::load_matrix_sync(l, left + (row + 16 * i) * LEFT_PITCH + k, LEFT_PITCH);
#pragma unroll
                for (int j = 0; j < 2; ++j) wmma::mma_sync(sum[i][j], l, r[j], sum[i][j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            wmma::store_matrix_sync(staged[warp], sum[i][j], 16, wmma::mem_row_major);
            __syncwarp();
            for (int e = lane; e < 256; e += 32) {
                const int r = row0 + row + 16 * i + e / 16, c = column0 + column + 16 * j + e % 16;
                if (r < M && c < N) out[(long long)r * N + c] = __float2half(staged[warp][e]);
            }
            __syncwarp();
        }
}
