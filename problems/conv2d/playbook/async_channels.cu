// The register tile with the next input channel's rows and weights in flight while this one is summed.
#include "problem.h"
// @tune ROWS = 5, 4, 6
// @launch convolve(x, conv1_weight, conv1_bias, out) grid(ceil_div(OUT_DIM3, 56) * ceil_div(OUT_CHANNELS, 96), ceil_div(OUT_DIM2, ROWS), BATCH_SIZE) block(96 * ROWS) shared(8 * (KERNEL_SIZE * KERNEL_SIZE * 100 + ceil_div(((ROWS - 1) * STRIDE + KERNEL_SIZE) * (55 * STRIDE + KERNEL_SIZE), 4) * 4))

// A block's tile: ROWS rows of 56 outputs in 96 channels; a thread's: 7 outputs of one row, 8 apart, in 8 channels.
#define ACROSS 56
#define CHANNELS 96
#define WEIGHT_PITCH 100
#define THREADS (96 * ROWS)
#define IN_ROWS ((ROWS - 1) * STRIDE + KERNEL_SIZE)
#define IN_COLUMNS ((ACROSS - 1) * STRIDE + KERNEL_SIZE)
#define TAPS (KERNEL_SIZE * KERNEL_SIZE)
// sum += one input channel: its rows (IN_ROWS x IN_COLUMNS) under its weights (TAPS x WEIGHT_PITCH).
__device__ __forceinline__ void convolve_channel(float (&sum)[7][8], const float* rows, const float* weights, int row, int column, int group) {
    for (int y = 0; y < KERNEL_SIZE; ++y)
#pragma unroll
        for (int z = 0; z < KERNEL_SIZE; ++z) {
            const float* w = weights + (y * KERNEL_SIZE + z) * WEIGHT_PITCH + 4 * group;
            const float4 w0 = *(const float4*)w, w1 = *(const float4*)(w + 48);
#pragma unroll
            for (int p = 0; p < 7; ++p) {
                const float v = rows[(row * STRIDE + y) * IN_COLUMNS + (column + 8 * p) * STRIDE + z];
                sum[p][0] += v * w0.x, sum[p][1] += v * w0.y, sum[p][2] += v * w0.z, sum[p][3] += v * w0.w;
                sum[p][4] += v * w1.x, sum[p][5] += v * w1.y, sum[p][6] += v * w1.z, sum[p][7] += v * w1.w;
            }
        }
}
__device__ __forceinline__ void copy_async(float* to, const float* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(valid ? 4 : 0) : "memory");
}
// Starts copying input rows from (row0, column0) on, which may lie in the padding, and the weights of CHANNELS output channels, for
// input channel c.
__device__ __forceinline__ void load_channel(float* rows, float* weights, const float* x, const float* weight, long long image, int c,
                                             int row0, int column0, int channel0) {
    for (int i = threadIdx.x; i < IN_ROWS * IN_COLUMNS; i += THREADS) {
        const int h = row0 + i / IN_COLUMNS, w = column0 + i % IN_COLUMNS;
        const bool valid = h >= 0 && h < HEIGHT && w >= 0 && w < WIDTH;
        copy_async(rows + i, valid ? x + ((image * IN_CHANNELS + c) * HEIGHT + h) * WIDTH + w : x, valid);
    }
    for (int i = threadIdx.x; i < CHANNELS * TAPS; i += THREADS) {
        const int o = i / TAPS, t = i % TAPS;
        const bool valid = channel0 + o < OUT_CHANNELS;
        copy_async(weights + t * WEIGHT_PITCH + o, valid ? weight + ((channel0 + o) * IN_CHANNELS + c) * TAPS + t : weight, valid);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS) convolve(const float* __restrict__ x, const float* __restrict__ weight,
                                                               const float* __restrict__ bias, float* __restrict__ out) {
    extern __shared__ __align__(16) float shared[];
    constexpr int TILES = (OUT_DIM3 + ACROSS - 1) / ACROSS, STAGE = TAPS * WEIGHT_PITCH + (IN_ROWS * IN_COLUMNS + 3) / 4 * 4;
    const int column0 = blockIdx.x % TILES * ACROSS, channel0 = blockIdx.x / TILES * CHANNELS, row0 = blockIdx.y * ROWS;
    const int group = threadIdx.x % 12, column = threadIdx.x / 12 % 8, row = threadIdx.x / 96;
    auto load = [&](int c) {
        float* stage = shared + c % 2 * STAGE;
        load_channel(stage + TAPS * WEIGHT_PITCH, stage, x, weight, blockIdx.z, c, row0 * STRIDE - PADDING, column0 * STRIDE - PADDING, channel0);
    };
    float sum[7][8] = {};
    load(0);
    for (int c = 0; c < IN_CHANNELS; ++c) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (c + 1 < IN_CHANNELS) load(c + 1);
        const float* stage = shared + c % 2 * STAGE;
        convolve_channel(sum, stage + TAPS * WEIGHT_PITCH, stage, row, column, group);
    }
#pragma unroll
    for (int o = 0; o < 8; ++o) {
        const int channel = channel0 + 4 * group + o / 4 * 48 + o % 4;
        if (channel >= OUT_CHANNELS || row0 + row >= OUT_DIM2) continue;
        float* to = out + (((long long)blockIdx.z * OUT_CHANNELS + channel) * OUT_DIM2 + row0 + row) * OUT_DIM3 + column0 + column;
#pragma unroll
        for (int p = 0; p < 7; ++p)
            if (column0 + column + 8 * p < OUT_DIM3) to[8 * p] = sum[p][o] + bias[channel];
    }
}
