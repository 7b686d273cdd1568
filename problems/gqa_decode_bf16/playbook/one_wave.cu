// One launch for one wave of blocks: each sequence and head of keys and values has parts of equal length, two blocks a multiprocessor, which merge their
// parts through L2. early_pages.cu takes 54 us for 134 MB: 30 us for the bytes and over 20 us whatever their number.
// - Keys and values are read once: marked as the first to leave L2, they take each other's places and not those of lines that must be written to
//   memory first. Pages on their way need places, too: 26 of 8 KB a multiprocessor are 27 MB, half of L2, and the mark gained 2.5 us. Fewer are
//   enough for the bandwidth: 64 KB a multiprocessor cover 2 us.
// - No second launch. Blocks mark early that their sums are not there yet, whatever memory held before. A sum is its own announcement: it is written as
//   soon as it is known, and those who need it look at it until it is a number. Each block merges a slice of the results. All blocks of a
//   sequence's head are active at once, or there is one.
// - A warp hands whole pages to the copy engine, as in cluster_pages.cu. Each slot belongs to one of the warps that multiply: a warp that waits
//   for a slot whose page before has not arrived takes the page before that for its own.
// Measured at 1 x 32768 with 8 heads, one block a multiprocessor, 26 pages and words that announce the sums: 48.3 us. Predicted now: 44 us, of which an
// empty launch takes 4.4 and the bytes 31 to 37, by what is written to memory meanwhile.
#include <cuda.h>
#include <cstdint>
#include "problem.h"
// @tune PER_SM = 2, 1
// @tune ONCE = 1, 0
// @tune EACH = 2, 3
// @tune TEAM = 8, 4
// @require ONCE + EACH * TEAM / 24 >= 1
// PER_SM: blocks that share a multiprocessor; TEAM: warps of a multiprocessor that multiply; EACH: pages of the ring for each of them; ONCE: keys and
// values are marked as the first to leave L2.
// @tensormap keys = k_cache as bfloat16(K_CACHE_DIM0 * PAGE_SIZE, KV_HEADS * HEAD_DIM) tile(16, 64) swizzle(128)
// @tensormap values = v_cache as bfloat16(K_CACHE_DIM0 * PAGE_SIZE, KV_HEADS * HEAD_DIM) tile(16, 64) swizzle(128)
// @workspace PER_SM * SMS * (32 * HEAD_DIM + 72)
// @launch attend(keys, values, q, block_table, lengths, workspace, out) grid(KV_HEADS * BATCH_SIZE * max(1, min(PER_SM * SMS / (KV_HEADS * BATCH_SIZE), BLOCK_TABLE_DIM1 / 4))) block(32 * (TEAM / PER_SM) + 64) shared(max(EACH * (TEAM / PER_SM) * HEAD_DIM * 64, 96 * PER_SM * SMS) + 1024)

#define TABLE BLOCK_TABLE_DIM1
#define WARPS (TEAM / PER_SM)                        // that multiply
#define THREADS (32 * WARPS + 64)
#define STAGES (EACH * WARPS)                        // pages of a block's ring
#define TILES (HEAD_DIM / 16)
#define RESULTS (8 * HEAD_DIM)                       // of a group, padded to eight queries
#define LINE (HEAD_DIM + 4)                          // floats of a query's sums: the warps' writes fall into different banks
constexpr int BOX = 16 * 64 * 2, HALF = 16 * HEAD_DIM * 2, STAGE = 2 * HALF;   // bytes of a copy, of a page's keys, of keys and values
constexpr int QUADS = GROUP * HEAD_DIM / 4;                                    // results of a group, four at a time
static_assert(PAGE_SIZE == 16, "a page is one tile of the tensor cores");
static_assert(GROUP <= 8 && (HEAD_DIM == 64 || HEAD_DIM == 128), "the group fits one instruction");
static_assert(STAGES <= 32, "a lane for each page of the ring");
static_assert(STAGES % WARPS == 0, "a warp has seen the page before in each of its slots");
static_assert(WARPS * 8 * LINE * 4 <= STAGES * STAGE, "the ring holds the warps' sums at the end");

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
__device__ __forceinline__ void load_box(const CUtensorMap* map, unsigned to, int column, int row, uint64_t* b, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;"
                 ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(shared_address(b)), "l"(policy) : "memory");
}
__device__ __forceinline__ uint64_t read_policy() {
    uint64_t p;
    if (ONCE) asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    else asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(p));
    return p;
}
__device__ __forceinline__ void read_matrices(unsigned (&m)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void read_transposed(unsigned (&m)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ unsigned transposed(unsigned m) {
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(m));
    return m;
}
__device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ unsigned packed(float a, float b) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const unsigned*>(&both);
}
__device__ __forceinline__ float power(float v) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r; }
// What a part's sums count for beside those of the part with the largest score.
__device__ __forceinline__ float share(float top, float total, float peak) { return total == 0 ? 0 : power(top - peak); }
__device__ __forceinline__ void put(unsigned* place, unsigned word) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(place), "r"(word) : "memory"); }
__device__ __forceinline__ unsigned look(const unsigned* place) {
    unsigned word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(place) : "memory");
    return word;
}
// Sums of weights and of weighted values: each number tells by itself whether it is there. `MISSING` is a NaN that no instruction makes.
constexpr unsigned MISSING = 0xFFFFFFFFu;
__device__ __forceinline__ bool there(float v) { return __float_as_uint(v) != MISSING; }
__device__ __forceinline__ void tell(float4* place, float4 v) {
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(place), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
__device__ __forceinline__ void tell(float2* place, float2 v) {
    asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(place), "f"(v.x), "f"(v.y) : "memory");
}
__device__ __forceinline__ float4 look(const float4* place) {
    float4 v;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(place) : "memory");
    return v;
}
__device__ __forceinline__ float2 look(const float2* place) {
    float2 v;
    asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(place) : "memory");
    return v;
}
__device__ __forceinline__ bool there(float4 v) { return there(v.x) && there(v.y) && there(v.z) && there(v.w); }
__device__ __forceinline__ bool there(float2 v) { return there(v.x) && there(v.y); }
__device__ __forceinline__ uint2 packed(float4 v) { return make_uint2(packed(v.x, v.y), packed(v.z, v.w)); }

// What blocks tell each other.
struct Shared {
    float4* sums;                                    // [block][RESULTS / 4]
    float2* ends;                                    // [block][8]: largest score and sum of weights for each query
    unsigned *here, *go;                             // [block]
};
__device__ __forceinline__ Shared shared_in(float* workspace) {
    float2* ends = reinterpret_cast<float2*>(workspace + gridDim.x * RESULTS);
    unsigned* here = reinterpret_cast<unsigned*>(ends + gridDim.x * 8);
    return {reinterpret_cast<float4*>(workspace), ends, here, here + gridDim.x};
}
// One warp of each block: returns when the sums of blocks first to first + parts are marked as missing. A block announces itself until it is told to go
// on, because the first block clears the announcements, too, and may do so later.
__device__ __forceinline__ void meet(const Shared& all, int first, int parts) {
    const int lane = threadIdx.x % 32, block = blockIdx.x;
    const float none = __uint_as_float(MISSING);
    for (int i = lane; i < RESULTS / 4; i += 32) tell(all.sums + block * (RESULTS / 4) + i, make_float4(none, none, none, none));
    if (lane < 8) tell(all.ends + block * 8 + lane, make_float2(none, none));
    if (lane == 0) put(all.go + block, 0);
    __threadfence();
    __syncwarp();
    if (block == first) {
        for (int p = 1 + lane; p < parts; p += 32) put(all.here + first + p, 0);
        for (int p = 1 + lane; p < parts; p += 32)
            while (look(all.here + first + p) == 0) {}
        __threadfence();
        __syncwarp();
        for (int p = 1 + lane; p < parts; p += 32) put(all.go + first + p, 1);
    } else if (lane == 0)
        do put(all.here + block, 1);
        while (look(all.go + block) == 0);
    __threadfence();
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(THREADS, PER_SM)
attend(const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap values, const __nv_bfloat16* q,
       const int* block_table, const int* lengths, float* workspace, __nv_bfloat16* out) {
    extern __shared__ __align__(1024) char space[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    __shared__ float tops[WARPS][8], totals[WARPS][8];
    __shared__ float4 shares[THREADS];
    const unsigned ring = (shared_address(space) + 1023) / 1024 * 1024;
    float* const sums = reinterpret_cast<float*>(space + (ring - shared_address(space)));   // after the last page: [warp][query][dimension]
    const int parts = gridDim.x / (KV_HEADS * BATCH_SIZE), part = blockIdx.x % parts, pair = blockIdx.x / parts;
    const int sequence = pair / KV_HEADS, kv = pair % KV_HEADS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int begin = (int)((long long)part * TABLE / parts), end = (int)((long long)(part + 1) * TABLE / parts);
    const Shared all = shared_in(workspace);
    if (warp == WARPS) {                                                // pages into the ring
        auto entry = [&](int i) { return i < end ? __ldg(block_table + sequence * TABLE + i) : 0; };
        int places = entry(begin + lane), later = entry(begin + 32 + lane);
        const int length = __ldg(lengths + sequence);
        if (lane == 0) {
            asm volatile("prefetch.tensormap [%0];" ::"l"(&keys) : "memory");
            asm volatile("prefetch.tensormap [%0];" ::"l"(&values) : "memory");
        }
        if (lane < STAGES) barrier_init(&full[lane], 1), barrier_init(&empty[lane], 32);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        const uint64_t policy = read_policy();
        const int count = min(end, (length + PAGE_SIZE - 1) / PAGE_SIZE) - begin;
        int slot = 0, phase = 1;
        for (int n = 0; n < count; ++n) {
            if (n && n % 32 == 0) places = later, later = entry(begin + n + 32 + lane);
            const int row = __shfl_sync(~0u, places, n % 32) * PAGE_SIZE;
            if (n >= STAGES) barrier_wait(&empty[slot], phase);
            if (lane == 0) {
                barrier_expect(&full[slot], STAGE);
                const unsigned to = ring + slot * STAGE;
#pragma unroll
                for (int half = 0; half < HEAD_DIM / 64; ++half) load_box(&keys, to + half * BOX, kv * HEAD_DIM + half * 64, row, &full[slot], policy);
#pragma unroll
                for (int half = 0; half < HEAD_DIM / 64; ++half) load_box(&values, to + HALF + half * BOX, kv * HEAD_DIM + half * 64, row, &full[slot], policy);
            }
            __syncwarp();
            if (++slot == STAGES) slot = 0, phase ^= 1;
        }
        __syncthreads();
    } else if (warp > WARPS) {
        __syncthreads();
        if (parts > 1) meet(all, pair * parts, parts);
        __syncthreads();
    } else {
        unsigned wanted[TILES][2];                                      // query lane / 4, two values of each eight
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const long long at = ((long long)pair * GROUP + lane / 4) * HEAD_DIM + t * 16 + h * 8 + lane % 4 * 2;
                wanted[t][h] = lane / 4 < GROUP ? *reinterpret_cast<const unsigned*>(q + at) : 0;
            }
        const int length = __ldg(lengths + sequence);
        __syncthreads();
        const int count = min(end, (length + PAGE_SIZE - 1) / PAGE_SIZE) - begin;
        constexpr float SCALE = HEAD_DIM == 64 ? 0.125f : 0.08838834764831845f;
        float sum[TILES][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
        const int matrix = lane / 8, line = lane % 8;                   // which row of which 8 x 8 matrix this lane points at
        // Pieces of 16 bytes lie in rows of 128 bytes of a box, swizzled by the row.
        auto piece = [&](int row, int p) { return (unsigned)(p / 8 * BOX + row * 128 + ((p % 8) ^ line) * 16); };
        for (int n = warp; n < count; n += WARPS) {
            const int slot = n % STAGES;
            const unsigned page = ring + slot * STAGE;
            barrier_wait(&full[slot], n / STAGES & 1);
            float even[4] = {}, odd[4] = {};
#pragma unroll
            for (int t = 0; t < TILES; ++t) {                           // rows: keys; matrices: keys, keys + 8, then 8 dimensions on
                unsigned k[4];
                read_matrices(k, page + piece((matrix & 1) * 8 + line, 2 * t + (matrix >> 1)));
                multiply(t % 2 ? odd : even, k, wanted[t][0], wanted[t][1]);
            }
            float score[4];                                             // keys lane / 4 and + 8, queries lane % 4 * 2 and + 1
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const bool inside = (begin + n) * PAGE_SIZE + lane / 4 + i / 2 * 8 < length;
                score[i] = inside ? (even[i] + odd[i]) * (SCALE * 1.4426950408889634f) : -INFINITY;
            }
            float peak[2] = {fmaxf(score[0], score[2]), fmaxf(score[1], score[3])};
#pragma unroll
            for (int o = 4; o < 32; o <<= 1)
#pragma unroll
                for (int h = 0; h < 2; ++h) peak[h] = fmaxf(peak[h], __shfl_xor_sync(~0u, peak[h], o));
            if (__any_sync(~0u, peak[0] > top[0] || peak[1] > top[1])) {
                float keep[2];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    peak[h] = fmaxf(peak[h], top[h]);
                    keep[h] = power(top[h] - peak[h]);
                    total[h] *= keep[h], top[h] = peak[h];
                }
#pragma unroll
                for (int t = 0; t < TILES; ++t)
#pragma unroll
                    for (int i = 0; i < 4; ++i) sum[t][i] *= keep[i % 2];
            }
            float weight[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) weight[i] = power(score[i] - top[i % 2]), total[i % 2] += weight[i];
            const unsigned b0 = transposed(packed(weight[0], weight[1])), b1 = transposed(packed(weight[2], weight[3]));
#pragma unroll
            for (int t = 0; t < TILES; ++t) {                           // rows: dimensions; matrices: 8 dimensions on, then keys + 8
                unsigned v[4];
                read_transposed(v, page + HALF + piece((matrix >> 1) * 8 + line, 2 * t + (matrix & 1)));
                multiply(sum[t], v, b0, b1);
            }
            barrier_arrive(&empty[slot]);
        }
#pragma unroll
        for (int o = 4; o < 32; o <<= 1)
#pragma unroll
            for (int h = 0; h < 2; ++h) total[h] += __shfl_xor_sync(~0u, total[h], o);
        if (lane < 4) {
#pragma unroll
            for (int h = 0; h < 2; ++h) tops[warp][lane * 2 + h] = top[h], totals[warp][lane * 2 + h] = total[h];
        }
        __syncthreads();                                                // the ring holds the warps' sums from here on
        float* mine = sums + warp * 8 * LINE;
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) mine[(lane % 4 * 2 + i % 2) * LINE + t * 16 + i / 2 * 8 + lane / 4] = sum[t][i];
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 4 * threadIdx.x; i < RESULTS; i += 4 * THREADS) {
        const int g = i / HEAD_DIM, d = i % HEAD_DIM;
        float peak = -INFINITY, whole = 0;
        float4 value = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) peak = fmaxf(peak, tops[w][g]);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float keep = share(tops[w][g], totals[w][g], peak);
            const float4 one = *reinterpret_cast<const float4*>(sums + (w * 8 + g) * LINE + d);
            whole += totals[w][g] * keep;
            value.x += one.x * keep, value.y += one.y * keep, value.z += one.z * keep, value.w += one.w * keep;
        }
        if (parts > 1) {
            if (d == 0) tell(all.ends + blockIdx.x * 8 + g, make_float2(peak, whole));
            tell(all.sums + blockIdx.x * (RESULTS / 4) + i / 4, value);
        } else if (g < GROUP) {
            const float inverse = 1 / whole;
            *reinterpret_cast<uint2*>(out + ((long long)pair * GROUP + g) * HEAD_DIM + d) =
                packed(make_float4(value.x * inverse, value.y * inverse, value.z * inverse, value.w * inverse));
        }
    }
    if (parts == 1) return;
    __syncthreads();                                                    // the warps' sums have been used
    // A slice of the results for each block, some parts of them for each thread.
    const int first = pair * parts, slice = (QUADS + parts - 1) / parts, teams = THREADS / slice, team = threadIdx.x / slice;
    const int quad = part * slice + threadIdx.x % slice, last = min(QUADS, (part + 1) * slice) - 1;
    const bool used = team < teams && quad < QUADS;
    const float4* from = all.sums + first * (RESULTS / 4) + quad;
    // What each part counts for: a warp for each query of the slice.
    float* counts = sums;                                               // [part][query]
    for (int g = part * slice / (HEAD_DIM / 4) + warp; g <= last / (HEAD_DIM / 4); g += THREADS / 32) {
        float2* mine = reinterpret_cast<float2*>(sums + parts * 8) + g * parts;     // read back by the same thread only
        float peak = -INFINITY, whole = 0;
        for (int p = lane; p < parts; p += 32) {
            float2 one;
            do one = look(all.ends + (first + p) * 8 + g);
            while (!there(one));
            mine[p] = one;
            peak = fmaxf(peak, one.x);
        }
#pragma unroll
        for (int o = 16; o; o >>= 1) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, o));
        for (int p = lane; p < parts; p += 32) whole += mine[p].y * share(mine[p].x, mine[p].y, peak);
#pragma unroll
        for (int o = 16; o; o >>= 1) whole += __shfl_xor_sync(~0u, whole, o);
        for (int p = lane; p < parts; p += 32) counts[p * 8 + g] = share(mine[p].x, mine[p].y, peak) / whole;
    }
    float4 early[2];
    bool all_there;
    do {
        all_there = true;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            early[i] = used && team + i * teams < parts ? look(from + (team + i * teams) * (RESULTS / 4)) : make_float4(0, 0, 0, 0);
            all_there = all_there && there(early[i]);
        }
    } while (!all_there);
    __syncthreads();
    float4 value = make_float4(0, 0, 0, 0);
    if (used)
        for (int p = team, i = 0; p < parts; p += teams, ++i) {
            const float keep = counts[p * 8 + quad / (HEAD_DIM / 4)];
            float4 one = i == 0 ? early[0] : early[1];
            if (i > 1)
                do one = look(from + p * (RESULTS / 4));
                while (!there(one));
            value.x += one.x * keep, value.y += one.y * keep, value.z += one.z * keep, value.w += one.w * keep;
        }
    shares[threadIdx.x] = value;
    __syncthreads();
    if (team > 0 || !used) return;
    for (int t = 1; t < teams; ++t) {
        const float4 one = shares[t * slice + threadIdx.x];
        value.x += one.x, value.y += one.y, value.z += one.z, value.w += one.w;
    }
    *reinterpret_cast<uint2*>(out + (long long)pair * GROUP * HEAD_DIM + quad * 4) = packed(value);
}
