// Two groups of 64 queries alternate: while one computes exp of a tile, the tensor cores work on the other's products. Within a group
// the next scores and the last sums are issued together, also across blocks of queries: blocks are persistent, and the loop over queries
// and keys is one stream without a restart. CLUSTER blocks load keys and values once for all. Sums are rescaled only if a maximum has
// grown by more than 2^8.
//
// Predicted (4 x 16 x 4096 x 128, 550 GFLOP): 0.696 ms at 790 TFLOP/s; 2048 tiles of 128 queries are 16 rounds where 15.5 would do: 0.718 ms.
// A tile of 128 keys: 2048 tensor clocks for both groups; 1024 clocks of exponentials (16 per clock); about 290 other instructions per
// thread and group, 580 issue clocks of a scheduler: all fit under the products if the groups alternate. L2 delivers 32 bytes per clock
// and block without a cluster (5 TB/s in total: near its limit), 16 with a cluster of two. Expect 0.80 to 0.84 ms; storing
// results (once in 32 tiles) and the power limit remain.
#include <cstdint>
#include <cuda.h>
#include "problem.h"
// @tune KEYS = 128, 160, 176
// @tune CLUSTER = 2, 1
// @tune TURNS = 0, 1
// @tune STAGES = 2
// @tune QUERY_BUFFERS = 2, 1
// @require QUERY_BUFFERS * 32768 + STAGES * KEYS * 512 <= 212992
// @tensormap query_map = q as float16(BATCH_SIZE * HEADS, SEQUENCE, max(8, HEAD_DIM - HEAD_DIM % 8)) tile(1, 64, 64) swizzle(128)
// @tensormap key_map = k as float16(BATCH_SIZE * HEADS, SEQUENCE, max(8, HEAD_DIM - HEAD_DIM % 8)) tile(1, KEYS / CLUSTER, 64) swizzle(128)
// @tensormap value_map = v as float16(BATCH_SIZE * HEADS, SEQUENCE, max(8, HEAD_DIM - HEAD_DIM % 8)) tile(1, KEYS / CLUSTER, 64) swizzle(128)
// @tensormap result = out as float16(BATCH_SIZE * HEADS, SEQUENCE, max(8, HEAD_DIM - HEAD_DIM % 8)) tile(1, 16, 64) swizzle(128)
// @launch attend(query_map, key_map, value_map, result, q, k, v, out) grid(CLUSTER * min(SMS / CLUSTER, ceil_div(SEQUENCE, 128 * CLUSTER) * BATCH_SIZE * HEADS)) block(384) shared(1024 + 16384 + (QUERY_BUFFERS * 16384 + STAGES * KEYS * 256) * (1 + (HEAD_DIM > 64))) cluster(CLUSTER)

#define QUERIES 128
#define PANELS (HEAD_DIM > 64 ? 2 : 1)               // of 64 dimensions: one swizzled box is 64 halves wide
#define PANEL (KEYS * 64)
#if HEAD_DIM % 8 || HEAD_DIM > 128
// Rows that do not start on 16 bytes, which TMA needs, or sums too wide for the registers: one warp per query.
__device__ void plain_queries(const __half* q, const __half* k, const __half* v, __half* out, long long head, int first) {
    constexpr int SHARE = (HEAD_DIM + 31) / 32;
    const int lane = threadIdx.x % 32;
    const float scale = rsqrtf(HEAD_DIM);
    for (int query = first + threadIdx.x / 32; query < min(first + QUERIES, SEQUENCE); query += blockDim.x / 32) {
        float mine[SHARE], sum[SHARE] = {}, largest = -INFINITY, total = 0;
        for (int d = 0; d < SHARE; ++d)
            mine[d] = d * 32 + lane < HEAD_DIM ? __half2float(q[(head * SEQUENCE + query) * HEAD_DIM + d * 32 + lane]) * scale : 0;
        for (int key = 0; key < SEQUENCE; ++key) {
            const long long row = (head * SEQUENCE + key) * HEAD_DIM;
            float score = 0;
            for (int d = 0; d < SHARE; ++d)
                if (d * 32 + lane < HEAD_DIM) score += mine[d] * __half2float(k[row + d * 32 + lane]);
            for (int o = 16; o; o >>= 1) score += __shfl_xor_sync(~0u, score, o);
            const float peak = fmaxf(largest, score), keep = expf(largest - peak), weight = expf(score - peak);
            for (int d = 0; d < SHARE; ++d)
                if (d * 32 + lane < HEAD_DIM) sum[d] = sum[d] * keep + weight * __half2float(v[row + d * 32 + lane]);
            total = total * keep + weight;
            largest = peak;
        }
        for (int d = 0; d < SHARE; ++d)
            if (d * 32 + lane < HEAD_DIM) out[(head * SEQUENCE + query) * HEAD_DIM + d * 32 + lane] = __float2half(sum[d] / total);
    }
}
#endif

__device__ __forceinline__ float exp2_fast(float v) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r; }
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
__device__ __forceinline__ unsigned cluster_rank() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Arrives at the barrier at the same address in block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive_at(uint64_t* ours, unsigned rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}\n"
                 ::"r"(shared_address(ours)), "r"(rank) : "memory");
}
__device__ __forceinline__ void tensor_load(void* to, const CUtensorMap* map, int head, int row, int column, uint64_t* b) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(head), "r"(shared_address(b)) : "memory");
}
// Multicasts the box to every block of the cluster, at the same address, counted by the same barrier of each.
__device__ __forceinline__ void tensor_multicast(void* to, const CUtensorMap* map, int head, int row, int column, uint64_t* b) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;"
                 ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(head), "r"(shared_address(b)), "h"((unsigned short)((1 << CLUSTER) - 1)) : "memory");
}
// 16 x 64 results from shared memory to the matrix; elements outside are skipped.
__device__ __forceinline__ void tensor_store(const CUtensorMap* map, const void* from, int head, int row, int column) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];\ncp.async.bulk.commit_group;"
                 ::"l"(map), "r"(column), "r"(row), "r"(head), "r"(shared_address(from)) : "memory");
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
#if KEYS == 128
__device__ __forceinline__ void multiply_scores(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, p, 1, 1, 0, 0;\n}\n"
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
#elif KEYS == 160
__device__ __forceinline__ void multiply_scores(float (&d)[80], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n160k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}, "
                 "%80, %81, p, 1, 1, 0, 0;\n}\n"
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
                 "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
                 : "l"(a), "l"(b), "r"(accumulate));
}
#elif KEYS == 176
__device__ __forceinline__ void multiply_scores(float (&d)[88], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %90, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n176k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87}, "
                 "%88, %89, p, 1, 1, 0, 0;\n}\n"
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
                 "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
                 : "l"(a), "l"(b), "r"(accumulate));
}
#endif
#if HEAD_DIM > 64
__device__ __forceinline__ void accumulate_values(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int accumulate) {
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
#else
__device__ __forceinline__ void accumulate_values(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
                 :
                 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}
#endif

// Everything that `v` depends on is computed before this line: otherwise the assembler may move a wait for the tensor cores ahead
// of arithmetic that should overlap them. (A sum of exponentials is never negative.)
__device__ __forceinline__ void settle(float v) { if (v < 0) asm volatile("nanosleep.u32 1;" ::: "memory"); }

constexpr int TILES = (SEQUENCE + KEYS - 1) / KEYS;
constexpr int SCORES = KEYS / 2;                     // of a thread

// score = 64 queries times KEYS keys: both lie with the head's dimensions along rows.
__device__ __forceinline__ void multiply_keys(float (&score)[SCORES], const __half* queries, const __half* keys) {
    const uint64_t q = tile_descriptor(queries, 16, 1024), k = tile_descriptor(keys, 16, 1024);
    pin(score);
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < PANELS * 4; ++d)
        multiply_scores(score, q + d / 4 * (64 * 64 / 8) + d % 4 * 2, k + d / 4 * (PANEL / 8) + d % 4 * 2, d > 0);
    wgmma_commit();
}
// sum += weights (registers) times values, whose rows run across the product's inner dimension.
__device__ __forceinline__ void multiply_values(float (&sum)[PANELS * 32], uint32_t (&weight)[KEYS / 16][4], const __half* values) {
    const uint64_t v = tile_descriptor(values, PANEL * 2, 1024);
    pin(sum);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 16; ++i) accumulate_values(sum, weight[i], v + i * 128, 1);
    wgmma_commit();
}
__device__ __forceinline__ void pack(uint32_t (&weight)[KEYS / 16][4], const float (&score)[SCORES]) {
#pragma unroll
    for (int i = 0; i < SCORES / 2; ++i) {
        const __half2 pair = __floats2half2_rn(score[2 * i], score[2 * i + 1]);
        weight[i / 4][i % 4] = *(const uint32_t*)&pair;
    }
}
// Two rows of scores of a thread (four threads hold a row) become weights relative to `reference`, which follows the row's maximum
// only in jumps of more than 8 in the exponent: until then weights may reach 2^8, far inside a half's range, and sums stay as they are.
// `factor` is log2(e) over the square root of the head's dimension: exponentials are taken in base two. True if sums must be rescaled.
struct Rows { float reference[2], total[2]; };
__device__ __forceinline__ bool weigh(float (&score)[SCORES], Rows& rows, float (&keep)[2], float factor) {
    float peak[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};
#pragma unroll
    for (int i = 0; i < SCORES; i += 4)
#pragma unroll
        for (int h = 0; h < 2; ++h) peak[h][i / 4 % 2] = fmaxf(peak[h][i / 4 % 2], fmaxf(score[i + 2 * h], score[i + 2 * h + 1]));
    bool jump = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float p = fmaxf(peak[h][0], peak[h][1]);
        p = fmaxf(p, __shfl_xor_sync(~0u, p, 1));
        p = fmaxf(p, __shfl_xor_sync(~0u, p, 2));
        p *= factor;
        const bool grown = p > rows.reference[h] + 8;
        keep[h] = grown ? exp2_fast(rows.reference[h] - p) : 1;
        rows.reference[h] = grown ? p : rows.reference[h];
        rows.total[h] *= keep[h];
        jump = jump || grown;
    }
    float part[2][2] = {};
#pragma unroll
    for (int i = 0; i < SCORES; i += 4)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int at = i + 2 * h;
            score[at] = exp2_fast(score[at] * factor - rows.reference[h]);
            score[at + 1] = exp2_fast(score[at + 1] * factor - rows.reference[h]);
            part[h][0] += score[at];
            part[h][1] += score[at + 1];
        }
#pragma unroll
    for (int h = 0; h < 2; ++h) rows.total[h] += part[h][0] + part[h][1];
    return __any_sync(~0u, jump);
}
__device__ __forceinline__ void rescale(float (&sum)[PANELS * 32], const float (&keep)[2]) {
#pragma unroll
    for (int i = 0; i < PANELS * 32; ++i) sum[i] *= keep[i / 2 % 2];
}
// A warp's 16 queries, 64 dimensions at a time through one swizzled box of its own.
__device__ __forceinline__ void write_queries(const CUtensorMap* map, const float (&sum)[PANELS * 32], const Rows& rows, __half* box, int head, int query) {
    const int lane = threadIdx.x % 32;
    float scale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float total = rows.total[h];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        scale[h] = 1 / total;
    }
    const unsigned line = shared_address(box) + (lane % 8 + lane / 8 % 2 * 8) * 128;
#pragma unroll
    for (int p = 0; p < PANELS; ++p) {
        if (lane == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint32_t part[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = 32 * p + 4 * j + 2 * i;
                const __half2 pair = __floats2half2_rn(sum[at] * scale[i % 2], sum[at + 1] * scale[i % 2]);
                part[i] = *(const uint32_t*)&pair;
            }
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                         ::"r"(line + ((j + lane / 16 ^ lane % 8) << 4)), "r"(part[0]), "r"(part[1]), "r"(part[2]), "r"(part[3]) : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (lane == 0) tensor_store(map, box, head, query, 64 * p);
    }
}
// The two groups alternate in issuing products: a group waits for its turn and then passes it to the other.
__device__ __forceinline__ void wait_turn(int group) { if (TURNS) asm volatile("bar.sync %0, 256;" ::"r"(group + 1) : "memory"); }
__device__ __forceinline__ void give_turn(int group) { if (TURNS) asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory"); }

extern "C" __global__ void __launch_bounds__(384, 1)
attend(const __grid_constant__ CUtensorMap query_map, const __grid_constant__ CUtensorMap key_map, const __grid_constant__ CUtensorMap value_map,
       const __grid_constant__ CUtensorMap result, const __half* q, const __half* k, const __half* v, __half* __restrict__ out) {
    constexpr int ACROSS = (SEQUENCE + QUERIES * CLUSTER - 1) / (QUERIES * CLUSTER), WORK = ACROSS * BATCH_SIZE * HEADS;
    const int rank = CLUSTER > 1 ? cluster_rank() : 0, first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;
#if HEAD_DIM % 8 || HEAD_DIM > 128
    for (int work = first; work < WORK; work += step) plain_queries(q, k, v, out, work / ACROSS, (work % ACROSS * CLUSTER + rank) * QUERIES);
#else
    extern __shared__ char raw[];
    __half* boxes = (__half*)(((uintptr_t)raw + 1023) / 1024 * 1024);   // staging of results: 2 KB a warp
    __half* queries = boxes + 8 * 1024;
    __half* stages = queries + QUERY_BUFFERS * 2 * PANELS * 64 * 64;                    // of keys, then values
    __shared__ uint64_t queries_full[QUERY_BUFFERS], queries_empty[QUERY_BUFFERS], keys_full[STAGES], values_full[STAGES], keys_empty[STAGES], values_empty[STAGES];
    if (threadIdx.x == 0) {
        for (int i = 0; i < QUERY_BUFFERS; ++i) barrier_init(&queries_full[i], 1), barrier_init(&queries_empty[i], 2);
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(&keys_full[s], 1), barrier_init(&values_full[s], 1);
            barrier_init(&keys_empty[s], 2 * CLUSTER), barrier_init(&values_empty[s], 2 * CLUSTER);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (CLUSTER > 1) cluster_sync();
    else __syncthreads();
    // Tiles from the last one down: the one that may lie partly outside comes first.
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(KEYS > 160 ? 24 : 40));
        if (threadIdx.x == 256) {
            int s = 0, phase = 0, filling = STAGES, walked = 0;
            auto fetch = [&](const CUtensorMap* map, __half* to, int head, int row, uint64_t* full) {
                barrier_expect(full, PANELS * PANEL * 2);
#pragma unroll
                for (int p = 0; p < PANELS; ++p) {
                    if (CLUSTER > 1) tensor_multicast(to + p * PANEL + rank * (PANEL / CLUSTER), map, head, row + rank * (KEYS / CLUSTER), 64 * p, full);
                    else tensor_load(to + p * PANEL, map, head, row, 64 * p, full);
                }
            };
            for (int work = first; work < WORK; work += step, ++walked) {
                const int head = work / ACROSS, query0 = (work % ACROSS * CLUSTER + rank) * QUERIES;
                for (int t = TILES - 1; t >= 0; --t) {
                    __half* to = stages + s * 2 * PANELS * PANEL;
                    if (!filling) barrier_wait(&keys_empty[s], phase ^ 1);
                    fetch(&key_map, to, head, t * KEYS, &keys_full[s]);
                    if (t == TILES - 1) {
                        const int i = walked % QUERY_BUFFERS;
                        if (walked >= QUERY_BUFFERS) barrier_wait(&queries_empty[i], walked / QUERY_BUFFERS - 1 & 1);
                        barrier_expect(&queries_full[i], 2 * PANELS * 64 * 128);
                        for (int g = 0; g < 2; ++g)
                            for (int p = 0; p < PANELS; ++p)
                                tensor_load(queries + ((i * 2 + g) * PANELS + p) * 64 * 64, &query_map, head, query0 + 64 * g, 64 * p, &queries_full[i]);
                    }
                    if (!filling) barrier_wait(&values_empty[s], phase ^ 1);
                    else --filling;
                    fetch(&value_map, to + PANELS * PANEL, head, t * KEYS, &values_full[s]);
                    if (++s == STAGES) s = 0, phase ^= 1;
                }
            }
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(KEYS > 160 ? 240 : 232));
        const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
        const float factor = 1.4426950408889634f * rsqrtf(HEAD_DIM);
        __half* box = boxes + threadIdx.x / 32 * 1024;
        auto release = [&](uint64_t* barrier) {
            if (thread < CLUSTER) {
                if (CLUSTER > 1) barrier_arrive_at(barrier, thread);
                else barrier_arrive(barrier);
            }
        };
        int s = 0, phase = 0, last = 0, last_phase = 0, buffer = 0, buffer_phase = 0;
        auto keys_of = [&](int stage) { return stages + stage * 2 * PANELS * PANEL; };
        auto mine = [&]() { return queries + (buffer * 2 + group) * PANELS * 64 * 64; };
        float sum[PANELS * 32], score[SCORES], keep[2];
        uint32_t weight[KEYS / 16][4];
        Rows rows;
        auto start = [&]() {                            // the first scores of other queries have arrived
#pragma unroll
            for (int i = 0; i < PANELS * 32; ++i) sum[i] = 0;
#pragma unroll
            for (int h = 0; h < 2; ++h) rows.reference[h] = -INFINITY, rows.total[h] = 0;
            if (SEQUENCE % KEYS) {
#pragma unroll
                for (int i = 0; i < SCORES; ++i)
                    if ((TILES - 1) * KEYS + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2 >= SEQUENCE) score[i] = -INFINITY;
            }
        };
        auto write = [&](int work) {
            const int head = work / ACROSS, query0 = (work % ACROSS * CLUSTER + rank) * QUERIES;
            write_queries(&result, sum, rows, box, head, query0 + 16 * (threadIdx.x / 32));
        };
        auto multiplied = [&](int t) {                  // the scores of tile t have arrived
            pin(score);
            release(&keys_empty[s]);
            if (t == TILES - 1) {
                if (thread == 0) barrier_arrive(&queries_empty[buffer]);
                if (++buffer == QUERY_BUFFERS) buffer = 0, buffer_phase ^= 1;
            }
            last = s, last_phase = phase;
            if (++s == STAGES) s = 0, phase ^= 1;
        };
        if (group == 1) give_turn(1);                   // the first turn is group 0's
        int work = first;
        barrier_wait(&queries_full[0], 0);
        barrier_wait(&keys_full[0], 0);
        multiply_keys(score, mine(), keys_of(0));
        wgmma_wait<0>();
        multiplied(0);
        start();
        weigh(score, rows, keep, factor);
        pack(weight, score);
        for (int t = 1;; ++t) {
            if (t == TILES) {
                t = 0;
                if (work + step >= WORK) break;
                barrier_wait(&queries_full[buffer], buffer_phase);
            }
            barrier_wait(&keys_full[s], phase);
            wait_turn(group);
            multiply_keys(score, mine(), keys_of(s));
            barrier_wait(&values_full[last], last_phase);
            multiply_values(sum, weight, keys_of(last) + PANELS * PANEL);
            give_turn(group);
            uint64_t* used = &values_empty[last];
            wgmma_wait<1>();                            // the scores have arrived; the product with the values still runs
            multiplied(t);
            if (t == 0) {
                wgmma_wait<0>();
                pin(sum);
                write(work);
                work += step;
                start();
            }
            const bool jump = weigh(score, rows, keep, factor);
            pin(score);
            settle(rows.total[0] + rows.total[1]);
            wgmma_wait<0>();
            pin(sum);
            pin(score);
            release(used);
            pack(weight, score);
            if (jump) rescale(sum, keep);
        }
        barrier_wait(&values_full[last], last_phase);
        multiply_values(sum, weight, keys_of(last) + PANELS * PANEL);
        wgmma_wait<0>();
        pin(sum);
        release(&values_empty[last]);
        write(work);
        if (group == 0) wait_turn(0);                                   // the turn that is left over
        if (threadIdx.x % 32 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        __syncwarp();
    }
    if (CLUSTER > 1) cluster_sync();    // no block exits while its peer may still write to it or arrive at its barriers
#endif
}
