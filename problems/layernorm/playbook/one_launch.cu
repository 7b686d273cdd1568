// One cooperative launch processes the samples in order: a block computes the moments of its part of the next sample, then normalises
// its part of this one, which is still in L2. Blocks wait for each other's moments, not for a grid barrier.
#include "problem.h"
// @tune BLOCK = 512, 1024, 256
// @tune PER_SM = 3, 2, 1
// @tune UNROLL = 8, 4
// @require BLOCK * PER_SM <= 1536
// @workspace BATCH_SIZE * (4 + 12 * SMS * PER_SM) zero
// @launch layer_norm(x, ln_weight, ln_bias, workspace, workspace + BATCH_SIZE * 4, out) grid(SMS * PER_SM) block(BLOCK) cooperative

constexpr int IN_FLIGHT = UNROLL;
#define ELEMENTS (FEATURES * DIM1 * DIM2)            // of one sample
#if ELEMENTS % 4 == 0
#define WIDTH 4                                      // elements of one access: every sample starts on 16 bytes
typedef float4 Access;
#else
#define WIDTH 1
typedef float Access;
#endif
#define EPSILON 1e-5f                                // nn.LayerNorm's default

// Count, mean and sum of squared deviations of some values; two of them merge without cancellation (Chan, Golub, LeVeque).
struct Moments { float n, mean, m2; };
__device__ __forceinline__ Moments merge(Moments a, Moments b) {
    const float n = a.n + b.n, share = n > 0 ? __fdividef(b.n, n) : 0, d = b.mean - a.mean;
    return {n, a.mean + d * share, a.m2 + b.m2 + d * d * a.n * share};
}
template <int COUNT> __device__ __forceinline__ Moments moments_of(const float (&v)[COUNT]) {
    float sum = 0, m2 = 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sum += v[i];
    const float mean = sum * (1.0f / COUNT);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) m2 += (v[i] - mean) * (v[i] - mean);
    return {float(COUNT), mean, m2};
}
__device__ __forceinline__ Moments warp_merge(Moments a) {
#pragma unroll
    for (int o = 16; o; o >>= 1)
        a = merge(a, {__shfl_xor_sync(~0u, a.n, o), __shfl_xor_sync(~0u, a.mean, o), __shfl_xor_sync(~0u, a.m2, o)});
    return a;
}
__device__ Moments block_merge(Moments a, Moments* scratch) {
    a = warp_merge(a);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = a;
    __syncthreads();
    return warp_merge(threadIdx.x % 32 < BLOCK / 32 ? scratch[threadIdx.x % 32] : Moments{0, 0, 0});
}
// The moments of row[begin, end), WIDTH-aligned, UNROLL accesses of every thread in flight.
__device__ __forceinline__ Moments read_moments(const float* row, int begin, int end) {
    Moments found = {0, 0, 0};
    int i = begin + WIDTH * threadIdx.x;
    for (; i + WIDTH * BLOCK * (UNROLL - 1) < end; i += WIDTH * BLOCK * UNROLL) {
        float v[WIDTH * UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) *(Access*)(v + WIDTH * u) = *(const Access*)(row + i + WIDTH * BLOCK * u);
        found = merge(found, moments_of(v));
    }
    for (; i < end; i += WIDTH * BLOCK) {
        float v[WIDTH];
        *(Access*)v = *(const Access*)(row + i);
        found = merge(found, moments_of(v));
    }
    return found;
}
__device__ __forceinline__ float normalised(float v, float mean, float scale, float w, float b) { return (v - mean) * scale * w + b; }
__device__ __forceinline__ float4 normalised(float4 v, float mean, float scale, float4 w, float4 b) {
    return make_float4(normalised(v.x, mean, scale, w.x, b.x), normalised(v.y, mean, scale, w.y, b.y),
                       normalised(v.z, mean, scale, w.z, b.z), normalised(v.w, mean, scale, w.w, b.w));
}
// The grid synchronises once per sample. `arrive` publishes this block's moments; `collect` waits for all blocks' moments and merges them. Between
// the two there is other work to do, which hides the wait.
__device__ __forceinline__ void arrive(unsigned* arrived, Moments* places, Moments mine) {
    if (threadIdx.x == 0) {
        places[blockIdx.x] = mine;
        __threadfence();
        atomicAdd(arrived, 1);
    }
}
__device__ __forceinline__ Moments collect(unsigned* arrived, const Moments* places, Moments* scratch) {
    if (threadIdx.x == 0) {
        unsigned seen;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");
        while (seen < gridDim.x);
    }
    __syncthreads();
    Moments all = {0, 0, 0};
    for (int p = threadIdx.x; p < gridDim.x; p += BLOCK)
        all = merge(all, {__ldcg(&places[p].n), __ldcg(&places[p].mean), __ldcg(&places[p].m2)});
    return block_merge(all, scratch);
}

extern "C" __global__ void __launch_bounds__(BLOCK, PER_SM)
layer_norm(const float* x, const float* __restrict__ weight, const float* __restrict__ bias, unsigned* arrived, Moments* places, float* out) {
    __shared__ Moments scratch[32];
    const int part = WIDTH * ((ELEMENTS + WIDTH * gridDim.x - 1) / (WIDTH * gridDim.x));
    const int begin = min(ELEMENTS, part * (int)blockIdx.x), end = min(ELEMENTS, begin + part);
    arrive(arrived, places, block_merge(read_moments(x, begin, end), scratch));
    for (int s = 0; s < BATCH_SIZE; ++s) {
        const long long offset = (long long)s * ELEMENTS;
        if (s + 1 < BATCH_SIZE)
            arrive(arrived + s + 1, places + (s + 1) * gridDim.x, block_merge(read_moments(x + offset + ELEMENTS, begin, end), scratch));
        const Moments all = collect(arrived + s, places + s * gridDim.x, scratch);
        const float mean = all.mean, scale = rsqrtf(all.m2 / ELEMENTS + EPSILON);
#pragma unroll IN_FLIGHT
        for (int i = begin + WIDTH * threadIdx.x; i < end; i += WIDTH * BLOCK)
            __stcs((Access*)(out + offset + i), normalised(__ldcs((const Access*)(x + offset + i)), mean, scale,
                                                           *(const Access*)(weight + i), *(const Access*)(bias + i)));
    }
}
