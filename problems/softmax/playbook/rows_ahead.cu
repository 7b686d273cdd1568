// one_meeting.cu with rows prefetched to L2: reads no longer pause while the blocks of a multiprocessor reduce, write and are replaced. About 66
// rows are in flight in clusters of four blocks of 512 threads; a cluster that has asked for its own row asks L2 for the row AHEAD rows
// later, which starts 1 to 5 us after this one ends.
// Bounds (4096 x 65536): 2.15 GB, 503 us at 4.27 TB/s. Predicted: 2 % less than one_meeting.cu (544 us): 533 us.
#include "problem.h"
// @tune CLUSTER = 4, 8
// @tune BLOCK = 512, 256
// @tune AHEAD = 72, 104
// @require CLUSTER * BLOCK >= 1024
// @require CLUSTER * BLOCK <= 2048
// @require (AHEAD >= 104) + (CLUSTER == 4) * (BLOCK == 512) > 0
// @launch softmax_rows(x, out) grid(BATCH_SIZE * CLUSTER) block(BLOCK) cluster(CLUSTER)

#define GROUPS ((DIM + 4 * CLUSTER * BLOCK - 1) / (4 * CLUSTER * BLOCK))
#define WARPS (BLOCK / 32)
#define PAIRS (CLUSTER * WARPS)
#define BASE_TWO 1.4426950408889634f
__device__ __forceinline__ float exp2_fast(float v) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r; }
// Four adjacent elements of a row: one 16-byte access if rows are 16-byte aligned, else guarded single accesses.
__device__ __forceinline__ float4 load4(const float* row, int i) {
#if DIM % 4 == 0
    if (i >= DIM) return make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    return __ldg((const float4*)(row + i));
#else
    return make_float4(i < DIM ? row[i] : -INFINITY, i + 1 < DIM ? row[i + 1] : -INFINITY,
                       i + 2 < DIM ? row[i + 2] : -INFINITY, i + 3 < DIM ? row[i + 3] : -INFINITY);
#endif
}
__device__ __forceinline__ void store4(float* row, int i, float4 v) {
#if DIM % 4 == 0
    if (i < DIM) __stcs((float4*)(row + i), v);
#else
    if (i < DIM) row[i] = v.x;
    if (i + 1 < DIM) row[i + 1] = v.y;
    if (i + 2 < DIM) row[i + 2] = v.z;
    if (i + 3 < DIM) row[i + 3] = v.w;
#endif
}
__device__ __forceinline__ float max4(float4 v) { return fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)); }
__device__ __forceinline__ unsigned cluster_rank() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Writes a pair to the same shared-memory address in block `rank` of the cluster.
__device__ __forceinline__ void give_peer(float2* ours, unsigned rank, float2 v) {
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"((unsigned)__cvta_generic_to_shared(ours)), "r"(rank));
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    return v;
}
// What is subtracted from values: finite where all are -inf. Its product with BASE_TWO is rounded alike wherever it is needed.
__device__ __forceinline__ float shift(float top) { return top == -INFINITY ? 0 : top; }

extern "C" __global__ void __launch_bounds__(BLOCK) softmax_rows(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float2 found[PAIRS];
    cluster_arrive();                   // the peers have started once this is complete
    const int rank = cluster_rank(), lane = threadIdx.x % 32, first = 4 * (rank * BLOCK + threadIdx.x);
    const float* row = x + (long long)(blockIdx.x / CLUSTER) * DIM;
    float* result = out + (long long)(blockIdx.x / CLUSTER) * DIM;
    float4 v[GROUPS];
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) v[g] = load4(row, first + 4 * CLUSTER * BLOCK * g);
    constexpr int SHARE = DIM / (4 * CLUSTER) * 16;     // bytes of a row that a block asks for; what is left of it is not prefetched
    if (DIM % 4 == 0 && SHARE > 0 && threadIdx.x == 0 && blockIdx.x / CLUSTER + AHEAD < BATCH_SIZE)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(row + (long long)AHEAD * DIM + rank * (SHARE / 4)), "r"(SHARE) : "memory");
    float top = -INFINITY;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) top = fmaxf(top, max4(v[g]));
    top = warp_max(top);
    const float base = __fmul_rn(shift(top), BASE_TWO);
    float sum = 0;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        v[g] = make_float4(exp2_fast(fmaf(v[g].x, BASE_TWO, -base)), exp2_fast(fmaf(v[g].y, BASE_TWO, -base)),
                           exp2_fast(fmaf(v[g].z, BASE_TWO, -base)), exp2_fast(fmaf(v[g].w, BASE_TWO, -base)));
        sum += (v[g].x + v[g].y) + (v[g].z + v[g].w);
    }
    sum = warp_sum(sum);
    cluster_wait();
    if (lane < CLUSTER) give_peer(&found[rank * WARPS + threadIdx.x / 32], lane, make_float2(top, sum));
    cluster_arrive();
    cluster_wait();
    float2 pair[(PAIRS + 31) / 32];
    float all = -INFINITY, total = 0;
#pragma unroll
    for (int i = 0; i < (PAIRS + 31) / 32; ++i) {
        pair[i] = lane + 32 * i < PAIRS ? found[lane + 32 * i] : make_float2(-INFINITY, 0);
        all = fmaxf(all, pair[i].x);
    }
    all = warp_max(all);
    const float peak = __fmul_rn(shift(all), BASE_TWO);
#pragma unroll
    for (int i = 0; i < (PAIRS + 31) / 32; ++i) total += pair[i].y > 0 ? pair[i].y * exp2_fast(__fmul_rn(shift(pair[i].x), BASE_TWO) - peak) : pair[i].y;
    const float scale = exp2_fast(base - peak) / warp_sum(total);
#pragma unroll
    for (int g = 0; g < GROUPS; ++g)
        store4(result, first + 4 * CLUSTER * BLOCK * g, make_float4(v[g].x * scale, v[g].y * scale, v[g].z * scale, v[g].w * scale));
}
