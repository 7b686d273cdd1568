// One launch: a cluster of blocks for each head of keys and values, which merges its parts through distributed shared memory. early_pages.cu takes
// 50 us for 134 MB and 80 us for 268 MB: 30 us for the bytes and 20 us whatever their number, of which a second launch and a merge from L2 are
// a good part. Here a warp asks the copy engine for whole pages as soon as it knows the table's entries, into a ring of 216 KB a multiprocessor;
// other warps multiply. Each block then gives each of its peers the sums of the results that the peer writes.
// Bounds (1 x 32768, 8 heads): 134 MB, 32 us at 4.2 TB/s, 30 us as read alone. Predicted there: 4 us from launch to the first page, 31 for the
// bytes, 1 from the last page to the block's sums, 2 for the cluster's exchange, 3 for the call: 41 us where early_pages.cu takes 52. Measured with 26 slots: 88.
// Each slot belongs to one of the warps that multiply (STAGES is a multiple of WARPS): a warp that waits for a slot whose page before has not arrived
// takes the page before that for its own. Two blocks a multiprocessor with 13 slots for four warps ended with a launch failure.
#include <cuda.h>
#include <cstdint>
#include "problem.h"
// @tune WARPS = 8
// @tune PER_SM = 1
// @tune STAGES = 24
// PER_SM: blocks that share a multiprocessor; STAGES: pages of a block's ring.
// @require PER_SM * STAGES <= 26
// @require STAGES % WARPS == 0
// @tensormap keys = k_cache as bfloat16(K_CACHE_DIM0 * PAGE_SIZE, KV_HEADS * HEAD_DIM) tile(16, 64) swizzle(128)
// @tensormap values = v_cache as bfloat16(K_CACHE_DIM0 * PAGE_SIZE, KV_HEADS * HEAD_DIM) tile(16, 64) swizzle(128)
// @launch attend(keys, values, q, block_table, lengths, out) grid(KV_HEADS * BATCH_SIZE * max(1, min(16, min(next_pow2(SMS * PER_SM / (KV_HEADS * BATCH_SIZE) + 1) / 2, next_pow2(BLOCK_TABLE_DIM1 / 4 + 1) / 2)))) block(32 * WARPS + 32) shared(STAGES * HEAD_DIM * 64 + 1024) cluster(max(1, min(16, min(next_pow2(SMS * PER_SM / (KV_HEADS * BATCH_SIZE) + 1) / 2, next_pow2(BLOCK_TABLE_DIM1 / 4 + 1) / 2))))

#define TABLE BLOCK_TABLE_DIM1
#define TILES (HEAD_DIM / 16)
#define RESULTS (8 * HEAD_DIM)                       // of a group, padded to eight queries
#define MOST_BLOCKS 16                               // of a cluster
#define LINE (HEAD_DIM + 4)                          // floats of a query's sums: the warps' writes fall into different banks
constexpr int BOX = 16 * 64 * 2, HALF = 16 * HEAD_DIM * 2, STAGE = 2 * HALF;   // bytes of a copy, of a page's keys, of keys and values
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
__device__ __forceinline__ void load_box(const CUtensorMap* map, unsigned to, int column, int row, uint64_t* b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(shared_address(b)) : "memory");
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
__device__ __forceinline__ unsigned cluster_rank() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// Tells the peers that this block has started: they may write to its shared memory once all have.
__device__ __forceinline__ void cluster_start() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ unsigned at_peer(const void* ours, unsigned rank) {
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(ours)), "r"(rank));
    return address;
}
__device__ __forceinline__ void give(unsigned to, float x, float y) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ float power(float v) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r; }
// What a part's sums count for beside those of the part with the largest score.
__device__ __forceinline__ float share(float top, float total, float peak) { return total == 0 ? 0 : power(top - peak); }

extern "C" __global__ void __launch_bounds__(32 * WARPS + 32, PER_SM)
attend(const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap values, const __nv_bfloat16* q,
       const int* block_table, const int* lengths, __nv_bfloat16* out) {
    extern __shared__ __align__(1024) char space[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    __shared__ float tops[WARPS][8], totals[WARPS][8];
    __shared__ float2 ends[MOST_BLOCKS][8];                             // largest score and sum of weights, from each block for each query
    __shared__ float4 given[RESULTS / 4];                                     // sums of the results that this block writes, from each block
    const unsigned ring = (shared_address(space) + 1023) / 1024 * 1024;
    const int blocks = gridDim.x / (KV_HEADS * BATCH_SIZE), rank = cluster_rank(), pair = blockIdx.x / blocks;
    const int sequence = pair / KV_HEADS, kv = pair % KV_HEADS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int most = (TABLE + blocks - 1) / blocks, begin = rank * most;
    const int length = __ldg(lengths + sequence);
    if (warp == WARPS) {                                                // pages into the ring
        auto entry = [&](int i) { return i < TABLE ? __ldg(block_table + sequence * TABLE + i) : 0; };
        int places = entry(begin + lane), later = entry(begin + 32 + lane);
        cluster_start();
        if (lane == 0) {
            asm volatile("prefetch.tensormap [%0];" ::"l"(&keys) : "memory");
            asm volatile("prefetch.tensormap [%0];" ::"l"(&values) : "memory");
        }
        if (lane < STAGES) barrier_init(&full[lane], 1), barrier_init(&empty[lane], 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        const int count = min(most, (length + PAGE_SIZE - 1) / PAGE_SIZE - begin);
        int slot = 0, phase = 1;
        for (int n = 0; n < count; ++n) {
            if (n && n % 32 == 0) places = later, later = entry(begin + n + 32 + lane);
            const int row = __shfl_sync(~0u, places, n % 32) * PAGE_SIZE;
            if (n >= STAGES) barrier_wait(&empty[slot], phase);
            if (lane == 0) {
                barrier_expect(&full[slot], STAGE);
                const unsigned to = ring + slot * STAGE;
#pragma unroll
                for (int half = 0; half < HEAD_DIM / 64; ++half) load_box(&keys, to + half * BOX, kv * HEAD_DIM + half * 64, row, &full[slot]);
#pragma unroll
                for (int half = 0; half < HEAD_DIM / 64; ++half) load_box(&values, to + HALF + half * BOX, kv * HEAD_DIM + half * 64, row, &full[slot]);
            }
            __syncwarp();
            if (++slot == STAGES) slot = 0, phase ^= 1;
        }
        __syncthreads();
    } else {
        cluster_start();
        unsigned wanted[TILES][2];                                      // query lane / 4, two values of each eight
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const long long at = ((long long)pair * GROUP + lane / 4) * HEAD_DIM + t * 16 + h * 8 + lane % 4 * 2;
                wanted[t][h] = lane / 4 < GROUP ? *reinterpret_cast<const unsigned*>(q + at) : 0;
            }
        __syncthreads();
        const int count = min(most, (length + PAGE_SIZE - 1) / PAGE_SIZE - begin);
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
            __syncwarp();
            if (lane == 0) barrier_arrive(&empty[slot]);
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
        float* mine = reinterpret_cast<float*>(space + (ring - shared_address(space))) + warp * 8 * LINE;
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) mine[(lane % 4 * 2 + i % 2) * LINE + t * 16 + i / 2 * 8 + lane / 4] = sum[t][i];
    }
    __syncthreads();
    cluster_wait();
    const float* sums = reinterpret_cast<const float*>(space + (ring - shared_address(space)));     // [warp][query][dimension]
    int bits = 0;                                                       // of the number of results that each block writes
    while (RESULTS >> bits > blocks) ++bits;
    const int slice = 1 << bits;
#pragma unroll 1
    for (int i = 4 * threadIdx.x; i < RESULTS; i += 4 * (32 * WARPS + 32)) {
        const int g = i / HEAD_DIM, d = i % HEAD_DIM;
        float peak = -INFINITY, whole = 0;
        float4 value = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) peak = fmaxf(peak, tops[w][g]);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float keep = share(tops[w][g], totals[w][g], peak);
            const float4 part = *reinterpret_cast<const float4*>(sums + (w * 8 + g) * LINE + d);
            whole += totals[w][g] * keep;
            value.x += part.x * keep, value.y += part.y * keep, value.z += part.z * keep, value.w += part.w * keep;
        }
        const unsigned to = at_peer(&given[(rank * slice + (i & slice - 1)) / 4], i >> bits);
        give(to, value.x, value.y);
        give(to + 8, value.z, value.w);
#pragma unroll 1
        for (int b = d / 4; b < blocks; b += HEAD_DIM / 4) give(at_peer(&ends[rank][g], b), peak, whole);
    }
    cluster_arrive();
    cluster_wait();
#pragma unroll 1
    for (int i = 2 * threadIdx.x; i < slice; i += 2 * (32 * WARPS + 32)) {
        const int g = (rank * slice + i) / HEAD_DIM, d = (rank * slice + i) % HEAD_DIM;
        if (g >= GROUP) break;
        float peak = -INFINITY, whole = 0;
        float2 value = make_float2(0, 0);
#pragma unroll 4
        for (int b = 0; b < blocks; ++b) peak = fmaxf(peak, ends[b][g].x);
#pragma unroll 4
        for (int b = 0; b < blocks; ++b) {
            const float2 end = ends[b][g], part = *(reinterpret_cast<const float2*>(given) + (b * slice + i) / 2);
            const float keep = share(end.x, end.y, peak);
            whole += end.y * keep, value.x += part.x * keep, value.y += part.y * keep;
        }
        const float inverse = 1 / whole;
        *reinterpret_cast<unsigned*>(out + ((long long)pair * GROUP + g) * HEAD_DIM + d) = packed(value.x * inverse, value.y * inverse);
    }
}
