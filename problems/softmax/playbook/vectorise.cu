// The three passes of the naive port with 16-byte accesses and UNROLL of them in flight per thread.
#include "problem.h"
// @tune BLOCK = 1024, 512, 256
// @tune UNROLL = 8, 4, 2
// @launch softmax_rows(x, out) grid(BATCH_SIZE) block(BLOCK)

constexpr int IN_FLIGHT = UNROLL;
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

extern "C" __global__ void __launch_bounds__(BLOCK) softmax_rows(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float scratch[32];
    const float* row = x + (long long)blockIdx.x * DIM;
    float* result = out + (long long)blockIdx.x * DIM;
    float largest = -INFINITY;
#pragma unroll IN_FLIGHT
    for (int i = 4 * threadIdx.x; i < DIM; i += 4 * BLOCK) largest = fmaxf(largest, max4(load4(row, i)));
    largest = block_reduce(largest, scratch, Max());
    float sum = 0;
#pragma unroll IN_FLIGHT
    for (int i = 4 * threadIdx.x; i < DIM; i += 4 * BLOCK) {
        float4 v = load4(row, i);
        sum += (expf(v.x - largest) + expf(v.y - largest)) + (expf(v.z - largest) + expf(v.w - largest));
    }
    float scale = 1 / block_reduce(sum, scratch, Sum());
#pragma unroll IN_FLIGHT
    for (int i = 4 * threadIdx.x; i < DIM; i += 4 * BLOCK) {
        float4 v = load4(row, i);
        store4(result, i, make_float4(expf(v.x - largest) * scale, expf(v.y - largest) * scale,
                                      expf(v.z - largest) * scale, expf(v.w - largest) * scale));
    }
}
