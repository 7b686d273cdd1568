// One block per row, three passes over it: the maximum, the sum of the exponentials, the quotient.
#include "problem.h"
// @tune BLOCK = 256, 128, 512, 1024
// @launch softmax_rows(x, out) grid(BATCH_SIZE) block(BLOCK)

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

extern "C" __global__ void softmax_rows(const float* x, float* out) {
    __shared__ float scratch[32];
    const float* row = x + (long long)blockIdx.x * DIM;
    float* result = out + (long long)blockIdx.x * DIM;
    float largest = -INFINITY;
    for (int i = threadIdx.x; i < DIM; i += BLOCK) largest = fmaxf(largest, row[i]);
    largest = block_reduce(largest, scratch, Max());
    float sum = 0;
    for (int i = threadIdx.x; i < DIM; i += BLOCK) sum += expf(row[i] - largest);
    sum = block_reduce(sum, scratch, Sum());
    for (int i = threadIdx.x; i < DIM; i += BLOCK) result[i] = expf(row[i] - largest) / sum;
}
