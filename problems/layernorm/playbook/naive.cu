// One block per sample, three passes over it: the mean, the variance, the result.
#include "problem.h"
// @tune BLOCK = 256, 512, 1024
// @launch layer_norm(x, ln_weight, ln_bias, out) grid(BATCH_SIZE) block(BLOCK)

#define ELEMENTS (FEATURES * DIM1 * DIM2)
#define EPSILON 1e-5f                                // nn.LayerNorm's default

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

extern "C" __global__ void layer_norm(const float* x, const float* weight, const float* bias, float* out) {
    __shared__ float scratch[32];
    const float* sample = x + (long long)blockIdx.x * ELEMENTS;
    float* result = out + (long long)blockIdx.x * ELEMENTS;
    float sum = 0;
    for (int i = threadIdx.x; i < ELEMENTS; i += BLOCK) sum += sample[i];
    const float mean = block_reduce(sum, scratch, Sum()) / ELEMENTS;
    float squares = 0;
    for (int i = threadIdx.x; i < ELEMENTS; i += BLOCK) squares += (sample[i] - mean) * (sample[i] - mean);
    const float scale = 1 / sqrtf(block_reduce(squares, scratch, Sum()) / ELEMENTS + EPSILON);
    for (int i = threadIdx.x; i < ELEMENTS; i += BLOCK) result[i] = (sample[i] - mean) * scale * weight[i] + bias[i];
}
