// A block shares tiles of keys and values in shared memory among its queries. Two threads hold a query, half of the dimensions each,
// so that no sum crosses the warp; weights are rescaled once per tile of KEYS keys.
#include "problem.h"
// @tune KEYS = 16, 8, 32
// @tune QUERIES = 64, 128
// @launch attend(q, k, v, out) grid(ceil_div(SEQUENCE, QUERIES), BATCH_SIZE * HEADS) block(2 * QUERIES)

#define SHARE ((HEAD_DIM + 1) / 2)                   // dimensions of one thread: side, side + 2, ...

extern "C" __global__ void __launch_bounds__(2 * QUERIES) attend(const __half* __restrict__ q, const __half* __restrict__ k,
                                                                 const __half* __restrict__ v, __half* __restrict__ out) {
    __shared__ float keys[KEYS][2 * SHARE], values[KEYS][2 * SHARE];
    const int side = threadIdx.x % 2, query = blockIdx.x * QUERIES + threadIdx.x / 2;
    const long long head = (long long)blockIdx.y * SEQUENCE * HEAD_DIM;
    const float scale = rsqrtf(HEAD_DIM);
    float mine[SHARE], sum[SHARE] = {}, largest = -INFINITY, total = 0;
#pragma unroll
    for (int d = 0; d < SHARE; ++d)
        mine[d] = query < SEQUENCE && 2 * d + side < HEAD_DIM ? __half2float(q[head + (long long)query * HEAD_DIM + 2 * d + side]) * scale : 0;
    for (int first = 0; first < SEQUENCE; first += KEYS) {
        __syncthreads();
        for (int i = threadIdx.x; i < KEYS * 2 * SHARE; i += 2 * QUERIES) {
            const int key = i / (2 * SHARE), d = i % (2 * SHARE);
            const bool valid = first + key < SEQUENCE && d < HEAD_DIM;
            const long long at = head + (long long)(first + key) * HEAD_DIM + d;
            keys[key][d] = valid ? __half2float(k[at]) : 0;
            values[key][d] = valid ? __half2float(v[at]) : 0;
        }
        __syncthreads();
        float score[KEYS], peak = largest;
#pragma unroll
        for (int key = 0; key < KEYS; ++key) {
            float s = 0;
#pragma unroll
            for (int d = 0; d < SHARE; ++d) s += mine[d] * keys[key][2 * d + side];
            s += __shfl_xor_sync(~0u, s, 1);
            score[key] = first + key < SEQUENCE ? s : -INFINITY;
            peak = fmaxf(peak, score[key]);
        }
        const float keep = expf(largest - peak);
        total *= keep;
#pragma unroll
        for (int d = 0; d < SHARE; ++d) sum[d] *= keep;
#pragma unroll
        for (int key = 0; key < KEYS; ++key) {
            const float weight = expf(score[key] - peak);
            total += weight;
#pragma unroll
            for (int d = 0; d < SHARE; ++d) sum[d] += weight * values[key][2 * d + side];
        }
        largest = peak;
    }
    if (query < SEQUENCE)
#pragma unroll
        for (int d = 0; d < SHARE; ++d)
            if (2 * d + side < HEAD_DIM) out[head + (long long)query * HEAD_DIM + 2 * d + side] = __float2half(sum[d] / total);
}
