// Both products on the tensor cores: a warp holds 16 queries, its scores and its sums in registers; keys and values pass through
// shared memory in tiles of KEYS.
#include <cstdint>
#include "problem.h"
// @tune QUERIES = 64, 128
// @tune KEYS = 64, 32, 128
// @require (QUERIES + 2 * KEYS) * (HEAD_DIM + 24) * 2 <= 227000
// @launch attend(q, k, v, out) grid(ceil_div(SEQUENCE, QUERIES), BATCH_SIZE * HEADS) block(2 * QUERIES) shared(2 * (QUERIES + 2 * KEYS) * (ceil_div(HEAD_DIM, 16) * 16 + 8))

#define EXP2(v) exp2f(v)
#define DIMS ((HEAD_DIM + 15) / 16 * 16)             // of a head, padded with zeros
#define PITCH (DIMS + 8)                             // 16 bytes of padding per row: a warp's reads hit different banks
#define WARPS (QUERIES / 16)
__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
// Eight adjacent elements of row `r` of a rows x WIDTH matrix from column c; zeros outside. Asynchronous if rows are 16-byte aligned.
template <int WIDTH> __device__ __forceinline__ void copy8(__half* to, const __half* from, int r, int rows, int c) {
    if (WIDTH % 8 == 0) {
        const bool valid = r < rows && c < WIDTH;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     ::"r"(shared_address(to)), "l"(valid ? from + (long long)r * WIDTH + c : from), "r"(valid ? 16 : 0) : "memory");
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) to[i] = r < rows && c + i < WIDTH ? from[(long long)r * WIDTH + c + i] : __float2half(0);
    }
}
__device__ __forceinline__ void load_matrices(uint32_t (&d)[4], const __half* at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(shared_address(at)) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&d)[4], const __half* at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(shared_address(at)) : "memory");
}
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&l)[4], uint32_t r0, uint32_t r1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(l[0]), "r"(l[1]), "r"(l[2]), "r"(l[3]), "r"(r0), "r"(r1));
}
// Two rows of scores of a thread (four threads hold a row) become weights; sums so far are rescaled to the new maximum.
// `factor` is log2(e) over the square root of the head's dimension: exponentials are taken in base two.
struct Rows { float largest[2], total[2]; };
template <int COUNT> __device__ __forceinline__ void weigh(float (&score)[COUNT], Rows& rows, float (&keep)[2], float factor) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float peak = rows.largest[h];
#pragma unroll
        for (int i = 2 * h; i < COUNT; i += 4) peak = fmaxf(peak, fmaxf(score[i], score[i + 1]));
        peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
        peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
        keep[h] = EXP2((rows.largest[h] - peak) * factor);
        rows.largest[h] = peak;
        rows.total[h] *= keep[h];
        const float base = peak * factor;
#pragma unroll
        for (int i = 2 * h; i < COUNT; i += 4) {
            score[i] = EXP2(score[i] * factor - base);
            score[i + 1] = EXP2(score[i + 1] * factor - base);
            rows.total[h] += score[i] + score[i + 1];
        }
    }
}

// `rows` rows of a head from `first` on; zeros beyond its end.
__device__ __forceinline__ void load_rows(__half* to, const __half* head, int first, int rows) {
    for (int i = threadIdx.x; i < rows * DIMS / 8; i += 32 * WARPS) {
        const int r = i / (DIMS / 8), c = i % (DIMS / 8) * 8;
        copy8<HEAD_DIM>(to + r * PITCH + c, head, first + r, SEQUENCE, c);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) attend(const __half* __restrict__ q, const __half* __restrict__ k,
                                                                const __half* __restrict__ v, __half* __restrict__ out) {
    extern __shared__ __align__(16) __half shared[];
    __half *queries = shared, *keys = queries + QUERIES * PITCH, *values = keys + KEYS * PITCH;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long head = (long long)blockIdx.y * SEQUENCE * HEAD_DIM;
    load_rows(queries, q + head, blockIdx.x * QUERIES, QUERIES);
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    uint32_t mine[DIMS / 16][4];
#pragma unroll
    for (int d = 0; d < DIMS / 16; ++d) load_matrices(mine[d], queries + (warp * 16 + lane % 16) * PITCH + d * 16 + lane / 16 * 8);
    const float factor = 1.4426950408889634f * rsqrtf(HEAD_DIM);
    float sum[DIMS / 8][4] = {};
    Rows rows = {{-INFINITY, -INFINITY}, {0, 0}};
    for (int first = 0; first < SEQUENCE; first += KEYS) {
        __syncthreads();
        load_rows(keys, k + head, first, KEYS);
        load_rows(values, v + head, first, KEYS);
        commit_copies();
        wait_copies<0>();
        __syncthreads();
        float score[KEYS / 2] = {}, keep[2];
#pragma unroll
        for (int d = 0; d < DIMS / 16; ++d)
#pragma unroll
            for (int j = 0; j < KEYS / 8; j += 2) {
                uint32_t r[4];
                load_matrices(r, keys + (8 * j + lane % 8 + lane / 16 * 8) * PITCH + 16 * d + lane / 8 % 2 * 8);
                mma(*(float(*)[4])(score + 4 * j), mine[d], r[0], r[1]);
                mma(*(float(*)[4])(score + 4 * j + 4), mine[d], r[2], r[3]);
            }
        if (first + KEYS > SEQUENCE)
#pragma unroll
            for (int i = 0; i < KEYS / 2; ++i)
                if (first + i / 4 * 8 + lane % 4 * 2 + i % 2 >= SEQUENCE) score[i] = -INFINITY;
        weigh(score, rows, keep, factor);
#pragma unroll
        for (int j = 0; j < DIMS / 8; ++j) sum[j][0] *= keep[0], sum[j][1] *= keep[0], sum[j][2] *= keep[1], sum[j][3] *= keep[1];
#pragma unroll
        for (int i = 0; i < KEYS / 16; ++i) {
            uint32_t weight[4];
#pragma unroll
            for (int h = 0; h < 4; ++h) {
                const __half2 pair = __floats2half2_rn(score[8 * i + 2 * h], score[8 * i + 2 * h + 1]);
                weight[h] = *(const uint32_t*)&pair;
            }
#pragma unroll
            for (int j = 0; j < DIMS / 8; j += 2) {
                uint32_t r[4];
                load_matrices_transposed(r, values + (16 * i + lane % 16) * PITCH + 8 * j + lane / 16 * 8);
                mma(sum[j], weight, r[0], r[1]);
                mma(sum[j + 1], weight, r[2], r[3]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float total = rows.total[h];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        const int query = blockIdx.x * QUERIES + warp * 16 + lane / 4 + 8 * h;
        if (query >= SEQUENCE) continue;
#pragma unroll
        for (int j = 0; j < DIMS / 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (const int d = 8 * j + lane % 4 * 2 + e; d < HEAD_DIM)
                    out[head + (long long)query * HEAD_DIM + d] = __float2half(sum[j][2 * h + e] / total);
    }
}
