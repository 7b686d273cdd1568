// The product transposed: c^T = b^T a^T. Of a warpgroup's instruction of 64 x 256, the 64 rows are columns of b, which lie across the rows
// of its tile in shared memory, and the 256 columns are rows of a, which lie along them. The kernel with equal tiles has it the other way
// round: four fifths of what its tensor cores read are turned on the way. That costs no time, but perhaps power, which limits the clock.
// Results lie in registers as 64 columns by 256 rows; stmatrix turns them, and a warpgroup writes them together.
// Persistent clusters of two blocks loop over tiles of 256 columns by 256 rows (128 x 256 per block), with equal work for all, as there: 8
// of 16 bands are cut into 17 tiles, of which 16 have 240 rows. A tile's results are written, a quarter per step, while the first four
// steps of the next tile multiply.
// Bounds (4096^3): 100 MB through memory (21 us at 4.8 TB/s), 137.4 GFLOP (131 us at 4096 per clock, 132 SMs and 1.98 GHz).
// Measured on an H200: 183 us single, and no difference from the kernel with equal tiles back to back: turning is free.
#include <cstdint>
#include <cuda.h>
#include "problem.h"
// @tune STAGES = 4, 3
// @tune BAND = 8, 4, 16
// @tensormap left = b as float16(K, N - N % 8) tile(64, 64) swizzle(128)
// @tensormap right = a as float16(M, K - K % 8) tile(64, 64) swizzle(128)
// @tensormap result = out as float16(M, N - N % 8) tile(16, 64) swizzle(128)
// @launch product(left, right, result, a, b, out) grid(2 * min(SMS / 2, ceil_div(M, 256) * ceil_div(N, 256))) block(384) shared(1024 + 32768 + STAGES * 49152) cluster(2)

#define WIDE 128                                     // columns of a block's tile: rows of its instructions
#define TALL 256                                     // its rows: columns of its instructions
#define SHORT 240                                    // rows of the smaller sort of tiles
#define BOX (64 * 64)                                // elements of one swizzled box, 8 KB
#if K % 8 || N % 8
// Rows do not start on 16 bytes, which TMA needs: use the tile without tensor cores.
__device__ void plain_tile(const __half* a, const __half* b, __half* out, int row0, int column0) {
    for (int i = threadIdx.x; i < WIDE * TALL; i += blockDim.x) {
        const int row = row0 + i / WIDE, column = column0 + i % WIDE;
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
__device__ __forceinline__ void tensor_load(void* to, const CUtensorMap* map, int row, int column, uint64_t* b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(shared_address(b)) : "memory");
}
// Multicasts the tile to every block of the cluster in `blocks`, at the same address, counted by the same barrier of each.
__device__ __forceinline__ void tensor_multicast(void* to, const CUtensorMap* map, int row, int column, uint64_t* b, unsigned short blocks) {
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
                 "%128, %129, p, 1, 1, 1, 0;\n}\n"
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
                 "%120, %121, p, 1, 1, 1, 0;\n}\n"
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
// Where a cluster's tile begins; `kind` 1 marks the smaller sort.
struct Tile { int column, row, kind; };
constexpr int BANDS = (N + 2 * WIDE - 1) / (2 * WIDE), DOWN = (M + TALL - 1) / TALL;
// A band of 256 columns is DOWN tiles of 256 rows or, in the last `more` bands, DOWN + 1 tiles, the last SHORTS of which have SHORT
// rows. Tiles in groups of BAND bands, across each row of a group; short ones come last of all, so that they are the last round.
constexpr int SPARE = ((DOWN + 1) * TALL - M) / (TALL - SHORT), SHORTS = SPARE < DOWN + 1 ? SPARE : DOWN + 1;
__device__ __forceinline__ Tile tile_at(int index, int more) {
    const int bands = BANDS - more;
    if (index >= bands * DOWN) {
        const int i = index - bands * DOWN, down = i / more, tall = DOWN + 1 - SHORTS;
        return {(bands + i % more) * 2 * WIDE, min(down, tall) * TALL + max(down - tall, 0) * SHORT, down >= tall};
    }
    const int group = index / (BAND * DOWN), width = min(BAND, bands - group * BAND), inside = index - group * BAND * DOWN;
    return {(group * BAND + inside % width) * 2 * WIDE, inside / width * TALL, 0};
}
// 16 x 64 results from shared memory to the matrix; elements outside are skipped.
__device__ __forceinline__ void tensor_store(const CUtensorMap* map, const void* from, int row, int column) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(map), "r"(column), "r"(row), "r"(shared_address(from)) : "memory");
}
__device__ __forceinline__ void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void stores_have_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory"); }
__device__ __forceinline__ uint32_t pair(float low, float high) {
    const __half2 both = __floats2half2_rn(low, high);
    return *(const uint32_t*)&both;
}
__device__ __forceinline__ void warpgroup_sync(int group) { asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory"); }
// Rows 64 * q .. of a warpgroup's 64 columns of results, through one of its two buffers of 64 x 64; a short tile ends after 48 of the last.
__device__ __forceinline__ void write_quarter(const CUtensorMap* map, const uint32_t* v, __half* boxes, int group, int q, int row, int column, int kind) {
    const int lane = threadIdx.x % 32, thread = threadIdx.x % 128, chunk = thread / 32 * 2 + lane / 8 % 2;
    if (thread == 0) stores_have_read<1>();                             // the stores of the quarter before the last, which used this buffer
    warpgroup_sync(group);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {                                    // 16 rows: matrices of 8 rows by 8 columns, two beside each other
        const unsigned line = shared_address(boxes + q % 2 * BOX) + (8 * (j + lane / 16) + lane % 8) * 128;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                     ::"r"(line + ((chunk ^ lane % 8) << 4)), "r"(v[2 * j]), "r"(v[2 * j + 1]), "r"(v[2 * j + 2]), "r"(v[2 * j + 3]) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    warpgroup_sync(group);
    if (thread == 0) {
        for (int s = 0; s < (q == 3 && kind ? 3 : 4); ++s) tensor_store(map, boxes + q % 2 * BOX + s * 1024, row + 64 * q + 16 * s, column);
        stores_commit();
    }
}
[[maybe_unused]] constexpr int STEPS = (K + 63) / 64;
[[maybe_unused]] constexpr int STAGE = 6 * BOX, GROUPS = 2, LEFTS = 2;                   // boxes: left 2, right 4
template <int H> struct Height { static constexpr int value = H; };
// One step of 64 of a warpgroup's tile: four instructions issued.
template <int HEIGHT> __device__ __forceinline__ void multiply(float (&sum)[128], const __half* stage, int group, bool first) {
    const uint64_t l = tile_descriptor(stage + group * BOX, BOX * 2, 1024), r = tile_descriptor(stage + LEFTS * BOX, 16, 1024);
    pin(sum);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {                                       // 16 rows of b, 32 bytes of a's rows
        if (HEIGHT == SHORT) wgmma_m64n240k16(sum, l + 128 * k, r + 2 * k, !first || k > 0);
        else wgmma_m64n256k16(sum, l + 128 * k, r + 2 * k, !first || k > 0);
    }
    wgmma_commit();
}

extern "C" __global__ void __launch_bounds__(384, 1)
product(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right, const __grid_constant__ CUtensorMap result,
        const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ out) {
    const int rank = cluster_rank(), clusters = gridDim.x / 2;
    const int rounds = (BANDS * DOWN + clusters - 1) / clusters, more = rounds > 1 ? min(BANDS, rounds * clusters - BANDS * DOWN) : 0;
    const int TILES = BANDS * DOWN + more;
#if K % 8 || N % 8
    for (int index = blockIdx.x / 2; index < TILES; index += clusters) {
        const Tile tile = tile_at(index, more);
        plain_tile(a, b, out, tile.row, tile.column + rank * WIDE);
    }
#else
    extern __shared__ char raw[];
    __half* boxes = (__half*)(((uintptr_t)raw + 1023) / 1024 * 1024);   // staging of results: two of 8 KB a warpgroup
    __half* stages = boxes + GROUPS * 2 * BOX;
    __shared__ uint64_t full[STAGES], empty[STAGES];
    constexpr int FIRST = STEPS < STAGES ? STEPS : STAGES;              // steps whose stages can be filled at once
    const int PRODUCER = GROUPS * 128;
    if (threadIdx.x == PRODUCER) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&left) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&right) : "memory");
        for (int s = 0; s < STAGES; ++s) barrier_init(&full[s], 1), barrier_init(&empty[s], 2 * GROUPS);
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
        // The first stages are filled before the peer is known to be there, so each block fetches all of a's rows itself.
        const Tile tile = tile_at(blockIdx.x / 2, more);
        for (int s = 0; s < FIRST; ++s) {
            __half* to = stages + s * STAGE;
            barrier_expect(&full[s], STAGE * 2);
            for (int h = 0; h < LEFTS; ++h) tensor_load(to + h * BOX, &left, s * 64, tile.column + (rank * LEFTS + h) * 64, &full[s]);
            for (int h = 0; h < 4; ++h) tensor_load(to + (LEFTS + h) * BOX, &right, tile.row + 64 * h, s * 64, &full[s]);
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
            for (int index = blockIdx.x / 2; index < TILES; index += clusters, begin = 0) {
                const Tile tile = tile_at(index, more);
                const int column = tile.column + rank * WIDE, row = tile.row + 128 * rank;
                for (int step = begin; step < STEPS; ++step) {
                    if (filling) --filling;
                    else barrier_wait(&empty[s], phase ^ 1);
                    barrier_expect(&full[s], STAGE * 2);
                    __half* to = stages + s * STAGE;
#pragma unroll
                    for (int h = 0; h < LEFTS; ++h) tensor_load(to + h * BOX, &left, step * 64, column + 64 * h, &full[s]);
#pragma unroll
                    for (int h = 0; h < 2; ++h)
                        tensor_multicast(to + (LEFTS + 2 * rank + h) * BOX, &right, row + 64 * h, step * 64, &full[s], 3);
                    if (++s == STAGES) s = 0, phase ^= 1;
                }
            }
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
        __half* own = boxes + group * 2 * BOX;
        int last = 0;
        float sum[128];
        uint32_t ready[64];                                             // the previous tile's results, while this one runs
        int row = 0, column = 0, kind = 0;
        bool waiting = false;
        // The step after a multiplication was issued: the previous one is done, so its stage is free in both blocks.
        auto go_on = [&](bool release) {
            wgmma_wait<1>();
            if (release && thread < 2) barrier_arrive_at(&empty[last], thread);
            last = s;
            if (++s == STAGES) s = 0, phase ^= 1;
        };
        auto whole = [&](auto height) {
            constexpr int HEIGHT = decltype(height)::value;
#pragma unroll
            for (int step = 0; step < 4; ++step) {                      // while the first steps run, a quarter of the last tile's results each
                if (step < STEPS) {
                    barrier_wait(&full[s], phase);
                    multiply<HEIGHT>(sum, stages + s * STAGE, group, step == 0);
                }
                if (waiting) write_quarter(&result, ready + 16 * step, own, group, step, row, column, kind);
                if (step < STEPS) go_on(step > 0);
            }
            for (int step = 4; step < STEPS; ++step) {
                barrier_wait(&full[s], phase);
                multiply<HEIGHT>(sum, stages + s * STAGE, group, false);
                go_on(true);
            }
            wgmma_wait<0>();
            pin(sum);
            if (thread < 2) barrier_arrive_at(&empty[last], thread);
        };
        for (int index = blockIdx.x / 2; index < TILES; index += clusters) {
            const Tile tile = tile_at(index, more);
            if (tile.kind) whole(Height<SHORT>());
            else whole(Height<TALL>());
#pragma unroll
            for (int i = 0; i < 64; ++i) ready[i] = pair(sum[2 * i], sum[2 * i + 1]);
            row = tile.row, column = tile.column + rank * WIDE + group * 64, kind = tile.kind, waiting = true;
        }
#pragma unroll
        for (int q = 0; q < 4; ++q) write_quarter(&result, ready + 16 * q, own, group, q, row, column, kind);
        if (thread == 0) stores_have_read<0>();                         // the grid's end makes them visible; only the boxes must outlive the reading
        __syncwarp();
    }
    cluster_sync();                     // no block exits while its peer may still write to it or arrive at its barriers
#endif
}
