// Tensor cores fed by STAGES asynchronous copies: eight warps, each 64 x (COLUMNS / 4) results, fragments read by ldmatrix.
#include <cstdint>
#include "problem.h"
// @tune COLUMNS = 256, 128
// @tune DEPTH = 64, 32
// @tune STAGES = 3, 4
// @require STAGES * DEPTH * (128 + COLUMNS) <= 98304
// @launch product(a, b, out) grid(ceil_div(N, COLUMNS) * ceil_div(M, 128)) block(256) shared(2 * STAGES * (128 * (DEPTH + 8) + DEPTH * (COLUMNS + 8)))

#define ROWS 128
#define BAND 16
#define SUBTILES (COLUMNS / 32)                      // of 8 columns, in a warp's share
#define LEFT_PITCH (DEPTH + 8)                       // 16 bytes of padding per row: a warp's reads hit different banks
#define RIGHT_PITCH (COLUMNS + 8)
#define THREADS 256
__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
// Eight adjacent elements of row `r` of a rows x WIDTH matrix from column c; zeros outside. Asynchronous if rows are 16-byte aligned.
template <int WIDTH> __device__ __forceinline__ void copy8(__half* to, const __half* from, int r, int rows, int c) {
    if (WIDTH % 8 == 0) {
        const bool valid = r < rows && c < WIDTH;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     ::"r"(shared_address(to)), "l"(valid ? from + (long long)r * WIDTH + c : from), "r"(valid ? 16 : 0) : "memory");
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) to[i] = r < rows && c + i < WIDTH ? from[(long long)r * WIDTH + c + i] : __float2half(0);
    }
}
__device__ __forceinline__ void load_matrices(uint32_t (&d)[4], const __half* at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(shared_address(at)) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&d)[4], const __half* at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(shared_address(at)) : "memory");
}
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&l)[4], uint32_t r0, uint32_t r1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(l[0]), "r"(l[1]), "r"(l[2]), "r"(l[3]), "r"(r0), "r"(r1));
}
// Tiles in bands of BAND tile rows, down each column of a band: data that running blocks share stays in L2.
__device__ __forceinline__ void tile_at(int index, int rows, int columns, int& row, int& column) {
    const int band = index / (BAND * columns), height = min(BAND, rows - band * BAND), inside = index - band * BAND * columns;
    row = band * BAND + inside % height;
    column = inside / height;
}

__device__ __forceinline__ void fetch(__half* stage, const __half* a, const __half* b, int row0, int column0, int k0) {
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * DEPTH / 8; i += THREADS) {
        const int r = i / (DEPTH / 8), c = i % (DEPTH / 8) * 8;
        copy8<K>(stage + r * LEFT_PITCH + c, a, row0 + r, M, k0 + c);
    }
#pragma unroll
    for (int i = threadIdx.x; i < DEPTH * COLUMNS / 8; i += THREADS) {
        const int r = i / (COLUMNS / 8), c = i % (COLUMNS / 8) * 8;
        copy8<N>(stage + ROWS * LEFT_PITCH + r * RIGHT_PITCH + c, b, k0 + r, K, column0 + c);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) product(const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ out) {
    extern __shared__ __align__(16) __half stages[];
    constexpr int STAGE = ROWS * LEFT_PITCH + DEPTH * RIGHT_PITCH, STEPS = (K + DEPTH - 1) / DEPTH;
    int row0, column0;
    tile_at(blockIdx.x, (M + ROWS - 1) / ROWS, (N + COLUMNS - 1) / COLUMNS, row0, column0);
    row0 *= ROWS, column0 *= COLUMNS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp / 4 * 64, column = warp % 4 * (COLUMNS / 4);
    float sum[4][SUBTILES][4] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < STEPS) fetch(stages + s * STAGE, a, b, row0, column0, s * DEPTH);
        commit_copies();
    }
    for (int s = 0; s < STEPS; ++s) {
        wait_copies<STAGES - 2>();
        __syncthreads();
        if (s + STAGES - 1 < STEPS) fetch(stages + (s + STAGES - 1) % STAGES * STAGE, a, b, row0, column0, (s + STAGES - 1) * DEPTH);
        commit_copies();
        const __half* left = stages + s % STAGES * STAGE + (row + lane % 16) * LEFT_PITCH + lane / 16 * 8;
        const __half* right = stages + s % STAGES * STAGE + ROWS * LEFT_PITCH + lane % 16 * RIGHT_PITCH + column + lane / 16 * 8;
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            uint32_t l[4][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) load_matrices(l[i], left + 16 * i * LEFT_PITCH + k);
#pragma unroll
            for (int j = 0; j < SUBTILES; j += 2) {
                uint32_t r[4];
                load_matrices_transposed(r, right + k * RIGHT_PITCH + 8 * j);
#pragma unroll
                for (int i = 0; i < 4; ++i) mma(sum[i][j], l[i], r[0], r[1]), mma(sum[i][j + 1], l[i], r[2], r[3]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < SUBTILES; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int r = row0 + row + 16 * i + lane / 4 + 8 * h, c = column0 + column + 8 * j + lane % 4 * 2;
                if (r >= M) continue;
                __half* to = out + (long long)r * N + c;
#if N % 2 == 0
                if (c < N) *(__half2*)to = __floats2half2_rn(sum[i][j][2 * h], sum[i][j][2 * h + 1]);
#else
                if (c < N) to[0] = __float2half(sum[i][j][2 * h]);
                if (c + 1 < N) to[1] = __float2half(sum[i][j][2 * h + 1]);
#endif
            }
}
