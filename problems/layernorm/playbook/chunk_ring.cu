// One cooperative launch; a block holds its chunks of a sample in registers while the sample's moments are gathered from all blocks,
// so x is read once. Meanwhile TMA fills a ring in shared memory with the next sample's chunks: reads never stop.
#include <cstdint>
#include "problem.h"
// @tune BLOCK = 512, 1024
// @tune AHEAD = 4, 2, 8
// @workspace BATCH_SIZE * (4 + 12 * SMS) zero
// @launch layer_norm(x, ln_weight, ln_bias, workspace, workspace + BATCH_SIZE * 4, out) grid(SMS) block(BLOCK) shared(16 * BLOCK * (221184 / (16 * BLOCK))) cooperative

#define ELEMENTS (FEATURES * DIM1 * DIM2)            // of one sample
#if ELEMENTS % 4 == 0
#define WIDTH 4                                      // elements of one access: every sample starts on 16 bytes
typedef float4 Access;
#else
#define WIDTH 1
typedef float Access;
#endif
#define EPSILON 1e-5f                                // nn.LayerNorm's default
#define CHUNK (4 * BLOCK)                            // elements: one 16-byte access a thread
#define SLOTS (221184 / (4 * CHUNK))
#define HELD (8192 / BLOCK)                          // chunks of a sample in a block's registers, 128 KB; AHEAD of them at a time get their weights

// Count, mean and sum of squared deviations of some values; two of them merge without cancellation (Chan, Golub, LeVeque).
struct Moments { float n, mean, m2; };
__device__ __forceinline__ Moments merge(Moments a, Moments b) {
    const float n = a.n + b.n, share = n > 0 ? __fdividef(b.n, n) : 0, d = b.mean - a.mean;
    return {n, a.mean + d * share, a.m2 + b.m2 + d * d * a.n * share};
}
template <int COUNT> __device__ __forceinline__ Moments moments_of(const float (&v)[COUNT]) {
    float sum = 0, m2 = 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sum += v[i];
    const float mean = sum * (1.0f / COUNT);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) m2 += (v[i] - mean) * (v[i] - mean);
    return {float(COUNT), mean, m2};
}
__device__ __forceinline__ Moments warp_merge(Moments a) {
#pragma unroll
    for (int o = 16; o; o >>= 1)
        a = merge(a, {__shfl_xor_sync(~0u, a.n, o), __shfl_xor_sync(~0u, a.mean, o), __shfl_xor_sync(~0u, a.m2, o)});
    return a;
}
__device__ Moments block_merge(Moments a, Moments* scratch) {
    a = warp_merge(a);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = a;
    __syncthreads();
    return warp_merge(threadIdx.x % 32 < BLOCK / 32 ? scratch[threadIdx.x % 32] : Moments{0, 0, 0});
}
__device__ __forceinline__ float normalised(float v, float mean, float scale, float w, float b) { return (v - mean) * scale * w + b; }
__device__ __forceinline__ float4 normalised(float4 v, float mean, float scale, float4 w, float4 b) {
    return make_float4(normalised(v.x, mean, scale, w.x, b.x), normalised(v.y, mean, scale, w.y, b.y),
                       normalised(v.z, mean, scale, w.z, b.z), normalised(v.w, mean, scale, w.w, b.w));
}
// The grid synchronises once per sample. `arrive` publishes this block's moments; `collect` waits for all blocks' moments and merges them. Between
// the two there is other work to do, which hides the wait.
__device__ __forceinline__ void arrive(unsigned* arrived, Moments* places, Moments mine) {
    if (threadIdx.x == 0) {
        places[blockIdx.x] = mine;
        __threadfence();
        atomicAdd(arrived, 1);
    }
}
__device__ __forceinline__ Moments collect(unsigned* arrived, const Moments* places, Moments* scratch) {
    if (threadIdx.x == 0) {
        unsigned seen;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");
        while (seen < gridDim.x);
    }
    __syncthreads();
    Moments all = {0, 0, 0};
    for (int p = threadIdx.x; p < gridDim.x; p += BLOCK)
        all = merge(all, {__ldcg(&places[p].n), __ldcg(&places[p].mean), __ldcg(&places[p].m2)});
    return block_merge(all, scratch);
}
__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void barrier_init(uint64_t* b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* b, unsigned parity) {
    unsigned done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                     : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");
    } while (!done);
}
// One contiguous TMA copy: 16-byte aligned on both sides, `bytes` a multiple of 16, completion counted by `b`.
__device__ __forceinline__ void bulk_load(void* to, const void* from, int bytes, uint64_t* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(b)) : "memory");
}

#if ELEMENTS % 4
// Samples do not start on 16 bytes, which TMA needs: the block reads its part of each sample twice, directly.
#define UNROLL 4
// The moments of row[begin, end), WIDTH-aligned, UNROLL accesses of every thread in flight.
__device__ __forceinline__ Moments read_moments(const float* row, int begin, int end) {
    Moments found = {0, 0, 0};
    int i = begin + WIDTH * threadIdx.x;
    for (; i + WIDTH * BLOCK * (UNROLL - 1) < end; i += WIDTH * BLOCK * UNROLL) {
        float v[WIDTH * UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) *(Access*)(v + WIDTH * u) = *(const Access*)(row + i + WIDTH * BLOCK * u);
        found = merge(found, moments_of(v));
    }
    for (; i < end; i += WIDTH * BLOCK) {
        float v[WIDTH];
        *(Access*)v = *(const Access*)(row + i);
        found = merge(found, moments_of(v));
    }
    return found;
}
#endif

extern "C" __global__ void __launch_bounds__(BLOCK, 1)
layer_norm(const float* x, const float* __restrict__ weight, const float* __restrict__ bias, unsigned* arrived, Moments* places, float* out) {
    __shared__ Moments scratch[32];
#if ELEMENTS % 4
    const int part = (ELEMENTS + gridDim.x - 1) / gridDim.x, begin = min(ELEMENTS, part * (int)blockIdx.x), end = min(ELEMENTS, begin + part);
    for (int s = 0; s < BATCH_SIZE; ++s) {
        const long long offset = (long long)s * ELEMENTS;
        arrive(arrived + s, places + s * gridDim.x, block_merge(read_moments(x + offset, begin, end), scratch));
        const Moments all = collect(arrived + s, places + s * gridDim.x, scratch);
        const float scale = rsqrtf(all.m2 / ELEMENTS + EPSILON);
        for (int i = begin + threadIdx.x; i < end; i += BLOCK) out[offset + i] = normalised(x[offset + i], all.mean, scale, weight[i], bias[i]);
    }
#else
    extern __shared__ __align__(128) float ring[];
    __shared__ uint64_t full[SLOTS];
    const int chunks = (ELEMENTS + CHUNK - 1) / CHUNK;
    const int mine = max(0, (chunks - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x);      // of each sample: every gridDim.x-th
    const int kept = min(mine, HELD);                                                               // further ones are read twice
    const int total = kept * BATCH_SIZE;
    auto place = [&](int c) { return (int)(blockIdx.x + c * gridDim.x) * CHUNK + 4 * (int)threadIdx.x; };
    auto fetch = [&](int q) {
        const int begin = (int)(blockIdx.x + q % kept * gridDim.x) * CHUNK, bytes = 4 * min(CHUNK, ELEMENTS - begin);
        barrier_expect(&full[q % SLOTS], bytes);
        bulk_load(ring + q % SLOTS * CHUNK, x + (long long)(q / kept) * ELEMENTS + begin, bytes, &full[q % SLOTS]);
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; ++i) barrier_init(&full[i], 1);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        for (int q = 0; q < min(SLOTS, total); ++q) fetch(q);
    }
    __syncthreads();
    for (int s = 0; s < BATCH_SIZE; ++s) {
        const long long offset = (long long)s * ELEMENTS;
        float4 held[HELD];
        float sum = 0, m2 = 0;
        int count = 0;
#pragma unroll
        for (int c = 0; c < HELD; ++c) {
            const int q = s * kept + c;
            if (c < kept) barrier_wait(&full[q % SLOTS], q / SLOTS & 1);
            if (c >= kept || place(c) >= ELEMENTS) continue;
            held[c] = *(const float4*)(ring + q % SLOTS * CHUNK + 4 * threadIdx.x);
            sum += (held[c].x + held[c].y) + (held[c].z + held[c].w);
            count += 4;
        }
        __syncthreads();                // the chunks are in registers: their places are free
        if (threadIdx.x == 0)
            for (int c = 0; c < kept; ++c)
                if (s * kept + c + SLOTS < total) fetch(s * kept + c + SLOTS);
        const float centre = count ? sum / count : 0;
#pragma unroll
        for (int c = 0; c < HELD; ++c) {
            if (c >= kept || place(c) >= ELEMENTS) continue;
            const float4 d = make_float4(held[c].x - centre, held[c].y - centre, held[c].z - centre, held[c].w - centre);
            m2 += (d.x * d.x + d.y * d.y) + (d.z * d.z + d.w * d.w);
        }
        Moments found = {float(count), centre, m2};
        for (int c = kept; c < mine; ++c)
            if (place(c) < ELEMENTS) {
                float v[4];
                *(float4*)v = *(const float4*)(x + offset + place(c));
                found = merge(found, moments_of(v));
            }
        arrive(arrived + s, places + s * gridDim.x, block_merge(found, scratch));
        Moments all = {0, 0, 0};
#pragma unroll
        for (int first = 0; first < HELD; first += AHEAD) {
            float4 w[AHEAD], b[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; ++a)
                if (first + a < kept && place(first + a) < ELEMENTS)
                    w[a] = *(const float4*)(weight + place(first + a)), b[a] = *(const float4*)(bias + place(first + a));
            if (first == 0) all = collect(arrived + s, places + s * gridDim.x, scratch);
            const float scale = rsqrtf(all.m2 / ELEMENTS + EPSILON);
#pragma unroll
            for (int a = 0; a < AHEAD; ++a)
                if (first + a < kept && place(first + a) < ELEMENTS)
                    __stcs((float4*)(out + offset + place(first + a)), normalised(held[first + a], all.mean, scale, w[a], b[a]));
        }
        const float scale = rsqrtf(all.m2 / ELEMENTS + EPSILON);
        for (int c = kept; c < mine; ++c)
            if (const int i = place(c); i < ELEMENTS)
                __stcs((float4*)(out + offset + i), normalised(*(const float4*)(x + offset + i), all.mean, scale, *(const float4*)(weight + i), *(const float4*)(bias + i)));
    }
#endif
}
