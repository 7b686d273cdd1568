// early_weight.cu for calls with cold caches: what follows the loads is run twice, first on zeros and without stores, while the loads are under way.
// A norm of one token takes 4 us: the launch, one wait for memory, and then, where caches are cold, waits for the instructions of the reduction
// and the scaling, and for the place of the output's page. The run on zeros fetches these instructions (100 of them, 13 lines), and a prefetch of
// the output asks for its page. Both lie within the wait for the vector.
// Bounds: 0.3 us of arithmetic in place of 0.15; 32 bytes of memory a block. Predicted up to 256 tokens: 0.5 to 0.8 us of 4.3 if
// instructions come from memory, 0.2 if they are still in the multiprocessors' own caches; nothing from 4096 tokens on.
#include "problem.h"
// @tune BLOCK = 512, 256, 1024
// @tune TURNS = 2, 1
// @tune TOUCH = 1, 0
// TURNS: 2 with the run on zeros; TOUCH: 1 prefetches a sector of the output.
// @launch rms_norm(x, weight, out) grid(TOKENS) block(BLOCK)

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
// A load that the compiler may not move.
__device__ uint4 load_now(const uint4* from) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}
__device__ uint4 either(uint4 v, unsigned bits) { return make_uint4(v.x | bits, v.y | bits, v.z | bits, v.w | bits); }

extern "C" __global__ void __launch_bounds__(BLOCK) rms_norm(const __nv_bfloat16* x, const __nv_bfloat16* weight, __nv_bfloat16* out) {
    __shared__ float4 scratch[2][BLOCK / 128];                           // one sum a warp
    const uint4* in = reinterpret_cast<const uint4*>(x + (long long)blockIdx.x * HIDDEN);
    const uint4* gains = reinterpret_cast<const uint4*>(weight);
    uint4* to = reinterpret_cast<uint4*>(out + (long long)blockIdx.x * HIDDEN);
    uint4 kept[SHARE], gain[SHARE];
#pragma unroll
    for (int s = 0; s < SHARE; ++s) {
        const int i = s * BLOCK + threadIdx.x;
        kept[s] = i < VECTORS ? load_now(in + i) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int s = 0; s < SHARE; ++s) {
        const int i = s * BLOCK + threadIdx.x;
        gain[s] = i < VECTORS ? load_now(gains + i) : make_uint4(0, 0, 0, 0);
    }
    if (TOUCH && threadIdx.x == 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(to) : "memory");
    // The values of this turn: in the first of two they do not depend on the loads, so that it need not wait for them.
    uint4 now[SHARE], by[SHARE];
    int turn = 2 - TURNS;
    unsigned never;                                     // zero, which the compiler does not know
    asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(never));
    never >>= 31;
    asm volatile("" : "+r"(turn));                      // the compiler may not take the turns apart
#pragma unroll
    for (int s = 0; s < SHARE; ++s) {
        now[s] = TURNS == 1 ? kept[s] : make_uint4(0, 0, 0, 0);
        by[s] = TURNS == 1 ? gain[s] : make_uint4(0, 0, 0, 0);
    }
#pragma unroll 1
    while (true) {
        float sum = 0;
#pragma unroll
        for (int s = 0; s < SHARE; ++s) sum += squares(now[s].x) + squares(now[s].y) + squares(now[s].z) + squares(now[s].w);
        for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
        if (threadIdx.x % 32 == 0) reinterpret_cast<float*>(scratch[turn])[threadIdx.x / 32] = sum;
        __syncthreads();
        float part[BLOCK / 128];
#pragma unroll
        for (int p = 0; p < BLOCK / 128; ++p) {
            const float4 four = scratch[turn][p];
            part[p] = (four.x + four.y) + (four.z + four.w);
        }
#pragma unroll
        for (int o = BLOCK / 256; o; o >>= 1)
#pragma unroll
            for (int p = 0; p < o; ++p) part[p] += part[p + o];
        const float scale = rsqrtf(part[0] / HIDDEN + (float)EPS);
        uint4 result[SHARE];
#pragma unroll
        for (int s = 0; s < SHARE; ++s) {
            const uint4 g = by[s], v = now[s];
            result[s] = make_uint4(scaled(v.x, g.x, scale), scaled(v.y, g.y, scale), scaled(v.z, g.z, scale), scaled(v.w, g.w, scale));
        }
        if (turn == 1) {
#pragma unroll
            for (int s = 0; s < SHARE; ++s)
                if (s * BLOCK + (int)threadIdx.x < VECTORS) __stcs(to + s * BLOCK + threadIdx.x, result[s]);
            return;
        }
        turn = 1;
        const unsigned nothing = result[SHARE - 1].w & never;           // keeps the wait for the loads behind this turn's arithmetic
#pragma unroll
        for (int s = 0; s < SHARE; ++s) now[s] = either(kept[s], nothing), by[s] = either(gain[s], nothing);
    }
}
