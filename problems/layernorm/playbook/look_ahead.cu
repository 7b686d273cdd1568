// flow.cu with moments taken further ahead, and no launch to clear the workspace.
// - In flow.cu the moments of sample s + 1 wait until its last chunks have slots, which are freed while sample s is written, and then for
//   the exchange: a sample takes 10 us where memory needs 8. Here four warps read the chunks that have no slot yet from L2, where they are
//   prefetched; a sample's moments then depend on what was written one sample earlier, and are known before they are needed.
// - Each block clears its own words, and the blocks meet once while the first loads arrive, in place of a launch that clears.
// - A sample's chunks without a slot (12 of 31) are taken first, while those with a slot wait for the sample two before to be written. Taken
//   last, in batches of 4 that cost about 1.2 us each, they would come 5 us after that, and the exchange takes 2.5 of a sample's 8 us.
// x comes from memory once; about 12 of 31 chunks pass from L2 to the multiprocessors twice.
// Predicted (16 x 64 x 256 x 256, 570 MB): 16 * 8.4 us, 4 for the first moments, 5 for the last exchange and its writing, 6 for the launch:
// 150 us; 165 if the waits are not the bottleneck.
#include <cooperative_groups.h>
#include <cstdint>
#include "problem.h"
// @tune BLOCK = 256
// @tune UNROLL = 1
// @tune AHEAD = 16, 36
// @tune BIAS_HELD = 12, 14
// @tune BIAS_RING = 24
// @tune FAR_FIRST = 1, 0
// @tune AT_ONCE = 6, 4
// BIAS_HELD: 16-byte accesses a thread; BIAS_RING: kilobytes; AHEAD: chunks. FAR_FIRST: chunks without a slot are taken before those with one; AT_ONCE: those that a warp reads together.
// @require BIAS_HELD + AT_ONCE <= 18
// @workspace BATCH_SIZE * 1056
// @launch layer_norm(x, ln_weight, ln_bias, workspace, out) grid(max(1, min(SMS, 132, FEATURES * DIM1 * DIM2 / (4 * BLOCK * UNROLL)))) block(BLOCK + 256) shared(229376) cooperative

#define ELEMENTS (FEATURES * DIM1 * DIM2)            // of one sample
#define EPSILON 1e-5f                                // nn.LayerNorm's default
#define MOST_BLOCKS 132
#define CHUNK (4 * BLOCK * UNROLL)                   // elements of a slot of the ring
#define CHUNKS (ELEMENTS / CHUNK)
#define WARPS (BLOCK / 32)
#define TAKERS 4                                      // warps that take moments
#define THREADS (BLOCK + 128 + 32 * TAKERS)
constexpr int HELD = (CHUNKS + MOST_BLOCKS - 1) / MOST_BLOCKS;          // a block's chunks of a sample, at most
constexpr int least(int a, int b) { return a < b ? a : b; }
constexpr int SLOT_BYTES = 4 * CHUNK;
constexpr int IN_REGISTERS = least(HELD, BIAS_HELD / UNROLL);           // chunks of biases in registers
constexpr int STREAMED = HELD - IN_REGISTERS;
constexpr int BIAS_SLOTS = least(STREAMED * BATCH_SIZE, BIAS_RING * 1024 / SLOT_BYTES > 1 ? BIAS_RING * 1024 / SLOT_BYTES : 2);
constexpr int SLOTS = 229376 / SLOT_BYTES - BIAS_SLOTS;
constexpr bool FITS = ELEMENTS % CHUNK == 0 && HELD > 0 && SLOTS > HELD && HELD * UNROLL * BLOCK <= 8192 && BATCH_SIZE <= 24;

// Where the biases of chunk c are: the streamed ones lie evenly between the others, so that they have time to arrive.
__device__ __forceinline__ constexpr int streamed_before(int c) { return c * STREAMED / (HELD > 0 ? HELD : 1); }
__device__ __forceinline__ constexpr bool streams(int c) { return streamed_before(c + 1) > streamed_before(c); }
__device__ __forceinline__ constexpr int resident(int c) { return c - streamed_before(c); }     // its number among the others

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
// A read that the compiler may not repeat: what it returns stays in registers, L2 need not keep it.
__device__ __forceinline__ float4 load_to_keep(const float* p, uint64_t policy) {
    float4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p), "l"(policy));
    return v;
}
__device__ __forceinline__ void bulk_prefetch(const void* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
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

// The moment exchange of the ring's path. `Sums` are those of value - origin and its square.
struct Sums { float sum, squares; };
__device__ __forceinline__ Sums warp_sum(Sums v) {
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        const float a = __shfl_xor_sync(~0u, v.sum, o), b = __shfl_xor_sync(~0u, v.squares, o);
        v.sum += a;
        v.squares += b;
    }
    return v;
}
// Three values of a sample, the middle one of which all blocks measure from.
struct Three { float a, b, c; };
__device__ __forceinline__ float read_early(const float* p) {
    float v;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}
__device__ __forceinline__ float4 read_early(const float4* p) {
    float4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
    return v;
}
__device__ __forceinline__ Three read_three(const float* row) { return {read_early(row), read_early(row + ELEMENTS / 2 + 1), read_early(row + ELEMENTS - 1)}; }
__device__ __forceinline__ float middle(Three v) { return fmaxf(fminf(v.a, v.b), fminf(fmaxf(v.a, v.b), v.c)); }
// Each block has one word a sample, written once; the top bit is set in those that are there.
constexpr unsigned THERE = 0x80000000u;
// A whole warp tells the others this block's sums.
__device__ __forceinline__ void announce(uint64_t* places, int s, Sums v) {
    const uint64_t word = (uint64_t)(__float_as_uint(v.squares) & 0x7FFFFFFFu | THERE) << 32 | __float_as_uint(v.sum);
    if (threadIdx.x % 32 == 0) asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(places + s * MOST_BLOCKS + blockIdx.x), "l"(word) : "memory");
}
// A whole warp waits for all blocks' sums.
__device__ __forceinline__ Sums gather(uint64_t* places, int s) {
    const int lane = threadIdx.x % 32, blocks = gridDim.x;
    constexpr int SHARE = (MOST_BLOCKS + 31) / 32;
    const uint64_t* from = places + s * MOST_BLOCKS;
    uint64_t word[SHARE];
    bool all;
    do {
        all = true;
#pragma unroll
        for (int i = 0; i < SHARE; ++i) {
            word[i] = lane + 32 * i < blocks ? look(from + lane + 32 * i) : (uint64_t)THERE << 32;
            all = all && (unsigned)(word[i] >> 32) & THERE;
        }
    } while (!__all_sync(~0u, all));
    Sums v = {0, 0};
#pragma unroll
    for (int i = 0; i < SHARE; ++i) v.sum += __uint_as_float((unsigned)word[i]), v.squares += __uint_as_float((unsigned)(word[i] >> 32) & 0x7FFFFFFFu);
    return warp_sum(v);
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

extern "C" __global__ void __launch_bounds__(THREADS, 1)
layer_norm(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias, uint64_t* places, float* __restrict__ out) {
    extern __shared__ __align__(128) float ring[];
    __shared__ float parts[64];
    const int blocks = gridDim.x, lane = threadIdx.x % 32;
    for (int s = threadIdx.x; s < BATCH_SIZE; s += THREADS) places[s * MOST_BLOCKS + blockIdx.x] = 0;
    if (!FITS || CHUNKS > HELD * blocks) {
        cooperative_groups::this_grid().sync();         // all words are clear
        directly(x, weight, bias, places, out, parts);
        return;
    }
    if constexpr (FITS) {
    __shared__ uint64_t full[SLOTS], empty[SLOTS], bias_full[BIAS_SLOTS + 1], bias_empty[BIAS_SLOTS + 1], gathered[BATCH_SIZE], known[BATCH_SIZE];
    __shared__ float2 found[BATCH_SIZE];
    __shared__ Sums given[BATCH_SIZE][TAKERS];
    float* bias_ring = ring + SLOTS * CHUNK;
    const int mine = CHUNKS / blocks + ((int)blockIdx.x < CHUNKS % blocks);     // of each sample: every blocks-th from blockIdx.x on
    const float* columns = x + (long long)blockIdx.x * CHUNK;
    const int first = min(SLOTS, mine * BATCH_SIZE);                          // chunks that have a slot from the start
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; ++i) barrier_init(&full[i], 1), barrier_init(&empty[i], WARPS);
        for (int i = 0; i < BIAS_SLOTS + 1; ++i) barrier_init(&bias_full[i], 1), barrier_init(&bias_empty[i], WARPS);
        for (int i = 0; i < BATCH_SIZE; ++i) barrier_init(&gathered[i], TAKERS), barrier_init(&known[i], 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        const uint64_t policy = read_once();
        for (int k = 0, s = 0, c = 0; k < first; ++k) {
            barrier_expect(&full[k], SLOT_BYTES);
            bulk_load(ring + k * CHUNK, columns + (long long)s * ELEMENTS + (long long)c * blocks * CHUNK, SLOT_BYTES, &full[k], policy);
            if (++c == mine) c = 0, ++s;
        }
    }
    cooperative_groups::this_grid().sync();             // all words are clear, and the barriers of this block are there
    // One taker's share of the work, a whole warp.
    auto take_all = [&](int number) {
        constexpr int ACCESSES = CHUNK / 128 / TAKERS;
        static_assert(ACCESSES * AT_ONCE <= 12, "what a taker reads at once fits into its registers");
        int slot = 0, phase = 0;
        Three three = read_three(x);
        for (int s = 0; s < BATCH_SIZE; ++s) {
            const float origin = middle(three);
            if (s + 1 < BATCH_SIZE) three = read_three(x + (long long)(s + 1) * ELEMENTS);
            float sum[4] = {0, 0, 0, 0}, squares[4] = {0, 0, 0, 0};
            auto add = [&](float4 v) {
                const float d[4] = {v.x - origin, v.y - origin, v.z - origin, v.w - origin};
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[i] += d[i], squares[i] += d[i] * d[i];
            };
            // Those with a slot get it when the sample two before has been written, and the first sample's have it from the start.
            const int near = s == 0 ? mine : min(mine, SLOTS - mine);
            auto take_near = [&] {
                for (int c = 0; c < near; ++c) {
                    barrier_wait(&empty[slot], phase ^ 1);  // nobody waited here for a chunk that was taken from L2: only once the
                                                            // slot was given back does the parity of `full` say which chunk is there
                    barrier_wait(&full[slot], phase);
                    const float4* from = (const float4*)(ring + slot * CHUNK) + number * 32 + lane;
                    float4 v[ACCESSES];
#pragma unroll
                    for (int k = 0; k < ACCESSES; ++k) v[k] = from[k * 32 * TAKERS];
#pragma unroll
                    for (int k = 0; k < ACCESSES; ++k) add(v[k]);
                    if (++slot == SLOTS) slot = 0, phase ^= 1;
                }
            };
            // The others are taken on their way: from L2, where they are or will be needed again.
            auto take_far = [&] {
                const float4* row = (const float4*)(columns + (long long)s * ELEMENTS) + number * 32 + lane;
                for (int c = near; c < mine; c += AT_ONCE) {
                    float4 v[AT_ONCE][ACCESSES];
#pragma unroll
                    for (int u = 0; u < AT_ONCE; ++u)
#pragma unroll
                        for (int k = 0; k < ACCESSES; ++k)
                            v[u][k] = c + u < mine ? read_early(row + (long long)(c + u) * blocks * (CHUNK / 4) + k * 32 * TAKERS)
                                                   : make_float4(origin, origin, origin, origin);
#pragma unroll
                    for (int u = 0; u < AT_ONCE; ++u)
#pragma unroll
                        for (int k = 0; k < ACCESSES; ++k) add(v[u][k]);
                }
            };
            if (FAR_FIRST) take_far();
            take_near();
            if (!FAR_FIRST) take_far();
            slot += mine - near;
            if (slot >= SLOTS) slot -= SLOTS, phase ^= 1;
            const Sums all = warp_sum(Sums{(sum[0] + sum[1]) + (sum[2] + sum[3]), (squares[0] + squares[1]) + (squares[2] + squares[3])});
            if (lane == 0) {
                given[s][number] = all;
                barrier_arrive(&gathered[s]);
            }
            __syncwarp();
        }
    };
    if (threadIdx.x >= BLOCK + 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(AT_ONCE > 4 ? 72 : 56));
        take_all(threadIdx.x / 32 - WARPS - 4);
    } else if (threadIdx.x >= BLOCK) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(40));
        const int role = threadIdx.x / 32 - WARPS;
        if (role == 0) {                                // the ring
            if (lane == 0) {
                const uint64_t policy = read_once();
                const int total = mine * BATCH_SIZE;
                auto place = [&](int s, int c) { return columns + (long long)s * ELEMENTS + (long long)c * blocks * CHUNK; };
                int ask_s = first / mine, ask_c = first % mine, s = ask_s, c = ask_c, slot = 0, phase = 0;
                auto ask = [&] {                        // the next chunk into L2
                    if (AHEAD == 0 || ask_s >= BATCH_SIZE) return;
                    bulk_prefetch(place(ask_s, ask_c), SLOT_BYTES);
                    if (++ask_c == mine) ask_c = 0, ++ask_s;
                };
                for (int i = 0; i < AHEAD; ++i) ask();
                for (int k = first; k < total; ++k) {
                    barrier_wait(&empty[slot], phase);
                    barrier_expect(&full[slot], SLOT_BYTES);
                    bulk_load(ring + slot * CHUNK, place(s, c), SLOT_BYTES, &full[slot], policy);
                    ask();
                    if (++c == mine) c = 0, ++s;
                    if (++slot == SLOTS) slot = 0, phase ^= 1;
                }
            }
        } else if (role == 1) {                         // the biases that are loaded again for every sample
            if (lane == 0 && STREAMED > 0) {
                const uint64_t policy = read_again();
                int slot = 0, turn = 0;
                barrier_wait(&full[(mine * 3 + 3) / 4 - 1], 0);                  // x first
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
            Three three = read_three(x);
            for (int s = 0; s < BATCH_SIZE; ++s) {
                const float origin = middle(three);
                if (s + 1 < BATCH_SIZE) three = read_three(x + (long long)(s + 1) * ELEMENTS);
                Sums all = {0, 0};
                barrier_wait(&gathered[s], 0);          // nobody looks for the others' sums before its own are there
                for (int i = 0; i < TAKERS; ++i) all.sum += given[s][i].sum, all.squares += given[s][i].squares;
                announce(places, s, all);
                all = gather(places, s);
                if (lane == 0) {
                    const float offset = all.sum * (1.0f / ELEMENTS);
                    found[s] = make_float2(origin + offset, rsqrtf(fmaxf(0, all.squares * (1.0f / ELEMENTS) - offset * offset) + EPSILON));
                    barrier_arrive(&known[s]);
                }
                __syncwarp();
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(AT_ONCE > 4 ? 200 : 208));
        const int at = threadIdx.x / 32 * (128 * UNROLL) + 4 * lane;           // a warp has one run of a chunk
        float4 w[HELD][UNROLL], b[IN_REGISTERS + 1][UNROLL];
        const uint64_t policy = read_once();
        barrier_wait(&full[(mine * 3 + 3) / 4 - 1], 0);                  // x first
#pragma unroll
        for (int c = 0; c < HELD; ++c) {
            if (c >= mine) continue;
            const long long from = (long long)((int)blockIdx.x + c * blocks) * CHUNK + at;
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                w[c][u] = load_to_keep(weight + from + u * 128, policy);
                if (!streams(c)) b[resident(c)][u] = load_to_keep(bias + from + u * 128, policy);
            }
        }
        int old = 0, phase = 0, bias_slot = 0, bias_phase = 0;
        float* row = out + (long long)blockIdx.x * CHUNK + at;
        for (int s = 0; s < BATCH_SIZE; ++s, row += ELEMENTS) {
            barrier_wait(&known[s], 0);
            const float mean = found[s].x, scale = found[s].y;
#pragma unroll
            for (int i = 0; i < HELD; ++i) {
                if (i >= mine) continue;
                float4 v[UNROLL], a[UNROLL];
                const float* here = ring + old * CHUNK + at;
                barrier_wait(&full[old], phase);
#pragma unroll
                for (int u = 0; u < UNROLL; ++u) v[u] = *(const float4*)(here + u * 128);
                if (streams(i)) barrier_wait(&bias_full[bias_slot], bias_phase);
#pragma unroll
                for (int u = 0; u < UNROLL; ++u)
                    a[u] = streams(i) ? *(const float4*)(bias_ring + bias_slot * CHUNK + u * 128 + at) : b[streams(i) ? 0 : resident(i)][u];
#pragma unroll
                for (int u = 0; u < UNROLL; ++u)
                    __stcs((float4*)(row + (long long)i * blocks * CHUNK + u * 128), normalised(v[u], mean, scale, w[i][u], a[u]));
                __syncwarp();
                if (lane == 0) {
                    barrier_arrive(&empty[old]);
                    if (streams(i)) barrier_arrive(&bias_empty[bias_slot]);
                }
                if (++old == SLOTS) old = 0, phase ^= 1;
                if (streams(i) && ++bias_slot == BIAS_SLOTS) bias_slot = 0, bias_phase ^= 1;
            }
        }
    }
    }
}
