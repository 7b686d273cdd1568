// One launch: a block keeps the rows of the convolution that POOLED rows of the output need in shared memory and pools them there.
#include "problem.h"
// @tune POOLED = 2, 1
// @launch convolve(x, conv1_weight, conv1_bias, out) grid(ceil_div(OUT_DIM3, (56 - POOL_KERNEL) / POOL_STRIDE + 1) * ceil_div(OUT_CHANNELS, 96), ceil_div(OUT_DIM2, POOLED), BATCH_SIZE) block(96 * ((POOLED - 1) * POOL_STRIDE + POOL_KERNEL)) shared(4 * max(KERNEL_SIZE * KERNEL_SIZE * 100 + (((POOLED - 1) * POOL_STRIDE + POOL_KERNEL - 1) * STRIDE + KERNEL_SIZE) * (55 * STRIDE + KERNEL_SIZE), 96 * 57 * ((POOLED - 1) * POOL_STRIDE + POOL_KERNEL)))

#define ROWS ((POOLED - 1) * POOL_STRIDE + POOL_KERNEL)                 // of the convolution, for POOLED rows of the output
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
#define POOLED_ACROSS ((ACROSS - POOL_KERNEL) / POOL_STRIDE + 1)
// Input rows from (row0, column0) on, which may lie in the padding, and the weights of CHANNELS output channels, for input channel c.
__device__ __forceinline__ void load_channel(float* rows, float* weights, const float* x, const float* weight, long long image, int c,
                                             int row0, int column0, int channel0) {
    for (int i = threadIdx.x; i < IN_ROWS * IN_COLUMNS; i += THREADS) {
        const int h = row0 + i / IN_COLUMNS, w = column0 + i % IN_COLUMNS;
        rows[i] = h >= 0 && h < HEIGHT && w >= 0 && w < WIDTH ? x[((image * IN_CHANNELS + c) * HEIGHT + h) * WIDTH + w] : 0;
    }
    for (int i = threadIdx.x; i < CHANNELS * TAPS; i += THREADS) {
        const int o = i / TAPS, t = i % TAPS;
        weights[t * WEIGHT_PITCH + o] = channel0 + o < OUT_CHANNELS ? weight[((channel0 + o) * IN_CHANNELS + c) * TAPS + t] : 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) convolve(const float* __restrict__ x, const float* __restrict__ weight,
                                                               const float* __restrict__ bias, float* __restrict__ out) {
    extern __shared__ __align__(16) float shared[];
    float *weights = shared, *rows = shared + TAPS * WEIGHT_PITCH;
    constexpr int TILES = (OUT_DIM3 + POOLED_ACROSS - 1) / POOLED_ACROSS;
    const int column0 = blockIdx.x % TILES * POOLED_ACROSS, channel0 = blockIdx.x / TILES * CHANNELS, row0 = blockIdx.y * POOLED;
    const int group = threadIdx.x % 12, column = threadIdx.x / 12 % 8, row = threadIdx.x / 96;
    float sum[7][8] = {};
    for (int c = 0; c < IN_CHANNELS; ++c) {
        __syncthreads();
        load_channel(rows, weights, x, weight, blockIdx.z, c, row0 * POOL_STRIDE * STRIDE - PADDING, column0 * POOL_STRIDE * STRIDE - PADDING, channel0);
        __syncthreads();
        convolve_channel(sum, rows, weights, row, column, group);
    }
    __syncthreads();                    // the convolution's rows take the place of its inputs
#pragma unroll
    for (int o = 0; o < 8; ++o)
#pragma unroll
        for (int p = 0; p < 7; ++p) shared[((4 * group + o / 4 * 48 + o % 4) * ROWS + row) * (ACROSS + 1) + column + 8 * p] = sum[p][o];
    __syncthreads();
    for (int i = threadIdx.x; i < CHANNELS * POOLED * POOLED_ACROSS; i += THREADS) {
        const int w = i % POOLED_ACROSS, h = i / POOLED_ACROSS % POOLED, o = i / (POOLED_ACROSS * POOLED);
        if (channel0 + o >= OUT_CHANNELS || row0 + h >= OUT_DIM2 || column0 + w >= OUT_DIM3) continue;
        const float* from = shared + (o * ROWS + h * POOL_STRIDE) * (ACROSS + 1) + w * POOL_STRIDE;
        float largest = -INFINITY;
#pragma unroll
        for (int y = 0; y < POOL_KERNEL; ++y)
#pragma unroll
            for (int z = 0; z < POOL_KERNEL; ++z) largest = fmaxf(largest, from[y * (ACROSS + 1) + z]);
        // The largest of the sums, then bias and ReLU: neither changes which one that is.
        out[(((long long)blockIdx.z * OUT_CHANNELS + channel0 + o) * OUT_DIM2 + row0 + h) * OUT_DIM3 + column0 + w] = fmaxf(largest + bias[channel0 + o], 0);
    }
}
