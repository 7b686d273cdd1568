// One block per token, two passes over its vector: the mean square, the result.
#include "problem.h"
// @tune BLOCK = 256, 512, 1024
// @launch rms_norm(x, weight, out) grid(TOKENS) block(BLOCK)

extern "C" __global__ void rms_norm(const __nv_bfloat16* x, const __nv_bfloat16* weight, __nv_bfloat16* out) {
    __shared__ float scratch[32];
    const __nv_bfloat16* in = x + (long long)blockIdx.x * HIDDEN;
    float sum = 0;
    for (int i = threadIdx.x; i < HIDDEN; i += BLOCK) sum += __bfloat162float(in[i]) * __bfloat162float(in[i]);
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int warp = 0; warp < BLOCK / 32; ++warp) sum += scratch[warp];
    const float scale = 1 / sqrtf(sum / HIDDEN + (float)EPS);
    for (int i = threadIdx.x; i < HIDDEN; i += BLOCK)
        out[(long long)blockIdx.x * HIDDEN + i] = __float2bfloat16(__bfloat162float(in[i]) * scale * __bfloat162float(weight[i]));
}
