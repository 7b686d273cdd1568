// Persistent clusters loop over the rows. While a row is reduced and written from registers, TMA loads the next one into
// shared memory, so that reads are always in flight.
#include <cstdint>
#include "problem.h"
// @tune CLUSTER = 2, 4, 8
// @tune BLOCK = 1024, 512, 256
// @tune PER_SM = 1, 2, 3, 4
// @require CLUSTER * BLOCK >= 2048
// @require BLOCK * PER_SM <= 1536
// @require PER_SM * DIM / CLUSTER <= 49152
// @require 16 * ceil_div(DIM, 4 * CLUSTER) * PER_SM <= 220000
// @launch softmax_rows(x, out) grid(max(1, min(BATCH_SIZE, (SMS - 4) * PER_SM / CLUSTER)) * CLUSTER) block(BLOCK) shared(16 * ceil_div(DIM, 4 * CLUSTER)) cluster(CLUSTER)

#define SLICE (4 * ((DIM + 4 * CLUSTER - 1) / (4 * CLUSTER)))        // elements of a row that one block holds
#define GROUPS ((SLICE + 4 * BLOCK - 1) / (4 * BLOCK))
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
// One contiguous TMA copy: 16-byte aligned on both sides, `bytes` a multiple of 16, completion counted by `b`.
__device__ __forceinline__ void bulk_load(void* to, const void* from, int bytes, uint64_t* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(b)) : "memory");
}

extern "C" __global__ void __launch_bounds__(BLOCK, PER_SM) softmax_rows(const float* __restrict__ x, float* __restrict__ out) {
    extern __shared__ __align__(128) float slice[];
    __shared__ float scratch[32];
    __shared__ float2 found[2][CLUSTER];            // two places: a peer may still read the last row's when this row's is written
    __shared__ uint64_t arrived;
    const int rank = cluster_rank(), begin = rank * SLICE, count = max(0, min(SLICE, DIM - begin)), clusters = gridDim.x / CLUSTER;
    int r = blockIdx.x / CLUSTER;
    if (threadIdx.x == 0) {
        barrier_init(&arrived, 1);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    cluster_arrive();                   // the peers have started once this is complete
    cluster_wait();
    const bool fetches = DIM % 4 == 0 && threadIdx.x == 0 && count > 0;
    if (fetches && r < BATCH_SIZE) {
        barrier_expect(&arrived, 4 * count);
        bulk_load(slice, x + (long long)r * DIM + begin, 4 * count, &arrived);
    }
    for (int turn = 0; r < BATCH_SIZE; r += clusters, ++turn) {
        float4 v[GROUPS];
#if DIM % 4 == 0
        if (count > 0) barrier_wait(&arrived, turn & 1);
#endif
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const int i = 4 * (g * BLOCK + threadIdx.x);
#if DIM % 4 == 0
            v[g] = i < count ? *(const float4*)(slice + i) : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
#else
            v[g] = i < SLICE ? load4(x + (long long)r * DIM, begin + i) : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
#endif
        }
        __syncthreads();                // the slice is in registers: its place is free
        if (fetches && r + clusters < BATCH_SIZE) {
            barrier_expect(&arrived, 4 * count);
            bulk_load(slice, x + (long long)(r + clusters) * DIM + begin, 4 * count, &arrived);
        }
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
        float2* all = found[turn & 1];
        if (threadIdx.x < CLUSTER) give_peer(&all[rank], threadIdx.x, make_float2(largest, sum));
        cluster_arrive();
        cluster_wait();
        float all_max = -INFINITY, all_sum = 0;
#pragma unroll
        for (int c = 0; c < CLUSTER; ++c) all_max = fmaxf(all_max, all[c].x);
#pragma unroll
        for (int c = 0; c < CLUSTER; ++c) all_sum += all[c].y * EXP(all[c].x - all_max);
        const float scale = EXP(base - all_max) / all_sum;
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const int i = 4 * (g * BLOCK + threadIdx.x);
            if (i < SLICE) store4(out + (long long)r * DIM, begin + i, make_float4(v[g].x * scale, v[g].y * scale, v[g].z * scale, v[g].w * scale));
        }
    }
    cluster_arrive();                   // no block exits while a peer may still write to its shared memory
    cluster_wait();
}
