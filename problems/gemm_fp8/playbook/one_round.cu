// Few rows against many columns: tiles of 128 rows as wide as registers allow, one for each block, so that b streams through the device
// in a single round and a is fetched least often. Two blocks of a cluster fetch half of a's rows each, for both. Products are summed for
// one block of scales on the tensor cores, then added to the result in single precision, while the other warpgroup multiplies.
// Bounds (128 x 24576 x 1536): 44 MB, 10.5 us at 4.2 TB/s; 128 tiles of 192 columns on 132 SMs; L2 delivers 50 MB.
// Measured on an H200: 20.7 us for that shape (17 were predicted), where tiles of 256 columns in 96 blocks take 30 and torch's product 21.5.
#include <cstdint>
#include <cuda.h>
#include "problem.h"
// @tune COLUMNS = 192, 128
// @tune STAGES = 4, 5
// @tensormap left = a as uint8(M, K) tile(64, 128) swizzle(128)
// @tensormap right = b as uint8(N, K) tile(COLUMNS, 128) swizzle(128)
// @launch product(left, right, scale_a, scale_b, out) grid(2 * ceil_div(N, 2 * COLUMNS), ceil_div(M, 128)) block(384) shared(1024 + STAGES * (128 + COLUMNS) * 128) cluster(2)

#define BLOCKS (K / SCALE_BLOCK)
#define PARTS (COLUMNS / 64)                         // columns that share a scale of b: 64 or 128, and 64 divides both
#define LEFT (128 * 128)                             // bytes of a in a stage
#define STAGE (LEFT + COLUMNS * 128)
static_assert(SCALE_BLOCK == 128 && N % 128 == 0, "a stage is one block of scales deep");

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
__device__ __forceinline__ void tensor_load(void* to, const CUtensorMap* map, int row, int column, uint64_t* b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(shared_address(b)) : "memory");
}
// Multicasts the box to both blocks of the cluster, at the same address, counted by the same barrier of each.
__device__ __forceinline__ void tensor_multicast(void* to, const CUtensorMap* map, int row, int column, uint64_t* b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                 ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(shared_address(b)), "h"((unsigned short)3) : "memory");
}
__device__ __forceinline__ unsigned cluster_rank() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Arrives at the barrier at the same address in block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive_at(uint64_t* ours, unsigned rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}\n"
                 ::"r"(shared_address(ours)), "r"(rank) : "memory");
}
// Rows of 128 bytes in a 128-byte swizzle, groups of eight rows 1024 bytes apart.
__device__ __forceinline__ uint64_t tile_descriptor(const void* tile) {
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 | (shared_address(tile) & 0x3FFFF) >> 4;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
// Keeps the compiler from moving uses of the accumulators across this point.
__device__ __forceinline__ void pin(float (&d)[COLUMNS / 2]) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
#if COLUMNS == 192
__device__ __forceinline__ void multiply(float (&d)[96], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
                 "%96, %97, p, 1, 1;\n}\n"
                 :
                 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
                 "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
                 "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
                 "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
                 "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
                 : "l"(a), "l"(b), "r"(accumulate));
}
#else
__device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, p, 1, 1;\n}\n"
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
#endif
__device__ __forceinline__ unsigned packed(float a, float b) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const unsigned*>(&both);
}
// Transposes four values of four neighbouring lanes: lane q gets the values q of all of them.
__device__ __forceinline__ uint4 transposed(uint4 v) {
    const bool high = threadIdx.x & 2, odd = threadIdx.x & 1;
    unsigned r = __shfl_xor_sync(~0u, high ? v.x : v.z, 2), s = __shfl_xor_sync(~0u, high ? v.y : v.w, 2);
    if (high) v.x = r, v.y = s; else v.z = r, v.w = s;
    r = __shfl_xor_sync(~0u, odd ? v.x : v.y, 1), s = __shfl_xor_sync(~0u, odd ? v.z : v.w, 1);
    if (odd) v.x = r, v.z = s; else v.y = r, v.w = s;
    return v;
}

extern "C" __global__ void __launch_bounds__(384, 1)
product(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right, const float* __restrict__ scale_a,
        const float* __restrict__ scale_b, __nv_bfloat16* __restrict__ out) {
    extern __shared__ char raw[];
    char* stages = (char*)(((uintptr_t)raw + 1023) / 1024 * 1024);
    __shared__ uint64_t full[STAGES], empty[STAGES];
    const int rank = cluster_rank(), column0 = blockIdx.x * COLUMNS, row0 = blockIdx.y * 128;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) barrier_init(&full[s], 1), barrier_init(&empty[s], 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 256)
            for (int step = 0; step < BLOCKS; ++step) {
                const int s = step % STAGES;
                if (step >= STAGES) barrier_wait(&empty[s], step / STAGES - 1 & 1);
                barrier_expect(&full[s], STAGE);
                char* to = stages + s * STAGE;
                tensor_multicast(to + rank * (LEFT / 2), &left, row0 + 64 * rank, step * 128, &full[s]);
                tensor_load(to + LEFT, &right, column0, step * 128, &full[s]);
            }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int group = threadIdx.x / 128, lane = threadIdx.x % 32, row = row0 + threadIdx.x / 32 * 16 + lane / 4;
        const float *upper = scale_a + min(row, M - 1), *lower = scale_a + min(row + 8, M - 1);
        const float* across[PARTS];
        float sum[COLUMNS / 2] = {}, part[COLUMNS / 2], next[2 + PARTS];
#pragma unroll
        for (int p = 0; p < PARTS; ++p) across[p] = scale_b + (long long)min((column0 + 64 * p) / 128, N / 128 - 1) * BLOCKS, next[2 + p] = __ldg(across[p]);
        next[0] = __ldg(upper), next[1] = __ldg(lower);
        for (int step = 0; step < BLOCKS; ++step) {
            const int s = step % STAGES, ahead = min(step + 1, BLOCKS - 1);
            float scales[2][PARTS];
#pragma unroll
            for (int p = 0; p < PARTS; ++p) scales[0][p] = next[0] * next[2 + p], scales[1][p] = next[1] * next[2 + p], next[2 + p] = __ldg(across[p] + ahead);
            next[0] = __ldg(upper + (long long)ahead * M), next[1] = __ldg(lower + (long long)ahead * M);
            barrier_wait(&full[s], step / STAGES & 1);
            const uint64_t l = tile_descriptor(stages + s * STAGE + group * (LEFT / 2)), r = tile_descriptor(stages + s * STAGE + LEFT);
            pin(part);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; ++k) multiply(part, l + 2 * k, r + 2 * k, k > 0);
            wgmma_commit();
            wgmma_wait();
            pin(part);
            if (threadIdx.x % 128 < 2) barrier_arrive_at(&empty[s], threadIdx.x % 128);
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; ++i) sum[i] += part[i] * scales[i / 2 % 2][i / 32];
        }
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int j = 0; j < COLUMNS / 2; j += 16) {
                const float* v = sum + j + 2 * h;
                const uint4 line = transposed(make_uint4(packed(v[0], v[1]), packed(v[4], v[5]), packed(v[8], v[9]), packed(v[12], v[13])));
                const int r = row + 8 * h, c = column0 + j * 2 + lane % 4 * 8;
                if (r < M && c < N) *reinterpret_cast<uint4*>(out + (long long)r * N + c) = line;
            }
    }
    cluster_sync();                     // no block exits while its peer may still write to it or arrive at its barriers
}
