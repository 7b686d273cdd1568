// Convolution as a TF32 matrix product whose left operand is never formed: windows are read in place from input rows in shared
// memory. Persistent blocks keep all weights of 96 channels in tensor-core order and loop over tiles of ROWS rows.
#include <cstdint>
#include "problem.h"
// @tune ROWS = 4, 2
// @workspace ceil_div(OUT_CHANNELS, 96) * IN_CHANNELS * ceil_div(KERNEL_SIZE * ceil_div(KERNEL_SIZE, 4), 2) * 3072
// @launch pack(conv1_weight, workspace) grid(ceil_div(OUT_CHANNELS, 96) * IN_CHANNELS * ceil_div(KERNEL_SIZE * ceil_div(KERNEL_SIZE, 4), 2)) block(192)
// @launch convolve(x, workspace, conv1_bias, out) grid(SMS / ceil_div(OUT_CHANNELS, 96) * ceil_div(OUT_CHANNELS, 96)) block(256) shared(IN_CHANNELS * ceil_div(KERNEL_SIZE * ceil_div(KERNEL_SIZE, 4), 2) * 3072 + 4 * IN_CHANNELS * ((ROWS - 1) * STRIDE + KERNEL_SIZE) * ceil_div(max((OUT_DIM3 - 1) * STRIDE + 4 * ceil_div(KERNEL_SIZE, 4) + (4 - PADDING % 4) % 4, PADDING + (4 - PADDING % 4) % 4 + WIDTH), 4) * 4)

#define CONV_COLUMNS OUT_DIM3
#define IN_ROWS ((ROWS - 1) * STRIDE + KERNEL_SIZE)
#define SLICES ((OUT_CHANNELS + 95) / 96)            // of 96 output channels
// The inner dimension of the product runs over input channels, kernel rows and groups of four taps of a kernel row (the last group
// padded with zero weights), two groups a step. A warp's lanes read 4 taps of 8 outputs STRIDE apart: for stride 4 these are 32
// neighbouring words of an input row, so the windows need no copy and cause no bank conflict.
#define PARTS ((KERNEL_SIZE + 3) / 4)                // groups of a kernel row
#define GROUPS (KERNEL_SIZE * PARTS)                 // of a channel
#define CHANNEL_STEPS ((GROUPS + 1) / 2)
#define STEPS (IN_CHANNELS * CHANNEL_STEPS)
#define SHIFT ((4 - PADDING % 4) % 4)                // input column j lies at j + PADDING + SHIFT: 16-byte copies stay aligned
#define USED ((CONV_COLUMNS - 1) * STRIDE + 4 * PARTS + SHIFT)
#define PITCH (((USED > PADDING + SHIFT + WIDTH ? USED : PADDING + SHIFT + WIDTH) + 3) / 4 * 4)
// Where group g's taps of an output at the origin lie in a channel's rows; the group beyond the last has zero weights.
__device__ constexpr int tap_offset(int g) { return g < GROUPS ? g / PARTS * PITCH + g % PARTS * 4 + SHIFT : SHIFT; }
// To the nearest TF32: the tensor cores drop the lower 13 bits, so half of what they drop is added.
__device__ __forceinline__ uint32_t tf32(float v) { return __float_as_uint(v) + 0x1000; }
// The weight at group g (of all channels' groups, CHANNEL_STEPS * 2 each), tap `inside` of it, as TF32.
__device__ __forceinline__ uint32_t packed_weight(const float* weight, int channel, int g, int inside) {
    const int c = g / (2 * CHANNEL_STEPS), local = g % (2 * CHANNEL_STEPS), tap = local % PARTS * 4 + inside;
    if (channel >= OUT_CHANNELS || local >= GROUPS || tap >= KERNEL_SIZE) return 0;
    return tf32(weight[((channel * IN_CHANNELS + c) * KERNEL_SIZE + local / PARTS) * KERNEL_SIZE + tap]);
}
// Starts copying input rows [first, first + count) of one channel, zeros outside the image; the columns of the padding are never
// written and stay zero. `threads` threads take part; this one is `index`.
__device__ __forceinline__ void copy_rows(float* to, const float* channel, int first, int count, int index, int threads) {
#if WIDTH % 4 == 0
    for (int i = index; i < count * (WIDTH / 4); i += threads) {
        const int r = i / (WIDTH / 4), w = i % (WIDTH / 4) * 4;
        const bool valid = first + r >= 0 && first + r < HEIGHT;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to + r * PITCH + PADDING + SHIFT + w)),
                     "l"(valid ? channel + (long long)(first + r) * WIDTH + w : channel), "r"(valid ? 16 : 0) : "memory");
    }
#else
    for (int i = index; i < count * WIDTH; i += threads) {
        const int r = i / WIDTH, w = i % WIDTH;
        const bool valid = first + r >= 0 && first + r < HEIGHT;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to + r * PITCH + PADDING + SHIFT + w)),
                     "l"(valid ? channel + (long long)(first + r) * WIDTH + w : channel), "r"(valid ? 4 : 0) : "memory");
    }
#endif
    asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ __forceinline__ void copy_weights(uint4* to, const uint4* from) {
    for (int i = threadIdx.x; i < STEPS * 192; i += blockDim.x)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to + i)), "l"(from + i) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&l)[4], uint32_t r0, uint32_t r1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(l[0]), "r"(l[1]), "r"(l[2]), "r"(l[3]), "r"(r0), "r"(r1));
}

// For every slice and step: six pairs of 8 channels, and of each pair what a lane feeds to two instructions.
extern "C" __global__ void __launch_bounds__(192) pack(const float* weight, uint4* packed) {
    const int slice = blockIdx.x / STEPS, step = blockIdx.x % STEPS, lane = threadIdx.x % 32;
    const int channel = slice * 96 + threadIdx.x / 32 * 16 + lane / 4, g = 2 * step;
    packed[blockIdx.x * 192 + threadIdx.x] =
        make_uint4(packed_weight(weight, channel, g, lane % 4), packed_weight(weight, channel, g + 1, lane % 4),
                   packed_weight(weight, channel + 8, g, lane % 4), packed_weight(weight, channel + 8, g + 1, lane % 4));
}

extern "C" __global__ void __launch_bounds__(256, 1) convolve(const float* __restrict__ x, const uint4* __restrict__ packed,
                                                              const float* __restrict__ bias, float* __restrict__ out) {
    extern __shared__ __align__(16) uint4 weights[];
    float* rows = (float*)(weights + STEPS * 192);
    constexpr int BANDS = (OUT_DIM2 + ROWS - 1) / ROWS, PIECES = (OUT_DIM3 + 31) / 32;
    const int slice = blockIdx.x % SLICES, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    copy_weights(weights, packed + slice * STEPS * 192);
    for (int i = threadIdx.x; i < IN_CHANNELS * IN_ROWS * PITCH; i += 256) rows[i] = 0;
    for (int tile = blockIdx.x / SLICES; tile < BATCH_SIZE * BANDS; tile += gridDim.x / SLICES) {
        const int image = tile / BANDS, row0 = tile % BANDS * ROWS;
        __syncthreads();
        for (int c = 0; c < IN_CHANNELS; ++c)
            copy_rows(rows + c * IN_ROWS * PITCH, x + ((long long)image * IN_CHANNELS + c) * HEIGHT * WIDTH, row0 * STRIDE - PADDING, IN_ROWS, threadIdx.x, 256);
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        for (int piece = warp; piece < ROWS * PIECES; piece += 8) {     // 32 outputs of a row, 96 channels
            const int row = piece / PIECES, column = piece % PIECES * 32 + lane / 4;
            const float* at[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) at[i] = rows + row * STRIDE * PITCH + min(column + 8 * i, OUT_DIM3 - 1) * STRIDE + lane % 4;
            float sum[2][12][4] = {};
            for (int c = 0; c < IN_CHANNELS; ++c)
#pragma unroll
                for (int s = 0; s < CHANNEL_STEPS; ++s) {
                    uint32_t l[2][4];
#pragma unroll
                    for (int i = 0; i < 2; ++i)
#pragma unroll
                        for (int h = 0; h < 4; ++h) l[i][h] = tf32(at[2 * i + h % 2][c * IN_ROWS * PITCH + tap_offset(2 * s + h / 2)]);
#pragma unroll
                    for (int j = 0; j < 6; ++j) {
                        const uint4 r = weights[(c * CHANNEL_STEPS + s) * 192 + j * 32 + lane];
#pragma unroll
                        for (int i = 0; i < 2; ++i) mma(sum[i][2 * j], l[i], r.x, r.y), mma(sum[i][2 * j + 1], l[i], r.z, r.w);
                    }
                }
            if (row0 + row >= OUT_DIM2) continue;
#pragma unroll
            for (int j = 0; j < 12; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int channel = slice * 96 + 8 * j + lane % 4 * 2 + e;
                    if (channel >= OUT_CHANNELS) continue;
                    const float b = bias[channel];
                    float* to = out + (((long long)image * OUT_CHANNELS + channel) * OUT_DIM2 + row0 + row) * OUT_DIM3 + column;
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        if (column + 8 * i < OUT_DIM3) to[8 * i] = sum[i / 2][j][i % 2 * 2 + e] + b;
                }
        }
    }
}
