// stride_blocks.cu with another way out: a row of results goes through shared memory, each channel's as one stretch of the memory it is for,
// and leaves 16 bytes a thread in whole sectors of 32 bytes. Rows of 55 results do not begin on sectors: what is left of a row's last
// sector waits for the next row. The fence for the tensor cores comes before loads and stores are under way, for which it would wait.
// Bounds (full): 176 MB, 42 us; 21.1 GFLOP, padded to 64 x 96 x 432 per row of 55: 29.2 GFLOP, 27 us at the full clock.
// fp16 limits the range: inputs and weights beyond 65504 overflow.
#include <cstdint>
#include <cuda_fp16.h>
#include "problem.h"
// @tune GROUPS = 3, 2
// @workspace ceil_div(OUT_CHANNELS, 96) * ceil_div(KERNEL_SIZE, 4) * ceil_div(KERNEL_SIZE, 4) * IN_CHANNELS * 3072
// @launch pack(conv1_weight, workspace) grid(ceil_div(OUT_CHANNELS, 96) * ceil_div(KERNEL_SIZE, 4) * ceil_div(KERNEL_SIZE, 4) * IN_CHANNELS) block(192)
// @launch convolve(x, workspace, conv1_bias, out) grid(SMS / ceil_div(OUT_CHANNELS, 96) * ceil_div(OUT_CHANNELS, 96)) block(128 * GROUPS) shared(ceil_div(KERNEL_SIZE, 4) * ceil_div(KERNEL_SIZE, 4) * IN_CHANNELS * 3072 + GROUPS * (96 * 68 * 4 + 4 * 2 * IN_CHANNELS * min(60, OUT_DIM3 + ceil_div(KERNEL_SIZE, 4) - 1) * 16))

#if STRIDE != 4 || KERNEL_SIZE > 12
#error "this kernel is for stride 4 and kernels of at most 12 x 12"
#endif
#define SLICES ((OUT_CHANNELS + 95) / 96)            // of 96 output channels
#define TAPS ((KERNEL_SIZE + 3) / 4)                 // blocks of 4 x 4 under the kernel, in each direction
#define STEPS (TAPS * TAPS * IN_CHANNELS)            // of 16 along the product's inner dimension: one block of one input channel
#define CHUNKS (2 * IN_CHANNELS)                     // 16 bytes each: two rows of four columns of a block
#define PASSES 2                                     // a warp prepares 31 blocks at a time
#define BLOCKS (OUT_DIM3 + TAPS - 1 < 60 ? OUT_DIM3 + TAPS - 1 : 60)    // in a slot's row
#define SLOT (CHUNKS * BLOCKS)                       // in units of 16 bytes
#define SLOTS 4                                      // rows of blocks that a warpgroup keeps: TAPS in use, one being written
#define LOADS ((CHUNKS * PASSES + 3) / 4)            // a warp's share of a row of blocks
#define COLUMNS (BLOCKS - TAPS + 1)                  // outputs of a row that a slot's blocks give; the rest of the 64 is padding
#define PIECES ((OUT_DIM3 + COLUMNS - 1) / COLUMNS)  // of a row of outputs
#define PLANE (OUT_DIM2 * OUT_DIM3)                  // outputs of a channel
#define RING 64                                      // floats of each channel on their way out: a row and what the last one left
#define PITCH (RING + 4)
#define ALONE (PIECES > 1 || OUT_DIM3 + 7 > RING)    // rows leave nothing to the next one
#define VECTORS (WIDTH % 4 == 0 && PADDING == 2)     // rows are read 16 bytes at a time
// The weights of one step in the tensor cores' layout without swizzle: cores of 8 channels by 8 taps, 12 cores a half.
extern "C" __global__ void __launch_bounds__(192) pack(const float* __restrict__ weight, uint4* __restrict__ packed) {
    const int slice = blockIdx.x / STEPS, step = blockIdx.x % STEPS, n = slice * 96 + threadIdx.x % 96, c = step % IN_CHANNELS;
    const int y0 = step / IN_CHANNELS / TAPS * 4 + threadIdx.x / 96 * 2, x0 = step / IN_CHANNELS % TAPS * 4;
    __half v[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
        const int y = y0 + e / 4, z = x0 + e % 4;
        v[e] = __float2half_rn(n < OUT_CHANNELS && y < KERNEL_SIZE && z < KERNEL_SIZE ? weight[((n * IN_CHANNELS + c) * KERNEL_SIZE + y) * KERNEL_SIZE + z] : 0.f);
    }
    packed[blockIdx.x * 192 + threadIdx.x] = *(const uint4*)v;
}
__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void copy16(uint4* to, const uint4* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Makes this thread's writes to shared memory visible to the tensor cores once the threads have met.
__device__ __forceinline__ void writes_to_tensor() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_sync(int group) { asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory"); }
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
// Keeps the compiler from moving uses of the accumulators across this point.
template <int COUNT> __device__ __forceinline__ void pin(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// A matrix without swizzle: `along` bytes between cores (8 rows of 16 bytes) along the inner dimension, `down` between groups of 8 rows.
__device__ __forceinline__ uint64_t descriptor(const void* p, int along, int down) {
    return (uint64_t)(down >> 4) << 32 | (uint64_t)(along >> 4) << 16 | (shared_address(p) & 0x3FFFF) >> 4;
}
__device__ __forceinline__ void wgmma_shared(float (&d)[48], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
                 "%48, %49, p, 1, 1, 0, 0;\n}\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                   "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
                 : "l"(a), "l"(b), "r"(accumulate));
}
// sum = 64 outputs x 96 channels: the taps of the output at column m are the blocks from m on, in rows row, row + 1 ... of the ring. All
// products of a row are issued; the caller waits for them.
__device__ __forceinline__ void multiply(float (&sum)[48], const uint4* ring, const uint4* weights, int row) {
    pin(sum);
    const uint64_t right = descriptor(weights, 12 * 128, 128);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < TAPS; ++i) {
        const uint64_t left = descriptor(ring + (row + i) % SLOTS * SLOT, 16 * BLOCKS, 16 * 8);
#pragma unroll
        for (int s = 0; s < TAPS * IN_CHANNELS; ++s)
            wgmma_shared(sum, left + 2 * BLOCKS * (s % IN_CHANNELS) + s / IN_CHANNELS, right + (i * TAPS * IN_CHANNELS + s) * 192, i + s > 0);
    }
    wgmma_commit();
}
__device__ __forceinline__ uint2 halves(float4 v) {
    const __half2 low = __floats2half2_rn(v.x, v.y), high = __floats2half2_rn(v.z, v.w);
    return make_uint2(*(const uint32_t*)&low, *(const uint32_t*)&high);
}
// The four columns of input row y from `column` on, zeros outside the image; `above` rows of other channels lie before row 0.
__device__ __forceinline__ float4 load4(const float* image, int above, int y, int column) {
    if (y < 0 || y >= HEIGHT) return make_float4(0, 0, 0, 0);
    const float* from = image + (above + y) * WIDTH + column;
#if VECTORS
    return column >= 0 && column < WIDTH ? __ldcs((const float4*)from) : make_float4(0, 0, 0, 0);
#else
    return make_float4(column >= 0 && column < WIDTH ? from[0] : 0.f, column + 1 >= 0 && column + 1 < WIDTH ? from[1] : 0.f,
                       column + 2 >= 0 && column + 2 < WIDTH ? from[2] : 0.f, column + 3 >= 0 && column + 3 < WIDTH ? from[3] : 0.f);
#endif
}
// Starts loading this warp's share of row `row` of blocks (input rows 4 * row - PADDING and the next three) from block `begin` on. Lane 0
// has the block before the others'.
__device__ __forceinline__ void load_blocks(float4 (&v)[LOADS][2], const float* image, int row, int begin) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < LOADS; ++m) {
        const int task = threadIdx.x / 32 % 4 + 4 * m, chunk = task % CHUNKS, x = begin + task / CHUNKS * 31 - 1 + lane;
        if (task >= CHUNKS * PASSES) break;
#pragma unroll
        for (int y = 0; y < 2; ++y) v[m][y] = load4(image, chunk / 2 * HEIGHT, row * 4 - PADDING + chunk % 2 * 2 + y, VECTORS ? 4 * x : 4 * x - PADDING);
    }
}
// Writes them as halves: chunk after chunk, in each the blocks side by side, so that a window one column further is 16 bytes further.
__device__ __forceinline__ void store_blocks(uint4* slot, const float4 (&v)[LOADS][2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < LOADS; ++m) {
        const int task = threadIdx.x / 32 % 4 + 4 * m;
        if (task >= CHUNKS * PASSES) break;
        const uint2 upper = halves(v[m][0]), lower = halves(v[m][1]);
#if VECTORS
        // A block begins two columns before a 16-byte word: its first half is in the lane before.
        const uint4 block = make_uint4(__shfl_up_sync(~0u, upper.y, 1), upper.x, __shfl_up_sync(~0u, lower.y, 1), lower.x);
#else
        const uint4 block = make_uint4(upper.x, upper.y, lower.x, lower.y);
#endif
        if (lane && task / CHUNKS * 31 + lane - 1 < BLOCKS) slot[task % CHUNKS * BLOCKS + task / CHUNKS * 31 + lane - 1] = block;
    }
}
constexpr int LINES = BATCH_SIZE * PIECES * OUT_DIM2;
// A row of blocks on the way through rows of outputs [line, end), piece by piece of the images; a stretch is what lies in one image.
struct Walk {
    int line, end, row, first, stop;
    __device__ __forceinline__ void enter() {
        const int h = line % OUT_DIM2;
        first = row = h, stop = h + min(end - line, OUT_DIM2 - h) + TAPS - 1;
    }
    __device__ __forceinline__ void advance() {
        if (++row < stop) return;
        line += stop - (TAPS - 1) - first;
        if (line < end) enter();
    }
    __device__ __forceinline__ bool any() const { return line < end; }
    __device__ __forceinline__ long long image() const { return line / (PIECES * OUT_DIM2); }
    __device__ __forceinline__ int piece() const { return line / OUT_DIM2 % PIECES; }
};

// Leaves a row of results in shared memory: an element of a channel is at its address modulo the ring.
__device__ __forceinline__ void stage(float* rings, const float (&sum)[48], const float2* biases, long long place, int outputs) {
    const int lane = threadIdx.x % 32, column = threadIdx.x / 32 % 4 * 16 + lane / 4, two = lane % 4 * 2;
    const int from = ((int)place & RING - 1) + two * PLANE + column;
    float* to = rings + two * PITCH;
    const bool left = column < outputs, right = column + 8 < outputs;
#pragma unroll
    for (int j = 0; j < 12; ++j) {
        const float2 add = biases[4 * j + lane % 4];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const int c = 8 * j + k, at = from + c * PLANE;
            if (left) to[c * PITCH + (at & RING - 1)] = sum[4 * j + k] + (k ? add.y : add.x);
            if (right) to[c * PITCH + (at + 8 & RING - 1)] = sum[4 * j + 2 + k] + (k ? add.y : add.x);
        }
    }
}
// Writes what is whole of a row's results, `first` and `last` of a stretch also the rest.
__device__ __forceinline__ void write(float* out, const float* rings, long long place, int outputs, int channels, bool first, bool last) {
    const int team = threadIdx.x / 16 % 8, lane = threadIdx.x % 16, phase = (int)place & 7, turned = ((int)place & RING - 1) - phase;
    float* to = out + (place - phase);   // begins a sector
#pragma unroll
    for (int part = 0; part < 3; ++part) {
        float4 v[4];
        int at[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int c = team + 8 * (4 * part + i), begin = phase + c * PLANE;
            at[i] = (first ? begin & ~3 : begin & ~7) + 4 * lane;
            v[i] = *(const float4*)(rings + c * PITCH + (turned + at[i] & RING - 1));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int c = team + 8 * (4 * part + i), begin = phase + c * PLANE, end = begin + outputs;
            if (c >= channels) break;
            if (at[i] >= (first ? begin : 0) && at[i] + 4 <= (last ? end : end & ~7)) __stcs((float4*)(to + at[i]), v[i]);
            else if (first || last) {
                const float one[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    if (at[i] + e >= (first ? begin : begin & ~7) && at[i] + e < (last ? end : end & ~7)) to[at[i] + e] = one[e];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(128 * GROUPS, 1) convolve(const float* __restrict__ x, const uint4* __restrict__ packed,
                                                                       const float* __restrict__ bias, float* __restrict__ out) {
    extern __shared__ __align__(1024) uint4 rings[];
    __shared__ float2 biases[48];
    const int slice = blockIdx.x % SLICES, group = __shfl_sync(~0u, threadIdx.x / 128, 0), channels = min(96, OUT_CHANNELS - slice * 96);
    uint4 *ring = rings + group * SLOTS * SLOT, *weights = rings + GROUPS * SLOTS * SLOT;
    float* results = (float*)(weights + STEPS * 192) + group * 96 * PITCH;
    const int groups = gridDim.x / SLICES * GROUPS, me = blockIdx.x / SLICES * GROUPS + group;
    Walk next, now;
    next.line = (int)((long long)LINES * me / groups), next.end = (int)((long long)LINES * (me + 1) / groups);
    next.enter(), now = next;
    float4 ahead[LOADS][2];
    auto load = [&] {
        if (next.any()) load_blocks(ahead, x + next.image() * (IN_CHANNELS * HEIGHT * WIDTH), next.row, next.piece() * COLUMNS);
    };
    load();
    for (int i = threadIdx.x; i < STEPS * 192; i += 128 * GROUPS) copy16(weights + i, packed + slice * STEPS * 192 + i);
    for (int i = threadIdx.x; i < 96; i += 128 * GROUPS) ((float*)biases)[i] = slice * 96 + i < OUT_CHANNELS ? bias[slice * 96 + i] : 0.f;
    copies_done();
    writes_to_tensor();
    __syncthreads();
    for (int stored = 0;; ++stored) {   // rows of blocks so far; `now` is the last of them
        const bool whole = stored > 0 && now.row - now.first >= TAPS - 1, more = next.any();
        const Walk last = now;
        auto go_on = [&] {
            if (!more) return;
            store_blocks(ring + stored % SLOTS * SLOT, ahead);
            writes_to_tensor();
            now = next;
            next.advance();
            load();
        };
        if (whole) {
            float sum[48];
            multiply(sum, ring, weights, stored - TAPS);
            go_on();
            wgmma_wait<0>();
            pin(sum);
            const int made = last.row - (TAPS - 1), outputs = min(COLUMNS, OUT_DIM3 - last.piece() * COLUMNS);
            const long long place = ((last.image() * OUT_CHANNELS + slice * 96) * OUT_DIM2 + made) * OUT_DIM3 + last.piece() * COLUMNS;
            stage(results, sum, biases, place, outputs);
            warpgroup_sync(group);
            write(out, results, place, outputs, channels, ALONE || made == last.first, ALONE || last.row == last.stop - 1);
        } else go_on();
        if (!more) break;
        warpgroup_sync(group);
    }
}
