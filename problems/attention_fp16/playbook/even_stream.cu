// stream.cu, without the work that it wastes. Two kinds of waste are left there (4 x 16 x 4096 x 128, 132 multiprocessors):
// - 4096 keys are 24 tiles of 176, the last of them with 48 keys: 3% of both products are padding. Here the last tile, which comes first, has
//   its own code for 48 or 96 keys: shorter instructions, not a mask.
// - 1024 units of work (256 queries each) for 66 clusters take 16 rounds where 15.5 would do: 3%. Here the units beyond the full rounds are cut
//   by keys into equal shares. A unit is cut at most once: the cluster that has its end begins with it and leaves sums, totals and references in
//   the workspace; the one that has its start merges them a round or more later, when they have long been there.
// A flag says that they are there. Nothing clears the workspace before: idle warps of both blocks meet first and agree that the flag is down.
// Queries are loaded by a warp of their own, for each group as soon as it has finished with its last ones, and the last product with the values is
// issued before the next queries' first scores, so that results are written while those are computed.
//
// Predicted: 23.3 + 0.25 instead of 24 tiles, 15.52 + 0.05 instead of 16 rounds: 0.955 of the parent's time: 0.78 ms if cycles are the limit.
// If energy is: padding multiplies zeros, and idle multiprocessors leave power to others; 0.80 ms. Measured on an H200: 0.803 ms, 0.964 of it.
#include <cstdint>
#include <cuda.h>
#include "problem.h"
// @tune KEYS = 176, 160, 128
// @tune SPLIT = 1, 0
// @tune CLUSTER = 2
// @tune TURNS = 1
// @tensormap query_map = q as float16(BATCH_SIZE * HEADS, SEQUENCE, max(8, HEAD_DIM - HEAD_DIM % 8)) tile(1, 64, 64) swizzle(128)
// @tensormap key_map = k as float16(BATCH_SIZE * HEADS, SEQUENCE, max(8, HEAD_DIM - HEAD_DIM % 8)) tile(1, KEYS / CLUSTER, 64) swizzle(128)
// @tensormap value_map = v as float16(BATCH_SIZE * HEADS, SEQUENCE, max(8, HEAD_DIM - HEAD_DIM % 8)) tile(1, KEYS / CLUSTER, 64) swizzle(128)
// @tensormap result = out as float16(BATCH_SIZE * HEADS, SEQUENCE, max(8, HEAD_DIM - HEAD_DIM % 8)) tile(1, 16, 64) swizzle(128)
// @workspace SMS * (256 * 68 * 4 + 16)
// @launch attend(query_map, key_map, value_map, result, q, k, v, workspace, out) grid(CLUSTER * min(SMS / CLUSTER, ceil_div(SEQUENCE, 128 * CLUSTER) * BATCH_SIZE * HEADS)) block(384) shared(1024 + 16384 + (16384 + 2 * KEYS * 256) * (1 + (HEAD_DIM > 64))) cluster(CLUSTER)

#define QUERIES 128
#define STAGES 2
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
__device__ __forceinline__ unsigned cluster_rank() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Arrives at the barrier at the same address in block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive_at(uint64_t* ours, unsigned rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}\n"
                 ::"r"(shared_address(ours)), "r"(rank) : "memory");
}
__device__ __forceinline__ void tensor_load(void* to, const CUtensorMap* map, int head, int row, int column, uint64_t* b) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(head), "r"(shared_address(b)) : "memory");
}
// Multicasts the box to every block of the cluster, at the same address, counted by the same barrier of each.
__device__ __forceinline__ void tensor_multicast(void* to, const CUtensorMap* map, int head, int row, int column, uint64_t* b) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;"
                 ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(head), "r"(shared_address(b)), "h"((unsigned short)((1 << CLUSTER) - 1)) : "memory");
}
// 16 x 64 results from shared memory to the matrix; elements outside are skipped.
__device__ __forceinline__ void tensor_store(const CUtensorMap* map, const void* from, int head, int row, int column) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];\ncp.async.bulk.commit_group;"
                 ::"l"(map), "r"(column), "r"(row), "r"(head), "r"(shared_address(from)) : "memory");
}
// A shared-memory tile in the tensor cores' layout: rows of 128 bytes, 128-byte swizzle; distances in bytes.
__device__ __forceinline__ uint64_t tile_descriptor(const void* tile, int leading, int stride) {
    return (uint64_t)1 << 62 | (uint64_t)(stride >> 4) << 32 | (uint64_t)(leading >> 4) << 16 | (shared_address(tile) & 0x3FFFF) >> 4;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
__device__ __forceinline__ void tensor_prefetch(const CUtensorMap* map, int head, int row, int column) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(map), "r"(column), "r"(row), "r"(head) : "memory");
}
// Keeps the compiler from moving uses of the first COUNT accumulators across this point.
template <int COUNT, int ALL> __device__ __forceinline__ void pin(float (&d)[ALL]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
constexpr int SCORES = KEYS / 2;                     // of a thread
// Registers of an accumulator, eight at a time: their names in an instruction, and the values that they hold.
#define R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define R1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define R2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define R3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define R4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define R5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define R6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define R7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define R8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define R9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define R10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define F8(m, d, i) m "f"((d)[i]), m "f"((d)[i + 1]), m "f"((d)[i + 2]), m "f"((d)[i + 3]), m "f"((d)[i + 4]), m "f"((d)[i + 5]), m "f"((d)[i + 6]), m "f"((d)[i + 7])
#define C8(m, d) F8(m, d, 0)
#define C16(m, d) C8(m, d), F8(m, d, 8)
#define C24(m, d) C16(m, d), F8(m, d, 16)
#define C32(m, d) C24(m, d), F8(m, d, 24)
#define C40(m, d) C32(m, d), F8(m, d, 32)
#define C48(m, d) C40(m, d), F8(m, d, 40)
#define C56(m, d) C48(m, d), F8(m, d, 48)
#define C64(m, d) C56(m, d), F8(m, d, 56)
#define C72(m, d) C64(m, d), F8(m, d, 64)
#define C80(m, d) C72(m, d), F8(m, d, 72)
#define C88(m, d) C80(m, d), F8(m, d, 80)
template <int N> struct Keys { static constexpr int COUNT = N; };
// score (64 queries by N keys) = queries times keys of 16 dimensions, or is increased by it. The first product does not read `d`, so that its registers are free before.
#define SCORE_PRODUCT(N, LIST, A, B, C)                                                                                            \
    __device__ __forceinline__ void first_scores(Keys<N>, float (&d)[SCORES], uint64_t a, uint64_t b) {                             \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"                                                                    \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" LIST "}, " A ", " B ", p, 1, 1, 0, 0;\n}\n"         \
                     : C("=", d) : "l"(a), "l"(b));                                                                                 \
    }                                                                                                                              \
    __device__ __forceinline__ void more_scores(Keys<N>, float (&d)[SCORES], uint64_t a, uint64_t b) {                              \
        asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                                                    \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" LIST "}, " A ", " B ", p, 1, 1, 0, 0;\n}\n"         \
                     : C("+", d) : "l"(a), "l"(b));                                                                                 \
    }
#if KEYS > 48
SCORE_PRODUCT(48, R0 R1 R2, "%24", "%25", C24)
#endif
#if KEYS > 96
SCORE_PRODUCT(96, R0 R1 R2 R3 R4 R5, "%48", "%49", C48)
#endif
#if KEYS == 128
SCORE_PRODUCT(128, R0 R1 R2 R3 R4 R5 R6 R7, "%64", "%65", C64)
#elif KEYS == 160
SCORE_PRODUCT(160, R0 R1 R2 R3 R4 R5 R6 R7 R8 R9, "%80", "%81", C80)
#elif KEYS == 176
SCORE_PRODUCT(176, R0 R1 R2 R3 R4 R5 R6 R7 R8 R9 R10, "%88", "%89", C88)
#endif
// sum (64 queries by the head's dimensions) += weights in registers times the values of 16 keys.
#define VALUE_PRODUCT(N, LIST, A, B, P, ...)                                                                                       \
    __device__ __forceinline__ void accumulate_values(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) {      \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\n"                                                                \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" LIST "}, {" A "}, " B ", p, 1, 1, 1;\n}\n"         \
                     : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                           \
    }
#if HEAD_DIM > 64
VALUE_PRODUCT(128, R0 R1 R2 R3 R4 R5 R6 R7, "%64, %65, %66, %67", "%68", "%69", C64("+", d))
#else
VALUE_PRODUCT(64, R0 R1 R2 R3, "%32, %33, %34, %35", "%36", "%37", C32("+", d))
#endif

// Everything that `v` depends on is computed before this line: otherwise the assembler may move a wait for the tensor cores ahead
// of arithmetic that should overlap them. (A sum of exponentials is never negative.)
__device__ __forceinline__ void settle(float v) { if (v < 0) asm volatile("nanosleep.u32 1;" ::: "memory"); }

constexpr int TILES = (SEQUENCE + KEYS - 1) / KEYS;
constexpr int REST = SEQUENCE - (TILES - 1) * KEYS;  // keys of the last tile, which comes first
constexpr int PART = REST <= 48 && KEYS > 48 ? 48 : REST <= 96 && KEYS > 96 ? 96 : KEYS;    // keys that are multiplied there
constexpr int FINAL = TILES > 1 ? KEYS : PART;       // keys of the tile that comes last
constexpr int ACROSS = (SEQUENCE + QUERIES * CLUSTER - 1) / (QUERIES * CLUSTER), UNITS = ACROSS * BATCH_SIZE * HEADS;

// Where the units beyond the full rounds are cut, in tiles: before the share of cluster `c` of `clusters`. Shares are equal in keys that are multiplied.
__device__ __forceinline__ int cut(int c, int clusters, int units) {
    constexpr int WHOLE = KEYS / 16, FIRST = PART / 16, UNIT = FIRST + (TILES - 1) * WHOLE;
    const int unit = c * units / clusters, rest = c * units % clusters * UNIT / clusters;
    // Not after the first tile: it is always followed by a whole one.
    const int tiles = rest < (FIRST + WHOLE) / 2 ? 0 : max(2, 1 + (rest - FIRST + WHOLE / 2) / WHOLE);
    return unit * TILES + min(tiles, TILES);
}
// What a cluster works on: the n-th of its pieces is tiles begin to end of a unit. Only the first piece may lack the start of its unit.
struct Piece { int unit, begin, end; };
struct Share { int loose, from, to, pieces; };          // `loose` units are cut, and this cluster's share of them is tiles from to to; others follow
__device__ __forceinline__ Share share_of(int cluster, int clusters) {
    const int rounds = UNITS / clusters, over = UNITS % clusters;
    int split = SPLIT;
    asm volatile("" : "+r"(split));                     // the machine code is the same without
    if (!split || TILES < 4 || rounds == 0 || over == 0) return {0, 0, 0, rounds + (cluster < over)};
    const int loose = clusters + over, from = cut(cluster, clusters, loose), to = cut(cluster + 1, clusters, loose);
    return {loose, from, to, rounds - 1 + (to + TILES - 1) / TILES - from / TILES};
}
__device__ __forceinline__ Piece piece_of(const Share& share, int n, int cluster, int clusters) {
    const int unit = share.from / TILES + n, begin = n ? unit * TILES : share.from;
    if (begin < share.to) return {unit, begin - unit * TILES, min(TILES, share.to - unit * TILES)};
    return {share.loose + cluster + (unit - (share.to + TILES - 1) / TILES) * clusters, 0, TILES};
}

// score = 64 queries times COUNT keys: both lie with the head's dimensions along rows.
template <int COUNT> __device__ __forceinline__ void multiply_keys(float (&score)[SCORES], const __half* queries, const __half* keys) {
    const uint64_t q = tile_descriptor(queries, 16, 1024), k = tile_descriptor(keys, 16, 1024);
    wgmma_fence();
    first_scores(Keys<COUNT>(), score, q, k);
#pragma unroll
    for (int d = 1; d < PANELS * 4; ++d) more_scores(Keys<COUNT>(), score, q + d / 4 * (64 * 64 / 8) + d % 4 * 2, k + d / 4 * (PANEL / 8) + d % 4 * 2);
    wgmma_commit();
}
// sum += weights (registers) times values, whose rows run across the product's inner dimension.
template <int COUNT> __device__ __forceinline__ void multiply_values(float (&sum)[PANELS * 32], uint32_t (&weight)[KEYS / 16][4], const __half* values) {
    const uint64_t v = tile_descriptor(values, PANEL * 2, 1024);
    pin<PANELS * 32>(sum);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < COUNT / 16; ++i) accumulate_values(sum, weight[i], v + i * 128, 1);
    wgmma_commit();
}
template <int COUNT> __device__ __forceinline__ void pack(uint32_t (&weight)[KEYS / 16][4], const float (&score)[SCORES]) {
#pragma unroll
    for (int i = 0; i < COUNT / 4; ++i) {
        const __half2 pair = __floats2half2_rn(score[2 * i], score[2 * i + 1]);
        weight[i / 4][i % 4] = *(const uint32_t*)&pair;
    }
#pragma unroll
    for (int i = 0; i < COUNT / 4; ++i) asm volatile("" : "+r"(weight[i / 4][i % 4])::"memory");    // before the next scores need the registers
}
// Two rows of scores of a thread (four threads hold a row) become weights relative to `reference`, which follows the row's maximum
// only in jumps of more than 8 in the exponent: until then weights may reach 2^8, far inside a half's range, and sums stay as they are.
// `factor` is log2(e) over the square root of the head's dimension: exponentials are taken in base two. True if sums must be rescaled.
// Halves give scores of at most 6e11: LOWEST is below all of them and not infinite, so that a tile of infinitely low scores has no weight.
constexpr float LOWEST = -1e30f;
struct Rows { float reference[2], total[2]; };
template <int COUNT> __device__ __forceinline__ bool weigh(float (&score)[SCORES], Rows& rows, float (&keep)[2], float factor) {
    float peak[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};
#pragma unroll
    for (int i = 0; i < COUNT / 2; i += 4)
#pragma unroll
        for (int h = 0; h < 2; ++h) peak[h][i / 4 % 2] = fmaxf(peak[h][i / 4 % 2], fmaxf(score[i + 2 * h], score[i + 2 * h + 1]));
    bool jump = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float p = fmaxf(peak[h][0], peak[h][1]);
        p = fmaxf(p, __shfl_xor_sync(~0u, p, 1));
        p = fmaxf(p, __shfl_xor_sync(~0u, p, 2));
        p *= factor;
        const bool grown = p > rows.reference[h] + 8;
        keep[h] = grown ? exp2_fast(rows.reference[h] - p) : 1;
        rows.reference[h] = grown ? p : rows.reference[h];
        rows.total[h] *= keep[h];
        jump = jump || grown;
    }
    float part[2][2] = {};
#pragma unroll
    for (int i = 0; i < COUNT / 2; i += 4)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int at = i + 2 * h;
            score[at] = exp2_fast(score[at] * factor - rows.reference[h]);
            score[at + 1] = exp2_fast(score[at + 1] * factor - rows.reference[h]);
            part[h][0] += score[at];
            part[h][1] += score[at + 1];
        }
#pragma unroll
    for (int h = 0; h < 2; ++h) rows.total[h] += part[h][0] + part[h][1];
    return __any_sync(~0u, jump);
}
__device__ __forceinline__ void rescale(float (&sum)[PANELS * 32], const float (&keep)[2]) {
#pragma unroll
    for (int i = 0; i < PANELS * 32; ++i) sum[i] *= keep[i / 2 % 2];
}
// A warp's 16 queries, 64 dimensions at a time through one swizzled box of its own.
__device__ __forceinline__ void write_queries(const CUtensorMap* map, const float (&sum)[PANELS * 32], const Rows& rows, __half* box, int head, int query) {
    const int lane = threadIdx.x % 32;
    float scale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float total = rows.total[h];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        scale[h] = 1 / total;
    }
    const unsigned line = shared_address(box) + (lane % 8 + lane / 8 % 2 * 8) * 128;
#pragma unroll
    for (int p = 0; p < PANELS; ++p) {
        if (lane == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint32_t part[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = 32 * p + 4 * j + 2 * i;
                const __half2 pair = __floats2half2_rn(sum[at] * scale[i % 2], sum[at + 1] * scale[i % 2]);
                part[i] = *(const uint32_t*)&pair;
            }
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                         ::"r"(line + ((j + lane / 16 ^ lane % 8) << 4)), "r"(part[0]), "r"(part[1]), "r"(part[2]), "r"(part[3]) : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (lane == 0) tensor_store(map, box, head, query, 64 * p);
    }
}
// What a block leaves for another: 256 threads' sums, then references and totals; each thread finds what the same thread of the other block left.
__device__ __forceinline__ void leave_sums(float4* to, const float (&sum)[PANELS * 32], const Rows& rows) {
#pragma unroll
    for (int i = 0; i < PANELS * 8; ++i) __stcg(to + i * 256 + threadIdx.x, make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]));
    __stcg(to + PANELS * 8 * 256 + threadIdx.x, make_float4(rows.reference[0], rows.reference[1], rows.total[0], rows.total[1]));
}
__device__ __forceinline__ void merge_sums(const float4* from, float (&sum)[PANELS * 32], Rows& rows) {
    const float4 other = __ldcg(from + PANELS * 8 * 256 + threadIdx.x);
    float ours[2], theirs[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const float reference = h ? other.y : other.x, largest = fmaxf(rows.reference[h], reference);
        ours[h] = exp2_fast(rows.reference[h] - largest), theirs[h] = exp2_fast(reference - largest);
        rows.total[h] = rows.total[h] * ours[h] + (h ? other.w : other.z) * theirs[h];
    }
#pragma unroll
    for (int i = 0; i < PANELS * 8; ++i) {
        const float4 v = __ldcg(from + i * 256 + threadIdx.x);
        sum[4 * i] = sum[4 * i] * ours[0] + v.x * theirs[0];
        sum[4 * i + 1] = sum[4 * i + 1] * ours[0] + v.y * theirs[0];
        sum[4 * i + 2] = sum[4 * i + 2] * ours[1] + v.z * theirs[1];
        sum[4 * i + 3] = sum[4 * i + 3] * ours[1] + v.w * theirs[1];
    }
}
// Words in global memory that two blocks share. Their contents before the launch are arbitrary.
__device__ __forceinline__ unsigned look(const unsigned* p) { unsigned v; asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
__device__ __forceinline__ void put(unsigned* p, unsigned v) { asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
__device__ __forceinline__ void add_one(unsigned* p) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory"); }
struct Flags { unsigned here, go, ready, unused; };
// The block that will leave sums: `ready` is down when this returns, and the other block knows. It may clear `here` after it was set: set it again.
__device__ __forceinline__ void meet_reader(Flags* f) {
    put(&f->ready, 0);
    put(&f->go, 0);
    do put(&f->here, 1);
    while (look(&f->go) != 1);
}
// The block that will merge them: returns when both of its groups' counterparts have left theirs.
__device__ __forceinline__ void meet_writer(Flags* f) {
    put(&f->here, 0);
    while (look(&f->here) != 1) {}
    put(&f->go, 1);
    while (look(&f->ready) != 2) {}
}
// The two groups alternate in issuing products: a group waits for its turn and then passes it to the other.
__device__ __forceinline__ void wait_turn(int group) { if (TURNS) asm volatile("bar.sync %0, 256;" ::"r"(group + 1) : "memory"); }
__device__ __forceinline__ void give_turn(int group) { if (TURNS) asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory"); }
__device__ __forceinline__ void group_sync(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 3) : "memory"); }

extern "C" __global__ void __launch_bounds__(384, 1)
attend(const __grid_constant__ CUtensorMap query_map, const __grid_constant__ CUtensorMap key_map, const __grid_constant__ CUtensorMap value_map,
       const __grid_constant__ CUtensorMap result, const __half* q, const __half* k, const __half* v, float4* workspace, __half* __restrict__ out) {
    const int rank = CLUSTER > 1 ? cluster_rank() : 0, first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;
#if HEAD_DIM % 8 || HEAD_DIM > 128
    for (int unit = first; unit < UNITS; unit += step) plain_queries(q, k, v, out, unit / ACROSS, (unit % ACROSS * CLUSTER + rank) * QUERIES);
#else
    extern __shared__ char raw[];
    __half* boxes = (__half*)(((uintptr_t)raw + 1023) / 1024 * 1024);   // staging of results: 2 KB a warp
    __half* queries = boxes + 8 * 1024;
    __half* stages = queries + 2 * PANELS * 64 * 64;                    // of keys, then values
    __shared__ uint64_t queries_full[2], queries_empty[2], keys_full[STAGES], values_full[STAGES], keys_empty[STAGES], values_empty[STAGES];
    __shared__ Share share;
    __shared__ uint64_t cleared, left_there;                            // the flag for our sums is down; the other block's sums are there
    constexpr int LEFT = 256 * (PANELS * 8 + 1);                        // float4s that a block leaves
    Flags* const flags = (Flags*)(workspace + gridDim.x * LEFT);
    if (threadIdx.x == 0) {
        share = share_of(first, step);
        for (int g = 0; g < 2; ++g) barrier_init(&queries_full[g], 1), barrier_init(&queries_empty[g], 1);
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(&keys_full[s], 1), barrier_init(&values_full[s], 1);
            barrier_init(&keys_empty[s], 2 * CLUSTER), barrier_init(&values_empty[s], 2 * CLUSTER);
        }
        barrier_init(&cleared, 1), barrier_init(&left_there, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (CLUSTER > 1) cluster_sync();
    __syncthreads();
    // Tiles from the last one down: the one that may lie partly outside comes first.
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(24));
        if (threadIdx.x == 256) {                       // loads keys and values
                    int s = 0, phase = 0, filling = STAGES;
            auto fetch = [&](const CUtensorMap* map, __half* to, int head, int row, uint64_t* full) {
                barrier_expect(full, PANELS * PANEL * 2);
#pragma unroll
                for (int p = 0; p < PANELS; ++p) {
                    if (CLUSTER > 1) tensor_multicast(to + p * PANEL + rank * (PANEL / CLUSTER), map, head, row + rank * (KEYS / CLUSTER), 64 * p, full);
                    else tensor_load(to + p * PANEL, map, head, row, 64 * p, full);
                }
            };
            for (int n = 0; n < share.pieces; ++n) {
                const Piece piece = piece_of(share, n, first, step);
                const int head = piece.unit / ACROSS;
                for (int t = piece.begin; t < piece.end; ++t) {
                    __half* to = stages + s * 2 * PANELS * PANEL;
                    const int row = (TILES - 1 - t) * KEYS;
                    if (!filling) barrier_wait(&keys_empty[s], phase ^ 1);
                    fetch(&key_map, to, head, row, &keys_full[s]);
                    if (!filling) barrier_wait(&values_empty[s], phase ^ 1);
                    else --filling;
                    fetch(&value_map, to + PANELS * PANEL, head, row, &values_full[s]);
                    if (++s == STAGES) s = 0, phase ^= 1;
                }
            }
        } else if (threadIdx.x == 288) {                // loads queries, and has the next ones brought to L2
                    for (int n = 0; n < share.pieces; ++n) {
                const int unit = piece_of(share, n, first, step).unit, head = unit / ACROSS, query = (unit % ACROSS * CLUSTER + rank) * QUERIES;
                for (int g = 0; g < 2; ++g) {
                    if (n) barrier_wait(&queries_empty[g], n - 1 & 1);
                    barrier_expect(&queries_full[g], PANELS * 64 * 128);
                    for (int p = 0; p < PANELS; ++p)
                        tensor_load(queries + (g * PANELS + p) * 64 * 64, &query_map, head, query + 64 * g, 64 * p, &queries_full[g]);
                }
                if (n + 1 < share.pieces) {
                    const int next = piece_of(share, n + 1, first, step).unit, row = (next % ACROSS * CLUSTER + rank) * QUERIES;
                    for (int i = 0; i < 2 * PANELS; ++i) tensor_prefetch(&query_map, next / ACROSS, row + i / PANELS * 64, i % PANELS * 64);
                }
            }
        } else if (threadIdx.x == 320) {
                    if (share.from % TILES) {
                meet_reader(flags + blockIdx.x);
                barrier_arrive(&cleared);
            }
        } else if (threadIdx.x == 352) {
                    if (share.to % TILES) {
                meet_writer(flags + blockIdx.x + CLUSTER);
                barrier_arrive(&left_there);
            }
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(240));
        const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
        const float factor = 1.4426950408889634f * rsqrtf(HEAD_DIM);
        auto release = [&](uint64_t* barrier) {
            if (thread < CLUSTER) {
                if (CLUSTER > 1) barrier_arrive_at(barrier, thread);
                else barrier_arrive(barrier);
            }
        };
        int s = 0, phase = 0, last = 0, last_phase = 0, n = 0, left;     // `left`: tiles of this piece after the one that is multiplied
        auto keys_of = [&](int stage) { return stages + stage * 2 * PANELS * PANEL; };
        auto values_of = [&](int stage) { return stages + stage * 2 * PANELS * PANEL + PANELS * PANEL; };
        const __half* mine = queries + group * PANELS * 64 * 64;
        float sum[PANELS * 32], score[SCORES], keep[2];
        uint32_t weight[KEYS / 16][4];
        Rows rows;
        auto start = [&]() {
#pragma unroll
            for (int i = 0; i < PANELS * 32; ++i) sum[i] = 0;
#pragma unroll
            for (int h = 0; h < 2; ++h) rows.reference[h] = LOWEST, rows.total[h] = 0;
        };
        auto mask = [&]() {                             // scores of the last tile, which comes first
            if (REST < PART) {
#pragma unroll
                for (int i = 0; i < PART / 2; ++i)
                    if (i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2 >= REST) score[i] = -INFINITY;
            }
        };
        auto multiplied = [&]() {                       // the scores have arrived
            release(&keys_empty[s]);
            if (left == 0 && thread == 0) barrier_arrive(&queries_empty[group]);
            last = s, last_phase = phase;
            if (++s == STAGES) s = 0, phase ^= 1;
        };
        auto finish = [&]() {                           // the sums of piece n have arrived
                    const Piece piece = piece_of(share, n, first, step);
            if (piece.begin) {
                leave_sums(workspace + blockIdx.x * LEFT, sum, rows);
                __threadfence();
                group_sync(group);
                if (thread == 0) {
                    barrier_wait(&cleared, 0);
                    add_one(&flags[blockIdx.x].ready);
                }
                return;
            }
            if (piece.end < TILES) {
                barrier_wait(&left_there, 0);
                merge_sums(workspace + (blockIdx.x + CLUSTER) * LEFT, sum, rows);
            }
            const int head = piece.unit / ACROSS, query0 = (piece.unit % ACROSS * CLUSTER + rank) * QUERIES;
            write_queries(&result, sum, rows, boxes + threadIdx.x / 32 * 1024, head, query0 + 16 * (threadIdx.x / 32));
        };
        // Scores of NOW keys of the next tile beside the sums over BEFORE keys of the last one.
        auto advance = [&](auto now, auto before) {
            constexpr int NOW = decltype(now)::COUNT, BEFORE = decltype(before)::COUNT;
            --left;
            barrier_wait(&keys_full[s], phase);
            wait_turn(group);
            multiply_keys<NOW>(score, mine, keys_of(s));
            barrier_wait(&values_full[last], last_phase);
            multiply_values<BEFORE>(sum, weight, values_of(last));
            give_turn(group);
            uint64_t* used = &values_empty[last];
            wgmma_wait<1>();                            // the scores have arrived; the product with the values still runs
            pin<NOW / 2>(score);
            multiplied();
            const bool jump = weigh<NOW>(score, rows, keep, factor);
            pin<NOW / 2>(score);
            settle(rows.total[0] + rows.total[1]);
            wgmma_wait<0>();
            pin<PANELS * 32>(sum);
            pin<NOW / 2>(score);
            release(used);
            pack<NOW>(weight, score);
            if (jump) rescale(sum, keep);
        };
        if (group == 1) give_turn(1);                   // the first turn is group 0's
        int pieces;
        bool whole;                                     // the weights are of a whole tile
        {
                    const Piece piece = piece_of(share, 0, first, step);
            pieces = share.pieces, left = piece.end - piece.begin - 1, whole = piece.begin;
        }
        barrier_wait(&queries_full[group], 0);
        barrier_wait(&keys_full[0], 0);
        start();
        if (whole) {
            multiply_keys<KEYS>(score, mine, keys_of(0));
            wgmma_wait<0>();
            pin<KEYS / 2>(score);
            multiplied();
            weigh<KEYS>(score, rows, keep, factor);
            pack<KEYS>(weight, score);
        } else {
            multiply_keys<PART>(score, mine, keys_of(0));
            wgmma_wait<0>();
            pin<PART / 2>(score);
            multiplied();
            mask();
            weigh<PART>(score, rows, keep, factor);
            pack<PART>(weight, score);
        }
        for (;;) {
            if (PART < KEYS && !whole && left) advance(Keys<KEYS>(), Keys<PART>());
            while (left) advance(Keys<KEYS>(), Keys<KEYS>());
            if (n + 1 == pieces) break;
            barrier_wait(&keys_full[s], phase);
            barrier_wait(&queries_full[group], n + 1 & 1);
            barrier_wait(&values_full[last], last_phase);
            wait_turn(group);
            multiply_values<FINAL>(sum, weight, values_of(last));
            multiply_keys<PART>(score, mine, keys_of(s));
            give_turn(group);
            uint64_t* used = &values_empty[last];
            wgmma_wait<1>();                            // the sums have arrived; the next queries' first scores are being computed
            pin<PANELS * 32>(sum);
            release(used);
            finish();
            ++n;
            {
                const Piece piece = piece_of(share, n, first, step);
                left = piece.end - piece.begin - 1, whole = false;
            }
            start();
            wgmma_wait<0>();
            pin<PART / 2>(score);
            multiplied();
            mask();
            weigh<PART>(score, rows, keep, factor);
            pack<PART>(weight, score);
        }
        barrier_wait(&values_full[last], last_phase);
        multiply_values<FINAL>(sum, weight, values_of(last));
        wgmma_wait<0>();
        pin<PANELS * 32>(sum);
        release(&values_empty[last]);
        finish();
        if (group == 0) wait_turn(0);                                   // the turn that is left over
        if (threadIdx.x % 32 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        __syncwarp();
    }
    if (CLUSTER > 1) cluster_sync();    // no block exits while its peer may still write to it or arrive at its barriers
#endif
}
