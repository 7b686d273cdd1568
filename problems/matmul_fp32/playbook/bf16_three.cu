// Single precision on tensor cores: both matrices are split once into two bfloat16 matrices, and three products are summed
// with WGMMA. One warp keeps TMA busy; two warpgroups multiply 64 x 128 each. After PROMOTE steps
// the tensor cores' truncated sum is added to a rounded one in registers.
#include <cstdint>
#include <cuda.h>
#include <cuda_bf16.h>
#include "problem.h"
// @tune STAGES = 3, 2
// @tune PROMOTE = 1, 2, 4
// @tune BAND = 16, 8
// @workspace 4 * M * (ceil_div(K, 8) * 8) + 4 * K * (ceil_div(N, 8) * 8)
// @tensormap left_high = workspace as bfloat16(M, ceil_div(K, 8) * 8) tile(64, 64) swizzle(128)
// @tensormap left_low = workspace + 2 * M * (ceil_div(K, 8) * 8) as bfloat16(M, ceil_div(K, 8) * 8) tile(64, 64) swizzle(128)
// @tensormap right_high = workspace + 4 * M * (ceil_div(K, 8) * 8) as bfloat16(K, ceil_div(N, 8) * 8) tile(64, 64) swizzle(128)
// @tensormap right_low = workspace + 4 * M * (ceil_div(K, 8) * 8) + 2 * K * (ceil_div(N, 8) * 8) as bfloat16(K, ceil_div(N, 8) * 8) tile(64, 64) swizzle(128)
// @launch split_left(a, workspace, workspace + 2 * M * (ceil_div(K, 8) * 8)) grid(SMS * 8) block(256)
// @launch split_right(b, workspace + 4 * M * (ceil_div(K, 8) * 8), workspace + 4 * M * (ceil_div(K, 8) * 8) + 2 * K * (ceil_div(N, 8) * 8)) grid(SMS * 8) block(256)
// @launch product(left_high, left_low, right_high, right_low, out) grid(ceil_div(M, 128) * ceil_div(N, 128)) block(384) shared(1024 + STAGES * 65536)

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
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
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
// An fp32 matrix as two bfloat16 ones whose sum is within 2^-17 of it; rows padded with zeros to `pitch`.
__device__ __forceinline__ void split_rows(const float* from, __nv_bfloat16* high, __nv_bfloat16* low, int rows, int columns, int pitch) {
    const long long pairs = (long long)rows * (pitch / 2);
    for (long long i = blockIdx.x * 256ll + threadIdx.x; i < pairs; i += gridDim.x * 256ll) {
        const int c = 2 * (int)(i % (pitch / 2));
        const float* at = from + i / (pitch / 2) * columns + c;
        const float x = c < columns ? at[0] : 0, y = c + 1 < columns ? at[1] : 0;
        const __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
        ((__nv_bfloat162*)high)[i] = h;
        ((__nv_bfloat162*)low)[i] = __floats2bfloat162_rn(x - __low2float(h), y - __high2float(h));
    }
}
extern "C" __global__ void __launch_bounds__(256) split_left(const float* a, __nv_bfloat16* high, __nv_bfloat16* low) {
    split_rows(a, high, low, M, K, (K + 7) / 8 * 8);
}
extern "C" __global__ void __launch_bounds__(256) split_right(const float* b, __nv_bfloat16* high, __nv_bfloat16* low) {
    split_rows(b, high, low, K, N, (N + 7) / 8 * 8);
}

extern "C" __global__ void __launch_bounds__(384, 1)
product(const __grid_constant__ CUtensorMap left_high, const __grid_constant__ CUtensorMap left_low,
        const __grid_constant__ CUtensorMap right_high, const __grid_constant__ CUtensorMap right_low, float* __restrict__ out) {
    extern __shared__ char raw[];
    __nv_bfloat16* stages = (__nv_bfloat16*)(((uintptr_t)raw + 1023) / 1024 * 1024);
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
                __nv_bfloat16* to = stages + s * STAGE;
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
            const __nv_bfloat16* at = stages + s * STAGE;
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
        write_tile(out, sum, row0 + 64 * group, column0);
    }
}
