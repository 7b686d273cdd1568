// bf16_three.cu with a read as it is: each warpgroup takes its rows of a from shared memory in fp32, splits them in registers, and
// multiplies from there. Only b is split beforehand, so half of the 268 MB that the split moves are saved, and wgmma reads one operand
// instead of two from shared memory (192 KB a step in all instead of 208).
// A thread reads 16 bytes of a row at once, four neighbours along k, where the instruction expects two pairs 8 apart: rows of b are
// written in the order that makes up for it.
// Bounds (4096^3): 412 GFLOP in bf16, 134 MB for b's split (32 us at 4.2 TB/s). Predicted: 610 us less 32 for a's split and 3 for its launch,
// 575 us; splitting in registers takes 230 of a step's 1536 cycles of issue, behind the other warpgroup's products.
#include <cstdint>
#include <cuda.h>
#include <cuda_bf16.h>
#include "problem.h"
// @tune STAGES = 3
// @tune PROMOTE = 1, 2
// @tune BAND = 16, 8
// @workspace 4 * (ceil_div(K, 16) * 16) * (ceil_div(N, 8) * 8) + 4 * ((M - 1) * (K % 4 > 0) + 1) * (ceil_div(K, 4) * 4)
// @tensormap left = a as float32(M, K - K % 4) tile(128, 16)
// @tensormap padded = workspace + 4 * (ceil_div(K, 16) * 16) * (ceil_div(N, 8) * 8) as float32((M - 1) * (K % 4 > 0) + 1, ceil_div(K, 4) * 4) tile(128, 16)
// @tensormap right_high = workspace as bfloat16(ceil_div(K, 16) * 16, ceil_div(N, 8) * 8) tile(64, 64) swizzle(128)
// @tensormap right_low = workspace + 2 * (ceil_div(K, 16) * 16) * (ceil_div(N, 8) * 8) as bfloat16(ceil_div(K, 16) * 16, ceil_div(N, 8) * 8) tile(64, 64) swizzle(128)
// @launch split(a, b, workspace, workspace + 2 * (ceil_div(K, 16) * 16) * (ceil_div(N, 8) * 8), workspace + 4 * (ceil_div(K, 16) * 16) * (ceil_div(N, 8) * 8)) grid(SMS * 4) block(512)
// @launch product(left, padded, right_high, right_low, out) grid(ceil_div(M, 128) * ceil_div(N, 128)) block(384) shared(1024 + STAGES * 65536)

#define LEFT_BOX (128 * 16)                          // elements of a box of a: 128 rows of 64 bytes, 8 KB
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
__device__ __forceinline__ float4 shared_load(unsigned at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
    return v;
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
__device__ __forceinline__ void wgmma_m64n128k16(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
                 :
                 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
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
// An fp32 pair as two bfloat16 pairs whose sum is within 2^-17 of it.
__device__ __forceinline__ void split_pair(float x, float y, uint32_t& high, uint32_t& low) {
    const __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    high = *(const uint32_t*)&h;
    const __nv_bfloat162 l = __floats2bfloat162_rn(x - __uint_as_float(high << 16), y - __uint_as_float(high & 0xFFFF0000u));
    low = *(const uint32_t*)&l;
}
constexpr int PITCH = (N + 7) / 8 * 8, DEPTH = (K + 15) / 16 * 16;
// Where row k of b goes among each sixteen: pairs 0, 1 of the four at 4 j to 2 j, pairs 2, 3 to 8 + 2 j.
__device__ __forceinline__ int place_of_row(int k) { return k / 16 * 16 + k % 16 / 4 * 2 + k % 2 + k % 4 / 2 * 8; }
// b as two bfloat16 matrices, padded with zeros; and, where a's rows do not start on 16 bytes, a with rows that do.
extern "C" __global__ void __launch_bounds__(512) split(const float* __restrict__ a, const float* __restrict__ b, __nv_bfloat16* high,
                                                        __nv_bfloat16* low, float* padded) {
    for (int k = blockIdx.x; k < DEPTH; k += gridDim.x) {
        const float* from = b + (long long)k * N;
        const long long to = (long long)place_of_row(k) * PITCH;
#pragma unroll 4
        for (int c = 4 * threadIdx.x; c < PITCH; c += 4 * 512) {
            float4 v = make_float4(0, 0, 0, 0);
            if (k < K) {
#if N % 4 == 0
                if (c < N) v = __ldcs((const float4*)(from + c));
#else
                if (c < N) v.x = from[c];
                if (c + 1 < N) v.y = from[c + 1];
                if (c + 2 < N) v.z = from[c + 2];
                if (c + 3 < N) v.w = from[c + 3];
#endif
            }
            uint2 h, l;
            split_pair(v.x, v.y, h.x, l.x);
            split_pair(v.z, v.w, h.y, l.y);
            *(uint2*)(high + to + c) = h;
            *(uint2*)(low + to + c) = l;
        }
    }
#if K % 4
    constexpr int LEFT_PITCH = (K + 3) / 4 * 4;
    for (int m = blockIdx.x; m < M; m += gridDim.x)
        for (int c = threadIdx.x; c < LEFT_PITCH; c += 512) padded[(long long)m * LEFT_PITCH + c] = c < K ? a[(long long)m * K + c] : 0;
#endif
}

extern "C" __global__ void __launch_bounds__(384, 1)
product(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap padded, const __grid_constant__ CUtensorMap right_high,
        const __grid_constant__ CUtensorMap right_low, float* __restrict__ out) {
    extern __shared__ char raw[];
    char* stages = (char*)(((uintptr_t)raw + 1023) / 1024 * 1024);
    __shared__ uint64_t full[STAGES], empty[STAGES];
    constexpr int STAGE = 65536, STEPS = (K + 63) / 64;                 // bytes: a 4 boxes of 16 columns, b high 2, low 2; 8 KB each
    int row0, column0;
    tile_at(blockIdx.x, (M + 127) / 128, (N + 127) / 128, row0, column0);
    row0 *= 128, column0 *= 128;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) barrier_init(&full[s], 1), barrier_init(&empty[s], 8);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 256)
            for (int step = 0; step < STEPS; ++step) {
                const int s = step % STAGES;
                if (step >= STAGES) barrier_wait(&empty[s], step / STAGES - 1 & 1);
                barrier_expect(&full[s], STAGE);
                float* a_to = (float*)(stages + s * STAGE);
                __nv_bfloat16* b_to = (__nv_bfloat16*)(stages + s * STAGE + 4 * LEFT_BOX * 4);
#pragma unroll
                for (int q = 0; q < 4; ++q) tensor_load(a_to + q * LEFT_BOX, K % 4 ? &padded : &left, row0, step * 64 + q * 16, &full[s]);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    tensor_load(b_to + h * BOX, &right_high, step * 64, column0 + 64 * h, &full[s]);
                    tensor_load(b_to + (2 + h) * BOX, &right_low, step * 64, column0 + 64 * h, &full[s]);
                }
            }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int group = threadIdx.x / 128, lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
        float sum[64] = {}, part[64];
        for (int step = 0; step < STEPS; ++step) {
            const int s = step % STAGES;
            barrier_wait(&full[s], step / STAGES & 1);
            const unsigned at = shared_address(stages + s * STAGE) + row * 64 + lane % 4 * 16;
            const __nv_bfloat16* b_at = (const __nv_bfloat16*)(stages + s * STAGE + 4 * LEFT_BOX * 4);
            const uint64_t rh = tile_descriptor(b_at, BOX * 2, 1024), rl = tile_descriptor(b_at + 2 * BOX, BOX * 2, 1024);
            float4 v[4][2];
            uint32_t high[4][4], low[4][4];
#pragma unroll
            for (int k = 0; k < 4; ++k)
#pragma unroll
                for (int h = 0; h < 2; ++h) v[k][h] = shared_load(at + k * (LEFT_BOX * 4) + h * 512);
#pragma unroll
            for (int k = 0; k < 4; ++k)
#pragma unroll
                for (int h = 0; h < 2; ++h) {                           // rows + 0 and + 8: registers 0, 2 and 1, 3
                    split_pair(v[k][h].x, v[k][h].y, high[k][h], low[k][h]);
                    split_pair(v[k][h].z, v[k][h].w, high[k][2 + h], low[k][2 + h]);
                }
            pin(part);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; ++k) {                               // 16 deep: 16 rows of b
                wgmma_m64n128k16(part, low[k], rh + 128 * k, k > 0 || step % PROMOTE > 0);
                wgmma_m64n128k16(part, high[k], rl + 128 * k, 1);
                wgmma_m64n128k16(part, high[k], rh + 128 * k, 1);
            }
            wgmma_commit();
            wgmma_wait<0>();
            pin(part);
            __syncwarp();                                               // a warp's own reads of a are behind it
            if (lane == 0) barrier_arrive(&empty[s]);
            if (step % PROMOTE == PROMOTE - 1 || step == STEPS - 1) {
#pragma unroll
                for (int i = 0; i < 64; ++i) sum[i] += part[i];
            }
        }
        write_tile(out, sum, row0 + 64 * group, column0);
    }
}
