// One thread per output.
#include "problem.h"
// @tune BLOCK = 128, 256
// @launch convolve(x, conv1_weight, conv1_bias, out) grid(ceil_div(OUT_NUMEL, BLOCK)) block(BLOCK)

extern "C" __global__ void convolve(const float* x, const float* weight, const float* bias, float* out) {
    const long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= OUT_NUMEL) return;
    const int column = i % OUT_DIM3, row = i / OUT_DIM3 % OUT_DIM2, channel = i / (OUT_DIM3 * OUT_DIM2) % OUT_CHANNELS;
    const long long image = i / ((long long)OUT_DIM3 * OUT_DIM2 * OUT_CHANNELS);
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
