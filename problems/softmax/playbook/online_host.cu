// The online softmax under the host contract: the launcher picks the number of threads from the length of a row.
#include "problem.h"
// @tune UNROLL = 8, 4, 2

static const int BLOCK = DIM >= 16384 ? 1024 : DIM >= 4096 ? 256 : 128;
#define EXP(v) expf(v)
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
// Processes UNROLL groups of four: one maximum and one rescale of the running sum for all of them.
__device__ __forceinline__ void absorb(const float4 (&v)[UNROLL], float& largest, float& sum) {
    float m = largest;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) m = fmaxf(m, max4(v[u]));
    if (m == -INFINITY) return;
    float s = sum * EXP(largest - m);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) s += (EXP(v[u].x - m) + EXP(v[u].y - m)) + (EXP(v[u].z - m) + EXP(v[u].w - m));
    largest = m;
    sum = s;
}

static __global__ void __launch_bounds__(BLOCK) softmax_rows(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float scratch[32];
    const float* row = x + (long long)blockIdx.x * DIM;
    float* result = out + (long long)blockIdx.x * DIM;
    float mine = -INFINITY, sum = 0;
    for (int i = 4 * threadIdx.x; i < DIM; i += 4 * BLOCK * UNROLL) {
        float4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) v[u] = load4(row, i + 4 * BLOCK * u);
        absorb(v, mine, sum);
    }
    float largest = block_reduce(mine, scratch, Max());
    float scale = 1 / block_reduce(mine == -INFINITY ? 0 : sum * EXP(mine - largest), scratch, Sum());
#pragma unroll IN_FLIGHT
    for (int i = 4 * threadIdx.x; i < DIM; i += 4 * BLOCK) {
        float4 v = load4(row, i);
        store4(result, i, make_float4(EXP(v.x - largest) * scale, EXP(v.y - largest) * scale,
                                      EXP(v.z - largest) * scale, EXP(v.w - largest) * scale));
    }
}

extern "C" void launch(const float* x, float* out, void* workspace, cudaStream_t stream) {
    softmax_rows<<<BATCH_SIZE, BLOCK, 0, stream>>>(x, out);
}
