// early_pages.cu whose keys and values are marked as the first to leave L2. With cold caches L2 is full of lines that something else has written: each
// read that takes the place of such a line sends it to memory first, up to 50 MB, 12 us, whatever the size of the cache of keys and values. They
// are read once: marked, they take each other's places. Kernels that write as much as they read leave as much behind, and gain nothing.
// Measured at 1 x 32768 with 8 heads: 50.1 us where early_pages.cu takes 54, and not the 42 of L2 left as it was. Pages on their way need places
// in L2, too: up to 25 MB.
#include <cstdint>
#include "problem.h"
// @tune WARPS = 4, 8
// @tune STAGES = 3
// @workspace 4 * (224 * 1024 / (WARPS * STAGES * HEAD_DIM * 64) * SMS + KV_HEADS * BATCH_SIZE) * GROUP * (HEAD_DIM + 2)
// @require WARPS * STAGES * HEAD_DIM * 64 <= 220 * 1024
// @launch attend(q, k_cache, v_cache, block_table, lengths, workspace, out) grid(max(1, min(224 * 1024 / (WARPS * STAGES * HEAD_DIM * 64) * SMS / (KV_HEADS * BATCH_SIZE), ceil_div(BLOCK_TABLE_DIM1 * PAGE_SIZE, 16 * WARPS))), KV_HEADS, BATCH_SIZE) block(32 * WARPS) shared(WARPS * STAGES * HEAD_DIM * 64)
// @launch merge(workspace, workspace + 16 * max(1, min(224 * 1024 / (WARPS * STAGES * HEAD_DIM * 64) * SMS / (KV_HEADS * BATCH_SIZE), ceil_div(BLOCK_TABLE_DIM1 * PAGE_SIZE, 16 * WARPS))), out) grid(KV_HEADS * GROUP, BATCH_SIZE) block(4 * HEAD_DIM) shared(4 * max(1, min(224 * 1024 / (WARPS * STAGES * HEAD_DIM * 64) * SMS / (KV_HEADS * BATCH_SIZE), ceil_div(BLOCK_TABLE_DIM1 * PAGE_SIZE, 16 * WARPS))))

#define TABLE BLOCK_TABLE_DIM1
#define KEYS 16                                      // of a stage: one tile of the tensor cores
#define PIECES (HEAD_DIM / 8)                        // a row of 16-byte pieces
#define TILES (HEAD_DIM / 16)
#define ONE_PAGE (PAGE_SIZE % KEYS == 0)
#define SLICES 4
static_assert(GROUP <= 8 && (HEAD_DIM == 64 || HEAD_DIM == 128), "the group fits one instruction");

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ uint64_t read_once() {
    uint64_t p;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}
__device__ __forceinline__ void copy(unsigned to, const void* from, bool inside, uint64_t policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;"
                 ::"r"(to), "l"(from), "r"(inside ? 16 : 0), "l"(policy) : "memory");
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

extern "C" __global__ void __launch_bounds__(32 * WARPS) attend(const __nv_bfloat16* q, const __nv_bfloat16* k_cache,
                                                                const __nv_bfloat16* v_cache, const int* block_table,
                                                                const int* lengths, float* workspace, __nv_bfloat16* out) {
    extern __shared__ __align__(128) char ring[];
    __shared__ float tops[WARPS][8], totals[WARPS][8];
    constexpr int HALF = KEYS * HEAD_DIM * 2, STAGE = 2 * HALF;         // bytes of a stage's keys; values follow
    const int kv = blockIdx.y, sequence = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int step = gridDim.x * WARPS;
    const unsigned base = shared_address(ring) + warp * STAGES * STAGE;
    // The place of a chunk's only page, whether or not the sequence is as long.
    auto page_of = [&](int chunk) { return ONE_PAGE && chunk < TABLE * PAGE_SIZE / KEYS ? __ldg(block_table + sequence * TABLE + chunk * KEYS / PAGE_SIZE) : 0; };
    int chunk = blockIdx.x * WARPS + warp, places[STAGES];
#pragma unroll
    for (int s = 0; s < STAGES; ++s) places[s] = page_of(chunk + s * step);
    const int length = lengths[sequence], chunks = (length + KEYS - 1) / KEYS;
    unsigned wanted[TILES][2];                                          // query lane / 4, two values of each eight
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const long long at = (((long long)sequence * KV_HEADS + kv) * GROUP + lane / 4) * HEAD_DIM + t * 16 + h * 8 + lane % 4 * 2;
            wanted[t][h] = lane / 4 < GROUP ? *reinterpret_cast<const unsigned*>(q + at) : 0;
        }
    const uint64_t once = read_once();
    auto fetch = [&](int chunk, int s, int place_of_page) {
        const unsigned to = base + s * STAGE;
        constexpr int AT_ONCE = 32 / PIECES;
        const int piece = lane % PIECES;
#pragma unroll
        for (int r = 0; r < KEYS; r += AT_ONCE) {
            const int row = r + lane / PIECES, key = chunk * KEYS + row;
            const bool inside = key < length;
            const long long page = ONE_PAGE ? place_of_page : inside ? __ldg(block_table + sequence * TABLE + key / PAGE_SIZE) : 0;
            const long long at = ((page * PAGE_SIZE + key % PAGE_SIZE) * KV_HEADS + kv) * HEAD_DIM + piece * 8;
            const unsigned place = to + (row * PIECES + (piece ^ row % 8)) * 16;
            copy(place, inside ? k_cache + at : k_cache, inside, once);
            copy(place + HALF, inside ? v_cache + at : v_cache, inside, once);
        }
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (chunk + s * step < chunks) fetch(chunk + s * step, s, places[s]);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    constexpr float SCALE = HEAD_DIM == 64 ? 0.125f : 0.08838834764831845f;
    float sum[TILES][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {};
    int next = places[STAGES - 1];                                      // the place of the page to fetch next
    const int matrix = lane / 8, line = lane % 8;                       // which row of which 8 x 8 matrix this lane points at
    for (int turn = 0; chunk < chunks; chunk += step, ++turn) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncwarp();
        const int ahead = chunk + (STAGES - 1) * step;
        if (ahead < chunks) fetch(ahead, (turn + STAGES - 1) % STAGES, next);
        next = page_of(ahead + step);
        asm volatile("cp.async.commit_group;" ::: "memory");
        const unsigned keys = base + turn % STAGES * STAGE, values = keys + HALF;
        float even[4] = {}, odd[4] = {};
#pragma unroll
        for (int t = 0; t < TILES; ++t) {                               // rows: keys; matrices: keys, keys + 8, then 8 dimensions on
            unsigned k[4];
            read_matrices(k, keys + (((matrix & 1) * 8 + line) * PIECES + ((2 * t + (matrix >> 1)) ^ line)) * 16);
            multiply(t % 2 ? odd : even, k, wanted[t][0], wanted[t][1]);
        }
        float score[4];                                                 // keys lane / 4 and + 8, queries lane % 4 * 2 and + 1
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const bool inside = chunk * KEYS + lane / 4 + i / 2 * 8 < length;
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
                keep[h] = exp2f(top[h] - peak[h]);
                total[h] *= keep[h], top[h] = peak[h];
            }
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[t][i] *= keep[i % 2];
        }
        float weight[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) weight[i] = exp2f(score[i] - top[i % 2]), total[i % 2] += weight[i];
        const unsigned b0 = transposed(packed(weight[0], weight[1])), b1 = transposed(packed(weight[2], weight[3]));
#pragma unroll
        for (int t = 0; t < TILES; ++t) {                               // rows: dimensions; matrices: 8 dimensions on, then keys + 8
            unsigned v[4];
            read_transposed(v, values + (((matrix >> 1) * 8 + line) * PIECES + ((2 * t + (matrix & 1)) ^ line)) * 16);
            multiply(sum[t], v, b0, b1);
        }
        __syncwarp();
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
#pragma unroll
    for (int o = 4; o < 32; o <<= 1)
#pragma unroll
        for (int h = 0; h < 2; ++h) total[h] += __shfl_xor_sync(~0u, total[h], o);
    __syncthreads();                                                    // the ring holds the warps' sums from here on
    float* sums = reinterpret_cast<float*>(ring);                       // [warp][query][dimension]
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[(warp * 8 + lane % 4 * 2 + i % 2) * HEAD_DIM + t * 16 + i / 2 * 8 + lane / 4] = sum[t][i];
    if (lane < 4) {
#pragma unroll
        for (int h = 0; h < 2; ++h) tops[warp][lane * 2 + h] = top[h], totals[warp][lane * 2 + h] = total[h];
    }
    __syncthreads();
    const long long pair = (long long)sequence * KV_HEADS + kv;
    float* mine = workspace + (pair * gridDim.x + blockIdx.x) * GROUP * (HEAD_DIM + 2);
    for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += 32 * WARPS) {
        const int g = i / HEAD_DIM, d = i % HEAD_DIM;
        float peak = -INFINITY, whole = 0, value = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) peak = fmaxf(peak, tops[w][g]);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float keep = totals[w][g] > 0 ? exp2f(tops[w][g] - peak) : 0;
            whole += totals[w][g] * keep;
            value += sums[(w * 8 + g) * HEAD_DIM + d] * keep;
        }
        if (gridDim.x == 1) {
            out[(pair * GROUP + g) * HEAD_DIM + d] = __float2bfloat16(value / whole);
            continue;
        }
        mine[g * (HEAD_DIM + 2) + d] = value;
        if (d == 0) mine[g * (HEAD_DIM + 2) + HEAD_DIM] = peak, mine[g * (HEAD_DIM + 2) + HEAD_DIM + 1] = whole;
    }
}

// `later` is 16 bytes beyond `workspace` for each part: a plan passes addresses, not numbers.
extern "C" __global__ void __launch_bounds__(SLICES * HEAD_DIM) merge(const float* workspace, const float* later, __nv_bfloat16* __restrict__ out) {
    extern __shared__ float keep[];                                     // one weight a part
    __shared__ float shares[SLICES][HEAD_DIM], totals[HEAD_DIM / 32];
    const int parts = (int)(later - workspace) / 4, head = blockIdx.x, sequence = blockIdx.y, lane = threadIdx.x % 32;
    if (parts == 1) return;                                             // written already
    const long long group = (long long)sequence * KV_HEADS + head / GROUP;
    const float* first = workspace + (group * parts * GROUP + head % GROUP) * (HEAD_DIM + 2);
    constexpr int STEP = GROUP * (HEAD_DIM + 2);
    float peak = -INFINITY;
#pragma unroll 4
    for (int p = lane; p < parts; p += 32) peak = fmaxf(peak, first[p * STEP + HEAD_DIM]);
#pragma unroll
    for (int o = 16; o; o >>= 1) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, o));
    if (threadIdx.x < HEAD_DIM) {                                       // each warp knows the peak, and these weigh some parts each
        float whole = 0;
#pragma unroll 4
        for (int p = threadIdx.x; p < parts; p += HEAD_DIM) {
            const float total = first[p * STEP + HEAD_DIM + 1], weight = total > 0 ? exp2f(first[p * STEP + HEAD_DIM] - peak) : 0;
            keep[p] = weight, whole += total * weight;
        }
#pragma unroll
        for (int o = 16; o; o >>= 1) whole += __shfl_xor_sync(~0u, whole, o);
        if (lane == 0) totals[threadIdx.x / 32] = whole;
    }
    __syncthreads();
    const int slice = threadIdx.x / HEAD_DIM, d = threadIdx.x % HEAD_DIM;
    float value = 0;
#pragma unroll 16
    for (int p = slice; p < parts; p += SLICES) value += first[p * STEP + d] * keep[p];
    shares[slice][d] = value;
    __syncthreads();
    if (slice) return;
    float whole = 0;
#pragma unroll
    for (int s = 1; s < SLICES; ++s) value += shares[s][d];
#pragma unroll
    for (int w = 0; w < HEAD_DIM / 32; ++w) whole += totals[w];
    out[((long long)sequence * KV_HEADS * GROUP + head) * HEAD_DIM + d] = __float2bfloat16(value / whole);
}
