// WGMMA in persistent clusters that loop over the tiles, two rows of 128 x 256 tiles and WIDE columns: everything that
// two blocks of a cluster need is loaded once for both. The second warpgroup runs LAG steps behind the first, so that
// one multiplies while the other writes; results go through shared memory and leave by TMA, 16 x 64 at a time, independently per warp.
//
// Predicted (4096^3, 137 GFLOP): 174 us at the 790 TFLOP/s measured; 512 tiles on 132 (or 128) blocks are 4 rounds where 3.88 (4.00) would
// do: 179 us with every step at full rate and the stores hidden. A step (4.2 MFLOP per block, 1024 clocks) loads 48 KB into a block, of
// which L2 delivers 32 KB (WIDE = 1) or 24 KB (WIDE = 2): 31 or 23 bytes per clock and block, 6.9 or 5.2 TB/s in total, near the limit of
// L2; so L2 or power is the bottleneck, not instructions (4 wgmma per step). Expect 180 to 190 us.
#include <cstdint>
#include <cuda.h>
#include "problem.h"
// @tune STAGES = 4, 3
// @tune WIDE = 1, 2
// @tune BAND = 8, 4, 16
// @tune LAG = 0, 2, 1
// @tensormap left = a as float16(M, K - K % 8) tile(64, 64) swizzle(128)
// @tensormap right = b as float16(K, N - N % 8) tile(64, 64) swizzle(128)
// @tensormap result = out as float16(M, N - N % 8) tile(16, 64) swizzle(128)
// @launch product(left, right, result, a, b, out) grid(2 * WIDE * max(1, min(SMS / (2 * WIDE) - WIDE + 1, ceil_div(M, 256) * ceil_div(N, 256 * WIDE)))) block(384) shared(1024 + 32768 + STAGES * 49152) cluster(2 * WIDE)

#define ROWS 128
#define COLUMNS 256
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
// Tiles in bands of BAND tile rows, down each column of a band: data that running blocks share stays in L2.
__device__ __forceinline__ void tile_at(int index, int rows, int columns, int& row, int& column) {
    const int band = index / (BAND * columns), height = min(BAND, rows - band * BAND), inside = index - band * BAND * columns;
    row = band * BAND + inside % height;
    column = inside / height;
}
// 16 x 64 results from shared memory to the matrix; elements outside are skipped.
__device__ __forceinline__ void tensor_store(const CUtensorMap* map, const void* from, int row, int column) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];\ncp.async.bulk.commit_group;"
                 ::"l"(map), "r"(column), "r"(row), "r"(shared_address(from)) : "memory");
}
template <int LEFT> __device__ __forceinline__ void stores_have_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory"); }
__device__ __forceinline__ uint32_t pair(float low, float high) {
    const __half2 both = __floats2half2_rn(low, high);
    return *(const uint32_t*)&both;
}
// A warp's 16 x COLUMNS results, 64 columns at a time through two swizzled boxes of its own.
__device__ __forceinline__ void write_results(const CUtensorMap* map, const float (&sum)[128], __half* boxes, int row, int column) {
    const int lane = threadIdx.x % 32;
    const unsigned line = shared_address(boxes) + (lane % 8 + lane / 8 % 2 * 8) * 128;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        if (lane == 0) stores_have_read<1>();
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            const float* v = sum + 32 * q + 4 * j;
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                         ::"r"(line + q % 2 * 2048 + ((j + lane / 16 ^ lane % 8) << 4)), "r"(pair(v[0], v[1])), "r"(pair(v[2], v[3])),
                         "r"(pair(v[4], v[5])), "r"(pair(v[6], v[7])) : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (lane == 0) tensor_store(map, boxes + q % 2 * 1024, row, column + 64 * q);
    }
}

extern "C" __global__ void __launch_bounds__(384, 1)
product(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right, const __grid_constant__ CUtensorMap result,
        const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ out) {
    constexpr int DOWN = (M + 2 * ROWS - 1) / (2 * ROWS), ACROSS = (N + WIDE * COLUMNS - 1) / (WIDE * COLUMNS), SIZE = 2 * WIDE;
    const int rank = cluster_rank(), clusters = gridDim.x / SIZE, down = rank % 2, across = rank / 2;
    int row0, column0;
#if K % 8 || N % 8
    for (int tile = blockIdx.x / SIZE; tile < DOWN * ACROSS; tile += clusters) {
        tile_at(tile, DOWN, ACROSS, row0, column0);
        plain_tile(a, b, out, (2 * row0 + down) * ROWS, (WIDE * column0 + across) * COLUMNS);
    }
#else
    extern __shared__ char raw[];
    __half* boxes = (__half*)(((uintptr_t)raw + 1023) / 1024 * 1024);   // staging of results: two of 2 KB a warp
    __half* stages = boxes + 8 * 2048;
    __shared__ uint64_t full[STAGES], empty[STAGES], lead;
    constexpr int STAGE = 6 * BOX, STEPS = (K + 63) / 64, LEAD = STEPS > STAGES ? LAG : 0;       // boxes: left 2, right 4
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) barrier_init(&full[s], 1), barrier_init(&empty[s], 2 * (1 + WIDE));
        barrier_init(&lead, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    int s = 0, phase = 0;                                               // the stage, and how often the ring went round (its parity)
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 256) {
            int filling = STAGES;                                       // stages that were never used
            for (int tile = blockIdx.x / SIZE; tile < DOWN * ACROSS; tile += clusters) {
                tile_at(tile, DOWN, ACROSS, row0, column0);
                const int row = (2 * row0 + down) * ROWS, column = (WIDE * column0 + across) * COLUMNS;
                for (int step = 0; step < STEPS; ++step) {
                    if (filling) --filling;
                    else barrier_wait(&empty[s], phase ^ 1);
                    barrier_expect(&full[s], STAGE * 2);
                    __half* to = stages + s * STAGE;
                    if (WIDE == 2) tensor_multicast(to + across * BOX, &left, row + 64 * across, step * 64, &full[s], 5 << down);
                    else
                        for (int h = 0; h < 2; ++h) tensor_load(to + h * BOX, &left, row + 64 * h, step * 64, &full[s]);
#pragma unroll
                    for (int h = 0; h < 2; ++h)
                        tensor_multicast(to + (2 + 2 * down + h) * BOX, &right, step * 64, column + 128 * down + 64 * h, &full[s], 3 << 2 * across);
                    if (++s == STAGES) s = 0, phase ^= 1;
                }
            }
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
        const int peer = thread == 0 ? rank : thread == 1 ? rank ^ 1 : rank ^ 2;       // whose stages this block's release frees
        __half* own = boxes + threadIdx.x / 32 * 2048;
        int turn = 0, last = 0;
        float sum[128];
        for (int tile = blockIdx.x / SIZE; tile < DOWN * ACROSS; tile += clusters, turn ^= 1) {
            if (LEAD > 0 && group == 1) barrier_wait(&lead, turn);
            for (int step = 0; step < STEPS; ++step) {
                barrier_wait(&full[s], phase);
                const uint64_t l = tile_descriptor(stages + s * STAGE + group * BOX, 16, 1024);
                const uint64_t r = tile_descriptor(stages + s * STAGE + 2 * BOX, BOX * 2, 1024);
                pin(sum);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < 4; ++k) wgmma_m64n256k16(sum, l + 2 * k, r + 128 * k, step > 0 || k > 0);   // 32 bytes of a's rows, 16 rows of b
                wgmma_commit();
                wgmma_wait<1>();                                        // the step before is done: its stage is free in every block it came to
                if (step > 0 && thread < 1 + WIDE) barrier_arrive_at(&empty[last], peer);
                if (LEAD > 0 && group == 0 && step == LEAD - 1 && thread == 0) barrier_arrive_at(&lead, rank);
                last = s;
                if (++s == STAGES) s = 0, phase ^= 1;
            }
            wgmma_wait<0>();
            pin(sum);
            if (thread < 1 + WIDE) barrier_arrive_at(&empty[last], peer);
            tile_at(tile, DOWN, ACROSS, row0, column0);
            write_results(&result, sum, own, (2 * row0 + down) * ROWS + 16 * (threadIdx.x / 32), (WIDE * column0 + across) * COLUMNS);
        }
        if (threadIdx.x % 32 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        __syncwarp();
    }
    cluster_sync();                     // no block exits while its peer may still write to it or arrive at its barriers
#endif
}
