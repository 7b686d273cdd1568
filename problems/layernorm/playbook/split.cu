// PARTS blocks share a sample. The first launch finds each part's moments in one pass; in the second every block merges those
// of its sample and writes its part of the result.
#include "problem.h"
// @tune PARTS = 64, 128, 256
// @tune BLOCK = 256, 512
// @workspace BATCH_SIZE * PARTS * 12
// @launch moments(x, workspace) grid(PARTS, BATCH_SIZE) block(BLOCK)
// @launch normalise(x, ln_weight, ln_bias, workspace, out) grid(PARTS, BATCH_SIZE) block(BLOCK)

#define ELEMENTS (FEATURES * DIM1 * DIM2)            // of one sample
#define WIDTH 1                                      // elements of one access
#define UNROLL 4
constexpr int IN_FLIGHT = UNROLL;
typedef float Access;
#define EPSILON 1e-5f                                // nn.LayerNorm's default
#define PART ((ELEMENTS + PARTS - 1) / PARTS)

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
    for (int i = begin + threadIdx.x; i < end; i += BLOCK) out[offset + i] = (x[offset + i] - mean) * scale * weight[i] + bias[i];
}
