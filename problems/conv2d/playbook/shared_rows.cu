// A block makes one row of outputs for CHANNELS channels: the input rows it needs lie in shared memory with their padding, and a
// thread sums all these channels of one output at a time, so that each input value it reads serves CHANNELS of them.
#include "problem.h"
// @tune CHANNELS = 32, 16, 8
// @launch convolve(x, conv1_weight, conv1_bias, out) grid(OUT_DIM2, ceil_div(OUT_CHANNELS, CHANNELS), BATCH_SIZE) block(64) shared(4 * (IN_CHANNELS * KERNEL_SIZE * (WIDTH + 2 * PADDING) + IN_CHANNELS * KERNEL_SIZE * KERNEL_SIZE * CHANNELS))

#define PITCH (WIDTH + 2 * PADDING)
#define TAPS (IN_CHANNELS * KERNEL_SIZE * KERNEL_SIZE)

extern "C" __global__ void __launch_bounds__(64) convolve(const float* __restrict__ x, const float* __restrict__ weight,
                                                          const float* __restrict__ bias, float* __restrict__ out) {
    extern __shared__ float shared[];
    float *rows = shared, *weights = shared + IN_CHANNELS * KERNEL_SIZE * PITCH;
    const int row = blockIdx.x, channel0 = blockIdx.y * CHANNELS, image = blockIdx.z;
    for (int i = threadIdx.x; i < IN_CHANNELS * KERNEL_SIZE * PITCH; i += 64) {
        const int c = i / (KERNEL_SIZE * PITCH), h = row * STRIDE - PADDING + i / PITCH % KERNEL_SIZE, w = i % PITCH - PADDING;
        rows[i] = h >= 0 && h < HEIGHT && w >= 0 && w < WIDTH ? x[(((long long)image * IN_CHANNELS + c) * HEIGHT + h) * WIDTH + w] : 0;
    }
    for (int i = threadIdx.x; i < TAPS * CHANNELS; i += 64) {
        const int channel = channel0 + i % CHANNELS;
        weights[i] = channel < OUT_CHANNELS ? weight[channel * TAPS + i / CHANNELS] : 0;
    }
    __syncthreads();
    for (int column = threadIdx.x; column < OUT_DIM3; column += 64) {
        float sum[CHANNELS];
#pragma unroll
        for (int o = 0; o < CHANNELS; ++o) sum[o] = channel0 + o < OUT_CHANNELS ? bias[channel0 + o] : 0;
        for (int r = 0; r < IN_CHANNELS * KERNEL_SIZE; ++r)
#pragma unroll
            for (int z = 0; z < KERNEL_SIZE; ++z) {
                const float v = rows[r * PITCH + column * STRIDE + z];
#pragma unroll
                for (int o = 0; o < CHANNELS; ++o) sum[o] += v * weights[(r * KERNEL_SIZE + z) * CHANNELS + o];
            }
#pragma unroll
        for (int o = 0; o < CHANNELS; ++o)
            if (channel0 + o < OUT_CHANNELS) out[(((long long)image * OUT_CHANNELS + channel0 + o) * OUT_DIM2 + row) * OUT_DIM3 + column] = sum[o];
    }
}
