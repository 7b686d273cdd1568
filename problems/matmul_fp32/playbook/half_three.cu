// bf16_three.cu with pairs of float16. Both matrices times 8 are sums of two float16 numbers, to 2^-22 of a number or 2^-28, whichever is
// larger: more than the 16 bits of two bfloat16 numbers, whose errors add up where values repeat. Numbers above 8188, or a matrix without any
// above 2^-6, leave float16's range: then `repair` multiplies once more, in fp32.
// Predicted (4096^3): as long as bf16_three.cu and 2 % more (610 to 625 us): float16 multiplies 3 % slower under the power limit, and `repair` is
// one more launch. Error below 1e-6 instead of 4.4e-6.
#include <cstdint>
#include <cuda.h>
#include <cuda_fp16.h>
#include "problem.h"
// @tune STAGES = 3
// @tune PROMOTE = 1, 2
// @tune BAND = 16
// @workspace 4 * M * (ceil_div(K, 8) * 8) + 4 * K * (ceil_div(N, 8) * 8) + 64 * SMS
// @tensormap left_high = workspace as float16(M, ceil_div(K, 8) * 8) tile(64, 64) swizzle(128)
// @tensormap left_low = workspace + 2 * M * (ceil_div(K, 8) * 8) as float16(M, ceil_div(K, 8) * 8) tile(64, 64) swizzle(128)
// @tensormap right_high = workspace + 4 * M * (ceil_div(K, 8) * 8) as float16(K, ceil_div(N, 8) * 8) tile(64, 64) swizzle(128)
// @tensormap right_low = workspace + 4 * M * (ceil_div(K, 8) * 8) + 2 * K * (ceil_div(N, 8) * 8) as float16(K, ceil_div(N, 8) * 8) tile(64, 64) swizzle(128)
// @launch split_left(a, workspace, workspace + 2 * M * (ceil_div(K, 8) * 8), workspace + 4 * M * (ceil_div(K, 8) * 8) + 4 * K * (ceil_div(N, 8) * 8)) grid(SMS * 8) block(256)
// @launch split_right(b, workspace + 4 * M * (ceil_div(K, 8) * 8), workspace + 4 * M * (ceil_div(K, 8) * 8) + 2 * K * (ceil_div(N, 8) * 8), workspace + 4 * M * (ceil_div(K, 8) * 8) + 4 * K * (ceil_div(N, 8) * 8) + 32 * SMS) grid(SMS * 8) block(256)
// @launch product(left_high, left_low, right_high, right_low, out) grid(ceil_div(M, 128) * ceil_div(N, 128)) block(384) shared(1024 + STAGES * 65536)
// @launch repair(a, b, workspace + 4 * M * (ceil_div(K, 8) * 8) + 4 * K * (ceil_div(N, 8) * 8), out) grid(SMS) block(256)

#define SCALE 8.0f
#define LARGEST 8188.0f                              // times SCALE just below float16's largest number
#define SMALLEST 0.015625f
#define BOX (64 * 64)                                // elements of one swizzled box, 8 KB
__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void barrier_init(uint64_t* b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* b, unsigned parity) {
    unsigned done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                     : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");
    } while (!done);
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ void tensor_load(void* to, const CUtensorMap* map, int row, int column, uint64_t* b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(shared_address(b)) : "memory");
}
// A shared-memory tile in the tensor cores' layout: rows of 128 bytes, 128-byte swizzle; distances in bytes.
__device__ __forceinline__ uint64_t tile_descriptor(const void* tile, int leading, int stride) {
    return (uint64_t)1 << 62 | (uint64_t)(stride >> 4) << 32 | (uint64_t)(leading >> 4) << 16 | (shared_address(tile) & 0x3FFFF) >> 4;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
// Keeps the compiler from moving uses of the accumulators across this point.
template <int COUNT> __device__ __forceinline__ void pin(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ void wgmma_m64n128k16(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, p, 1, 1, 0, 1;\n}\n"
                 :
                 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "l"(a), "l"(b), "r"(accumulate));
}
// Tiles in bands of BAND tile rows, down each column of a band: data that running blocks share stays in L2.
__device__ __forceinline__ void tile_at(int index, int rows, int columns, int& row, int& column) {
    const int band = index / (BAND * columns), height = min(BAND, rows - band * BAND), inside = index - band * BAND * columns;
    row = band * BAND + inside % height;
    column = inside / height;
}
// A warpgroup's 64 x COLUMNS results from the tensor cores' layout to the matrix.
template <int COUNT> __device__ __forceinline__ void write_tile(float* out, const float (&sum)[COUNT], int row0, int column0) {
    const int lane = threadIdx.x % 32, row = row0 + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
        const int r = row + i / 2 % 2 * 8, c = column0 + i / 4 * 8 + lane % 4 * 2;
        if (r >= M) continue;
        float* to = out + (long long)r * N + c;
#if N % 2 == 0
        if (c < N) *(float2*)to = make_float2(sum[i], sum[i + 1]);
#else
        if (c < N) to[0] = sum[i];
        if (c + 1 < N) to[1] = sum[i + 1];
#endif
    }
}
// An fp32 pair times SCALE as two float16 pairs.
__device__ __forceinline__ void split_pair(float x, float y, uint32_t& high, uint32_t& low) {
    const __half2 h = __floats2half2_rn(x * SCALE, y * SCALE);
    const float2 back = __half22float2(h);
    const __half2 l = __floats2half2_rn(fmaf(x, SCALE, -back.x), fmaf(y, SCALE, -back.y));
    high = *(const uint32_t*)&h;
    low = *(const uint32_t*)&l;
}
__device__ __forceinline__ float largest(float4 v) { return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))); }
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}
// An fp32 matrix as two float16 ones; rows padded with zeros to PITCH, a multiple of 8. Each block notes the largest magnitude that it saw.
template <int COLUMNS> __device__ __forceinline__ void split_rows(const float* __restrict__ from, __half* high, __half* low, int rows, float* tops) {
    constexpr int PITCH = (COLUMNS + 7) / 8 * 8;
    __shared__ float parts[8];
    float top = 0;
    for (int r = blockIdx.x; r < rows; r += gridDim.x) {
        const float* row = from + (long long)r * COLUMNS;
#pragma unroll 4
        for (int c = 4 * threadIdx.x; c < PITCH; c += 4 * 256) {
            float4 v = make_float4(0, 0, 0, 0);
            if (COLUMNS % 4 == 0) {
                if (c < COLUMNS) v = __ldcs((const float4*)(row + c));
            } else {
                if (c < COLUMNS) v.x = row[c];
                if (c + 1 < COLUMNS) v.y = row[c + 1];
                if (c + 2 < COLUMNS) v.z = row[c + 2];
                if (c + 3 < COLUMNS) v.w = row[c + 3];
            }
            top = fmaxf(top, largest(v));
            uint2 h, l;
            split_pair(v.x, v.y, h.x, l.x);
            split_pair(v.z, v.w, h.y, l.y);
            *(uint2*)(high + (long long)r * PITCH + c) = h;
            *(uint2*)(low + (long long)r * PITCH + c) = l;
        }
    }
    top = warp_max(top);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = top;
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll
        for (int w = 1; w < 8; ++w) top = fmaxf(top, parts[w]);
        tops[blockIdx.x] = top;
    }
}
extern "C" __global__ void __launch_bounds__(256) split_left(const float* a, __half* high, __half* low, float* tops) { split_rows<K>(a, high, low, M, tops); }
extern "C" __global__ void __launch_bounds__(256) split_right(const float* b, __half* high, __half* low, float* tops) { split_rows<N>(b, high, low, K, tops); }

extern "C" __global__ void __launch_bounds__(384, 1)
product(const __grid_constant__ CUtensorMap left_high, const __grid_constant__ CUtensorMap left_low,
        const __grid_constant__ CUtensorMap right_high, const __grid_constant__ CUtensorMap right_low, float* __restrict__ out) {
    extern __shared__ char raw[];
    __half* stages = (__half*)(((uintptr_t)raw + 1023) / 1024 * 1024);
    __shared__ uint64_t full[STAGES], empty[STAGES];
    constexpr int STAGE = 8 * BOX, STEPS = (K + 63) / 64;               // boxes: left high 2, low 2, right high 2, low 2
    int row0, column0;
    tile_at(blockIdx.x, (M + 127) / 128, (N + 127) / 128, row0, column0);
    row0 *= 128, column0 *= 128;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) barrier_init(&full[s], 1), barrier_init(&empty[s], 2);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 256)
            for (int step = 0; step < STEPS; ++step) {
                const int s = step % STAGES;
                if (step >= STAGES) barrier_wait(&empty[s], step / STAGES - 1 & 1);
                barrier_expect(&full[s], STAGE * 2);
                __half* to = stages + s * STAGE;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    tensor_load(to + h * BOX, &left_high, row0 + 64 * h, step * 64, &full[s]);
                    tensor_load(to + (2 + h) * BOX, &left_low, row0 + 64 * h, step * 64, &full[s]);
                    tensor_load(to + (4 + h) * BOX, &right_high, step * 64, column0 + 64 * h, &full[s]);
                    tensor_load(to + (6 + h) * BOX, &right_low, step * 64, column0 + 64 * h, &full[s]);
                }
            }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int group = threadIdx.x / 128;
        float sum[64] = {}, part[64];
        for (int step = 0; step < STEPS; ++step) {
            const int s = step % STAGES;
            barrier_wait(&full[s], step / STAGES & 1);
            const __half* at = stages + s * STAGE;
            const uint64_t lh = tile_descriptor(at + group * BOX, 16, 1024), ll = tile_descriptor(at + (2 + group) * BOX, 16, 1024);
            const uint64_t rh = tile_descriptor(at + 4 * BOX, BOX * 2, 1024), rl = tile_descriptor(at + 6 * BOX, BOX * 2, 1024);
            pin(part);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; ++k) {                               // 16 deep: 32 bytes along a's rows, 16 rows of b
                wgmma_m64n128k16(part, ll + 2 * k, rh + 128 * k, k > 0 || step % PROMOTE > 0);
                wgmma_m64n128k16(part, lh + 2 * k, rl + 128 * k, 1);
                wgmma_m64n128k16(part, lh + 2 * k, rh + 128 * k, 1);
            }
            wgmma_commit();
            wgmma_wait<0>();
            pin(part);
            if (threadIdx.x % 128 == 0) barrier_arrive(&empty[s]);
            if (step % PROMOTE == PROMOTE - 1 || step == STEPS - 1) {
#pragma unroll
                for (int i = 0; i < 64; ++i) sum[i] += part[i];
            }
        }
#pragma unroll
        for (int i = 0; i < 64; ++i) sum[i] *= 1 / (SCALE * SCALE);
        write_tile(out, sum, row0 + 64 * group, column0);
    }
}

// Multiplies in fp32 where a number of a or b left the range of float16: 32 x 32 results a block, four a thread.
extern "C" __global__ void __launch_bounds__(256) repair(const float* __restrict__ a, const float* __restrict__ b, const float* tops,
                                                         float* __restrict__ out) {
    __shared__ float parts[2][8];
    float seen[2] = {0, 0};                              // of a and b, from all blocks of the launches that split
    for (int i = threadIdx.x; i < 8 * gridDim.x; i += 256) seen[0] = fmaxf(seen[0], tops[i]), seen[1] = fmaxf(seen[1], tops[8 * gridDim.x + i]);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
        seen[m] = warp_max(seen[m]);
        if (threadIdx.x % 32 == 0) parts[m][threadIdx.x / 32] = seen[m];
    }
    __syncthreads();
    bool inside = true;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
        float top = parts[m][0];
#pragma unroll
        for (int w = 1; w < 8; ++w) top = fmaxf(top, parts[m][w]);
        inside = inside && top <= LARGEST && !(top > 0 && top < SMALLEST);
    }
    if (inside) return;
    __shared__ float left[32][33], right[32][33];
    const int x = threadIdx.x % 32, y = threadIdx.x / 32, across = (N + 31) / 32;
    for (int tile = blockIdx.x; tile < (M + 31) / 32 * across; tile += gridDim.x) {
        const int row0 = tile / across * 32, column = tile % across * 32 + x;
        float sum[4] = {};
        for (int k0 = 0; k0 < K; k0 += 32) {
            for (int i = y; i < 32; i += 8) {
                left[i][x] = row0 + i < M && k0 + x < K ? a[(long long)(row0 + i) * K + k0 + x] : 0;
                right[i][x] = k0 + i < K && column < N ? b[(long long)(k0 + i) * N + column] : 0;
            }
            __syncthreads();
            float part[4] = {};
            for (int k = 0; k < 32; ++k)
#pragma unroll
                for (int i = 0; i < 4; ++i) part[i] = fmaf(left[y + 8 * i][k], right[k][x], part[i]);
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[i] += part[i];
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (row0 + y + 8 * i < M && column < N) out[(long long)(row0 + y + 8 * i) * N + column] = sum[i];
    }
}
