// Eight-bit WGMMA in persistent clusters of two blocks that share the rows of b by multicast. Products are summed for one block of
// scales on the tensor cores, then added to the result in single precision, half a tile at a time: one warpgroup adds while the
// other multiplies.
#include <cstdint>
#include <cuda.h>
#include "problem.h"
// @tune STAGES = 4, 3
// @tune BAND = 8, 4
// @tensormap left = a as uint8(M, K) tile(128, 128) swizzle(128)
// @tensormap right = b as uint8(N, K) tile(128, 128) swizzle(128)
// @launch product(left, right, scale_a, scale_b, out) grid(2 * min(SMS / 2, ceil_div(M, 256) * ceil_div(N, 256))) block(384) shared(1024 + STAGES * 49152) cluster(2)

#define BLOCKS (K / SCALE_BLOCK)
#define BOX (128 * 128)                              // bytes of one swizzled box: 128 rows, one block of scales deep
static_assert(SCALE_BLOCK == 128 && N % 128 == 0, "a box is one block of scales");

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
// Multicasts the box to both blocks of the cluster, at the same address, counted by the same barrier of each.
__device__ __forceinline__ void tensor_multicast(void* to, const CUtensorMap* map, int row, int column, uint64_t* b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                 ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(shared_address(b)), "h"((unsigned short)3) : "memory");
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
// Rows of 128 bytes in a 128-byte swizzle, groups of eight rows 1024 bytes apart.
__device__ __forceinline__ uint64_t tile_descriptor(const void* tile) {
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 | (shared_address(tile) & 0x3FFFF) >> 4;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
// Keeps the compiler from moving uses of the accumulators across this point.
__device__ __forceinline__ void pin(float (&d)[64]) {
#pragma unroll
    for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ void wgmma_m64n128k32(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, p, 1, 1;\n}\n"
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
// Tiles in bands of BAND tile rows, down each column of a band: data that running blocks share stays in L2.
__device__ __forceinline__ void tile_at(int index, int rows, int columns, int& row, int& column) {
    const int band = index / (BAND * columns), height = min(BAND, rows - band * BAND), inside = index - band * BAND * columns;
    row = band * BAND + inside % height;
    column = inside / height;
}
__device__ __forceinline__ unsigned packed(float a, float b) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const unsigned*>(&both);
}
// Transposes four values of four neighbouring lanes: lane q gets the values q of all of them.
__device__ __forceinline__ uint4 transposed(uint4 v) {
    const bool high = threadIdx.x & 2, odd = threadIdx.x & 1;
    unsigned r = __shfl_xor_sync(~0u, high ? v.x : v.z, 2), s = __shfl_xor_sync(~0u, high ? v.y : v.w, 2);
    if (high) v.x = r, v.y = s; else v.z = r, v.w = s;
    r = __shfl_xor_sync(~0u, odd ? v.x : v.y, 1), s = __shfl_xor_sync(~0u, odd ? v.z : v.w, 1);
    if (odd) v.x = r, v.z = s; else v.y = r, v.w = s;
    return v;
}
// A warpgroup's 64 x 128 results, 16 bytes a lane.
__device__ __forceinline__ void write_half(__nv_bfloat16* out, const float (&sum)[64], int row0, int column0) {
    const int lane = threadIdx.x % 32, row = row0 + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < 64; j += 16) {
            const float* s = sum + j + 2 * h;
            const uint4 v = transposed(make_uint4(packed(s[0], s[1]), packed(s[4], s[5]), packed(s[8], s[9]), packed(s[12], s[13])));
            const int r = row + 8 * h, c = column0 + j * 2 + lane % 4 * 8;
            if (r < M && c < N) *reinterpret_cast<uint4*>(out + (long long)r * N + c) = v;
        }
}

extern "C" __global__ void __launch_bounds__(384, 1)
product(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right, const float* __restrict__ scale_a,
        const float* __restrict__ scale_b, __nv_bfloat16* __restrict__ out) {
    constexpr int DOWN = (M + 255) / 256, ACROSS = (N + 255) / 256;
    const int rank = cluster_rank(), clusters = gridDim.x / 2;
    int row0, column0;
    extern __shared__ char raw[];
    char* stages = (char*)(((uintptr_t)raw + 1023) / 1024 * 1024);
    __shared__ uint64_t full[STAGES], empty[STAGES];
    constexpr int STAGE = 3 * BOX;                                      // boxes: left, right, right
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
                for (int step = 0; step < BLOCKS; ++step, ++turn) {
                    const int s = turn % STAGES;
                    if (turn >= STAGES) barrier_wait(&empty[s], turn / STAGES - 1 & 1);
                    barrier_expect(&full[s], STAGE);
                    char* to = stages + s * STAGE;
                    tensor_load(to, &left, (2 * row0 + rank) * 128, step * 128, &full[s]);
                    tensor_multicast(to + (1 + rank) * BOX, &right, column0 * 256 + 128 * rank, step * 128, &full[s]);
                }
            }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
        for (int tile = blockIdx.x / 2; tile < DOWN * ACROSS; tile += clusters) {
            tile_at(tile, DOWN, ACROSS, row0, column0);
            const int first = (2 * row0 + rank) * 128 + 64 * group, row = first + threadIdx.x / 32 % 4 * 16 + lane / 4;
            const float* down = scale_a + min(row, M - 1);
            const int below = min(row + 8, M - 1) - min(row, M - 1);
            const float* across = scale_b + (long long)column0 * 2 * BLOCKS;
            const int next = column0 * 2 + 1 < N / 128 ? BLOCKS : 0;
            float sum[2][64] = {}, part[64];
            float upper = __ldg(down), lower = __ldg(down + below), one = __ldg(across), two = __ldg(across + next);
            for (int step = 0; step < BLOCKS; ++step, ++turn) {
                const int s = turn % STAGES, ahead = min(step + 1, BLOCKS - 1);
                const float scales[2][2] = {{upper * one, lower * one}, {upper * two, lower * two}};
                upper = __ldg(down + (long long)ahead * M), lower = __ldg(down + (long long)ahead * M + below);
                one = __ldg(across + ahead), two = __ldg(across + next + ahead);
                barrier_wait(&full[s], turn / STAGES & 1);
                const uint64_t l = tile_descriptor(stages + s * STAGE + group * (BOX / 2));
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const uint64_t r = tile_descriptor(stages + s * STAGE + (1 + half) * BOX);
                    pin(part);
                    wgmma_fence();
#pragma unroll
                    for (int k = 0; k < 4; ++k) wgmma_m64n128k32(part, l + 2 * k, r + 2 * k, k > 0);
                    wgmma_commit();
                    wgmma_wait();
                    pin(part);
                    if (half == 1 && threadIdx.x % 128 < 2) barrier_arrive_at(&empty[s], threadIdx.x % 128);
#pragma unroll
                    for (int i = 0; i < 64; ++i) sum[half][i] += part[i] * scales[half][i / 2 % 2];
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) write_half(out, sum[half], first, column0 * 256 + 128 * half);
        }
    }
    cluster_sync();                     // no block exits while its peer may still write to it or arrive at its barriers
}
