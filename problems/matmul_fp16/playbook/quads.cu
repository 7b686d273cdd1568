// even_tiles.cu in clusters of four: 512 x 256 results, and each block fetches a quarter of the columns of b for all four. A block reads 24 KB a
// step from L2 instead of 32. Back to back the kernel is bound by power, and moving bytes from L2 to the multiprocessors takes a part of it.
// 128 clusters' tiles are four rounds of 32 clusters: four of 132 multiprocessors idle, which even_tiles.cu gained 0.6 % from.
// Predicted (4096^3): single calls 1 % slower than even_tiles.cu (186 us), back to back 2 % faster. Twice the time means that fewer than
// CLUSTERS clusters fit at once.
#include <cstdint>
#include <cuda.h>
#include "problem.h"
// @tune STAGES = 4
// @tune BAND = 4, 8
// @tune NARROW = 240
// @tune CLUSTERS = 32
// @tune HINT = 0
// @tensormap left = a as float16(M, K - K % 8) tile(64, 64) swizzle(128)
// @tensormap right = b as float16(K, N - N % 8) tile(64, 64) swizzle(128)
// @tensormap result = out as float16(M, N - N % 8) tile(16, 64) swizzle(128)
// @launch product(left, right, result, a, b, out) grid(4 * max(1, min(min(CLUSTERS, SMS / 4), ceil_div(M, 512) * ceil_div(N, 256)))) block(384) shared(1024 + 32768 + STAGES * 49152) cluster(4)

#define ROWS 128
#define COLUMNS 256
#define PEERS 4                                      // blocks of a cluster, one above the other
#define BOX (64 * 64)                                // elements of one swizzled box, 8 KB
#if K % 8 || N % 8
// Rows do not start on 16 bytes, which TMA needs: use the tile without tensor cores.
__device__ void plain_tile(const __half* a, const __half* b, __half* out, int row0, int column0) {
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x) {
        const int row = row0 + i / COLUMNS, column = column0 + i % COLUMNS;
        if (row >= M || column >= N) continue;
        float sum = 0;
        for (int k = 0; k < K; ++k) sum += __half2float(a[(long long)row * K + k]) * __half2float(b[(long long)k * N + column]);
        out[(long long)row * N + column] = __float2half(sum);
    }
}
#endif
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
// What L2 is to keep longest (3 and 1: the operands) or give up first (2 and 1: the results).
__device__ __forceinline__ uint64_t keep() { uint64_t p; asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p)); return p; }
__device__ __forceinline__ uint64_t pass() { uint64_t p; asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p)); return p; }
__device__ __forceinline__ void tensor_load(void* to, const CUtensorMap* map, int row, int column, uint64_t* b, uint64_t policy) {
#if HINT % 2
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;"
                 ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(shared_address(b)), "l"(policy) : "memory");
    return;
#endif
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(shared_address(b)) : "memory");
}
// Multicasts the tile to every block of the cluster in `blocks`, at the same address, counted by the same barrier of each.
__device__ __forceinline__ void tensor_multicast(void* to, const CUtensorMap* map, int row, int column, uint64_t* b, unsigned short blocks, uint64_t policy) {
#if HINT % 2
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;"
                 ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(shared_address(b)), "h"(blocks), "l"(policy) : "memory");
    return;
#endif
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                 ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(shared_address(b)), "h"(blocks) : "memory");
}
__device__ __forceinline__ unsigned cluster_rank() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Arrives at the barrier at the same address in block `rank` of the cluster. Only finished tensor-core reads
// come before it, so it needs no wider scope (release.cluster would flush the caches at every step).
__device__ __forceinline__ void barrier_arrive_at(uint64_t* ours, unsigned rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}\n"
                 ::"r"(shared_address(ours)), "r"(rank) : "memory");
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
__device__ __forceinline__ void wgmma_m64n256k16(float (&d)[128], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
                 "%128, %129, p, 1, 1, 0, 1;\n}\n"
                 :
                 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
                 "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
                 "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
                 "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
                 "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
                 "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
                 "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
                 "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
                 "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
                 : "l"(a), "l"(b), "r"(accumulate));
}
#if NARROW == 240
__device__ __forceinline__ void wgmma_m64n240k16(float (&d)[128], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %122, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n240k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119}, "
                 "%120, %121, p, 1, 1, 0, 1;\n}\n"
                 :
                 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
                 "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
                 "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
                 "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
                 "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
                 "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
                 "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
                 "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
                 : "l"(a), "l"(b), "r"(accumulate));
}
#endif
// Where a cluster's tile begins; `kind` 1 marks the smaller sort.
struct Tile { int row, column, kind; };
constexpr int DOWN = (M + PEERS * ROWS - 1) / (PEERS * ROWS), ACROSS = (N + COLUMNS - 1) / COLUMNS;
// A band of 512 rows is ACROSS tiles of 256 columns or, in the last `more` bands, ACROSS + 1 tiles, the last NARROWS of which have
// NARROW columns. Tiles in bands of BAND tile rows, down each column of a band; narrow ones come last of all, so that they are the last round.
constexpr int NARROWS = ((ACROSS + 1) * COLUMNS - N) / (COLUMNS - NARROW) < ACROSS + 1 ? ((ACROSS + 1) * COLUMNS - N) / (COLUMNS - NARROW) : ACROSS + 1;
__device__ __forceinline__ Tile tile_at(int index, int more) {
    const int rows = DOWN - more;
    if (index >= rows * ACROSS) {
        const int i = index - rows * ACROSS, column = i / more, wide = ACROSS + 1 - NARROWS;
        return {(rows + i % more) * PEERS * ROWS, min(column, wide) * COLUMNS + max(column - wide, 0) * NARROW, column >= wide};
    }
    const int band = index / (BAND * ACROSS), height = min(BAND, rows - band * BAND), inside = index - band * BAND * ACROSS;
    return {(band * BAND + inside % height) * PEERS * ROWS, inside / height * COLUMNS, 0};
}
// 16 x 64 results from shared memory to the matrix; elements outside are skipped.
__device__ __forceinline__ void tensor_store(const CUtensorMap* map, const void* from, int row, int column) {
#if HINT == 1 || HINT == 2
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%1, %2}], [%3], %4;\ncp.async.bulk.commit_group;"
                 ::"l"(map), "r"(column), "r"(row), "r"(shared_address(from)), "l"(pass()) : "memory");
    return;
#endif
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];\ncp.async.bulk.commit_group;"
                 ::"l"(map), "r"(column), "r"(row), "r"(shared_address(from)) : "memory");
}
template <int LEFT> __device__ __forceinline__ void stores_have_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory"); }
__device__ __forceinline__ uint32_t pair(float low, float high) {
    const __half2 both = __floats2half2_rn(low, high);
    return *(const uint32_t*)&both;
}
// Columns 64 * q .. of a warp's 16 x 256 results, through one of two swizzled boxes of its own; a `narrow` tile ends inside the last box,
// and those are written one pair of values at a time.
__device__ __forceinline__ void write_quarter(const CUtensorMap* map, __half* out, const uint32_t* v, __half* boxes, int q, int row, int column, int narrow) {
    const int lane = threadIdx.x % 32;
    if (q == 3 && narrow) {
#pragma unroll
        for (int j = 0; j < (NARROW - 192) / 8; ++j) {
            const int r = row + lane / 4, c = column + 192 + 8 * j + lane % 4 * 2;
            if (c < N && r < M) *(uint32_t*)(out + (long long)r * N + c) = v[2 * j];
            if (c < N && r + 8 < M) *(uint32_t*)(out + (long long)(r + 8) * N + c) = v[2 * j + 1];
        }
        if (lane == 0) asm volatile("cp.async.bulk.commit_group;" ::: "memory");         // an empty group keeps the count of the two boxes
        return;
    }
    const unsigned line = shared_address(boxes) + (lane % 8 + lane / 8 % 2 * 8) * 128;
    if (lane == 0) stores_have_read<1>();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 8; j += 2)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                     ::"r"(line + q % 2 * 2048 + ((j + lane / 16 ^ lane % 8) << 4)), "r"(v[2 * j]), "r"(v[2 * j + 1]), "r"(v[2 * j + 2]),
                     "r"(v[2 * j + 3]) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (lane == 0) tensor_store(map, boxes + q % 2 * 1024, row, column + 64 * q);
}
[[maybe_unused]] constexpr int STEPS = (K + 63) / 64;
[[maybe_unused]] constexpr int STAGE = 6 * BOX, GROUPS = 2;                              // boxes: left 2, right 4
[[maybe_unused]] constexpr int LEFTS = STAGE / BOX - 4;
template <int W> struct Width { static constexpr int value = W; };
// One step of 64 of a warpgroup's tile: four instructions issued.
template <int WIDTH> __device__ __forceinline__ void multiply(float (&sum)[128], const __half* stage, int group, bool first) {
    const uint64_t l = tile_descriptor(stage + group * BOX, 16, 1024), r = tile_descriptor(stage + LEFTS * BOX, BOX * 2, 1024);
    pin(sum);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {                                       // 32 bytes of a's rows, 16 rows of b
        if (WIDTH == NARROW) {
            wgmma_m64n240k16(sum, l + 2 * k, r + 128 * k, !first || k > 0);
            continue;
        }
        wgmma_m64n256k16(sum, l + 2 * k, r + 128 * k, !first || k > 0);
    }
    wgmma_commit();
}

extern "C" __global__ void __launch_bounds__(384, 1)
product(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right, const __grid_constant__ CUtensorMap result,
        const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ out) {
    const int rank = cluster_rank(), clusters = gridDim.x / PEERS;
    const int rounds = (DOWN * ACROSS + clusters - 1) / clusters, more = rounds > 1 ? min(DOWN, rounds * clusters - DOWN * ACROSS) : 0;
    const int TILES = DOWN * ACROSS + more;
#define AT(index) tile_at(index, more)
#if K % 8 || N % 8
    for (int index = blockIdx.x / PEERS; index < TILES; index += clusters) {
        const Tile tile = AT(index);
        plain_tile(a, b, out, tile.row + rank * ROWS, tile.column);
    }
#else
    extern __shared__ char raw[];
    __half* boxes = (__half*)(((uintptr_t)raw + 1023) / 1024 * 1024);   // staging of results: two of 2 KB a warp
    __half* stages = boxes + GROUPS * 4 * 2048;
    __shared__ uint64_t full[STAGES], empty[STAGES];
    constexpr int FIRST = STEPS < STAGES ? STEPS : STAGES;              // steps whose stages can be filled at once
    const int PRODUCER = GROUPS * 128;
    uint64_t policy = 0;
    if (threadIdx.x == PRODUCER) policy = keep();
    if (threadIdx.x == PRODUCER) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&left) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&right) : "memory");
        for (int s = 0; s < STAGES; ++s) barrier_init(&full[s], 1), barrier_init(&empty[s], PEERS * GROUPS);
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
        // The first stages are filled before the peer is known to be there, so each block fetches all of b's columns itself.
        const Tile tile = AT(blockIdx.x / PEERS);
        const int lefts = 2;
        for (int s = 0; s < FIRST; ++s) {
            __half* to = stages + s * STAGE;
            barrier_expect(&full[s], (lefts + 4) * BOX * 2);
            for (int h = 0; h < lefts; ++h) tensor_load(to + h * BOX, &left, tile.row + (rank * lefts + h) * 64, s * 64, &full[s], policy);
            for (int h = 0; h < 4; ++h) tensor_load(to + (LEFTS + h) * BOX, &right, s * 64, tile.column + 64 * h, &full[s], policy);
        }
    }
    __syncwarp();
    cluster_sync();
    int s = 0, phase = 0;                                               // the stage, and how often the ring went round (its parity)
    if (threadIdx.x >= PRODUCER) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == PRODUCER) {
            int filling = STAGES - FIRST, begin = FIRST;                // stages that were never used; the step to begin with
            s = FIRST % STAGES, phase = FIRST / STAGES;
            for (int index = blockIdx.x / PEERS; index < TILES; index += clusters, begin = 0) {
                const Tile tile = AT(index);
                const int lefts = 2;
                const int row = tile.row + rank * lefts * 64, column = tile.column + 64 * rank;
                for (int step = begin; step < STEPS; ++step) {
                    if (filling) --filling;
                    else barrier_wait(&empty[s], phase ^ 1);
                    barrier_expect(&full[s], (lefts + 4) * BOX * 2);
                    __half* to = stages + s * STAGE;
#pragma unroll
                    for (int h = 0; h < LEFTS; ++h)
                        if (h < lefts) tensor_load(to + h * BOX, &left, row + 64 * h, step * 64, &full[s], policy);
                    tensor_multicast(to + (LEFTS + rank) * BOX, &right, step * 64, column, &full[s], (1 << PEERS) - 1, policy);
                    if (++s == STAGES) s = 0, phase ^= 1;
                }
            }
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
        __half* own = boxes + threadIdx.x / 32 * 2048;
        int last = 0;
        float sum[128];
        uint32_t ready[64];                                             // the previous tile's results, while this one runs
        int row = 0, column = 0, narrow = 0;
        bool waiting = false;
        // The step after a multiplication was issued: the previous one is done, so its stage is free in all blocks.
        auto go_on = [&](bool release) {
            wgmma_wait<1>();
            if (release && thread < PEERS) barrier_arrive_at(&empty[last], thread);
            last = s;
            if (++s == STAGES) s = 0, phase ^= 1;
        };
        auto whole = [&](auto width) {
            constexpr int WIDTH = decltype(width)::value;
#pragma unroll
            for (int step = 0; step < 4; ++step) {                      // while the first steps run, a quarter of the last tile's results each
                if (step < STEPS) {
                    barrier_wait(&full[s], phase);
                    multiply<WIDTH>(sum, stages + s * STAGE, group, step == 0);
                }
                if (waiting) write_quarter(&result, out, ready + 16 * step, own, step, row, column, narrow);
                if (step < STEPS) go_on(step > 0);
            }
            for (int step = 4; step < STEPS; ++step) {
                barrier_wait(&full[s], phase);
                multiply<WIDTH>(sum, stages + s * STAGE, group, false);
                go_on(true);
            }
            wgmma_wait<0>();
            pin(sum);
            if (thread < PEERS) barrier_arrive_at(&empty[last], thread);
        };
        for (int index = blockIdx.x / PEERS; index < TILES; index += clusters) {
            const Tile tile = AT(index);
            if (tile.kind) whole(Width<NARROW>());
            else whole(Width<COLUMNS>());
            const int to = tile.row + rank * ROWS + 16 * (threadIdx.x / 32);
#pragma unroll
            for (int i = 0; i < 64; ++i) ready[i] = pair(sum[2 * i], sum[2 * i + 1]);
            row = to, column = tile.column, narrow = tile.kind, waiting = true;
        }
#pragma unroll
        for (int q = 0; q < 4; ++q) write_quarter(&result, out, ready + 16 * q, own, q, row, column, narrow);
        if (threadIdx.x % 32 == 0) stores_have_read<0>();               // the grid's end makes them visible; only the boxes must outlive the reading
        __syncwarp();
    }
    cluster_sync();                     // no block exits while its peer may still write to it or arrive at its barriers
#endif
}
