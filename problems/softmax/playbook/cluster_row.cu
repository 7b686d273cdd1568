// A row is held in the registers of a cluster of blocks: one read, one write. The blocks give each other (maximum, sum) once, through
// distributed shared memory.
#include "problem.h"
// @tune CLUSTER = 4, 8, 2
// @tune BLOCK = 512, 1024, 256
// @require CLUSTER * BLOCK >= 2048
// @launch softmax_rows(x, out) grid(BATCH_SIZE * CLUSTER) block(BLOCK) cluster(CLUSTER)

#define GROUPS ((DIM + 4 * CLUSTER * BLOCK - 1) / (4 * CLUSTER * BLOCK))
__device__ __forceinline__ float exp2_fast(float v) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r; }
#define EXP(v) exp2_fast((v) * 1.4426950408889634f)
// Returns the block's reduction to every thread; `scratch` holds one float per warp and can be reused after the next barrier.
template <class Op> __device__ float block_reduce(float v, float* scratch, Op op) {
    for (int o = 16; o; o >>= 1) v = op(v, __shfl_xor_sync(~0u, v, o));
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    v = scratch[threadIdx.x % (BLOCK / 32)];
    for (int o = BLOCK / 64; o; o >>= 1) v = op(v, __shfl_xor_sync(~0u, v, o));
    return v;
}
struct Max { __device__ float operator()(float a, float b) const { return fmaxf(a, b); } };
struct Sum { __device__ float operator()(float a, float b) const { return a + b; } };
// Four adjacent elements of a row: one 16-byte access if rows are 16-byte aligned, else guarded single accesses.
__device__ __forceinline__ float4 load4(const float* row, int i) {
#if DIM % 4 == 0
    return i < DIM ? *(const float4*)(row + i) : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
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

extern "C" __global__ void __launch_bounds__(BLOCK) softmax_rows(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float scratch[32];
    __shared__ float2 found[CLUSTER];
    cluster_arrive();                   // the peers have started once this is complete
    const int rank = cluster_rank(), first = 4 * (rank * BLOCK + threadIdx.x);
    const float* row = x + (long long)(blockIdx.x / CLUSTER) * DIM;
    float* result = out + (long long)(blockIdx.x / CLUSTER) * DIM;
    float4 v[GROUPS];
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) v[g] = load4(row, first + 4 * CLUSTER * BLOCK * g);
    float largest = -INFINITY;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) largest = fmaxf(largest, max4(v[g]));
    largest = block_reduce(largest, scratch, Max());
    const float base = largest == -INFINITY ? 0 : largest;
    float sum = 0;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        v[g] = make_float4(EXP(v[g].x - base), EXP(v[g].y - base), EXP(v[g].z - base), EXP(v[g].w - base));
        sum += (v[g].x + v[g].y) + (v[g].z + v[g].w);
    }
    sum = block_reduce(sum, scratch, Sum());
    cluster_wait();
    if (threadIdx.x < CLUSTER) give_peer(&found[rank], threadIdx.x, make_float2(largest, sum));
    cluster_arrive();
    cluster_wait();
    float all_max = -INFINITY, all_sum = 0;
#pragma unroll
    for (int c = 0; c < CLUSTER; ++c) all_max = fmaxf(all_max, found[c].x);
#pragma unroll
    for (int c = 0; c < CLUSTER; ++c) all_sum += found[c].y * EXP(found[c].x - all_max);
    const float scale = EXP(base - all_max) / all_sum;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g)
        store4(result, first + 4 * CLUSTER * BLOCK * g, make_float4(v[g].x * scale, v[g].y * scale, v[g].z * scale, v[g].w * scale));
}
