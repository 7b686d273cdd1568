// WGMMA: TMA loads keys and values STAGES tiles ahead; GROUPS warpgroups hold 64 queries each
// and run staggered, so that one group's exp overlaps another's products. Weights are register operands.
#include <cstdint>
#include <cuda.h>
#include "problem.h"
// @tune GROUPS = 3, 2
// @tune STAGES = 2, 3
// @require GROUPS * 16384 + STAGES * 65536 <= 230000
// @tensormap query_map = q as float16(BATCH_SIZE * HEADS, SEQUENCE, max(8, HEAD_DIM - HEAD_DIM % 8)) tile(1, 64, 64) swizzle(128)
// @tensormap key_map = k as float16(BATCH_SIZE * HEADS, SEQUENCE, max(8, HEAD_DIM - HEAD_DIM % 8)) tile(1, 128, 64) swizzle(128)
// @tensormap value_map = v as float16(BATCH_SIZE * HEADS, SEQUENCE, max(8, HEAD_DIM - HEAD_DIM % 8)) tile(1, 128, 64) swizzle(128)
// @launch attend(query_map, key_map, value_map, q, k, v, out) grid(ceil_div(SEQUENCE, GROUPS * 64), BATCH_SIZE * HEADS) block(GROUPS * 128 + 128) shared(1024 + (GROUPS * 8192 + STAGES * 32768) * (1 + (HEAD_DIM > 64)))

#define QUERIES (64 * GROUPS)
#define KEYS 128
#define PANELS (HEAD_DIM > 64 ? 2 : 1)               // of 64 dimensions: one swizzled box is 64 halves wide
#define PANEL (KEYS * 64)
#if HEAD_DIM % 8 || HEAD_DIM > 128
// Rows that do not start on 16 bytes, which TMA needs, or sums too wide for the registers: one warp per query.
__device__ void plain_queries(const __half* q, const __half* k, const __half* v, __half* out, long long head, int first) {
    constexpr int SHARE = (HEAD_DIM + 31) / 32;
    const int lane = threadIdx.x % 32;
    const float scale = rsqrtf(HEAD_DIM);
    for (int query = first + threadIdx.x / 32; query < min(first + QUERIES, SEQUENCE); query += blockDim.x / 32) {
        float mine[SHARE], sum[SHARE] = {}, largest = -INFINITY, total = 0;
        for (int d = 0; d < SHARE; ++d)
            mine[d] = d * 32 + lane < HEAD_DIM ? __half2float(q[(head * SEQUENCE + query) * HEAD_DIM + d * 32 + lane]) * scale : 0;
        for (int key = 0; key < SEQUENCE; ++key) {
            const long long row = (head * SEQUENCE + key) * HEAD_DIM;
            float score = 0;
            for (int d = 0; d < SHARE; ++d)
                if (d * 32 + lane < HEAD_DIM) score += mine[d] * __half2float(k[row + d * 32 + lane]);
            for (int o = 16; o; o >>= 1) score += __shfl_xor_sync(~0u, score, o);
            const float peak = fmaxf(largest, score), keep = expf(largest - peak), weight = expf(score - peak);
            for (int d = 0; d < SHARE; ++d)
                if (d * 32 + lane < HEAD_DIM) sum[d] = sum[d] * keep + weight * __half2float(v[row + d * 32 + lane]);
            total = total * keep + weight;
            largest = peak;
        }
        for (int d = 0; d < SHARE; ++d)
            if (d * 32 + lane < HEAD_DIM) out[(head * SEQUENCE + query) * HEAD_DIM + d * 32 + lane] = __float2half(sum[d] / total);
    }
}
#endif

__device__ __forceinline__ float exp2_fast(float v) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r; }
#define EXP2(v) exp2_fast(v)
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
__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void barrier_init(uint64_t* b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* b, unsigned parity) {
    unsigned done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                     : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");
    } while (!done);
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ void tensor_load(void* to, const CUtensorMap* map, int head, int row, int column, uint64_t* b) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(head), "r"(shared_address(b)) : "memory");
}
// A shared-memory tile in the tensor cores' layout: rows of 128 bytes, 128-byte swizzle; distances in bytes.
__device__ __forceinline__ uint64_t tile_descriptor(const void* tile, int leading, int stride) {
    return (uint64_t)1 << 62 | (uint64_t)(stride >> 4) << 32 | (uint64_t)(leading >> 4) << 16 | (shared_address(tile) & 0x3FFFF) >> 4;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
// Keeps the compiler from moving uses of the accumulators across this point.
template <int COUNT> __device__ __forceinline__ void pin(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ void wgmma_m64n128k16(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, p, 1, 1, 0, 0;\n}\n"
                 :
                 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "l"(a), "l"(b), "r"(accumulate));
}
#if HEAD_DIM > 64
__device__ __forceinline__ void wgmma_m64n128k16_r(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
                 :
                 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}
#define accumulate_values wgmma_m64n128k16_r
#else
__device__ __forceinline__ void wgmma_m64n64k16_r(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
                 :
                 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}
#define accumulate_values wgmma_m64n64k16_r
#endif

constexpr int TILES = (SEQUENCE + KEYS - 1) / KEYS;

// score = 64 queries times KEYS keys: both lie with the head's dimensions along rows.
__device__ __forceinline__ void multiply_keys(float (&score)[64], const __half* queries, const __half* keys) {
    pin(score);
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < PANELS * 4; ++d)
        wgmma_m64n128k16(score, tile_descriptor(queries + d / 4 * 64 * 64, 16, 1024) + d % 4 * 2,
                         tile_descriptor(keys + d / 4 * PANEL, 16, 1024) + d % 4 * 2, d > 0);
}
// sum += weights (registers) times values, whose rows run across the product's inner dimension.
__device__ __forceinline__ void multiply_values(float (&sum)[PANELS * 32], uint32_t (&weight)[KEYS / 16][4], const __half* values) {
    pin(sum);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 16; ++i) accumulate_values(sum, weight[i], tile_descriptor(values, PANEL * 2, 1024) + i * 128, 1);
}
__device__ __forceinline__ void mask(float (&score)[64], int tile) {
    if ((tile + 1) * KEYS <= SEQUENCE) return;
#pragma unroll
    for (int i = 0; i < 64; ++i)
        if (tile * KEYS + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2 >= SEQUENCE) score[i] = -INFINITY;
}
__device__ __forceinline__ void pack(uint32_t (&weight)[KEYS / 16][4], const float (&score)[64]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        const __half2 pair = __floats2half2_rn(score[2 * i], score[2 * i + 1]);
        weight[i / 4][i % 4] = *(const uint32_t*)&pair;
    }
}
__device__ __forceinline__ void rescale(float (&sum)[PANELS * 32], const float (&keep)[2]) {
#pragma unroll
    for (int i = 0; i < PANELS * 32; ++i) sum[i] *= keep[i / 2 % 2];
}
__device__ __forceinline__ void write_queries(__half* head, const float (&sum)[PANELS * 32], const Rows& rows, int first) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float total = rows.total[h];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        const float scale = 1 / total;
        const int query = first + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * h;
        if (query >= SEQUENCE) continue;
#pragma unroll
        for (int i = 2 * h; i < PANELS * 32; i += 4)
            if (const int d = i / 4 * 8 + threadIdx.x % 4 * 2; d < HEAD_DIM)
                *(__half2*)(head + (long long)query * HEAD_DIM + d) = __floats2half2_rn(sum[i] * scale, sum[i + 1] * scale);
    }
}

extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 128, 1)
attend(const __grid_constant__ CUtensorMap query_map, const __grid_constant__ CUtensorMap key_map, const __grid_constant__ CUtensorMap value_map,
       const __half* q, const __half* k, const __half* v, __half* __restrict__ out) {
    const int head = blockIdx.y, query0 = blockIdx.x * QUERIES;
#if HEAD_DIM % 8 || HEAD_DIM > 128
    plain_queries(q, k, v, out, head, query0);
#else
    extern __shared__ char raw[];
    __half* queries = (__half*)(((uintptr_t)raw + 1023) / 1024 * 1024);
    __half* stages = queries + GROUPS * PANELS * 64 * 64;               // of keys, then values
    __shared__ uint64_t ready, keys_full[STAGES], values_full[STAGES], keys_empty[STAGES], values_empty[STAGES];
    if (threadIdx.x == 0) {
        barrier_init(&ready, 1);
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(&keys_full[s], 1), barrier_init(&values_full[s], 1);
            barrier_init(&keys_empty[s], GROUPS), barrier_init(&values_empty[s], GROUPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= GROUPS * 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(GROUPS == 3 ? 32 : 40));
        if (threadIdx.x == GROUPS * 128) {
            barrier_expect(&ready, GROUPS * PANELS * 64 * 128);
            for (int g = 0; g < GROUPS; ++g)
                for (int p = 0; p < PANELS; ++p) tensor_load(queries + (g * PANELS + p) * 64 * 64, &query_map, head, query0 + 64 * g, 64 * p, &ready);
            for (int t = 0; t < TILES; ++t) {
                const int s = t % STAGES;
                __half* to = stages + s * 2 * PANELS * PANEL;
                if (t >= STAGES) barrier_wait(&keys_empty[s], t / STAGES - 1 & 1);
                barrier_expect(&keys_full[s], PANELS * PANEL * 2);
                for (int p = 0; p < PANELS; ++p) tensor_load(to + p * PANEL, &key_map, head, t * KEYS, 64 * p, &keys_full[s]);
                if (t >= STAGES) barrier_wait(&values_empty[s], t / STAGES - 1 & 1);
                barrier_expect(&values_full[s], PANELS * PANEL * 2);
                for (int p = 0; p < PANELS; ++p) tensor_load(to + (PANELS + p) * PANEL, &value_map, head, t * KEYS, 64 * p, &values_full[s]);
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(GROUPS == 3 ? 160 : 232));
        const int group = threadIdx.x / 128;
        const float factor = 1.4426950408889634f * rsqrtf(HEAD_DIM);
        float sum[PANELS * 32] = {}, score[64], keep[2];
        uint32_t weight[KEYS / 16][4];
        Rows rows = {{-INFINITY, -INFINITY}, {0, 0}};
        barrier_wait(&ready, 0);
        const __half* mine = queries + group * PANELS * 64 * 64;
        for (int t = 0; t < TILES; ++t) {
            const int s = t % STAGES;
            const __half* keys = stages + s * 2 * PANELS * PANEL;
            barrier_wait(&keys_full[s], t / STAGES & 1);
            multiply_keys(score, mine, keys);
            wgmma_commit();
            wgmma_wait<0>();
            pin(score);
            if (threadIdx.x % 128 == 0) barrier_arrive(&keys_empty[s]);
            mask(score, t);
            weigh(score, rows, keep, factor);
            pack(weight, score);
            rescale(sum, keep);
            barrier_wait(&values_full[s], t / STAGES & 1);
            multiply_values(sum, weight, keys + PANELS * PANEL);
            wgmma_commit();
            wgmma_wait<0>();
            pin(sum);
            if (threadIdx.x % 128 == 0) barrier_arrive(&values_empty[s]);
        }
        write_queries(out + (long long)head * SEQUENCE * HEAD_DIM, sum, rows, query0 + 64 * group);
    }
#endif
}
