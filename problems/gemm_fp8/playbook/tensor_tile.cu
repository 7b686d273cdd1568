// Block tiles on the tensor cores: products of eight-bit floats summed for one block of scales, then added to the result in
// single precision. Copies of the next block run during the products of this one.
#include "problem.h"
// @tune BM = 128, 64, 16
// @tune BN = 128, 64
// @launch product(a, b, scale_a, scale_b, out) grid(ceil_div(N, BN), ceil_div(M, BM)) block(256) shared(2 * (BM + BN) * 144)

#define BLOCKS (K / SCALE_BLOCK)
#define PITCH 144                                    // 128 bytes of a row and 16 of padding: fragments hit different banks
#define WARPS_M (BM >= 64 ? 2 : 1)
#define WARPS_N (8 / WARPS_M)
#define TILES_M (BM / WARPS_M / 16)
#define TILES_N (BN / WARPS_N / 8)
static_assert(SCALE_BLOCK == 128, "a stage is one block of scales");

__device__ void copy(void* to, const void* from, bool inside) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to), bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes));
}

__device__ void multiply(float (&sum)[4], const unsigned (&left)[4], const unsigned (&right)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}

// Rows `first` to `first + ROWS` of a matrix of `rows` rows, one block of the depth.
template <int ROWS> __device__ void stage(unsigned char* to, const void* from, int first, int rows, int block) {
    for (int i = threadIdx.x; i < ROWS * 8; i += 256) {
        const int row = i / 8, piece = i % 8 * 16;
        const bool inside = first + row < rows;
        const long long at = inside ? (long long)(first + row) * K + block * SCALE_BLOCK + piece : 0;
        copy(to + row * PITCH + piece, (const unsigned char*)from + at, inside);
    }
}

extern "C" __global__ void __launch_bounds__(256) product(const __nv_fp8_e4m3* a, const __nv_fp8_e4m3* b, const float* scale_a,
                                                          const float* scale_b, __nv_bfloat16* out) {
    extern __shared__ __align__(16) unsigned char shared[];
    const int row0 = blockIdx.y * BM, column0 = blockIdx.x * BN, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / WARPS_N * TILES_M * 16 + lane / 4, column = warp % WARPS_N * TILES_N * 8 + lane / 4;
    float sum[TILES_M][TILES_N][4] = {};
    stage<BM>(shared, a, row0, M, 0);
    stage<BN>(shared + BM * PITCH, b, column0, N, 0);
    asm volatile("cp.async.commit_group;");
    for (int block = 0; block < BLOCKS; ++block) {
        unsigned char* now = shared + block % 2 * (BM + BN) * PITCH;
        if (block + 1 < BLOCKS) {
            unsigned char* next = shared + (block + 1) % 2 * (BM + BN) * PITCH;
            stage<BM>(next, a, row0, M, block + 1);
            stage<BN>(next + BM * PITCH, b, column0, N, block + 1);
        }
        asm volatile("cp.async.commit_group;");
        asm volatile("cp.async.wait_group 1;");
        __syncthreads();
        float part[TILES_M][TILES_N][4] = {};
#pragma unroll
        for (int k = 0; k < SCALE_BLOCK; k += 32) {
            unsigned right[TILES_N][2];
#pragma unroll
            for (int j = 0; j < TILES_N; ++j)
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    right[j][h] = *(const unsigned*)(now + (BM + column + 8 * j) * PITCH + k + 16 * h + lane % 4 * 4);
#pragma unroll
            for (int i = 0; i < TILES_M; ++i) {
                unsigned left[4];
#pragma unroll
                for (int h = 0; h < 4; ++h)
                    left[h] = *(const unsigned*)(now + (row + 16 * i + h % 2 * 8) * PITCH + k + h / 2 * 16 + lane % 4 * 4);
#pragma unroll
                for (int j = 0; j < TILES_N; ++j) multiply(part[i][j], left, right[j]);
            }
        }
        const float across = scale_b[column0 / SCALE_BLOCK * BLOCKS + block];
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int at = row0 + row + 16 * i + 8 * h;
                const float scale = at < M ? scale_a[(long long)block * M + at] * across : 0;
#pragma unroll
                for (int j = 0; j < TILES_N; ++j)
#pragma unroll
                    for (int e = 0; e < 2; ++e) sum[i][j][2 * h + e] += part[i][j][2 * h + e] * scale;
            }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TILES_M; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
                const int r = row0 + row + 16 * i + 8 * h, c = column0 + column - lane / 4 + 8 * j + lane % 4 * 2;
                if (r < M && c < N)
                    *(__nv_bfloat162*)(out + (long long)r * N + c) = __floats2bfloat162_rn(sum[i][j][2 * h], sum[i][j][2 * h + 1]);
            }
}
