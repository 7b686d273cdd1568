// One block per query head: its warps walk the keys in turn, each lane holding a share of the head's dimensions.
#include "problem.h"
// @tune WARPS = 4, 8, 16
// @launch attend(q, k_cache, v_cache, block_table, lengths, out) grid(KV_HEADS * GROUP, BATCH_SIZE) block(32, WARPS)

#define SHARE ((HEAD_DIM + 31) / 32)
#define TABLE BLOCK_TABLE_DIM1

extern "C" __global__ void attend(const __nv_bfloat16* q, const __nv_bfloat16* k_cache, const __nv_bfloat16* v_cache,
                                  const int* block_table, const int* lengths, __nv_bfloat16* out) {
    __shared__ float tops[WARPS], totals[WARPS], sums[WARPS][SHARE * 32];
    const int head = blockIdx.x, sequence = blockIdx.y, lane = threadIdx.x, warp = threadIdx.y, length = lengths[sequence];
    const long long at = ((long long)sequence * KV_HEADS * GROUP + head) * HEAD_DIM;
    const float scale = rsqrtf(HEAD_DIM);
    float mine[SHARE], sum[SHARE] = {}, top = -INFINITY, total = 0;
    for (int s = 0; s < SHARE; ++s) mine[s] = s * 32 + lane < HEAD_DIM ? __bfloat162float(q[at + s * 32 + lane]) * scale : 0;
    for (int key = warp; key < length; key += WARPS) {
        const long long page = block_table[sequence * TABLE + key / PAGE_SIZE];
        const long long row = ((page * PAGE_SIZE + key % PAGE_SIZE) * KV_HEADS + head / GROUP) * HEAD_DIM;
        float score = 0;
        for (int s = 0; s < SHARE; ++s)
            if (s * 32 + lane < HEAD_DIM) score += mine[s] * __bfloat162float(k_cache[row + s * 32 + lane]);
        for (int o = 16; o; o >>= 1) score += __shfl_xor_sync(~0u, score, o);
        const float peak = fmaxf(top, score), keep = expf(top - peak), weight = expf(score - peak);
        for (int s = 0; s < SHARE; ++s)
            if (s * 32 + lane < HEAD_DIM) sum[s] = sum[s] * keep + weight * __bfloat162float(v_cache[row + s * 32 + lane]);
        total = total * keep + weight;
        top = peak;
    }
    for (int s = 0; s < SHARE; ++s) sums[warp][s * 32 + lane] = sum[s];
    if (lane == 0) tops[warp] = top, totals[warp] = total;
    __syncthreads();
    for (int d = warp * 32 + lane; d < HEAD_DIM; d += WARPS * 32) {
        float peak = -INFINITY, whole = 0, value = 0;
        for (int w = 0; w < WARPS; ++w) peak = fmaxf(peak, tops[w]);
        for (int w = 0; w < WARPS; ++w) {
            const float keep = totals[w] > 0 ? expf(tops[w] - peak) : 0;
            whole += totals[w] * keep;
            value += sums[w][d] * keep;
        }
        out[at + d] = __float2bfloat16(value / whole);
    }
}
