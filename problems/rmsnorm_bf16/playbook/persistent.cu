// Persistent blocks: each keeps its share of the weight in registers, and loads the next token while it reduces this one.
#include "problem.h"
// @tune BLOCK = 256, 512, 128
// @tune PER_SM = 4, 8, 2
// @launch rms_norm(x, weight, out) grid(min(TOKENS, SMS * PER_SM)) block(BLOCK)

#define VECTORS ((HIDDEN + 7) / 8)
#define SHARE ((VECTORS + BLOCK - 1) / BLOCK)
static_assert(HIDDEN % 8 == 0, "rows start at multiples of 16 bytes");

__device__ float2 pair(unsigned bits) { return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)); }
__device__ unsigned packed(float2 v) {
    const __nv_bfloat162 both = __float22bfloat162_rn(v);
    return *reinterpret_cast<const unsigned*>(&both);
}
__device__ unsigned scaled(unsigned value, unsigned gain, float scale) {
    const float2 v = pair(value), g = pair(gain);
    return packed(make_float2(v.x * scale * g.x, v.y * scale * g.y));
}
__device__ float squares(unsigned bits) { const float2 v = pair(bits); return v.x * v.x + v.y * v.y; }

__device__ void load(const __nv_bfloat16* x, long long token, uint4 (&kept)[SHARE]) {
    const uint4* in = reinterpret_cast<const uint4*>(x + token * HIDDEN);
#pragma unroll
    for (int s = 0; s < SHARE; ++s) {
        const int i = s * BLOCK + threadIdx.x;
        kept[s] = i < VECTORS && token < TOKENS ? __ldcs(in + i) : make_uint4(0, 0, 0, 0);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) rms_norm(const __nv_bfloat16* x, const __nv_bfloat16* weight, __nv_bfloat16* out) {
    __shared__ float scratch[2][BLOCK / 32];
    uint4 gain[SHARE], kept[SHARE], next[SHARE];
#pragma unroll
    for (int s = 0; s < SHARE; ++s) {
        const int i = s * BLOCK + threadIdx.x;
        gain[s] = i < VECTORS ? __ldg(reinterpret_cast<const uint4*>(weight) + i) : make_uint4(0, 0, 0, 0);
    }
    load(x, blockIdx.x, kept);
    int turn = 0;
    for (long long token = blockIdx.x; token < TOKENS; token += gridDim.x, turn ^= 1) {
        load(x, token + gridDim.x, next);
        float sum = 0;
#pragma unroll
        for (int s = 0; s < SHARE; ++s) sum += squares(kept[s].x) + squares(kept[s].y) + squares(kept[s].z) + squares(kept[s].w);
        for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
        if (threadIdx.x % 32 == 0) scratch[turn][threadIdx.x / 32] = sum;
        __syncthreads();
        sum = 0;
#pragma unroll
        for (int warp = 0; warp < BLOCK / 32; ++warp) sum += scratch[turn][warp];
        const float scale = rsqrtf(sum / HIDDEN + (float)EPS);
        uint4* to = reinterpret_cast<uint4*>(out + token * HIDDEN);
#pragma unroll
        for (int s = 0; s < SHARE; ++s) {
            const int i = s * BLOCK + threadIdx.x;
            const uint4 g = gain[s], v = kept[s];
            if (i < VECTORS)
                __stcs(to + i, make_uint4(scaled(v.x, g.x, scale), scaled(v.y, g.y, scale), scaled(v.z, g.z, scale), scaled(v.w, g.w, scale)));
            kept[s] = next[s];
        }
    }
}
