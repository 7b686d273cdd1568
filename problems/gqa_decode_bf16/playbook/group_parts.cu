// The query heads of a group in one block, and each sequence's pages in parts that fill the device; a second launch merges parts.
// A half-warp takes a key: 16 bytes a lane and row, every key and value read once for the whole group.
#include "problem.h"
// @tune WARPS = 4, 8
// @tune PER_SM = 4, 2, 8
// @workspace 16 + 4 * (PER_SM * SMS + KV_HEADS * BATCH_SIZE) * GROUP * (HEAD_DIM + 2)
// @launch attend(q, k_cache, v_cache, block_table, lengths, workspace) grid(max(1, min(ceil_div(PER_SM * SMS, KV_HEADS * BATCH_SIZE), ceil_div(BLOCK_TABLE_DIM1, WARPS))), KV_HEADS, BATCH_SIZE) block(32 * WARPS)
// @launch merge(workspace, out) grid(KV_HEADS * GROUP, BATCH_SIZE) block(HEAD_DIM)

#define TABLE BLOCK_TABLE_DIM1
#define LANES (HEAD_DIM / 8)                         // a row of 16-byte pieces
#define ROWS (32 / LANES)                            // keys of a warp at a time
static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "a warp holds whole rows");

__device__ void widen(uint4 bits, float (&v)[8]) {
    const unsigned parts[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        v[2 * i] = __uint_as_float(parts[i] << 16);
        v[2 * i + 1] = __uint_as_float(parts[i] & 0xffff0000u);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) attend(const __nv_bfloat16* q, const __nv_bfloat16* k_cache,
                                                                const __nv_bfloat16* v_cache, const int* block_table,
                                                                const int* lengths, float* workspace) {
    __shared__ float tops[WARPS][GROUP], totals[WARPS][GROUP], sums[WARPS][GROUP][HEAD_DIM];
    const int kv = blockIdx.y, sequence = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = lane / LANES, piece = lane % LANES, length = lengths[sequence];
    if (blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x == 0) workspace[0] = __int_as_float(gridDim.x);
    const float scale = rsqrtf(HEAD_DIM) * 1.4426950408889634f;
    float wanted[GROUP][8], sum[GROUP][8] = {}, top[GROUP], total[GROUP] = {};
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        const long long at = (((long long)sequence * KV_HEADS + kv) * GROUP + g) * HEAD_DIM + piece * 8;
        widen(*reinterpret_cast<const uint4*>(q + at), wanted[g]);
#pragma unroll
        for (int i = 0; i < 8; ++i) wanted[g][i] *= scale;
        top[g] = -INFINITY;
    }
    const int step = gridDim.x * WARPS * ROWS;
    for (int first = (blockIdx.x * WARPS + warp) * ROWS; first < length; first += step) {
        const int key = first + row;
        const bool inside = key < length;
        const long long page = inside ? block_table[sequence * TABLE + key / PAGE_SIZE] : 0;
        const long long at = ((page * PAGE_SIZE + key % PAGE_SIZE) * KV_HEADS + kv) * HEAD_DIM + piece * 8;
        const uint4 none = make_uint4(0, 0, 0, 0);
        const uint4 key_bits = inside ? __ldcs(reinterpret_cast<const uint4*>(k_cache + at)) : none;
        const uint4 value_bits = inside ? __ldcs(reinterpret_cast<const uint4*>(v_cache + at)) : none;
        float keys[8], values[8];
        widen(key_bits, keys);
        widen(value_bits, values);
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            float score = 0;
#pragma unroll
            for (int i = 0; i < 8; ++i) score += wanted[g][i] * keys[i];
#pragma unroll
            for (int o = LANES / 2; o; o >>= 1) score += __shfl_xor_sync(~0u, score, o);
            const float peak = inside ? fmaxf(top[g], score) : top[g];
            const float keep = inside ? exp2f(top[g] - peak) : 1, weight = inside ? exp2f(score - peak) : 0;
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[g][i] = sum[g][i] * keep + weight * values[i];
            total[g] = total[g] * keep + weight;
            top[g] = peak;
        }
    }
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {                // the keys of a warp's other lanes
#pragma unroll
        for (int o = LANES; o < 32; o <<= 1) {
            const float other = __shfl_xor_sync(~0u, top[g], o), peak = fmaxf(top[g], other);
            const float keep = total[g] > 0 ? exp2f(top[g] - peak) : 0;
            total[g] *= keep;
            total[g] += __shfl_xor_sync(~0u, total[g], o);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                sum[g][i] *= keep;
                sum[g][i] += __shfl_xor_sync(~0u, sum[g][i], o);
            }
            top[g] = peak;
        }
        if (row == 0) {
#pragma unroll
            for (int i = 0; i < 8; ++i) sums[warp][g][piece * 8 + i] = sum[g][i];
            if (piece == 0) tops[warp][g] = top[g], totals[warp][g] = total[g];
        }
    }
    __syncthreads();
    float* mine = workspace + 4 + (((long long)sequence * KV_HEADS + kv) * gridDim.x + blockIdx.x) * GROUP * (HEAD_DIM + 2);
    for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += 32 * WARPS) {
        const int g = i / HEAD_DIM, d = i % HEAD_DIM;
        float peak = -INFINITY, whole = 0, value = 0;
        for (int w = 0; w < WARPS; ++w) peak = fmaxf(peak, tops[w][g]);
        for (int w = 0; w < WARPS; ++w) {
            const float keep = totals[w][g] > 0 ? exp2f(tops[w][g] - peak) : 0;
            whole += totals[w][g] * keep;
            value += sums[w][g][d] * keep;
        }
        mine[g * (HEAD_DIM + 2) + d] = value;
        if (d == 0) mine[g * (HEAD_DIM + 2) + HEAD_DIM] = peak, mine[g * (HEAD_DIM + 2) + HEAD_DIM + 1] = whole;
    }
}

extern "C" __global__ void merge(const float* workspace, __nv_bfloat16* out) {
    const int parts = __float_as_int(workspace[0]), head = blockIdx.x, sequence = blockIdx.y;
    const long long group = (long long)sequence * KV_HEADS + head / GROUP;
    const float* first = workspace + 4 + (group * parts * GROUP + head % GROUP) * (HEAD_DIM + 2);
    const long long step = GROUP * (HEAD_DIM + 2);
    float peak = -INFINITY, whole = 0, value = 0;
    for (int p = 0; p < parts; ++p) peak = fmaxf(peak, first[p * step + HEAD_DIM]);
    for (int p = 0; p < parts; ++p) {
        const float total = first[p * step + HEAD_DIM + 1], keep = total > 0 ? exp2f(first[p * step + HEAD_DIM] - peak) : 0;
        whole += total * keep;
        value += first[p * step + threadIdx.x] * keep;
    }
    out[((long long)sequence * KV_HEADS * GROUP + head) * HEAD_DIM + threadIdx.x] = __float2bfloat16(value / whole);
}
