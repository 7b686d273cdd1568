// Single precision as three float16 products with WGMMA, in one launch beside a check. Both matrices times 8 are sums of two float16 numbers,
// to 2^-22 of a number or 2^-28, whichever is larger: more than the 16 bits of two bfloat16 numbers, whose errors add up where values repeat.
// - a is read as it is: each warpgroup takes its rows from shared memory in fp32, splits them in registers, and multiplies from there. A thread
//   reads 16 bytes of a row at once, four neighbours along k, where the instruction expects two pairs 8 apart: rows of b are written in
//   the order that makes up for it.
// - b is split while products run. All threads split the columns of the first round of tiles, the blocks meet, and then three warps of each
//   block, which idle otherwise, split the rest, a panel of 128 columns after the other; the producer waits for a panel's count.
// - Blocks are persistent: loads of the next tile run while results are written.
// - Numbers above 8188, or a matrix without any above 2^-6, leave float16's range: then `repair` multiplies once more, in fp32.
// Bounds (4096^3): 412 GFLOP, 550 us at 750 TFLOP/s; 134 MB for b's split, of which 10 of 32 panels (10 us) are split up front.
// Predicted: 550 + 10 + 5 for launches and the meeting: 565 us, 4.75x; error below 2e-6.
#include <cooperative_groups.h>
#include <cstdint>
#include <cuda.h>
#include <cuda_fp16.h>
#include "problem.h"
// @tune STAGES = 3
// @tune PROMOTE = 1, 2
// @tune BAND = 16, 8
// @workspace 4 * (ceil_div(K, 16) * 16) * (ceil_div(N, 8) * 8) + 4 * ((M - 1) * (K % 4 > 0) + 1) * (ceil_div(K, 4) * 4) + 16 + 4 * ceil_div(N, 128)
// @tensormap left = a as float32(M, K - K % 4) tile(128, 16)
// @tensormap padded = workspace + 4 * (ceil_div(K, 16) * 16) * (ceil_div(N, 8) * 8) as float32((M - 1) * (K % 4 > 0) + 1, ceil_div(K, 4) * 4) tile(128, 16)
// @tensormap right_high = workspace as float16(ceil_div(K, 16) * 16, ceil_div(N, 8) * 8) tile(64, 64) swizzle(128)
// @tensormap right_low = workspace + 2 * (ceil_div(K, 16) * 16) * (ceil_div(N, 8) * 8) as float16(ceil_div(K, 16) * 16, ceil_div(N, 8) * 8) tile(64, 64) swizzle(128)
// @launch product(left, padded, right_high, right_low, a, b, workspace, out) grid(min(SMS, ceil_div(M, 128) * ceil_div(N, 128))) block(384) shared(1024 + STAGES * 65536) cooperative
// @launch repair(a, b, workspace, out) grid(SMS) block(256)

#define SCALE 8.0f
#define LARGEST 8188.0f                              // times SCALE just below float16's largest number
#define SMALLEST 0.015625f
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
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
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
constexpr int PITCH = (N + 7) / 8 * 8, DEPTH = (K + 15) / 16 * 16;
// Where row k of b goes among each sixteen: pairs 0, 1 of the four at 4 j to 2 j, pairs 2, 3 to 8 + 2 j.
__device__ __forceinline__ int place_of_row(int k) { return k / 16 * 16 + k % 16 / 4 * 2 + k % 2 + k % 4 / 2 * 8; }
constexpr int ROWS = (M + 127) / 128, PANELS = (N + 127) / 128, TILES = ROWS * PANELS, SPLITTERS = 3;
// Where the workspace has a with aligned rows, if it has none, how many warps have finished each panel, and the largest of a and b.
__device__ __forceinline__ float* aligned_rows(const __half* high) { return (float*)(high + 2ll * DEPTH * PITCH); }
__device__ __forceinline__ unsigned* largest_of(const __half* high) { return (unsigned*)(aligned_rows(high) + (K % 4 ? (long long)M : 1) * ((K + 3) / 4 * 4)); }
__device__ __forceinline__ unsigned* finished(const __half* high) { return largest_of(high) + 2; }
// Columns 4 * lane .. of rows k .. k + 3 of a panel of b, as two float16 matrices; what lies outside is zero. Returns the largest magnitude.
__device__ __forceinline__ float split_rows(const float* __restrict__ b, __half* high, __half* low, int panel, int k) {
    const int c = panel * 128 + threadIdx.x % 32 * 4;
    if (c >= PITCH) return 0;
    float4 v[4];
    float top = 0;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const float* from = b + (long long)(k + r) * N + c;
        v[r] = make_float4(0, 0, 0, 0);
        if (k + r >= K) continue;
#if N % 4 == 0
        if (c < N) v[r] = __ldcs((const float4*)from);
#else
        if (c < N) v[r].x = from[0];
        if (c + 1 < N) v[r].y = from[1];
        if (c + 2 < N) v[r].z = from[2];
        if (c + 3 < N) v[r].w = from[3];
#endif
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        top = fmaxf(top, largest(v[r]));
        uint2 h, l;
        split_pair(v[r].x, v[r].y, h.x, l.x);
        split_pair(v[r].z, v[r].w, h.y, l.y);
        const long long to = (long long)place_of_row(k + r) * PITCH + c;
        *(uint2*)(high + to) = h;
        *(uint2*)(low + to) = l;
    }
    return top;
}
__device__ __forceinline__ void generic_before_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

extern "C" __global__ void __launch_bounds__(384, 1)
product(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap padded, const __grid_constant__ CUtensorMap right_high,
        const __grid_constant__ CUtensorMap right_low, const float* __restrict__ a, const float* __restrict__ b, __half* high,
        float* __restrict__ out) {
    extern __shared__ char raw[];
    char* stages = (char*)(((uintptr_t)raw + 1023) / 1024 * 1024);
    __shared__ uint64_t full[STAGES], empty[STAGES];
    constexpr int STAGE = 65536, STEPS = (K + 63) / 64;                 // bytes: a 4 boxes of 16 columns, b high 2, low 2; 8 KB each
    __half* low = high + (long long)DEPTH * PITCH;
    float* rows = aligned_rows(high);
    unsigned *tops = largest_of(high), *done = finished(high);
    float top = 0;
    const int blocks = gridDim.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first = min(PANELS, blocks / min(BAND, ROWS) + 2);        // panels of the first round, and of the loads that run ahead
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) barrier_init(&full[s], 1), barrier_init(&empty[s], 8);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (blockIdx.x == 0 && threadIdx.x < 2) tops[threadIdx.x] = 0;
    if (blockIdx.x == 0)
        for (int p = threadIdx.x; p < PANELS; p += 384) done[p] = 0;
    for (int i = blockIdx.x * 12 + warp; i < first * (DEPTH / 4); i += blocks * 12)
        top = fmaxf(top, split_rows(b, high, low, i / (DEPTH / 4), i % (DEPTH / 4) * 4));
#if K % 4
    constexpr int LEFT_PITCH = (K + 3) / 4 * 4;
    for (int m = blockIdx.x; m < M; m += blocks)
        for (int c = threadIdx.x; c < LEFT_PITCH; c += 384) rows[(long long)m * LEFT_PITCH + c] = c < K ? a[(long long)m * K + c] : 0;
#endif
    generic_before_async();
    cooperative_groups::this_grid().sync();
    top = warp_max(top);
    if (lane == 0) atomicMax(tops + 1, __float_as_uint(top));
    top = 0;
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        if (warp == 8) {
            if (lane == 0) {
                generic_before_async();
                int s = 0, phase = 0, loads = 0, known = first;          // panels below `known` are complete
                for (int tile = blockIdx.x; tile < TILES; tile += blocks) {
                    int row, column;
                    tile_at(tile, ROWS, PANELS, row, column);
                    for (; known <= column; ++known) {
                        unsigned count;
                        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(done + known) : "memory");
                        while (count < blocks * SPLITTERS);
                        generic_before_async();
                    }
                    for (int step = 0; step < STEPS; ++step) {
                        if (loads++ >= STAGES) barrier_wait(&empty[s], phase ^ 1);
                        barrier_expect(&full[s], STAGE);
                        float* a_to = (float*)(stages + s * STAGE);
                        __half* b_to = (__half*)(stages + s * STAGE + 4 * LEFT_BOX * 4);
#pragma unroll
                        for (int q = 0; q < 4; ++q) tensor_load(a_to + q * LEFT_BOX, K % 4 ? &padded : &left, row * 128, step * 64 + q * 16, &full[s]);
#pragma unroll
                        for (int h = 0; h < 2; ++h) {
                            tensor_load(b_to + h * BOX, &right_high, step * 64, column * 128 + 64 * h, &full[s]);
                            tensor_load(b_to + (2 + h) * BOX, &right_low, step * 64, column * 128 + 64 * h, &full[s]);
                        }
                        if (++s == STAGES) s = 0, phase ^= 1;
                    }
                }
            }
        } else {
            for (int panel = first; panel < PANELS; ++panel) {
                for (int k = (blockIdx.x * SPLITTERS + warp - 9) * 4; k < DEPTH; k += blocks * SPLITTERS * 4)
                    top = fmaxf(top, split_rows(b, high, low, panel, k));
                generic_before_async();
                __threadfence();
                __syncwarp();
                if (lane == 0) asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(done + panel), "r"(1) : "memory");
            }
            top = warp_max(top);
            if (lane == 0) atomicMax(tops + 1, __float_as_uint(top));
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        const int group = threadIdx.x / 128, row = warp * 16 + lane / 4;
        int s = 0, phase = 0;
        for (int tile = blockIdx.x; tile < TILES; tile += blocks) {
            float sum[64] = {}, part[64];
            int tile_row, tile_column;
            tile_at(tile, ROWS, PANELS, tile_row, tile_column);
            for (int step = 0; step < STEPS; ++step) {
                barrier_wait(&full[s], phase);
                const unsigned at = shared_address(stages + s * STAGE) + row * 64 + lane % 4 * 16;
                const __half* b_at = (const __half*)(stages + s * STAGE + 4 * LEFT_BOX * 4);
                const uint64_t rh = tile_descriptor(b_at, BOX * 2, 1024), rl = tile_descriptor(b_at + 2 * BOX, BOX * 2, 1024);
                float4 v[4][2];
                uint32_t high[4][4], low[4][4];
#pragma unroll
                for (int k = 0; k < 4; ++k)
#pragma unroll
                    for (int h = 0; h < 2; ++h) v[k][h] = shared_load(at + k * (LEFT_BOX * 4) + h * 512);
                if (tile_column == 0) {                                     // each row of a once
#pragma unroll
                    for (int k = 0; k < 4; ++k) top = fmaxf(top, fmaxf(largest(v[k][0]), largest(v[k][1])));
                }
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
                if (++s == STAGES) s = 0, phase ^= 1;
                if (step % PROMOTE == PROMOTE - 1 || step == STEPS - 1) {
#pragma unroll
                    for (int i = 0; i < 64; ++i) sum[i] += part[i];
                }
            }
#pragma unroll
            for (int i = 0; i < 64; ++i) sum[i] *= 1 / (SCALE * SCALE);
            write_tile(out, sum, tile_row * 128 + 64 * group, tile_column * 128);
        }
        top = warp_max(top);
        if (lane == 0) atomicMax(tops, __float_as_uint(top));
    }
}

// Multiplies in fp32 where a number of a or b left the range of float16: 32 x 32 results a block, four a thread.
extern "C" __global__ void __launch_bounds__(256) repair(const float* __restrict__ a, const float* __restrict__ b, const __half* high,
                                                         float* __restrict__ out) {
    const unsigned* tops = largest_of(high);
    const float tops_a = __uint_as_float(tops[0]), tops_b = __uint_as_float(tops[1]);
    if (tops_a <= LARGEST && tops_b <= LARGEST && !(tops_a > 0 && tops_a < SMALLEST) && !(tops_b > 0 && tops_b < SMALLEST)) return;
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
