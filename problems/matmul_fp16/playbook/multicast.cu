// WGMMA in persistent clusters of two blocks that loop over the tiles: both need the same columns of b, so each
// loads half of them for both, and the next tile is loaded while this one is written.
#include <cstdint>
#include <cuda.h>
#include "problem.h"
// @tune STAGES = 4, 3
// @tune BAND = 8, 4
// @tensormap left = a as float16(M, K - K % 8) tile(64, 64) swizzle(128)
// @tensormap right = b as float16(K, N - N % 8) tile(64, 64) swizzle(128)
// @launch product(left, right, a, b, out) grid(2 * min(SMS / 2, ceil_div(M, 256) * ceil_div(N, 256))) block(384) shared(1024 + STAGES * 49152) cluster(2)

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
// A warpgroup's 64 x COLUMNS results from the tensor cores' layout to the matrix; N is even wherever this is used.
template <int COUNT> __device__ __forceinline__ void write_tile(__half* out, const float (&sum)[COUNT], int row0, int column0) {
    const int lane = threadIdx.x % 32, row = row0 + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
        const int r = row + i / 2 % 2 * 8, c = column0 + i / 4 * 8 + lane % 4 * 2;
        if (r < M && c < N) *(__half2*)(out + (long long)r * N + c) = __floats2half2_rn(sum[i], sum[i + 1]);
    }
}

extern "C" __global__ void __launch_bounds__(384, 1)
product(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right, const __half* __restrict__ a,
        const __half* __restrict__ b, __half* __restrict__ out) {
    constexpr int DOWN = (M + 2 * ROWS - 1) / (2 * ROWS), ACROSS = (N + COLUMNS - 1) / COLUMNS;
    const int rank = cluster_rank(), clusters = gridDim.x / 2;
    int row0, column0;
#if K % 8 || N % 8
    for (int tile = blockIdx.x / 2; tile < DOWN * ACROSS; tile += clusters) {
        tile_at(tile, DOWN, ACROSS, row0, column0);
        plain_tile(a, b, out, (2 * row0 + rank) * ROWS, column0 * COLUMNS);
    }
#else
    extern __shared__ char raw[];
    __half* stages = (__half*)(((uintptr_t)raw + 1023) / 1024 * 1024);
    __shared__ uint64_t full[STAGES], empty[STAGES];
    constexpr int STAGE = 6 * BOX, STEPS = (K + 63) / 64;               // boxes: left 2, right 4
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) barrier_init(&full[s], 1), barrier_init(&empty[s], 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    int turn = 0;                                                       // steps so far, over all tiles
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 256)
            for (int tile = blockIdx.x / 2; tile < DOWN * ACROSS; tile += clusters) {
                tile_at(tile, DOWN, ACROSS, row0, column0);
                for (int step = 0; step < STEPS; ++step, ++turn) {
                    const int s = turn % STAGES;
                    if (turn >= STAGES) barrier_wait(&empty[s], turn / STAGES - 1 & 1);
                    barrier_expect(&full[s], STAGE * 2);
                    __half* to = stages + s * STAGE;
#pragma unroll
                    for (int h = 0; h < 2; ++h) tensor_load(to + h * BOX, &left, (2 * row0 + rank) * ROWS + 64 * h, step * 64, &full[s]);
#pragma unroll
                    for (int h = 0; h < 2; ++h)
                        tensor_multicast(to + (2 + 2 * rank + h) * BOX, &right, step * 64, column0 * COLUMNS + 128 * rank + 64 * h, &full[s], 3);
                }
            }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int group = threadIdx.x / 128;
        float sum[128];
        for (int tile = blockIdx.x / 2; tile < DOWN * ACROSS; tile += clusters) {
            for (int step = 0; step < STEPS; ++step, ++turn) {
                const int s = turn % STAGES;
                barrier_wait(&full[s], turn / STAGES & 1);
                const uint64_t l = tile_descriptor(stages + s * STAGE + group * BOX, 16, 1024);
                const uint64_t r = tile_descriptor(stages + s * STAGE + 2 * BOX, BOX * 2, 1024);
                pin(sum);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < 4; ++k) wgmma_m64n256k16(sum, l + 2 * k, r + 128 * k, step > 0 || k > 0);   // 32 bytes of a's rows, 16 rows of b
                wgmma_commit();
                wgmma_wait<1>();                                        // the step before is done: its stage is free in both blocks
                if (threadIdx.x % 128 < 2 && step > 0) barrier_arrive_at(&empty[(turn - 1) % STAGES], threadIdx.x % 128);
            }
            wgmma_wait<0>();
            pin(sum);
            if (threadIdx.x % 128 < 2) barrier_arrive_at(&empty[(turn - 1) % STAGES], threadIdx.x % 128);
            tile_at(tile, DOWN, ACROSS, row0, column0);
            write_tile(out, sum, (2 * row0 + rank) * ROWS + 64 * group, column0 * COLUMNS);
        }
    }
    cluster_sync();                     // no block exits while its peer may still write to it or arrive at its barriers
#endif
}
