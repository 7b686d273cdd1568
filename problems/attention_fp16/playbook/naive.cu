// One warp per query: it walks the keys one by one with a running maximum, each lane holding a share of the head's dimensions.
#include "problem.h"
// @tune WARPS = 8, 4, 16
// @launch attend(q, k, v, out) grid(ceil_div(BATCH_SIZE * HEADS * SEQUENCE, WARPS)) block(32, WARPS)

#define SHARE ((HEAD_DIM + 31) / 32)

extern "C" __global__ void attend(const __half* q, const __half* k, const __half* v, __half* out) {
    const long long query = (long long)blockIdx.x * WARPS + threadIdx.y;
    const int lane = threadIdx.x;
    if (query >= (long long)BATCH_SIZE * HEADS * SEQUENCE) return;
    const long long head = query / SEQUENCE * SEQUENCE * HEAD_DIM;
    const float scale = rsqrtf(HEAD_DIM);
    float mine[SHARE], sum[SHARE] = {}, largest = -INFINITY, total = 0;
    for (int d = 0; d < SHARE; ++d) mine[d] = d * 32 + lane < HEAD_DIM ? __half2float(q[query * HEAD_DIM + d * 32 + lane]) * scale : 0;
    for (int key = 0; key < SEQUENCE; ++key) {
        const __half* row = k + head + (long long)key * HEAD_DIM;
        float score = 0;
        for (int d = 0; d < SHARE; ++d)
            if (d * 32 + lane < HEAD_DIM) score += mine[d] * __half2float(row[d * 32 + lane]);
        for (int o = 16; o; o >>= 1) score += __shfl_xor_sync(~0u, score, o);
        const float peak = fmaxf(largest, score), keep = expf(largest - peak), weight = expf(score - peak);
        const __half* value = v + head + (long long)key * HEAD_DIM;
        for (int d = 0; d < SHARE; ++d)
            if (d * 32 + lane < HEAD_DIM) sum[d] = sum[d] * keep + weight * __half2float(value[d * 32 + lane]);
        total = total * keep + weight;
        largest = peak;
    }
    for (int d = 0; d < SHARE; ++d)
        if (d * 32 + lane < HEAD_DIM) out[query * HEAD_DIM + d * 32 + lane] = __float2half(sum[d] / total);
}
