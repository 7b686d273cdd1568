// Few rows: eight-bit WGMMA on tiles of COLUMNS columns, the depth split among the SPLIT blocks of a cluster, which add their parts
// through distributed shared memory. b streams through a ring of TMA stages once.
#include <cooperative_groups.h>
#include <cstdint>
#include <cuda.h>
#include "problem.h"
// @tune SPLIT = 2, 1, 4
// @tune COLUMNS = 64, 128
// @tensormap left = a as uint8(M, K) tile(64 + 64 * (M > 64), 128) swizzle(128)
// @tensormap right = b as uint8(N, K) tile(COLUMNS, 128) swizzle(128)
// @require K / 128 >= SPLIT
// @launch product(left, right, scale_a, scale_b, out) grid(SPLIT * ceil_div(N, COLUMNS), ceil_div(M, 64 + 64 * (M > 64))) block(160 + 128 * (M > 64)) shared(1024 + 6 * (64 + 64 * (M > 64) + COLUMNS) * 128) cluster(SPLIT)

#define BLOCKS (K / SCALE_BLOCK)
#define GROUPS (M > 64 ? 2 : 1)                       // warpgroups that multiply, 64 rows each
#define STAGES 6
#define ROWS (64 * GROUPS)
#define STAGE ((ROWS + COLUMNS) * 128)               // bytes
#define PITCH (COLUMNS + 8)                          // floats of a row of a block's part
static_assert(SCALE_BLOCK == 128 && N % 128 == 0, "a stage is one block of scales");
static_assert(ROWS * PITCH * 4 <= STAGES * STAGE, "a block's part takes the place of its stages");

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void barrier_init(uint64_t* b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
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
// Rows of 128 bytes in a 128-byte swizzle, groups of eight rows 1024 bytes apart.
__device__ __forceinline__ uint64_t tile_descriptor(const void* tile) {
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 | (shared_address(tile) & 0x3FFFF) >> 4;
}
template <int COUNT> __device__ __forceinline__ void pin(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ void multiply(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1;\n}\n"
                 :
                 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "l"(a), "l"(b), "r"(accumulate));
}

extern "C" __global__ void __launch_bounds__(128 * GROUPS + 32)
product(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right, const float* __restrict__ scale_a,
        const float* __restrict__ scale_b, __nv_bfloat16* __restrict__ out) {
    extern __shared__ char raw[];
    char* stages = (char*)(((uintptr_t)raw + 1023) / 1024 * 1024);
    __shared__ uint64_t full[STAGES], empty[STAGES];
    const auto cluster = cooperative_groups::this_cluster();
    const int rank = blockIdx.x % SPLIT, column0 = blockIdx.x / SPLIT * COLUMNS, row0 = blockIdx.y * ROWS;
    const int begin = BLOCKS * rank / SPLIT, end = BLOCKS * (rank + 1) / SPLIT;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) barrier_init(&full[s], 1), barrier_init(&empty[s], GROUPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    float* mine = (float*)stages;
    if (threadIdx.x >= 128 * GROUPS) {
        if (threadIdx.x % 32 == 0)
            for (int step = begin; step < end; ++step) {
                const int turn = step - begin, s = turn % STAGES;
                if (turn >= STAGES) barrier_wait(&empty[s], turn / STAGES - 1 & 1);
                barrier_expect(&full[s], STAGE);
                tensor_load(stages + s * STAGE, &left, row0, step * 128, &full[s]);
                tensor_load(stages + s * STAGE + ROWS * 128, &right, column0, step * 128, &full[s]);
            }
        __syncwarp();
        __syncthreads();
    } else {
        const int group = threadIdx.x / 128, lane = threadIdx.x % 32, inside = threadIdx.x / 32 * 16 + lane / 4;
        const int upper_row = min(row0 + inside, M - 1), lower_row = min(row0 + inside + 8, M - 1);
        const float *upper = scale_a + upper_row, *lower = scale_a + lower_row, *across = scale_b + (long long)(column0 / 128) * BLOCKS;
        float sum[COLUMNS / 64][32] = {}, part[COLUMNS / 64][32];
        float next[3] = {__ldg(upper + (long long)begin * M), __ldg(lower + (long long)begin * M), __ldg(across + begin)};
        for (int step = begin; step < end; ++step) {
            const int turn = step - begin, s = turn % STAGES, ahead = min(step + 1, end - 1);
            const float scales[2] = {next[0] * next[2], next[1] * next[2]};
            next[0] = __ldg(upper + (long long)ahead * M), next[1] = __ldg(lower + (long long)ahead * M), next[2] = __ldg(across + ahead);
            barrier_wait(&full[s], turn / STAGES & 1);
            const uint64_t l = tile_descriptor(stages + s * STAGE + group * 64 * 128);
#pragma unroll
            for (int h = 0; h < COLUMNS / 64; ++h) pin(part[h]);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int h = 0; h < COLUMNS / 64; ++h) {
                const uint64_t r = tile_descriptor(stages + s * STAGE + (ROWS + 64 * h) * 128);
#pragma unroll
                for (int k = 0; k < 4; ++k) multiply(part[h], l + 2 * k, r + 2 * k, k > 0);
            }
            asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
            for (int h = 0; h < COLUMNS / 64; ++h) pin(part[h]);
            if (threadIdx.x % 128 == 0) barrier_arrive(&empty[s]);
#pragma unroll
            for (int h = 0; h < COLUMNS / 64; ++h)
#pragma unroll
                for (int i = 0; i < 32; ++i) sum[h][i] += part[h][i] * scales[i / 2 % 2];
        }
        __syncthreads();                                                // no stage is read any more
#pragma unroll
        for (int h = 0; h < COLUMNS / 64; ++h)
#pragma unroll
            for (int i = 0; i < 32; i += 2)
                *reinterpret_cast<float2*>(mine + (inside + i / 2 % 2 * 8) * PITCH + 64 * h + i / 4 * 8 + lane % 4 * 2) =
                    make_float2(sum[h][i], sum[h][i + 1]);
    }
    cluster.sync();
    constexpr int PAIRS = ROWS * COLUMNS / 2 / SPLIT;
    for (int i = threadIdx.x; i < PAIRS; i += 128 * GROUPS + 32) {
        const int pair = rank * PAIRS + i, row = pair / (COLUMNS / 2), column = pair % (COLUMNS / 2) * 2;
        float2 sum = make_float2(0, 0);
#pragma unroll
        for (int p = 0; p < SPLIT; ++p) {
            const float2 part = *reinterpret_cast<const float2*>(cluster.map_shared_rank(mine, p) + row * PITCH + column);
            sum.x += part.x, sum.y += part.y;
        }
        if (row0 + row < M && column0 + column < N)
            *reinterpret_cast<__nv_bfloat162*>(out + (long long)(row0 + row) * N + column0 + column) = __floats2bfloat162_rn(sum.x, sum.y);
    }
    cluster.sync();                     // no block exits while another reads its part
}
