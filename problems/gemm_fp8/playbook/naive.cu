// One warp an element of the result: 16 bytes a lane and step, each lane's products times the two scales of their block.
#include "problem.h"
// @tune WARPS = 8, 4, 16
// @launch product(a, b, scale_a, scale_b, out) grid(ceil_div(N, WARPS), M) block(32 * WARPS)

#define BLOCKS (K / SCALE_BLOCK)
static_assert(SCALE_BLOCK % 16 == 0, "the bytes of a lane belong to one block of scales");

// Four values of a times four of b.
__device__ float products(unsigned a, unsigned b) {
    float sum = 0;
#pragma unroll
    for (int half = 0; half < 32; half += 16) {
        const float2 left = __half22float2(__nv_cvt_fp8x2_to_halfraw2(a >> half & 0xffff, __NV_E4M3));
        const float2 right = __half22float2(__nv_cvt_fp8x2_to_halfraw2(b >> half & 0xffff, __NV_E4M3));
        sum += left.x * right.x + left.y * right.y;
    }
    return sum;
}

extern "C" __global__ void product(const __nv_fp8_e4m3* a, const __nv_fp8_e4m3* b, const float* scale_a, const float* scale_b,
                                   __nv_bfloat16* out) {
    const int row = blockIdx.y, column = blockIdx.x * WARPS + threadIdx.x / 32;
    if (column >= N) return;
    const uint4* left = reinterpret_cast<const uint4*>(a + (long long)row * K);
    const uint4* right = reinterpret_cast<const uint4*>(b + (long long)column * K);
    float sum = 0;
    for (int i = threadIdx.x % 32; i < K / 16; i += 32) {
        const int block = i * 16 / SCALE_BLOCK;
        const uint4 x = left[i], y = right[i];
        const float part = products(x.x, y.x) + products(x.y, y.y) + products(x.z, y.z) + products(x.w, y.w);
        sum += part * scale_a[(long long)block * M + row] * scale_b[column / SCALE_BLOCK * BLOCKS + block];
    }
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (threadIdx.x % 32 == 0) out[(long long)row * N + column] = __float2bfloat16(sum);
}
