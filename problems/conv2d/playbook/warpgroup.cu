// The same product with WGMMA: windows from registers, weights from shared memory. Each warpgroup makes a row
// of 64 outputs at a time; as soon as it has read a channel's rows the copies of its next row's channel begin.
#include <cstdint>
#include "problem.h"
// @tune BATCH = 6, 4, 9, 17
// @tune SWIZZLE = 32, 0
// @workspace ceil_div(OUT_CHANNELS, 96) * IN_CHANNELS * ceil_div(KERNEL_SIZE * ceil_div(KERNEL_SIZE, 4), 2) * 3072
// @launch pack(conv1_weight, workspace) grid(ceil_div(OUT_CHANNELS, 96) * IN_CHANNELS * ceil_div(KERNEL_SIZE * ceil_div(KERNEL_SIZE, 4), 2)) block(192)
// @launch convolve(x, workspace, conv1_bias, out) grid(SMS / ceil_div(OUT_CHANNELS, 96) * ceil_div(OUT_CHANNELS, 96)) block(256) shared(IN_CHANNELS * ceil_div(KERNEL_SIZE * ceil_div(KERNEL_SIZE, 4), 2) * 3072 + 8 * IN_CHANNELS * KERNEL_SIZE * ceil_div(max((OUT_DIM3 - 1) * STRIDE + 4 * ceil_div(KERNEL_SIZE, 4) + (4 - PADDING % 4) % 4, PADDING + (4 - PADDING % 4) % 4 + WIDTH), 4) * 4)

#define CONV_COLUMNS OUT_DIM3
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
// For every slice of 96 channels and every step: two groups of taps, in the tensor cores' operand layout. SWIZZLE 32: a row of 32
// bytes a channel, its halves exchanged in every other four rows. SWIZZLE 0: cores of 8 channels by 4 taps, 12 cores a group.
extern "C" __global__ void __launch_bounds__(192) pack(const float* weight, uint4* packed) {
    const int slice = blockIdx.x / STEPS, step = blockIdx.x % STEPS, g = 2 * step + threadIdx.x / 96, channel = slice * 96 + threadIdx.x % 96;
    const int n = threadIdx.x % 96, half = threadIdx.x / 96;
    packed[blockIdx.x * 192 + (SWIZZLE ? 2 * n + (half ^ (n / 4 & 1)) : threadIdx.x)] = make_uint4(packed_weight(weight, channel, g, 0), packed_weight(weight, channel, g, 1),
                                                        packed_weight(weight, channel, g, 2), packed_weight(weight, channel, g, 3));
}
__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
// A step of weights in the tensor cores' layout: the distance from 8 channels to the next and, without swizzle, along the taps.
__device__ __forceinline__ uint64_t weight_descriptor(const void* step) {
    const uint64_t layout = SWIZZLE ? (uint64_t)3 << 62 | (uint64_t)(256 >> 4) << 32 | (uint64_t)1 << 16
                                    : (uint64_t)(128 >> 4) << 32 | (uint64_t)(12 * 128 >> 4) << 16;
    return layout | (shared_address(step) & 0x3FFFF) >> 4;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
// Keeps the compiler from moving uses of the accumulators across this point.
template <int COUNT> __device__ __forceinline__ void pin(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
[[maybe_unused]] __device__ __forceinline__ void warpgroup_sync() { asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory"); }
__device__ __forceinline__ void wgmma_m64n96k8_r(float (&d)[48], const uint32_t (&a)[4], uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %53, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n96k8.f32.tf32.tf32 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
                 "{%48, %49, %50, %51}, %52, p, 1, 1;\n}\n"
                 :
                 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

#define BATCHES ((CHANNEL_STEPS + BATCH - 1) / BATCH)
// sum (64 outputs x 96 channels) += input channel c: KERNEL_SIZE rows under CHANNEL_STEPS steps of weights. `first` and `second` are
// where this thread's two outputs begin in the channel's rows. Batches take turns with two sets of window registers, over all channels.
__device__ __forceinline__ void multiply_channel(float (&sum)[48], uint32_t (&windows)[2][BATCH][4], const float* first, const float* second,
                                                 const uint4* weights, int c) {
    const uint64_t base = weight_descriptor(weights + c * CHANNEL_STEPS * 192);
#pragma unroll
    for (int b = 0; b < BATCHES; ++b) {
        uint32_t(&l)[BATCH][4] = windows[(c * BATCHES + b) % 2];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int s = b * BATCH + i;
            if (s < CHANNEL_STEPS) {
                l[i][0] = tf32(first[tap_offset(2 * s)]), l[i][1] = tf32(second[tap_offset(2 * s)]);
                l[i][2] = tf32(first[tap_offset(2 * s + 1)]), l[i][3] = tf32(second[tap_offset(2 * s + 1)]);
            }
        }
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < BATCH; ++i)
            if (b * BATCH + i < CHANNEL_STEPS) wgmma_m64n96k8_r(sum, l[i], base + (b * BATCH + i) * 192, c + b + i > 0);
        wgmma_commit();
        wgmma_wait<1>();                // the batch before is done: its registers are free
    }
}

extern "C" __global__ void __launch_bounds__(256, 1) convolve(const float* __restrict__ x, const uint4* __restrict__ packed,
                                                              const float* __restrict__ bias, float* __restrict__ out) {
    extern __shared__ __align__(1024) uint4 weights[];
    constexpr int PIECES = (OUT_DIM3 + 63) / 64, TASKS = BATCH_SIZE * OUT_DIM2 * PIECES, CHANNEL = KERNEL_SIZE * PITCH;
    const int slice = blockIdx.x % SLICES, group = threadIdx.x / 128, index = threadIdx.x % 128, lane = threadIdx.x % 32;
    float* rows = (float*)(weights + STEPS * 192) + group * IN_CHANNELS * CHANNEL;
    copy_weights(weights, packed + slice * STEPS * 192);
    for (int i = index; i < IN_CHANNELS * CHANNEL; i += 128) rows[i] = 0;
    asm volatile("cp.async.wait_all;\nfence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const int stride = gridDim.x / SLICES * 2;
    int task = blockIdx.x / SLICES * 2 + group;
    auto fetch = [&](int t, int c) {
        const int row = t / PIECES % OUT_DIM2;
        const long long image = t / (PIECES * OUT_DIM2);
        const bool any = t < TASKS;
        copy_rows(rows + c * CHANNEL, x + (any ? (image * IN_CHANNELS + c) * HEIGHT * WIDTH : 0), row * STRIDE - PADDING, any ? KERNEL_SIZE : 0, index, 128);
    };
    for (int c = 0; c < IN_CHANNELS; ++c) fetch(task, c);
    for (; task < TASKS; task += stride) {
        const int row = task / PIECES % OUT_DIM2, column = task % PIECES * 64 + index / 32 * 16 + lane / 4;
        const long long image = task / (PIECES * OUT_DIM2);
        float sum[48];
        uint32_t windows[2][BATCH][4];
        pin(sum);
#pragma unroll
        for (int c = 0; c < IN_CHANNELS; ++c) {
            asm volatile("cp.async.wait_group %0;" ::"n"(IN_CHANNELS - 1) : "memory");
            warpgroup_sync();           // all copies of this channel have arrived
            const float* channel = rows + c * CHANNEL + lane % 4;
            multiply_channel(sum, windows, channel + min(column, OUT_DIM3 - 1) * STRIDE, channel + min(column + 8, OUT_DIM3 - 1) * STRIDE, weights, c);
            warpgroup_sync();           // all threads have read them
            fetch(task + stride, c);
        }
        wgmma_wait<0>();
        pin(sum);
#pragma unroll
        for (int i = 0; i < 48; ++i) {
            const int channel = slice * 96 + i / 4 * 8 + lane % 4 * 2 + i % 2, w = column + i / 2 % 2 * 8;
            if (channel < OUT_CHANNELS && w < OUT_DIM3)
                out[((image * OUT_CHANNELS + channel) * OUT_DIM2 + row) * OUT_DIM3 + w] = sum[i] + bias[channel];
        }
    }
}
