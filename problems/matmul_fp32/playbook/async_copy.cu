// The register tile with STAGES steps of both operands in flight: 16-byte asynchronous copies into shared memory.
#include "problem.h"
// @tune DEPTH = 16, 8, 32
// @tune STAGES = 3, 2, 4
// @require STAGES * DEPTH <= 64
// @launch product(a, b, out) grid(ceil_div(N, 128) * ceil_div(M, 128)) block(256) shared(4 * STAGES * (128 * (DEPTH + 4) + 128 * DEPTH))

#define PITCH (DEPTH + 4)
#define RIGHT_PITCH TILE
#define BAND 16
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

extern "C" __global__ void __launch_bounds__(THREADS, 2) product(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out) {
    extern __shared__ __align__(16) float stages[];
    constexpr int STAGE = TILE * PITCH + DEPTH * TILE, STEPS = (K + DEPTH - 1) / DEPTH;
    int row0, column0;
    tile_at(blockIdx.x, (M + TILE - 1) / TILE, (N + TILE - 1) / TILE, row0, column0);
    row0 *= TILE, column0 *= TILE;
    const Place at = place_of_thread();
    float sum[8][8] = {};
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
        const float* now = stages + s % STAGES * STAGE;
        multiply(sum, now, now + TILE * PITCH, at);
    }
    write_tile(out, sum, row0, column0, at);
}
