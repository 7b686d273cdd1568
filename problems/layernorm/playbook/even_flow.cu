// flow.cu without its fixed costs and with an even flow of reads and writes.
// - Nothing is launched before the kernel: each block clears its own words and tells block 0, which tells all when everyone has. That passes
//   while the first loads arrive. Every word is read only by those that wrote it first, or after that meeting. The launch is an ordinary one:
//   a block takes a multiprocessor's shared memory, and there are no more blocks than multiprocessors.
// - Results leave from registers, or through the ring and TMA (BULK): a group of chunks is then read from its slots while the next one is normalised.
// - Two warps take moments; the chunks that do not divide by the number of blocks are shared out in pieces of 512 bytes.
// - LEAD: a chunk is normalised only when the chunk that many places after it has arrived. Writes are then spread over the time of a
//   sample instead of filling all queues at once, in front of the words that everyone waits for. 0: at once.
// Measured on an H100, calls alone between events: 212 us, 216 with BULK, where flow.cu takes 217 and a copy of as many bytes 196. Without the wait for
// moments it takes as long, without biases 15 us less. On an H200 it is slower: 0.92x of flow.cu.
#include <cstdint>
#include "problem.h"
// @tune BLOCK = 256
// @tune AHEAD = 6, 12
// @tune BULK = 0, 1
// @tune LEAD = 0, 28
// @tune BIAS_HELD = 16, 20
// @tune BIAS_RING = 24
// @tune STAY = 0, 1
// AHEAD: chunks prefetched to L2 before they have a slot; BIAS_HELD: 16-byte accesses a thread; BIAS_RING: kilobytes; STAY: results are not marked
// as the first to leave L2.
// @workspace BATCH_SIZE * 1056 + 1056
// @launch layer_norm(x, ln_weight, ln_bias, workspace, out) grid(max(1, min(SMS, 132, FEATURES * DIM1 * DIM2 / (4 * BLOCK)))) block(BLOCK + 128) shared(229376)

#define ELEMENTS (FEATURES * DIM1 * DIM2)            // of one sample
#define EPSILON 1e-5f                                // nn.LayerNorm's default
#define MOST_BLOCKS 132
#define CHUNK (4 * BLOCK)                            // elements of a slot of the ring
#define CHUNKS (ELEMENTS / CHUNK)
#define WARPS (BLOCK / 32)
#define TAKERS 2                                     // warps that take moments
#define THREADS (BLOCK + 128)
#define PIECE 128                                    // elements of a chunk that belong to one warp
#define GROUP 4                                      // chunks that are handed to the copy engine together
constexpr int HELD = (CHUNKS + MOST_BLOCKS - 1) / MOST_BLOCKS;          // a block's chunks of a sample, at most
constexpr int least(int a, int b) { return a < b ? a : b; }
constexpr int SLOT_BYTES = 4 * CHUNK;
constexpr int IN_REGISTERS = least(HELD, BIAS_HELD);                    // chunks of biases in registers
constexpr int STREAMED = HELD - IN_REGISTERS;
constexpr int BIAS_SLOTS = least(STREAMED * BATCH_SIZE, BIAS_RING * 1024 / SLOT_BYTES);
constexpr int SLOTS = 229376 / SLOT_BYTES - BIAS_SLOTS;
constexpr bool FITS = ELEMENTS % CHUNK == 0 && HELD > 0 && HELD <= 32 && SLOTS > HELD + 2 * GROUP && LEAD + 2 * GROUP < SLOTS && BATCH_SIZE <= 24;
// Registers of a thread that normalises and of one that does not. A block has no more than it was launched with, and a warp that asks for more hangs.
constexpr int MANY = 224, FEW = 48;
static_assert(MANY * BLOCK + FEW * 128 <= 65536 / THREADS / 8 * 8 * THREADS, "no more registers than at launch");

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
__device__ __forceinline__ void bulk_store(void* to, const void* from, int bytes, uint64_t policy) {
    if (STAY) asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
    else asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;"
                      ::"l"(to), "r"(shared_address(from)), "r"(bytes), "l"(policy) : "memory");
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
__device__ __forceinline__ void put(uint64_t* place, uint64_t word) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(place), "l"(word) : "memory"); }
__device__ __forceinline__ void put(unsigned* place, unsigned word) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(place), "r"(word) : "memory"); }
__device__ __forceinline__ uint64_t look(const uint64_t* place) {
    uint64_t word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(place) : "memory");
    return word;
}
__device__ __forceinline__ unsigned look(const unsigned* place) {
    unsigned word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(place) : "memory");
    return word;
}
// One warp of each block: returns when the words of all blocks are clear, whatever memory held before. A block announces itself until it is
// told to go on, because block 0 clears the announcements, too, and may do so later.
__device__ __forceinline__ void meet(uint64_t* places) {
    const int lane = threadIdx.x % 32, blocks = gridDim.x;
    unsigned *here = reinterpret_cast<unsigned*>(places + BATCH_SIZE * MOST_BLOCKS), *go = here + MOST_BLOCKS;
    for (int s = lane; s < BATCH_SIZE; s += 32) put(places + s * MOST_BLOCKS + blockIdx.x, (uint64_t)0);
    if (lane == 0) put(go + blockIdx.x, 0u);
    __threadfence();
    __syncwarp();
    if (blockIdx.x == 0) {
        for (int p = lane; p < blocks; p += 32) put(here + p, 0u);
        for (int p = lane; p < blocks; p += 32)
            while (p > 0 && look(here + p) == 0) {}
        __threadfence();
        __syncwarp();
        for (int p = lane; p < blocks; p += 32) put(go + p, 1u);
    } else if (lane == 0)
        do put(here + blockIdx.x, 1u);
        while (look(go + blockIdx.x) == 0);
    __threadfence();
    __syncwarp();
}

// Sums of value - origin and of its square.
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
// Three values of a sample, the middle one of which all blocks measure from: their sums then add up.
struct Three { float a, b, c; };
__device__ __forceinline__ float read_early(const float* p) {
    float v;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}
__device__ __forceinline__ Three read_three(const float* row) { return {read_early(row), read_early(row + ELEMENTS / 2), read_early(row + ELEMENTS - 1)}; }
__device__ __forceinline__ float middle(Three v) { return fmaxf(fminf(v.a, v.b), fminf(fmaxf(v.a, v.b), v.c)); }
// Each block has one word a sample, written once after it was cleared; the top bit is set in those that are there.
constexpr unsigned THERE = 0x80000000u;
__device__ __forceinline__ void announce(uint64_t* places, int s, Sums v) {
    put(places + s * MOST_BLOCKS + blockIdx.x, (uint64_t)(__float_as_uint(v.squares) & 0x7FFFFFFFu | THERE) << 32 | __float_as_uint(v.sum));
}
// A whole warp waits for all blocks' sums.
__device__ __forceinline__ Sums gather(const uint64_t* places, int s) {
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
__device__ __forceinline__ float2 mean_and_scale(Sums all, float origin) {
    const float offset = all.sum * (1.0f / ELEMENTS);
    return make_float2(origin + offset, rsqrtf(fmaxf(0, all.squares * (1.0f / ELEMENTS) - offset * offset) + EPSILON));
}

__device__ __forceinline__ float normalised(float v, float mean, float scale, float w, float b) { return (v - mean) * scale * w + b; }
__device__ __forceinline__ float4 normalised(float4 v, float mean, float scale, float4 w, float4 b) {
    return make_float4(normalised(v.x, mean, scale, w.x, b.x), normalised(v.y, mean, scale, w.y, b.y),
                       normalised(v.z, mean, scale, w.z, b.z), normalised(v.w, mean, scale, w.w, b.w));
}

// Sizes the ring does not support: every block reads its part of all samples twice.
__device__ __noinline__ void directly(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                                      uint64_t* places, float* __restrict__ out, Sums* scratch) {
    const int blocks = gridDim.x, threads = blockDim.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int part = 4 * ((ELEMENTS + 4 * blocks - 1) / (4 * blocks));
    const int begin = min(ELEMENTS, part * (int)blockIdx.x), end = min(ELEMENTS, begin + part);
    if (warp == 0) meet(places);
    for (int s = 0; s < BATCH_SIZE; ++s) {
        const float* row = x + (long long)s * ELEMENTS;
        const float origin = middle(read_three(row));
        Sums mine = {0, 0};
#pragma unroll 8
        for (int i = begin + threadIdx.x; i < end; i += threads) {
            const float d = row[i] - origin;
            mine.sum += d, mine.squares += d * d;
        }
        mine = warp_sum(mine);
        __syncthreads();
        if (lane == 0) scratch[warp] = mine;
        __syncthreads();
        if (warp == 0) {
            mine = warp_sum(lane < threads / 32 ? scratch[lane] : Sums{0, 0});
            if (lane == 0) announce(places, s, mine);
        }
    }
    for (int s = 0; s < BATCH_SIZE; ++s) {
        const long long offset = (long long)s * ELEMENTS;
        const float2 found = mean_and_scale(gather(places, s), middle(read_three(x + offset)));
#pragma unroll 8
        for (int i = begin + threadIdx.x; i < end; i += threads)
            __stcs(out + offset + i, normalised(__ldcs(x + offset + i), found.x, found.y, weight[i], bias[i]));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
layer_norm(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias, uint64_t* places, float* __restrict__ out) {
    extern __shared__ __align__(128) float ring[];
    __shared__ Sums parts[32];
    const int blocks = gridDim.x, lane = threadIdx.x % 32;
    if (!FITS || CHUNKS > HELD * blocks) {
        directly(x, weight, bias, places, out, parts);
        return;
    }
    if constexpr (FITS) {
    // `free`: a slot's values have been used (BULK 0), or a group of results is in its slots (BULK 1).
    __shared__ uint64_t full[SLOTS], free[SLOTS], bias_full[BIAS_SLOTS + 1], gathered[BATCH_SIZE], known[BATCH_SIZE];
    __shared__ float2 found[BATCH_SIZE];
    __shared__ Sums given[BATCH_SIZE][TAKERS];
    float* bias_ring = ring + SLOTS * CHUNK;
    // Of each sample a block has every blocks-th chunk from blockIdx.x on, and some pieces of those that are left.
    const int whole = CHUNKS / blocks, left = CHUNKS % blocks * WARPS, pieces = left / blocks + ((int)blockIdx.x < left % blocks);
    const int mine = whole + (pieces > 0), total = mine * BATCH_SIZE;
    const int last = whole * blocks * CHUNK + ((int)blockIdx.x * (left / blocks) + min((int)blockIdx.x, left % blocks)) * PIECE;
    auto place = [&](int c) { return c < whole ? ((int)blockIdx.x + c * blocks) * CHUNK : last; };
    auto bytes = [&](int c) { return c < whole ? SLOT_BYTES : pieces * (PIECE * 4); };
    if (threadIdx.x == BLOCK) {
        for (int i = 0; i < SLOTS; ++i) barrier_init(&full[i], 1);
        for (int i = 0; i < SLOTS; ++i) barrier_init(&free[i], BULK ? BLOCK : WARPS);
        for (int i = 0; i < BIAS_SLOTS + 1; ++i) barrier_init(&bias_full[i], 1);
        for (int i = 0; i < BATCH_SIZE; ++i) barrier_init(&gathered[i], 32 * TAKERS), barrier_init(&known[i], 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= BLOCK) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FEW));
        const int role = threadIdx.x / 32 - WARPS;
        if (role == 0) {
            if (lane == 0) {                            // the ring
                const uint64_t once = read_once(), again = read_again();
                int load = 0, load_c = 0, slot = 0, ask = 0, ask_c = 0, bias_c = 0, bias_count = 0, bias_slot = 0;
                const float *from = x, *asked = x;
                auto load_next = [&] {
                    if (load == total) return;
                    barrier_expect(&full[slot], bytes(load_c));
                    bulk_load(ring + slot * CHUNK, from + place(load_c), bytes(load_c), &full[slot], once);
                    ++load;
                    if (++load_c == mine) load_c = 0, from += ELEMENTS;
                    if (++slot == SLOTS) slot = 0;
                };
                auto ask_next = [&] {                   // the next chunk without a slot into L2
                    if (AHEAD == 0 || ask == total) return;
                    if (ask >= SLOTS) bulk_prefetch(asked + place(ask_c), bytes(ask_c));
                    ++ask;
                    if (++ask_c == mine) ask_c = 0, asked += ELEMENTS;
                };
                auto bias_next = [&] {                  // the next biases that are loaded again for every sample
                    if (STREAMED == 0 || bias_count == BATCH_SIZE) return;
                    while (!streams(bias_c))
                        if (++bias_c == mine) { bias_c = 0; if (++bias_count == BATCH_SIZE) return; }
                    barrier_expect(&bias_full[bias_slot], bytes(bias_c));
                    bulk_load(bias_ring + bias_slot * CHUNK, bias + place(bias_c), bytes(bias_c), &bias_full[bias_slot], again);
                    if (++bias_slot == BIAS_SLOTS) bias_slot = 0;
                    if (++bias_c == mine) bias_c = 0, ++bias_count;
                };
                for (int k = 0; k < SLOTS; ++k) load_next();
                for (int k = 0; k < SLOTS + AHEAD; ++k) ask_next();
                barrier_wait(&full[(mine * 3 + 3) / 4 - 1], 0);         // x first
                for (int k = BIAS_SLOTS; k-- > 0;) bias_next();
                int old = 0, turn = 0, phase = 0, stored = 0;           // stored: chunks whose slots are still being read
                float* to = out;
                for (int s = 0; s < BATCH_SIZE; ++s, to += ELEMENTS)
                    for (int c = 0; c < mine;) {
                        const int end = BULK ? min(c + GROUP, mine) : c + 1;
                        barrier_wait(&free[turn], phase);
                        if (++turn == SLOTS) turn = 0, phase ^= 1;
                        for (int i = c; i < end; ++i) {
                            if (BULK) {
                                bulk_store(to + place(i), ring + old * CHUNK, bytes(i), once);
                                if (++old == SLOTS) old = 0;
                            }
                            if (streams(i)) bias_next();
                        }
                        if (BULK) {
                            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
                            asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(1) : "memory");
                        }
                        for (int i = BULK ? stored : 1; i > 0; --i) load_next(), ask_next();
                        stored = end - c;
                        c = end;
                    }
                if (BULK) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(0) : "memory");
            }
        } else if (role == 1) {                         // moment exchange
            meet(places);
            Three three = read_three(x);
            for (int s = 0; s < BATCH_SIZE; ++s) {
                const float origin = middle(three);
                if (s + 1 < BATCH_SIZE) three = read_three(x + (long long)(s + 1) * ELEMENTS);
                barrier_wait(&gathered[s], 0);          // nobody looks for the others' sums before its own are there
                Sums all = {0, 0};
#pragma unroll
                for (int i = 0; i < TAKERS; ++i) all.sum += given[s][i].sum, all.squares += given[s][i].squares;
                if (lane == 0) announce(places, s, all);
                all = gather(places, s);
                if (lane == 0) {
                    found[s] = mean_and_scale(all, origin);
                    barrier_arrive(&known[s]);
                }
                __syncwarp();
            }
        } else {                                        // moments of half of each chunk
            constexpr int ACCESSES = CHUNK / 128 / TAKERS;
            const int number = role - 2;
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
                for (int c = 0; c < mine; ++c) {
                    barrier_wait(&full[slot], phase);
                    const float4* here = (const float4*)(ring + slot * CHUNK) + number * (ACCESSES * 32) + lane;
                    if (c < whole) {
                        float4 v[ACCESSES];
#pragma unroll
                        for (int u = 0; u < ACCESSES; ++u) v[u] = here[u * 32];
#pragma unroll
                        for (int u = 0; u < ACCESSES; ++u) add(v[u]);
                    } else
#pragma unroll 1
                        for (int u = 0; u < ACCESSES && number * ACCESSES + u < pieces; ++u) add(here[u * 32]);
                    if (++slot == SLOTS) slot = 0, phase ^= 1;
                }
                const Sums all = warp_sum(Sums{(sum[0] + sum[1]) + (sum[2] + sum[3]), (squares[0] + squares[1]) + (squares[2] + squares[3])});
                if (lane == 0) given[s][number] = all;
                barrier_arrive(&gathered[s]);
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MANY));
        const int warp = threadIdx.x / 32, at = 4 * threadIdx.x;               // a warp has one piece of a chunk
        float4 w[HELD + 1], b[IN_REGISTERS + 1];
        const uint64_t once = read_once();
        barrier_wait(&full[(mine * 3 + 3) / 4 - 1], 0);                 // x first
#pragma unroll
        for (int c = 0; c < HELD; ++c)
            if (c < HELD - 1 || c < whole || warp < pieces) {
                w[c] = load_to_keep(weight + place(c) + at, once);
                if (!streams(c)) b[resident(c)] = load_to_keep(bias + place(c) + at, once);
            }
        int old = 0, phase = 0, bias_slot = 0, bias_phase = 0, lead = LEAD, lead_phase = 0, turn = 0;
        const int stride = blocks * CHUNK;
        float* to = out + place(0) + at;
        const int end = last + at - (place(0) + at + (HELD - 1) * stride);     // from where a whole last chunk would be to the pieces
        for (int s = 0; s < BATCH_SIZE; ++s, to += ELEMENTS - HELD * stride) {
            barrier_wait(&known[s], 0);
            const float mean = found[s].x, scale = found[s].y;
#pragma unroll
            for (int i = 0; i < HELD; ++i) {
                float* const there = i < HELD - 1 || i < whole ? to : to + end;
                to += stride;
                if (i == HELD - 1 && i >= mine) continue;
                if (LEAD > 0) {
                    if (s * mine + i + LEAD < total) barrier_wait(&full[lead], lead_phase);
                    if (++lead == SLOTS) lead = 0, lead_phase ^= 1;
                }
                barrier_wait(&full[old], phase);
                if (streams(i)) barrier_wait(&bias_full[bias_slot], bias_phase);
                if (i < HELD - 1 || i < whole || warp < pieces) {
                    float* here = ring + old * CHUNK + at;
                    const float4 a = streams(i) ? *(const float4*)(bias_ring + bias_slot * CHUNK + at) : b[streams(i) ? 0 : resident(i)];
                    const float4 v = normalised(*(const float4*)here, mean, scale, w[i], a);
                    if (BULK) *(float4*)here = v;
                    else if (STAY) *(float4*)there = v;
                    else __stcs((float4*)there, v);
                }
                if (++old == SLOTS) old = 0, phase ^= 1;
                if (streams(i) && ++bias_slot == BIAS_SLOTS) bias_slot = 0, bias_phase ^= 1;
                if (!BULK) {
                    __syncwarp();
                    if (lane == 0) barrier_arrive(&free[turn]);
                    if (++turn == SLOTS) turn = 0;
                } else if (i % GROUP == GROUP - 1 || i == HELD - 1 || (i == HELD - 2 && i == mine - 1)) {
                    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                    barrier_arrive(&free[turn]);
                    if (++turn == SLOTS) turn = 0;
                }
            }
        }
    }
    }
}
