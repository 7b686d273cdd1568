// Single precision on tensor cores: each operand is split into two TF32 parts and three of the four products are summed. Every
// DEPTH steps the tensor cores' truncated sum is added to a rounded one in registers.
#include <cstdint>
#include "problem.h"
// @tune DEPTH = 32, 16
// @tune STAGES = 3, 4, 2
// @require STAGES * DEPTH <= 128
// @launch product(a, b, out) grid(ceil_div(N, 128) * ceil_div(M, 128)) block(256) shared(4 * STAGES * (128 * (DEPTH + 4) + 136 * DEPTH))

#define TILE 128
#define THREADS 256
#define PITCH (DEPTH + 4)
#define RIGHT_PITCH (TILE + 8)
#define BAND 16
// One asynchronous copy of LEFT_WIDTH or RIGHT_WIDTH neighbouring floats, zeros where `valid` is false.
#define LEFT_WIDTH (K % 4 == 0 ? 4 : 1)
#define RIGHT_WIDTH (N % 4 == 0 ? 4 : 1)
template <int WIDTH> __device__ __forceinline__ void copy_async(float* to, const float* from, bool valid) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    if (WIDTH == 4)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(valid ? 16 : 0) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(valid ? 4 : 0) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
// Starts the copies of step `k0`: TILE x DEPTH of a (pitch PITCH), DEPTH x TILE of b (pitch RIGHT_PITCH).
__device__ __forceinline__ void fetch(float* left, float* right, const float* a, const float* b, int row0, int column0, int k0) {
#pragma unroll
    for (int i = threadIdx.x; i < TILE * DEPTH / LEFT_WIDTH; i += THREADS) {
        const int r = i / (DEPTH / LEFT_WIDTH), c = i % (DEPTH / LEFT_WIDTH) * LEFT_WIDTH;
        const bool valid = row0 + r < M && k0 + c < K;
        copy_async<LEFT_WIDTH>(left + r * PITCH + c, valid ? a + (long long)(row0 + r) * K + k0 + c : a, valid);
    }
#pragma unroll
    for (int i = threadIdx.x; i < DEPTH * TILE / RIGHT_WIDTH; i += THREADS) {
        const int r = i / (TILE / RIGHT_WIDTH), c = i % (TILE / RIGHT_WIDTH) * RIGHT_WIDTH;
        const bool valid = k0 + r < K && column0 + c < N;
        copy_async<RIGHT_WIDTH>(right + r * RIGHT_PITCH + c, valid ? b + (long long)(k0 + r) * N + column0 + c : b, valid);
    }
}
// Tiles in bands of BAND tile rows, down each column of a band: data that running blocks share stays in L2.
__device__ __forceinline__ void tile_at(int index, int rows, int columns, int& row, int& column) {
    const int band = index / (BAND * columns), height = min(BAND, rows - band * BAND), inside = index - band * BAND * columns;
    row = band * BAND + inside % height;
    column = inside / height;
}

// The upper bits, and the exact rest, of which the tensor cores read the upper bits: 21 of 24 bits in two instructions.
__device__ __forceinline__ void split(float v, uint32_t& high, uint32_t& low) {
    high = __float_as_uint(v) & 0xffffe000;
    low = __float_as_uint(v - __uint_as_float(high));
}
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&l)[4], const uint32_t (&r)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(l[0]), "r"(l[1]), "r"(l[2]), "r"(l[3]), "r"(r[0]), "r"(r[1]));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) product(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out) {
    extern __shared__ __align__(16) float stages[];
    constexpr int STAGE = TILE * PITCH + DEPTH * RIGHT_PITCH, STEPS = (K + DEPTH - 1) / DEPTH;
    int row0, column0;
    tile_at(blockIdx.x, (M + TILE - 1) / TILE, (N + TILE - 1) / TILE, row0, column0);
    row0 *= TILE, column0 *= TILE;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, inside = lane % 4;
    const int row = warp / 4 * 64, column = warp % 4 * 32;              // of the warp's 64 x 32
    float sum[4][4][4] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < STEPS) fetch(stages + s * STAGE, stages + s * STAGE + TILE * PITCH, a, b, row0, column0, s * DEPTH);
        commit_copies();
    }
    for (int s = 0; s < STEPS; ++s) {
        wait_copies<STAGES - 2>();
        __syncthreads();
        if (s + STAGES - 1 < STEPS) {
            float* next = stages + (s + STAGES - 1) % STAGES * STAGE;
            fetch(next, next + TILE * PITCH, a, b, row0, column0, (s + STAGES - 1) * DEPTH);
        }
        commit_copies();
        const float* left = stages + s % STAGES * STAGE + (row + group) * PITCH + inside;
        const float* right = stages + s % STAGES * STAGE + TILE * PITCH + inside * RIGHT_PITCH + column + group;
        float part[4][4][4] = {};
#pragma unroll
        for (int k = 0; k < DEPTH; k += 8) {
            uint32_t high[4][2], low[4][2];
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int h = 0; h < 2; ++h) split(right[(k + 4 * h) * RIGHT_PITCH + 8 * j], high[j][h], low[j][h]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                uint32_t left_high[4], left_low[4];
#pragma unroll
                for (int h = 0; h < 4; ++h) split(left[(16 * i + h % 2 * 8) * PITCH + k + h / 2 * 4], left_high[h], left_low[h]);
#pragma unroll
                for (int j = 0; j < 4; ++j) mma(part[i][j], left_low, high[j]);
#pragma unroll
                for (int j = 0; j < 4; ++j) mma(part[i][j], left_high, low[j]);
#pragma unroll
                for (int j = 0; j < 4; ++j) mma(part[i][j], left_high, high[j]);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[i][j][e] += part[i][j][e];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int r = row0 + row + 16 * i + group + e / 2 * 8, c = column0 + column + 8 * j + 2 * inside + e % 2;
                if (r < M && c < N) out[(long long)r * N + c] = sum[i][j][e];
            }
}
