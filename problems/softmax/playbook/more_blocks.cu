// one_meeting.cu with a part of each block's share in shared memory, so that more blocks are on a multiprocessor. In one_meeting.cu a thread
// holds 32 values in 52 registers: two blocks of 512, which move 256 KB in 8 us at the copy rate. About 4.7 us of each block's life move nothing (start
// of a cluster 1, first load 1, exchange 2, end 0.7), and the other block has to make up for them. Here HELD of a thread's 8 accesses are in registers
// and the others in shared memory, which nothing else uses: three or four blocks, 192 or 256 KB under way. Each thread reads only what
// it copied itself, so there is no further barrier; exponentials of what lies in shared memory are taken twice (2 of 16 a clock). The exchange is
// by asynchronous stores that a barrier in each block counts: the cluster's barrier waits for a fence over all of memory.
// Bounds (4096 x 65536): 2.15 GB, 503 us at 4.27 TB/s. Predicted: 95 to 96 % of that, 527 us where one_meeting.cu takes 544.
// Measured on an H100, which copies at 3.01 TB/s: 719 us, 99 % of that, 1.02x one_meeting.cu's speed (CLUSTER=8 BLOCK=256 HELD=4).
#include <cstdint>
#include "problem.h"
// @tune CLUSTER = 4, 8
// @tune BLOCK = 512, 256
// @tune HELD = 4, 2
// HELD: 16-byte accesses of a thread that stay in registers.
// @require CLUSTER * BLOCK == 2048
// @launch softmax_rows(x, out) grid(BATCH_SIZE * CLUSTER) block(BLOCK) shared(16 * BLOCK * max(0, min(208 * 64 / BLOCK, ceil_div(DIM, 4 * CLUSTER * BLOCK) - HELD))) cluster(CLUSTER)

#define STRIDE (4 * CLUSTER * BLOCK)
#define GROUPS ((DIM + STRIDE - 1) / STRIDE)
#define MOST (208 * 64 / BLOCK)                       // accesses of a thread for which shared memory has room
constexpr int AWAY = GROUPS <= HELD ? 0 : GROUPS - HELD < MOST ? GROUPS - HELD : MOST;
constexpr int KEPT = GROUPS - AWAY;
constexpr int UNROLL = 2;             // of what is in shared memory: registers are few
constexpr int PER_SM = KEPT > HELD || GROUPS > 8 ? 1 : HELD > 2 ? 3 * 512 / BLOCK : 4 * 512 / BLOCK;
#define WARPS (BLOCK / 32)
#define PAIRS (CLUSTER * WARPS)
#define BASE_TWO 1.4426950408889634f
__device__ __forceinline__ float exp2_fast(float v) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r; }
// Four adjacent elements of a row: one 16-byte access if rows are 16-byte aligned, else guarded single accesses.
__device__ __forceinline__ float4 load4(const float* row, int i) {
#if DIM % 4 == 0
    float4 v = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    if (i < DIM)
        asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(row + i) : "memory");
    return v;
#else
    return make_float4(i < DIM ? row[i] : -INFINITY, i + 1 < DIM ? row[i + 1] : -INFINITY,
                       i + 2 < DIM ? row[i + 2] : -INFINITY, i + 3 < DIM ? row[i + 3] : -INFINITY);
#endif
}
// The same into shared memory, there when this thread has waited for its copies.
__device__ __forceinline__ void copy4(float4* to, const float* row, int i) {
#if DIM % 4 == 0
    if (i < DIM) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(row + i) : "memory");
        return;
    }
#endif
    *to = load4(row, i);
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
__device__ __forceinline__ void cluster_start() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ unsigned at_peer(const void* ours, unsigned rank) {
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(ours)), "r"(rank));
    return address;
}
// Writes a pair to the same shared-memory address in block `rank` of the cluster, whose barrier counts its bytes: no fence, no further barrier.
__device__ __forceinline__ void give_peer(float2* ours, uint64_t* barrier, unsigned rank, float2 v) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 ::"r"(at_peer(ours, rank)), "f"(v.x), "f"(v.y), "r"(at_peer(barrier, rank)) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* b, unsigned parity) {
    unsigned done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                     : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");
    } while (!done);
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

__device__ __forceinline__ float4 powers(float4 v, float base) {
    return make_float4(exp2_fast(fmaf(v.x, BASE_TWO, -base)), exp2_fast(fmaf(v.y, BASE_TWO, -base)),
                       exp2_fast(fmaf(v.z, BASE_TWO, -base)), exp2_fast(fmaf(v.w, BASE_TWO, -base)));
}
__device__ __forceinline__ float4 scaled(float4 v, float by) { return make_float4(v.x * by, v.y * by, v.z * by, v.w * by); }

extern "C" __global__ void __launch_bounds__(BLOCK, PER_SM) softmax_rows(const float* __restrict__ x, float* __restrict__ out) {
    extern __shared__ __align__(16) float4 space[];
    __shared__ float2 found[PAIRS];
    __shared__ uint64_t complete;       // once all pairs are in `found`
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&complete)), "r"(1) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&complete)), "r"(8 * PAIRS) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    cluster_start();                    // the peers have started once this is complete
    const int rank = cluster_rank(), lane = threadIdx.x % 32, first = 4 * (rank * BLOCK + threadIdx.x);
    const float* row = x + (long long)(blockIdx.x / CLUSTER) * DIM;
    float* result = out + (long long)(blockIdx.x / CLUSTER) * DIM;
    float4 v[KEPT];                     // the first accesses; the others lie in shared memory
    float4* away = space + threadIdx.x;
#pragma unroll
    for (int g = 0; g < AWAY; ++g) copy4(away + BLOCK * g, row, first + STRIDE * (KEPT + g));
#pragma unroll
    for (int g = 0; g < KEPT; ++g) v[g] = load4(row, first + STRIDE * g);
    __syncthreads();                    // for the compiler: it would move some loads behind the wait
    asm volatile("cp.async.wait_all;" ::: "memory");
    float top = -INFINITY;
#pragma unroll UNROLL
    for (int g = 0; g < AWAY; ++g) top = fmaxf(top, max4(away[BLOCK * g]));
#pragma unroll
    for (int g = 0; g < KEPT; ++g) top = fmaxf(top, max4(v[g]));
    top = warp_max(top);
    const float base = __fmul_rn(shift(top), BASE_TWO);
    float sum = 0;
#pragma unroll
    for (int g = 0; g < KEPT; ++g) v[g] = powers(v[g], base), sum += (v[g].x + v[g].y) + (v[g].z + v[g].w);
#pragma unroll UNROLL
    for (int g = 0; g < AWAY; ++g) {
        const float4 e = powers(away[BLOCK * g], base);
        sum += (e.x + e.y) + (e.z + e.w);
    }
    sum = warp_sum(sum);
    cluster_wait();
    if (lane < CLUSTER) give_peer(&found[rank * WARPS + threadIdx.x / 32], &complete, lane, make_float2(top, sum));
    barrier_wait(&complete, 0);         // a block that has ended has all pairs, so nobody writes to it any more
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
    const float inverse = 1 / warp_sum(total), scale = exp2_fast(base - peak) * inverse;
#pragma unroll
    for (int g = 0; g < KEPT; ++g) store4(result, first + STRIDE * g, scaled(v[g], scale));
#pragma unroll UNROLL
    for (int g = 0; g < AWAY; ++g) store4(result, first + STRIDE * (KEPT + g), scaled(powers(away[BLOCK * g], peak), inverse));
}
