// Three launches, one thread per element: the convolution into scratch, ReLU in place, the pooling.
#include "problem.h"
// @tune BLOCK = 128, 256
// @workspace 4 * BATCH_SIZE * OUT_CHANNELS * ((HEIGHT + 2 * PADDING - KERNEL_SIZE) / STRIDE + 1) * ((WIDTH + 2 * PADDING - KERNEL_SIZE) / STRIDE + 1)
// @launch convolve(x, conv1_weight, conv1_bias, workspace) grid(ceil_div(BATCH_SIZE * OUT_CHANNELS * ((HEIGHT + 2 * PADDING - KERNEL_SIZE) / STRIDE + 1) * ((WIDTH + 2 * PADDING - KERNEL_SIZE) / STRIDE + 1), BLOCK)) block(BLOCK)
// @launch rectify(workspace) grid(ceil_div(BATCH_SIZE * OUT_CHANNELS * ((HEIGHT + 2 * PADDING - KERNEL_SIZE) / STRIDE + 1) * ((WIDTH + 2 * PADDING - KERNEL_SIZE) / STRIDE + 1), BLOCK)) block(BLOCK)
// @launch pool(workspace, out) grid(ceil_div(OUT_NUMEL, BLOCK)) block(BLOCK)

#define CONV_ROWS ((HEIGHT + 2 * PADDING - KERNEL_SIZE) / STRIDE + 1)
#define CONV_COLUMNS ((WIDTH + 2 * PADDING - KERNEL_SIZE) / STRIDE + 1)
#define CONV_NUMEL ((long long)BATCH_SIZE * OUT_CHANNELS * CONV_ROWS * CONV_COLUMNS)

extern "C" __global__ void convolve(const float* x, const float* weight, const float* bias, float* out) {
    const long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= CONV_NUMEL) return;
    const int column = i % CONV_COLUMNS, row = i / CONV_COLUMNS % CONV_ROWS, channel = i / (CONV_COLUMNS * CONV_ROWS) % OUT_CHANNELS;
    const long long image = i / ((long long)CONV_COLUMNS * CONV_ROWS * OUT_CHANNELS);
    float sum = bias[channel];
    for (int c = 0; c < IN_CHANNELS; ++c)
        for (int y = 0; y < KERNEL_SIZE; ++y)
            for (int z = 0; z < KERNEL_SIZE; ++z) {
                const int h = row * STRIDE - PADDING + y, w = column * STRIDE - PADDING + z;
                if (h >= 0 && h < HEIGHT && w >= 0 && w < WIDTH)
                    sum += x[((image * IN_CHANNELS + c) * HEIGHT + h) * WIDTH + w] *
                           weight[((channel * IN_CHANNELS + c) * KERNEL_SIZE + y) * KERNEL_SIZE + z];
            }
    out[i] = sum;
}

extern "C" __global__ void rectify(float* values) {
    const long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (i < CONV_NUMEL) values[i] = fmaxf(values[i], 0);
}

extern "C" __global__ void pool(const float* values, float* out) {
    const long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= OUT_NUMEL) return;
    const int column = i % OUT_DIM3 * POOL_STRIDE, row = i / OUT_DIM3 % OUT_DIM2 * POOL_STRIDE;
    const float* plane = values + i / (OUT_DIM3 * OUT_DIM2) * CONV_ROWS * CONV_COLUMNS;
    float largest = -INFINITY;
    for (int y = 0; y < POOL_KERNEL; ++y)
        for (int z = 0; z < POOL_KERNEL; ++z) largest = fmaxf(largest, plane[(row + y) * CONV_COLUMNS + column + z]);
    out[i] = largest;
}
