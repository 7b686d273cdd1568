// As with vector accesses, but a block of the second launch takes the same columns of every sample: weight and bias are read once
// and stay in registers.
#include "problem.h"
// @tune PARTS = 64, 128
// @tune BLOCK = 256, 512
// @tune UNROLL = 4, 8
// @tune GROUPS = 1, 2
// @workspace BATCH_SIZE * PARTS * 12
// @launch moments(x, workspace) grid(PARTS, BATCH_SIZE) block(BLOCK)
// @launch normalise(x, ln_weight, ln_bias, workspace, out) grid(ceil_div(FEATURES * DIM1 * DIM2, BLOCK * GROUPS * (1 + 3 * (FEATURES * DIM1 * DIM2 % 4 == 0)))) block(BLOCK)

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
#define PART (WIDTH * ((ELEMENTS + WIDTH * PARTS - 1) / (WIDTH * PARTS)))

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

extern "C" __global__ void __launch_bounds__(BLOCK) moments(const float* __restrict__ x, Moments* __restrict__ parts) {
    __shared__ Moments scratch[32];
    const int begin = min(ELEMENTS, PART * blockIdx.x), end = min(ELEMENTS, begin + PART);
    Moments found = block_merge(read_moments(x + (long long)blockIdx.y * ELEMENTS, begin, end), scratch);
    if (threadIdx.x == 0) parts[blockIdx.y * PARTS + blockIdx.x] = found;
}

extern "C" __global__ void __launch_bounds__(BLOCK) normalise(const float* __restrict__ x, const float* __restrict__ weight,
                                                              const float* __restrict__ bias, const Moments* __restrict__ parts,
                                                              float* __restrict__ out) {
    __shared__ float2 sample[BATCH_SIZE];            // mean and scale
    const int lane = threadIdx.x % 32;
    for (int s = threadIdx.x / 32; s < BATCH_SIZE; s += BLOCK / 32) {
        Moments all = {0, 0, 0};
        for (int p = lane; p < PARTS; p += 32) all = merge(all, parts[s * PARTS + p]);
        all = warp_merge(all);
        if (lane == 0) sample[s] = make_float2(all.mean, rsqrtf(all.m2 / ELEMENTS + EPSILON));
    }
    const int begin = WIDTH * (blockIdx.x * BLOCK * GROUPS + threadIdx.x);
    Access w[GROUPS], b[GROUPS];
#pragma unroll
    for (int g = 0; g < GROUPS; ++g)
        if (const int i = begin + g * WIDTH * BLOCK; i < ELEMENTS) w[g] = *(const Access*)(weight + i), b[g] = *(const Access*)(bias + i);
    __syncthreads();
#pragma unroll IN_FLIGHT
    for (int s = 0; s < BATCH_SIZE; ++s) {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const int i = begin + g * WIDTH * BLOCK;
            const long long at = (long long)s * ELEMENTS + i;
            if (i < ELEMENTS) __stcs((Access*)(out + at), normalised(__ldcs((const Access*)(x + at)), sample[s].x, sample[s].y, w[g], b[g]));
        }
    }
}
