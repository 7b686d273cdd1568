// A block keeps the same columns of every sample for the whole launch, with their weights and biases in registers and shared memory.
// x passes twice through a ring in shared memory that TMA fills: first for a chunk's moments, and LAG chunks later, while it is
// still in L2, to be normalised. A sample's moments are exchanged long before they are needed, so nothing waits.
//
// Predicted (16 x 64 x 256 x 256, 132 blocks): device memory 570 MB (x 268, results 268, weights and biases 34), 0.137 ms at 4.17 TB/s,
// if L2 keeps 1 + EXTRA / 8 samples (17 to 29 MB) against the passing results (written evict-first); 268 MB more from L2. Each byte
// that L2 evicts is read again from memory: with nothing kept it is two passes, 0.2 ms. Expect 0.150 to 0.175 ms.
#include <cstdint>
#include "problem.h"
// @tune BLOCK = 256, 512
// @tune UNROLL = 2, 1
// @tune BIAS_HELD = 12, 14, 8, 4
// @tune EXTRA = 4, 2, 0, 6
// @tune KEEP = 1, 0
// @require BIAS_HELD * BLOCK <= 3584
// @require BLOCK * UNROLL <= 1024
// BIAS_HELD: 16-byte accesses a thread; EXTRA: eighths of a sample; KEEP: ask L2 to keep x for its second read.
// @workspace BATCH_SIZE * 8 * 132 zero
// @launch layer_norm(x, ln_weight, ln_bias, workspace, out) grid(max(1, min(SMS, 132, FEATURES * DIM1 * DIM2 / (4 * BLOCK * UNROLL)))) block(BLOCK + 128) shared(229376) cooperative

#define ELEMENTS (FEATURES * DIM1 * DIM2)            // of one sample
#define EPSILON 1e-5f                                // nn.LayerNorm's default
#define MOST_BLOCKS 132
#define CHUNK (4 * BLOCK * UNROLL)                   // elements of a slot of the ring
#define CHUNKS (ELEMENTS / CHUNK)
#define WARPS (BLOCK / 32)
constexpr int HELD = (CHUNKS + MOST_BLOCKS - 1) / MOST_BLOCKS;          // a block's chunks of a sample, at most
constexpr int least(int a, int b) { return a < b ? a : b; }
constexpr int SLOT_BYTES = 4 * CHUNK;
constexpr int IN_REGISTERS = least(HELD, BIAS_HELD / UNROLL);           // chunks of biases in registers
constexpr int IN_SHARED = HELD - IN_REGISTERS;                          // the others
constexpr int SLOTS = 229376 / SLOT_BYTES - IN_SHARED;
constexpr bool FITS = ELEMENTS % CHUNK == 0 && HELD > 0 && SLOTS >= 4 && HELD * UNROLL * BLOCK <= 8192;

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void barrier_init(uint64_t* b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ bool barrier_test(uint64_t* b, unsigned parity) {
    unsigned done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");
    return done;
}
__device__ __forceinline__ void barrier_wait(uint64_t* b, unsigned parity) {
    unsigned done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                     : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");
    } while (!done);
}
// One contiguous TMA copy: 16-byte aligned on both sides, `bytes` a multiple of 16, completion counted by `b`.
__device__ __forceinline__ void bulk_load(void* to, const void* from, int bytes, uint64_t* b, uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(b)), "l"(policy) : "memory");
}
__device__ __forceinline__ void bulk_load_plain(void* to, const void* from, int bytes, uint64_t* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ uint64_t read_once() {
    uint64_t p;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}
__device__ __forceinline__ uint64_t read_again() {
    uint64_t p;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p));
    return p;
}
// A read that the compiler may not repeat: what it returns stays in registers.
__device__ __forceinline__ float4 load_to_keep(const float* p) {
    float4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
    return v;
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    return v;
}
// A block's mean and sum of squared deviations as one word that is never zero (the sign bit of the second part is set): a single write
// publishes both the values and their arrival.
__device__ __forceinline__ void publish(uint64_t* place, float mean, float m2) {
    const uint64_t word = (uint64_t)(__float_as_uint(m2) | 0x80000000u) << 32 | __float_as_uint(mean);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(place), "l"(word) : "memory");
}
__device__ __forceinline__ uint64_t look(const uint64_t* place) {
    uint64_t word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(place) : "memory");
    return word;
}
// A warp waits for every block's word of a sample and merges them; `count(p)` are block p's elements.
template <class Count> __device__ __forceinline__ float2 collect(const uint64_t* places, Count count) {
    constexpr int SHARE = (MOST_BLOCKS + 31) / 32;
    const int lane = threadIdx.x % 32, blocks = gridDim.x;
    uint64_t word[SHARE];
    bool all;
    do {
        all = true;
#pragma unroll
        for (int i = 0; i < SHARE; ++i) {
            word[i] = lane + 32 * i < blocks ? look(places + lane + 32 * i) : 1ull << 63;
            all = all && word[i] != 0;
        }
    } while (!__all_sync(~0u, all));
    const float origin = __shfl_sync(~0u, __uint_as_float((unsigned)word[0]), 0);
    float sum = 0, m2 = 0;
#pragma unroll
    for (int i = 0; i < SHARE; ++i)
        if (lane + 32 * i < blocks) sum += count(lane + 32 * i) * (__uint_as_float((unsigned)word[i]) - origin);
    const float offset = warp_sum(sum) * (1.0f / ELEMENTS);
#pragma unroll
    for (int i = 0; i < SHARE; ++i)
        if (lane + 32 * i < blocks) {
            const float d = __uint_as_float((unsigned)word[i]) - origin - offset;
            m2 += __uint_as_float((unsigned)(word[i] >> 32) & 0x7FFFFFFFu) + count(lane + 32 * i) * d * d;
        }
    return make_float2(origin + offset, rsqrtf(warp_sum(m2) * (1.0f / ELEMENTS) + EPSILON));
}
__device__ __forceinline__ float normalised(float v, float mean, float scale, float w, float b) { return (v - mean) * scale * w + b; }
__device__ __forceinline__ float4 normalised(float4 v, float mean, float scale, float4 w, float4 b) {
    return make_float4(normalised(v.x, mean, scale, w.x, b.x), normalised(v.y, mean, scale, w.y, b.y),
                       normalised(v.z, mean, scale, w.z, b.z), normalised(v.w, mean, scale, w.w, b.w));
}

// Sizes the ring does not support: every block reads its part of all samples twice, directly, with one grid synchronisation in between.
__device__ __noinline__ void directly(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                                      uint64_t* places, float* __restrict__ out, float* scratch) {
    const int blocks = gridDim.x, threads = blockDim.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int part = 4 * ((ELEMENTS + 4 * blocks - 1) / (4 * blocks));
    const int begin = min(ELEMENTS, part * (int)blockIdx.x), end = min(ELEMENTS, begin + part);
    for (int s = 0; s < BATCH_SIZE; ++s) {
        const float* row = x + (long long)s * ELEMENTS;
        const float origin = begin < end ? row[begin] : 0;
        float sum = 0, squares = 0;
#pragma unroll 8
        for (int i = begin + threadIdx.x; i < end; i += threads) {
            const float d = row[i] - origin;
            sum += d;
            squares += d * d;
        }
        sum = warp_sum(sum);
        squares = warp_sum(squares);
        __syncthreads();
        if (lane == 0) scratch[warp] = sum, scratch[32 + warp] = squares;
        __syncthreads();
        if (warp == 0) {
            sum = warp_sum(lane < threads / 32 ? scratch[lane] : 0);
            squares = warp_sum(lane < threads / 32 ? scratch[32 + lane] : 0);
            const float n = max(1, end - begin);
            if (lane == 0) publish(places + s * MOST_BLOCKS + blockIdx.x, origin + sum / n, fmaxf(0, squares - sum * sum / n));
        }
    }
    for (int s = 0; s < BATCH_SIZE; ++s) {
        const float2 found = collect(places + s * MOST_BLOCKS, [&](int p) { return float(max(0, min(ELEMENTS, part * (p + 1)) - min(ELEMENTS, part * p))); });
        const long long offset = (long long)s * ELEMENTS;
#pragma unroll 8
        for (int i = begin + threadIdx.x; i < end; i += threads)
            __stcs(out + offset + i, normalised(__ldcs(x + offset + i), found.x, found.y, weight[i], bias[i]));
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK + 128, 1)
layer_norm(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias, uint64_t* places, float* __restrict__ out) {
    extern __shared__ __align__(128) float ring[];
    __shared__ float parts[64];
    const int blocks = gridDim.x, lane = threadIdx.x % 32;
    if (!FITS || CHUNKS > HELD * blocks) {
        directly(x, weight, bias, places, out, parts);
        return;
    }
    if constexpr (FITS) {
    __shared__ uint64_t full[SLOTS], empty[SLOTS], gathered, known;
    __shared__ float given[2][64];
    __shared__ float2 found[2];
    float* kept = ring + SLOTS * CHUNK;
    const int mine = CHUNKS / blocks + ((int)blockIdx.x < CHUNKS % blocks);     // of each sample: every blocks-th from blockIdx.x on
    const int total = BATCH_SIZE * mine, lag = min(total, mine + mine * EXTRA / 8);
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; ++i) barrier_init(&full[i], 1), barrier_init(&empty[i], WARPS);
        barrier_init(&gathered, WARPS);
        barrier_init(&known, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= BLOCK) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(BLOCK == 256 ? 40 : 32));
        const int role = threadIdx.x / 32 - WARPS;
        if (role == 0) {                                // the ring
            if (lane == 0) {
                const uint64_t first = KEEP ? read_again() : read_once(), last = read_once();
                int slot = 0, turn = 0;
                const float* start = x + (long long)blockIdx.x * CHUNK;
                auto fetch = [&](const float* from, uint64_t policy, bool hint) {
                    if (turn > 0) barrier_wait(&empty[slot], turn - 1 & 1);
                    barrier_expect(&full[slot], SLOT_BYTES);
                    if (hint) bulk_load(ring + slot * CHUNK, from, SLOT_BYTES, &full[slot], policy);
                    else bulk_load_plain(ring + slot * CHUNK, from, SLOT_BYTES, &full[slot]);
                    if (++slot == SLOTS) slot = 0, ++turn;
                };
                int s = 0, c = 0, old_s = 0, old_c = 0;
                for (int k = 0; k < total + lag; ++k) {
                    if (k < total) {
                        fetch(start + (long long)s * ELEMENTS + (long long)c * blocks * CHUNK, first, KEEP);
                        if (++c == mine) c = 0, ++s;
                    }
                    if (k >= lag) {
                        fetch(start + (long long)old_s * ELEMENTS + (long long)old_c * blocks * CHUNK, last, true);
                        if (++old_c == mine) old_c = 0, ++old_s;
                    }
                }
            }
        } else if (role == 1) {                         // moment exchange
            const float threads_elements = float(mine * UNROLL * 4), warps_elements = 32 * threads_elements;
            for (int s = 0; s < BATCH_SIZE; ++s) {
                barrier_wait(&gathered, s & 1);
                const float mean = lane < WARPS ? given[s & 1][lane] : 0, origin = __shfl_sync(~0u, mean, 0);
                const float offset = warp_sum(lane < WARPS ? mean - origin : 0) * (1.0f / WARPS), d = mean - origin - offset;
                const float m2 = warp_sum(lane < WARPS ? given[s & 1][32 + lane] + warps_elements * d * d : 0);
                if (lane == 0) publish(places + s * MOST_BLOCKS + blockIdx.x, origin + offset, m2);
                const float2 all = collect(places + s * MOST_BLOCKS, [&](int p) { return float((CHUNKS / blocks + (p < CHUNKS % blocks)) * CHUNK); });
                if (lane == 0) {
                    found[s & 1] = all;
                    barrier_arrive(&known);
                }
                __syncwarp();
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(BLOCK == 256 ? 232 : 112));
        const int at = 4 * threadIdx.x;
        float4 w[HELD][UNROLL], b[IN_REGISTERS + 1][UNROLL];
#pragma unroll
        for (int c = 0; c < HELD; ++c) {
            if (c >= mine) continue;
            const long long from = (long long)((int)blockIdx.x + c * blocks) * CHUNK + at;
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                w[c][u] = load_to_keep(weight + from + u * 4 * BLOCK);
                if (c < IN_REGISTERS) b[c][u] = load_to_keep(bias + from + u * 4 * BLOCK);
                else                                    // read back by the same thread only
                    *(float4*)(kept + (c - IN_REGISTERS) * CHUNK + u * 4 * BLOCK + at) = load_to_keep(bias + from + u * 4 * BLOCK);
            }
        }
        int slot = 0, phase = 0, sample = 0, chunk = 0; // the place in the ring; the next chunk to give its moments
        float origin = 0, sum[4], squares[4];
        auto release = [&]() {                          // this warp has read its slot
            __syncwarp();
            if (lane == 0) barrier_arrive(&empty[slot]);
            if (++slot == SLOTS) slot = 0, phase ^= 1;
        };
        auto take = [&]() {
            if (sample == BATCH_SIZE) return;
            float4 v[UNROLL];
            barrier_wait(&full[slot], phase);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) v[u] = *(const float4*)(ring + slot * CHUNK + u * 4 * BLOCK + at);
            release();
            if (chunk == 0) {
                origin = v[0].x;
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[i] = squares[i] = 0;
            }
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const float d[4] = {v[u].x - origin, v[u].y - origin, v[u].z - origin, v[u].w - origin};
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[i] += d[i], squares[i] += d[i] * d[i];
            }
            if (++chunk < mine) return;
            // Publish the warp's moments.
            const float n = float(mine * UNROLL * 4), all = (sum[0] + sum[1]) + (sum[2] + sum[3]), mean = origin + all / n;
            const float m2 = fmaxf(0, (squares[0] + squares[1]) + (squares[2] + squares[3]) - all * (all / n));
            const float base = __shfl_sync(~0u, mean, 0), offset = warp_sum(mean - base) * (1.0f / 32), d = mean - base - offset;
            const float deviations = warp_sum(m2 + n * d * d);
            if (lane == 0) {
                given[sample & 1][threadIdx.x / 32] = base + offset;
                given[sample & 1][32 + threadIdx.x / 32] = deviations;
                barrier_arrive(&gathered);
            }
            chunk = 0;
            ++sample;
        };
        for (int k = 0; k < lag; ++k) take();
        float* row = out + (long long)blockIdx.x * CHUNK + at;
        for (int s = 0; s < BATCH_SIZE; ++s, row += ELEMENTS) {
            barrier_wait(&known, s & 1);
            const float mean = found[s & 1].x, scale = found[s & 1].y;
#pragma unroll
            for (int i = 0; i < HELD; ++i) {
                if (i >= mine) continue;
                take();
                float4 v[UNROLL], a[UNROLL];
                barrier_wait(&full[slot], phase);
#pragma unroll
                for (int u = 0; u < UNROLL; ++u) {
                    v[u] = *(const float4*)(ring + slot * CHUNK + u * 4 * BLOCK + at);
                    a[u] = i < IN_REGISTERS ? b[i < IN_REGISTERS ? i : 0][u]
                                            : *(const float4*)(kept + (i - IN_REGISTERS) * CHUNK + u * 4 * BLOCK + at);
                }
                release();
#pragma unroll
                for (int u = 0; u < UNROLL; ++u)
                    __stcs((float4*)(row + (long long)i * blocks * CHUNK + u * 4 * BLOCK), normalised(v[u], mean, scale, w[i][u], a[u]));
            }
        }
    }
    }
}
