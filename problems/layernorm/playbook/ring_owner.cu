// A block keeps the same columns of every sample for the whole launch. Weights live in its registers, biases in registers, in shared
// memory or (the rest) in L2; TMA streams x through a ring in shared memory that holds one sample's columns and part of
// the next ones: a chunk contributes its moments as it arrives, stays, and is normalised in place once all blocks' moments are known.
//
// Predicted (16 x 64 x 256 x 256, 132 blocks of 128 KB per sample): device memory 268 MB of x once + 268 MB of results + 34 MB of weights
// and biases = 570 MB, 0.137 ms at 4.17 TB/s. Also from L2: the streamed part of the biases, 16 x 10 MB. Shared memory is read twice
// (2 x 128 KB per sample and block: 1.1 us of 8.6), arithmetic is about 6 instructions per element (0.9 us of 8.6). Device memory should
// be the bottleneck. The risk is the exchange of moments once per sample (about 2 us), hidden as long as the ring's free part
// (SLOTS - HELD chunks) keeps TMA busy. Expect 0.150 to 0.165 ms.
#include <cstdint>
#include "problem.h"
// @tune BLOCK = 256, 512
// @tune UNROLL = 2, 1
// @tune BIAS_HELD = 12, 8, 4, 0, 14
// @tune BIAS_SHARED = 4, 0, 8
// @tune BIAS_RING = 24, 32, 48, 16
// @require BIAS_HELD * BLOCK <= 3584
// @require BLOCK * UNROLL <= 1024
// @require BIAS_SHARED * 8 + BIAS_RING <= 88
// BIAS_HELD: 16-byte accesses a thread; BIAS_SHARED: kilobytes / 8; BIAS_RING: kilobytes.
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
constexpr int IN_SHARED = least(HELD - IN_REGISTERS, BIAS_SHARED * 8192 / SLOT_BYTES);
constexpr int STREAMED = HELD - IN_REGISTERS - IN_SHARED;
constexpr int BIAS_SLOTS = least(STREAMED * BATCH_SIZE, BIAS_RING * 1024 / SLOT_BYTES > 1 ? BIAS_RING * 1024 / SLOT_BYTES : 2);
constexpr int SLOTS = 229376 / SLOT_BYTES - IN_SHARED - BIAS_SLOTS;
constexpr bool FITS = ELEMENTS % CHUNK == 0 && HELD > 0 && SLOTS > HELD && HELD * UNROLL * BLOCK <= 8192;

// Where the biases of chunk c are: the streamed ones lie evenly between the others, so that they have time to arrive.
__device__ __forceinline__ constexpr int streamed_before(int c) { return c * STREAMED / (HELD > 0 ? HELD : 1); }
__device__ __forceinline__ constexpr bool streams(int c) { return streamed_before(c + 1) > streamed_before(c); }
__device__ __forceinline__ constexpr int resident(int c) { return c - streamed_before(c); }     // its number among the others
__device__ __forceinline__ constexpr bool in_registers(int c) { return !streams(c) && resident(c) < IN_REGISTERS; }
__device__ __forceinline__ constexpr bool in_shared(int c) { return !streams(c) && resident(c) >= IN_REGISTERS; }

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
    __shared__ uint64_t full[SLOTS], empty[SLOTS], bias_full[BIAS_SLOTS + 1], bias_empty[BIAS_SLOTS + 1], gathered, known;
    __shared__ float2 found;
    float* kept = ring + SLOTS * CHUNK;
    float* bias_ring = kept + IN_SHARED * CHUNK;
    const int mine = CHUNKS / blocks + ((int)blockIdx.x < CHUNKS % blocks);     // of each sample: every blocks-th from blockIdx.x on
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; ++i) barrier_init(&full[i], 1), barrier_init(&empty[i], WARPS);
        for (int i = 0; i < BIAS_SLOTS + 1; ++i) barrier_init(&bias_full[i], 1), barrier_init(&bias_empty[i], WARPS);
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
                const uint64_t policy = read_once();
                int slot = 0, turn = 0;
                for (int s = 0; s < BATCH_SIZE; ++s) {
                    const float* from = x + (long long)s * ELEMENTS + (long long)blockIdx.x * CHUNK;
                    for (int c = 0; c < mine; ++c, from += (long long)blocks * CHUNK) {
                        if (turn > 0) barrier_wait(&empty[slot], turn - 1 & 1);
                        barrier_expect(&full[slot], SLOT_BYTES);
                        bulk_load(ring + slot * CHUNK, from, SLOT_BYTES, &full[slot], policy);
                        if (++slot == SLOTS) slot = 0, ++turn;
                    }
                }
            }
        } else if (role == 1) {                         // the biases that are loaded again for every sample
            if (lane == 0 && STREAMED > 0) {
                const uint64_t policy = read_again();
                int slot = 0, turn = 0;
                for (int s = 0; s < BATCH_SIZE; ++s)
                    for (int c = 0; c < mine; ++c) {
                        if (!streams(c)) continue;
                        if (turn > 0) barrier_wait(&bias_empty[slot], turn - 1 & 1);
                        barrier_expect(&bias_full[slot], SLOT_BYTES);
                        bulk_load(bias_ring + slot * CHUNK, bias + (long long)(blockIdx.x + c * blocks) * CHUNK, SLOT_BYTES, &bias_full[slot], policy);
                        if (++slot == BIAS_SLOTS) slot = 0, ++turn;
                    }
            }
        } else if (role == 2) {                         // moment exchange
            const float threads_elements = float(mine * UNROLL * 4), warps_elements = 32 * threads_elements;
            for (int s = 0; s < BATCH_SIZE; ++s) {
                barrier_wait(&gathered, s & 1);
                const float mean = lane < WARPS ? parts[lane] : 0, origin = __shfl_sync(~0u, mean, 0);
                const float offset = warp_sum(lane < WARPS ? mean - origin : 0) * (1.0f / WARPS), d = mean - origin - offset;
                const float m2 = warp_sum(lane < WARPS ? parts[32 + lane] + warps_elements * d * d : 0);
                if (lane == 0) publish(places + s * MOST_BLOCKS + blockIdx.x, origin + offset, m2);
                const float2 all = collect(places + s * MOST_BLOCKS, [&](int p) { return float((CHUNKS / blocks + (p < CHUNKS % blocks)) * CHUNK); });
                if (lane == 0) {
                    found = all;
                    barrier_arrive(&known);
                }
                __syncwarp();
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(BLOCK == 256 ? 232 : 112));
        const int at = 4 * threadIdx.x;
        // Chunks whose moments have been taken, and the place of the next one in the ring.
        int slot = 0, phase = 0;
        float origin = 0, sum[4], squares[4];
        auto take = [&](int c) {
            float4 v[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) v[u] = *(const float4*)(ring + slot * CHUNK + u * 4 * BLOCK + at);
            if (c == 0) {
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
            if (++slot == SLOTS) slot = 0, phase ^= 1;
        };
        auto give = [&]() {                             // publish this warp's moments
            const float n = float(mine * UNROLL * 4), total = (sum[0] + sum[1]) + (sum[2] + sum[3]), mean = origin + total / n;
            const float m2 = fmaxf(0, (squares[0] + squares[1]) + (squares[2] + squares[3]) - total * (total / n));
            const float base = __shfl_sync(~0u, mean, 0), offset = warp_sum(mean - base) * (1.0f / 32), d = mean - base - offset;
            const float all = warp_sum(m2 + n * d * d);
            if (lane == 0) {
                parts[threadIdx.x / 32] = base + offset;
                parts[32 + threadIdx.x / 32] = all;
                barrier_arrive(&gathered);
            }
        };
        float4 w[HELD][UNROLL], b[IN_REGISTERS + 1][UNROLL];
#pragma unroll
        for (int c = 0; c < HELD; ++c) {
            if (c >= mine) continue;
            const long long from = (long long)((int)blockIdx.x + c * blocks) * CHUNK + at;
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                w[c][u] = load_to_keep(weight + from + u * 4 * BLOCK);
                if (in_registers(c)) b[resident(c)][u] = load_to_keep(bias + from + u * 4 * BLOCK);
                if (in_shared(c))            // read back by the same thread only
                    *(float4*)(kept + (resident(c) - IN_REGISTERS) * CHUNK + u * 4 * BLOCK + at) = load_to_keep(bias + from + u * 4 * BLOCK);
            }
        }
        for (int c = 0; c < mine; ++c) {
            barrier_wait(&full[slot], phase);
            take(c);
        }
        give();
        int old = 0, bias_slot = 0, bias_phase = 0;     // the place of the next chunk to be normalised; of its biases
        const int early = min(mine, SLOTS - mine);      // chunks of the next sample that come before any of this one leaves
        float* row = out + (long long)blockIdx.x * CHUNK + at;
        for (int s = 0; s < BATCH_SIZE; ++s, row += ELEMENTS) {
            int c = 0;
            if (s + 1 < BATCH_SIZE)
                while (c < early && !__any_sync(~0u, barrier_test(&known, s & 1)))
                    if (__all_sync(~0u, barrier_test(&full[slot], phase))) take(c++);
            barrier_wait(&known, s & 1);
            const float mean = found.x, scale = found.y;
#pragma unroll
            for (int i = 0; i < HELD; ++i) {
                if (i >= mine) continue;
                float4 v[UNROLL], a[UNROLL];
#pragma unroll
                for (int u = 0; u < UNROLL; ++u) v[u] = *(const float4*)(ring + old * CHUNK + u * 4 * BLOCK + at);
                if (streams(i)) barrier_wait(&bias_full[bias_slot], bias_phase);
#pragma unroll
                for (int u = 0; u < UNROLL; ++u)
                    a[u] = in_registers(i) ? b[in_registers(i) ? resident(i) : 0][u]
                         : in_shared(i) ? *(const float4*)(kept + (resident(i) - IN_REGISTERS) * CHUNK + u * 4 * BLOCK + at)
                                                   : *(const float4*)(bias_ring + bias_slot * CHUNK + u * 4 * BLOCK + at);
#pragma unroll
                for (int u = 0; u < UNROLL; ++u)
                    __stcs((float4*)(row + (long long)i * blocks * CHUNK + u * 4 * BLOCK), normalised(v[u], mean, scale, w[i][u], a[u]));
                __syncwarp();
                if (lane == 0) {
                    barrier_arrive(&empty[old]);
                    if (streams(i)) barrier_arrive(&bias_empty[bias_slot]);
                }
                if (++old == SLOTS) old = 0;
                if (streams(i) && ++bias_slot == BIAS_SLOTS) bias_slot = 0, bias_phase ^= 1;
            }
            if (s + 1 < BATCH_SIZE) {
                for (; c < mine; ++c) {
                    barrier_wait(&full[slot], phase);
                    take(c);
                }
                give();
            }
        }
    }
    }
}
