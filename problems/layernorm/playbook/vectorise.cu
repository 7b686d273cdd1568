// PARTS blocks share a sample, in two launches, with 16-byte accesses and UNROLL of them in flight per thread.
#include "problem.h"
// @tune PARTS = 64, 128, 256
// @tune BLOCK = 256, 512
// @tune UNROLL = 4, 8, 2
// @workspace BATCH_SIZE * PARTS * 12
// @launch moments(x, workspace) grid(PARTS, BATCH_SIZE) block(BLOCK)
// @launch normalise(x, ln_weight, ln_bias, workspace, out) grid(PARTS, BATCH_SIZE) block(BLOCK)

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
    __shared__ Moments scratch[32];
    Moments all = {0, 0, 0};
    for (int p = threadIdx.x; p < PARTS; p += BLOCK) all = merge(all, parts[blockIdx.y * PARTS + p]);
    all = block_merge(all, scratch);
    const float mean = all.mean, scale = rsqrtf(all.m2 / ELEMENTS + EPSILON);
    const int begin = min(ELEMENTS, PART * blockIdx.x), end = min(ELEMENTS, begin + PART);
    const long long offset = (long long)blockIdx.y * ELEMENTS;
#pragma unroll IN_FLIGHT
    for (int i = begin + WIDTH * threadIdx.x; i < end; i += WIDTH * BLOCK)
        __stcs((Access*)(out + offset + i), normalised(__ldcs((const Access*)(x + offset + i)), mean, scale,
                                                       *(const Access*)(weight + i), *(const Access*)(bias + i)));
}
