// fp16 operands in blocks of 4 x 4 (the stride), windows read by descriptor, fp32 sums, as in stride_blocks.cu. Each kind of work has its own
// warps: loaders keep AHEAD rows of the image in registers, round them to halves and fill a ring of rows of blocks; GROUPS warpgroups take
// turns at multiplying three of them, and leave a row of results in shared memory, each channel's as one stretch of the memory it is for;
// writers add the bias and move whole sectors of 32 bytes, 16 bytes a thread. Rows of 55 results do not begin on sectors: what is left of a
// row's last sector waits for the next row. Mbarriers tell what is full and what is free.
// FENCE 1: loaders make their writes visible to the tensor cores, FENCE 0: those who multiply do, after they were told of them. The fence
// is a MEMBAR, which waits for what the thread has under way: loaders have loads for the next rows, the others nothing.
// Every thread arrives where results are handed over: where one lane did for its warp, after __syncwarp, racecheck saw races.
// Bounds (full): 176 MB, 42 us; 21.1 GFLOP, padded to 64 x 96 x 432 per row of 55: 29.2 GFLOP, 27 us at the full clock. Shared memory, per row
// of 55: 135 KB for the products, 26 KB of results in (two lanes a bank) and out, 6 KB of blocks: 1700 cycles of 128 bytes, 36 us for 42 rows.
// fp16 limits the range: inputs and weights beyond 65504 overflow.
#include <cstdint>
#include <cuda_fp16.h>
#include "problem.h"
// @tune GROUPS = 2, 3
// @tune RING = 128, 256
// @tune AHEAD = 3
// @tune FENCE = 0, 1
// @require FENCE * (GROUPS + RING - 130) == 0
// @workspace ceil_div(OUT_CHANNELS, 96) * ceil_div(KERNEL_SIZE, 4) * ceil_div(KERNEL_SIZE, 4) * IN_CHANNELS * 3072
// @launch pack(conv1_weight, workspace) grid(ceil_div(OUT_CHANNELS, 96) * ceil_div(KERNEL_SIZE, 4) * ceil_div(KERNEL_SIZE, 4) * IN_CHANNELS) block(192)
// @launch convolve(x, workspace, conv1_bias, out) grid(SMS / ceil_div(OUT_CHANNELS, 96) * ceil_div(OUT_CHANNELS, 96)) block(128 * GROUPS + 256) shared(8 * 2 * IN_CHANNELS * min(60, OUT_DIM3 + ceil_div(KERNEL_SIZE, 4) - 1) * 16 + 96 * (RING + 4) * 4 + ceil_div(KERNEL_SIZE, 4) * ceil_div(KERNEL_SIZE, 4) * IN_CHANNELS * 3072)

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
#define SLOTS 8                                      // rows of blocks in shared memory
#define LOADERS 4                                    // warps
#define WRITERS 4                                    // warps
#define LOADS ((CHUNKS * PASSES + LOADERS - 1) / LOADERS)   // a loader's share of a row of blocks
#define COLUMNS (BLOCKS - TAPS + 1)                  // outputs of a row that a slot's blocks give; the rest of the 64 is padding
#define PIECES ((OUT_DIM3 + COLUMNS - 1) / COLUMNS)  // of a row of outputs
#define PLANE (OUT_DIM2 * OUT_DIM3)                  // outputs of a channel
#define PITCH (RING + 4)                             // between the channels' rings, in floats
#define DEPTH (PIECES > 1 ? 1 : (RING - 7) / OUT_DIM3 < 4 ? (RING - 7) / OUT_DIM3 : 4)  // rows of results that a ring holds
#define ROWS 8                                       // barriers for rows of results: no fewer than DEPTH + GROUPS - 1
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
// Makes the writes to shared memory that this thread has made, or has been told of, visible to the tensor cores. Waits for what it loads.
__device__ __forceinline__ void writes_to_tensor() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void barrier_init(uint64_t* b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
// Once for a warp whose lanes have all come here.
__device__ __forceinline__ void warp_arrives(uint64_t* b) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(b);
}
__device__ __forceinline__ void barrier_wait(uint64_t* b, unsigned parity) {
    unsigned done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                     : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");
    } while (!done);
}
// Waits until the barrier of number `turn` among `of` that are used in turn has been passed.
__device__ __forceinline__ void wait_turn(uint64_t* barriers, int turn, int of) { barrier_wait(barriers + turn % of, turn / of & 1); }
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
// sum = 64 outputs x 96 channels: the taps of the output at column m are the blocks from m on, in slots step, step + 1 .... All
// products of a row are issued; the caller waits for them.
__device__ __forceinline__ void multiply(float (&sum)[48], const uint4* slots, const uint4* weights, int step) {
    pin(sum);
    const uint64_t right = descriptor(weights, 12 * 128, 128);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < TAPS; ++i) {
        const uint64_t left = descriptor(slots + (step + i) % SLOTS * SLOT, 16 * BLOCKS, 16 * 8);
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
        const int task = threadIdx.x / 32 % LOADERS + LOADERS * m, chunk = task % CHUNKS, x = begin + task / CHUNKS * 31 - 1 + lane;
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
        const int task = threadIdx.x / 32 % LOADERS + LOADERS * m;
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
    __device__ __forceinline__ int made() const { return row - first - (TAPS - 1); }    // the row of results that the row of blocks completes; < 0: none
    __device__ __forceinline__ bool any() const { return line < end; }
    __device__ __forceinline__ long long image() const { return line / (PIECES * OUT_DIM2); }
    // Where the row of results begins in a channel whose plane is the image's first.
    __device__ __forceinline__ long long place(int slice) const {
        return ((image() * OUT_CHANNELS + slice * 96) * OUT_DIM2 + row - (TAPS - 1)) * OUT_DIM3 + piece() * COLUMNS;
    }
    __device__ __forceinline__ int outputs() const { return min(COLUMNS, OUT_DIM3 - piece() * COLUMNS); }
    __device__ __forceinline__ int piece() const { return line / OUT_DIM2 % PIECES; }
};

struct Barriers { uint64_t weights, full[SLOTS], done[SLOTS], staged[ROWS], stored[ROWS]; };

__device__ __forceinline__ void load_rows(Walk next, const float* x, uint4* slots, Barriers& b) {
    float4 ahead[AHEAD][LOADS][2];
    int loaded = 0;
    auto load = [&](float4 (&to)[LOADS][2]) {
        if (!next.any()) return;
        load_blocks(to, x + next.image() * (IN_CHANNELS * HEIGHT * WIDTH), next.row, next.piece() * COLUMNS);
        next.advance(), ++loaded;
    };
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) load(ahead[i]);
    for (int step = 0; step < loaded; step += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const int now = step + i, last = now - SLOTS + TAPS - 1;    // the last step that needs what is in the slot
            if (now >= loaded) break;
            if (last >= 0) wait_turn(b.done, last, SLOTS);
            store_blocks(slots + now % SLOTS * SLOT, ahead[i]);
            if (FENCE) writes_to_tensor();
            warp_arrives(&b.full[now % SLOTS]);
            load(ahead[i]);
        }
    }
}
// Leaves a row of results where the writers read it: an element of a channel is at its address modulo the ring.
__device__ __forceinline__ void stage(float* rings, const float (&sum)[48], long long place, int outputs) {
    const int lane = threadIdx.x % 32, column = threadIdx.x / 32 % 4 * 16 + lane / 4, two = lane % 4 * 2;
    const int from = ((int)place & RING - 1) + two * PLANE + column;
    float* to = rings + two * PITCH;
    const bool left = column < outputs, right = column + 8 < outputs;
#pragma unroll
    for (int j = 0; j < 24; ++j) {
        const int c = j / 2 * 8 + j % 2, at = from + c * PLANE;
        if (left) to[c * PITCH + (at & RING - 1)] = sum[j / 2 * 4 + j % 2];
        if (right) to[c * PITCH + (at + 8 & RING - 1)] = sum[j / 2 * 4 + j % 2 + 2];
    }
}
__device__ __forceinline__ void multiply_rows(Walk now, int group, const uint4* packed, int slice, const uint4* slots, uint4* weights, float* rings,
                                              Barriers& b) {
    for (int i = threadIdx.x; i < STEPS * 192; i += 128 * GROUPS) copy16(weights + i, packed + slice * STEPS * 192 + i);
    copies_done();
    writes_to_tensor();
    barrier_arrive(&b.weights);
    barrier_wait(&b.weights, 0);
    int row = 0, turn = 0;  // rows of results so far, the group whose turn it is
    for (int step = 0; now.any(); ++step, now.advance()) {
        const int made = now.made();
        if (turn == group) {
            float sum[48];
            wait_turn(b.full, step, SLOTS);
            if (made >= 0) {
                if (!FENCE) writes_to_tensor();   // here: a loader would wait for its loads
                multiply(sum, slots, weights, step - (TAPS - 1));
                wgmma_wait<0>();
                pin(sum);
            }
            warp_arrives(&b.done[step % SLOTS]);
            // Rows of another stretch, and rows DEPTH before this one, lie where this one goes. A group waits at each of its turns, so
            // that it never misses two passes of a barrier.
            const int free = row - (made >= 0 && made + 1 < DEPTH ? made + 1 : DEPTH);
            if (free >= 0) wait_turn(b.stored, free, ROWS);
            if (made >= 0) {
                stage(rings, sum, now.place(slice), now.outputs());
                barrier_arrive(&b.staged[row % ROWS]);
            }
        }
        if (made >= 0) ++row;
        if (++turn == GROUPS) turn = 0;
    }
}
__device__ __forceinline__ void write_rows(Walk now, int slice, const float* bias, const float* rings, float* out, Barriers& b) {
    const int team = threadIdx.x / 16 % (2 * WRITERS), lane = threadIdx.x % 16;
    float add[2][6];    // to this thread's channels
#pragma unroll
    for (int i = 0; i < 12; ++i) add[i / 6][i % 6] = slice * 96 + team + 8 * i < OUT_CHANNELS ? bias[slice * 96 + team + 8 * i] : 0.f;
    for (int row = 0; now.any(); now.advance()) {
        const int made = now.made();
        if (made < 0) continue;
        const bool first = PIECES > 1 || made == 0, last = PIECES > 1 || now.row == now.stop - 1;
        const long long place = now.place(slice);
        const int phase = (int)place & 7, turned = ((int)place & RING - 1) - phase, outputs = now.outputs();
        float* to = out + (place - phase);   // begins a sector
        wait_turn(b.staged, row, ROWS);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float4 v[6];
            int at[6];
#pragma unroll
            for (int i = 0; i < 6; ++i) {
                const int c = team + 8 * (6 * half + i), begin = phase + c * PLANE;
                at[i] = (first ? begin & ~3 : begin & ~7) + 4 * lane;
                // What lies past the row's last whole sector is the next row's: its warpgroup may be writing it.
                v[i] = make_float4(0, 0, 0, 0);
                if (at[i] < (last ? begin + outputs : begin + outputs & ~7)) v[i] = *(const float4*)(rings + c * PITCH + (turned + at[i] & RING - 1));
            }
#pragma unroll
            for (int i = 0; i < 6; ++i) {
                const int c = team + 8 * (6 * half + i), begin = phase + c * PLANE, end = begin + outputs;
                if (slice * 96 + c >= OUT_CHANNELS) break;
                v[i] = make_float4(v[i].x + add[half][i], v[i].y + add[half][i], v[i].z + add[half][i], v[i].w + add[half][i]);
                if (at[i] >= (first ? begin : 0) && at[i] + 4 <= (last ? end : end & ~7)) __stcs((float4*)(to + at[i]), v[i]);
                else if (first || last) {
                    const float one[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        if (at[i] + e >= (first ? begin : begin & ~7) && at[i] + e < (last ? end : end & ~7)) to[at[i] + e] = one[e];
                }
            }
        }
        barrier_arrive(&b.stored[row % ROWS]);
        ++row;
    }
}

extern "C" __global__ void __launch_bounds__(128 * GROUPS + 256, 1) convolve(const float* __restrict__ x, const uint4* __restrict__ packed,
                                                                             const float* __restrict__ bias, float* __restrict__ out) {
    extern __shared__ __align__(1024) uint4 slots[];
    __shared__ Barriers b;
    float* rings = (float*)(slots + SLOTS * SLOT);
    uint4* weights = (uint4*)(rings + 96 * PITCH);
    const int slice = blockIdx.x % SLICES, role = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const int blocks = gridDim.x / SLICES, me = blockIdx.x / SLICES;
    Walk walk;
    walk.line = (int)((long long)LINES * me / blocks), walk.end = (int)((long long)LINES * (me + 1) / blocks);
    walk.enter();
    if (threadIdx.x == 0) {
        barrier_init(&b.weights, 128 * GROUPS);
        for (int i = 0; i < SLOTS; ++i) barrier_init(&b.full[i], LOADERS), barrier_init(&b.done[i], 4);
        for (int i = 0; i < ROWS; ++i) barrier_init(&b.staged[i], 128), barrier_init(&b.stored[i], WRITERS * 32);
    }
    __syncthreads();
    if (role < GROUPS) multiply_rows(walk, role, packed, slice, slots, weights, rings, b);
    else if (role == GROUPS) load_rows(walk, x, slots, b);
    else write_rows(walk, slice, bias, rings, out, b);
}
