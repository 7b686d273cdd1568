// Single precision as one float16 product and two int8 ones: the work of two float16 products where bf16_three.cu does three.
// - Of each number, float16 holds 11 bits; a byte holds what is left of it, with 8 bits more. a * b is high * high + high * rest + rest * high, and
//   the corrections need only 8 bits of `high`: bytes, at twice the rate, summed exactly.
// - Bytes have no exponent: an outlier would take the range from its neighbours. So both matrices are first rotated along k, 256 numbers at a
//   time, by the same orthogonal matrix (Hadamard's, with the signs of a bent function): it spreads outliers, makes repeated numbers
//   differ, and leaves the product as it is. Then SPAN numbers of a row of a, or of a column of b, share a scale.
// - Rotated numbers are as exact as the largest of 256 allows. So `balance` first makes a's column and b's row of each k equally large, by powers
//   of two. A k that is all zeros on one side becomes zero on the other.
// - `prepare` reads both matrices once and writes 4 bytes a number, in rows along k: 2048 bytes for 512 numbers, first the halves, then
//   `high` and `rest` as bytes. Every 128 bytes are a step's row of a swizzled box, whatever they hold.
// - Per span: corrections into integers, these to floats, halves on top, and the sum times both scales into the result.
// Up to a depth of 1024, where fp32 itself errs less, `rest` is a half too, and three float16 products are summed, 64 numbers at a time.
// Error: 3.4e-6 where fp32 errs 1.1e-6 and bf16_three.cu 4.4e-6; in simulations up to 4e-6, with repeated numbers, outliers, and columns of a and
// rows of b of any size. It stays relative to norms: results that are far smaller than others of their row and column, because large
// numbers of a meet zeros or small numbers of b there only, have fewer right digits than fp32's (a thousandth in the worst simulation).
// Measured on an H200 (4096^3) before there was `balance`: 484 us, 507 with SPAN = 256, 521 with WIDE = 128.
// Predicted: 515 us. `balance` reads 134 MB, 33 us; part of b is still in L2 when `prepare` begins.
// Bounds: 275 GFLOP at the float16 rate, 367 us at 750 TFLOP/s; `prepare` moves 268 MB, 64 us.
#include <cstdint>
#include <cuda.h>
#include <cuda_fp16.h>
#include "problem.h"
// @tune WIDE = 192, 128
// @tune STAGES = 5, 6
// @tune SKEW = 1, 0
// @tune BAND = 8
// @tune SPAN = 512, 256
// @require STAGES * (16384 + WIDE * 128) > 190000
// @require STAGES * (16384 + WIDE * 128) < 225000
// @workspace 4 * (ceil_div(K, SPAN) * SPAN) * (M + N) + 4 * ceil_div(K, SPAN) * (ceil_div(M, 128) * 128 + ceil_div(N, 64) * 64 + 128) + 8 * K
// @tensormap left = workspace as uint8(M, 4 * (ceil_div(K, SPAN) * SPAN)) tile(128, 128) swizzle(128)
// @tensormap right = workspace + 4 * (ceil_div(K, SPAN) * SPAN) * M as uint8(N, 4 * (ceil_div(K, SPAN) * SPAN)) tile(32, 128) swizzle(128)
// @launch balance(a, b, workspace) grid(ceil_div(K, 8 * min(4, next_pow2(ceil_div(K, 1056))))) block(1024)
// @launch prepare(a, b, workspace) grid(ceil_div(K, SPAN) * (ceil_div(N, 64) * 2 + 4) + ceil_div(M, 128) * 4 * ceil_div(K, SPAN) * (SPAN / 256)) block(512) shared(max(32 * (4 * SPAN + 16), 43008))
// @launch product(left, right, workspace, out) grid(2 * min(SMS / 2, ceil_div(M, 256) * ceil_div(N, 128))) block(384) shared(1024 + STAGES * (16384 + WIDE * 128)) cluster(2)

constexpr bool EXACT = K <= 1024;
constexpr int SPANS = (K + SPAN - 1) / SPAN, PITCH = 4 * SPANS * SPAN;      // bytes of a prepared row
constexpr int ROWS = (M + 127) / 128 * 128, COLUMNS = (N + 63) / 64 * 64 + 128;      // scales of a span, with zeros where tiles stick out
constexpr float LARGEST = 8128;                      // 127 * 64: what the largest number of a span is scaled to
__device__ __forceinline__ float* scales_of(char* workspace) { return (float*)(workspace + (long long)PITCH * (M + N)); }
// What a's columns are multiplied by, then b's rows.
__device__ __forceinline__ float* factors_of(char* workspace) { return scales_of(workspace) + SPANS * (ROWS + COLUMNS); }

// The sum of `count` magnitudes, `STEP` numbers apart, the last ones first.
template <int STEP, bool ONCE> __device__ __forceinline__ float magnitude(const float* __restrict__ from, int count) {
    constexpr int AT_ONCE = 16;
    float sum = 0;
#pragma unroll 1
    for (int i = (count - 1) / AT_ONCE * AT_ONCE; i >= 0; i -= AT_ONCE) {
        const float* at = from + (long long)i * STEP;
        float v[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) v[j] = i + j >= count ? 0 : ONCE ? __ldcs(at + j * STEP) : __ldg(at + j * STEP);
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) sum += fabsf(v[j]);
    }
    return sum;
}
template <int FROM, int TO> __device__ __forceinline__ float sum_of_lanes(float x) {       // those whose numbers differ in these bits
#pragma unroll
    for (int o = FROM; o < TO; o *= 2) x += __shfl_xor_sync(~0u, x, o);
    return x;
}
// A block has GRAIN columns of a and rows of b. b comes last, and its first columns: `prepare` begins with them.
constexpr int GRAIN = K > 2112 ? 32 : K > 1056 ? 16 : 8, SHARES = 32 / GRAIN;
extern "C" __global__ void __launch_bounds__(1024, 1) balance(const float* __restrict__ a, const float* __restrict__ b, char* workspace) {
    __shared__ float columns[32][GRAIN], rows[32];
    const int first = blockIdx.x * GRAIN, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (first >= K) return;
    const int column = first + threadIdx.x % GRAIN, down = threadIdx.x / GRAIN, row = first + warp / SHARES, along = warp % SHARES * 32 + lane;
    float x = 0, y = 0;
    if (column < K && down < M) x = magnitude<32 * SHARES * K, true>(a + (long long)down * K + column, (M - down + 32 * SHARES - 1) / (32 * SHARES));
    x = sum_of_lanes<GRAIN, 32>(x);
    if (lane < GRAIN) columns[warp][lane] = x;
    if (row < K && along < N) y = magnitude<32 * SHARES, false>(b + (long long)row * N + along, (N - along + 32 * SHARES - 1) / (32 * SHARES));
    y = sum_of_lanes<1, 32>(y);
    if (lane == 0) rows[warp] = y;
    __syncthreads();
    if (threadIdx.x >= GRAIN || column >= K) return;
    float left = 0, right = 0;
#pragma unroll
    for (int w = 0; w < 32; ++w) left += columns[w][threadIdx.x];
#pragma unroll
    for (int w = 0; w < SHARES; ++w) right += rows[threadIdx.x * SHARES + w];
    float* to = factors_of(workspace) + column;
    const bool finite = left < INFINITY && right < INFINITY;
    // As integers, floats are 2^23 times their logarithms, within a tenth.
    const int apart = (int)__float_as_uint(right * (1.0f / N)) - (int)__float_as_uint(left * (1.0f / M));
    const int power = finite ? min(max((apart + (1 << 23)) >> 24, -126), 126) : 0;
    to[0] = finite && right == 0 ? 0 : __uint_as_float((127u + power) << 23);
    to[K] = finite && left == 0 ? 0 : __uint_as_float((127u - power) << 23);
}

// Hadamard's transform of 16 numbers, with the signs of a bent function: constants, single numbers and Walsh functions become flat.
__device__ __forceinline__ void rotate(float (&v)[16]) {
#pragma unroll
    for (int i = 0; i < 16; ++i)
        if ((i & i >> 1 ^ i >> 2 & i >> 3) & 1) v[i] = -v[i];
#pragma unroll
    for (int h = 1; h < 16; h *= 2)
#pragma unroll
        for (int i = 0; i < 16; ++i)
            if (!(i & h)) {
                const float x = v[i], y = v[i + h];
                v[i] = x + y, v[i + h] = x - y;
            }
}
__device__ __forceinline__ float largest(const float (&v)[16], float top) {
#pragma unroll
    for (int i = 0; i < 16; ++i) top = fmaxf(top, fabsf(v[i]));
    return top;
}
__device__ __forceinline__ float at_least(float top) { return fmaxf(top, 7.7e-34f); }
__device__ __forceinline__ float factor(float top) { return top > 0 ? __fdividef(LARGEST, at_least(top)) : 0; }
// What a span's sums are multiplied by; the transform of 256 has made numbers 16 times as large.
__device__ __forceinline__ float scale(float top) { return top > 0 ? at_least(top) * (1 / (LARGEST * 16)) : 0; }
__device__ __forceinline__ uint32_t low_bytes(const float* v) {
    const uint32_t first = __byte_perm(__float_as_uint(v[0]), __float_as_uint(v[1]), 0x40);
    return __byte_perm(first, __byte_perm(__float_as_uint(v[2]), __float_as_uint(v[3]), 0x40), 0x5410);
}
__device__ __forceinline__ uint4 four(const uint32_t* v) { return make_uint4(v[0], v[1], v[2], v[3]); }
struct Split { uint4 high[2], low[2]; };             // of 16 numbers. `low`: high and rest as bytes, or rest as halves
__device__ __forceinline__ Split split(const float (&v)[16], float by) {
    constexpr float MAGIC = 12582912;                // 1.5 * 2^23: a sum with it has the rounded integer in its low bits
    uint32_t high[8], low[8];
    float bytes[16], rest[16];
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
        const float x = v[i] * by, y = v[i + 1] * by;
        const __half2 h = __floats2half2_rn(x, y);
        const float2 back = __half22float2(h);
        high[i / 2] = *(const uint32_t*)&h;
        const float left[2] = {x - back.x, y - back.y};         // at most 2
        if constexpr (EXACT) {
            const __half2 r = __floats2half2_rn(left[0], left[1]);
            low[i / 2] = *(const uint32_t*)&r;
        } else {
            bytes[i] = fmaf(x, 1.0f / 64, MAGIC), bytes[i + 1] = fmaf(y, 1.0f / 64, MAGIC);
#pragma unroll
            for (int j = 0; j < 2; ++j) rest[i + j] = fminf(fmaf(left[j], 64, MAGIC), MAGIC + 127);
        }
    }
    if constexpr (!EXACT) {
#pragma unroll
        for (int i = 0; i < 4; ++i) low[i] = low_bytes(bytes + 4 * i), low[i + 4] = low_bytes(rest + 4 * i);
    }
    return {{four(high), four(high + 4)}, {four(low), four(low + 4)}};
}
// Two neighbouring lanes hold 32 bytes each; stores 32 contiguous ones at a time.
__device__ __forceinline__ void store_pairs(char* to, uint4 first, uint4 second, bool inside) {
    const bool odd = threadIdx.x & 1;
    const uint4 sent = odd ? first : second;
    uint4 got;
    got.x = __shfl_xor_sync(~0u, sent.x, 1), got.y = __shfl_xor_sync(~0u, sent.y, 1);
    got.z = __shfl_xor_sync(~0u, sent.z, 1), got.w = __shfl_xor_sync(~0u, sent.w, 1);
    if (!inside) return;
    char* at = to + (odd ? -16 : 0);                 // the pair's first 32 bytes are the even lane's
    *(uint4*)at = odd ? got : first;
    *(uint4*)(at + 32) = odd ? second : got;
}
// Rows of a: half a warp rotates 256 neighbours, a warp two such blocks of numbers.
__device__ __forceinline__ void prepare_left(const float* __restrict__ a, const float* __restrict__ factors, char* left, float* scales, float* shared,
                                             int block) {
    constexpr int BLOCKS = SPANS * (SPAN / 256);
    const int warp = threadIdx.x / 32, half = threadIdx.x / 16 % 2, lane = threadIdx.x % 16;
    const int item = block * 32 + threadIdx.x / 16, row = item / BLOCKS, at = item % BLOCKS, first = at * 256;
    const bool inside = row < M;
    const float* from = a + (long long)row * K + first + lane;
    asm("" : "+l"(from));                          // one address for all loads; the compiler would make sixteen
    float v[16];
#pragma unroll
    for (int p = 0; p < 16; ++p) v[p] = inside && first + 16 * p + lane < K ? __ldcs(from + 16 * p) : 0;
#pragma unroll
    for (int p = 0; p < 16; ++p)
        if (first + 16 * p + lane < K) v[p] *= __ldg(factors + first + lane + 16 * p);
    rotate(v);
    float* own = shared + warp * 672 + half * 336;   // 16 rows of 20
#pragma unroll
    for (int p = 0; p < 16; ++p) own[p * 20 + lane] = v[p];
    __syncwarp();
#pragma unroll
    for (int q = 0; q < 16; q += 4) {
        const float4 line = *(const float4*)(own + lane * 20 + q);
        v[q] = line.x, v[q + 1] = line.y, v[q + 2] = line.z, v[q + 3] = line.w;
    }
    rotate(v);
    float top = largest(v, 0);
#pragma unroll
    for (int o = SPAN / 32; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
    const Split parts = split(v, factor(top));
    if (at % (SPAN / 256) == 0 && lane == 0) scales[at / (SPAN / 256) * ROWS + row] = scale(top);
    char* to = left + (long long)min(row, M - 1) * PITCH + at / (SPAN / 256) * 4 * SPAN;
    const int number = at % (SPAN / 256) * 256 + lane * 16;
    store_pairs(to + 2 * number, parts.high[0], parts.high[1], inside);
    if (EXACT) {
        store_pairs(to + 2 * SPAN + 2 * number, parts.low[0], parts.low[1], inside);
    } else if (inside) {
        *(uint4*)(to + 2 * SPAN + number) = parts.low[0];
        *(uint4*)(to + 3 * SPAN + number) = parts.low[1];
    }
}
// Columns of b: a block takes a span of 32 columns and turns it in shared memory.
__device__ __forceinline__ void prepare_right(const float* __restrict__ b, const float* __restrict__ factors, char* right, float* scales, char* shared,
                                              int block) {
    constexpr int BLOCKS = SPAN / 256, LINE = 4 * SPAN + 16;
    __shared__ float tops[16][32];
    __shared__ float4 ours[16][SPAN / 64];           // each warp's factors
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column0 = block / SPANS * 32, column = column0 + lane;
    const int span = block % SPANS;
    if (column0 >= N) {
        if (warp == 0) scales[span * COLUMNS + column] = 0;
        return;
    }
    float* tile = (float*)shared;
    const int first = span * SPAN + warp;
    const float* from = b + (long long)first * N + column;
    asm("" : "+l"(from));
    float v[BLOCKS][16];
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
        for (int p = 0; p < 16; ++p) {
            const int k = 256 * i + 16 * p;
            v[i][p] = first + k < K && column < N ? __ldcs(from + k * N) : 0;
        }
    const int k = span * SPAN + threadIdx.x;
    if (threadIdx.x < SPAN) ((float*)ours[threadIdx.x % 16])[threadIdx.x / 16] = k < K ? __ldg(factors + k) : 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
        for (int p = 0; p < 16; p += 4) {
            const float4 f = ours[warp][4 * i + p / 4];
            v[i][p] *= f.x, v[i][p + 1] *= f.y, v[i][p + 2] *= f.z, v[i][p + 3] *= f.w;
        }
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
        rotate(v[i]);
#pragma unroll
        for (int p = 0; p < 16; ++p) tile[(256 * i + 16 * p + warp) * 32 + lane] = v[i][p];
    }
    __syncthreads();
    float top = 0;
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
        for (int q = 0; q < 16; ++q) v[i][q] = tile[(256 * i + 16 * warp + q) * 32 + lane];
        rotate(v[i]);
        top = largest(v[i], top);
    }
    tops[warp][lane] = top;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < 16; ++w) top = fmaxf(top, tops[w][lane]);
    if (warp == 0) scales[span * COLUMNS + column] = scale(top);
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
        const Split parts = split(v[i], factor(top));
        char* line = shared + lane * LINE;
        const int number = 256 * i + 16 * warp;
        *(uint4*)(line + 2 * number) = parts.high[0];
        *(uint4*)(line + 2 * number + 16) = parts.high[1];
        if (EXACT) {
            *(uint4*)(line + 2 * SPAN + 2 * number) = parts.low[0];
            *(uint4*)(line + 2 * SPAN + 2 * number + 16) = parts.low[1];
        } else {
            *(uint4*)(line + 2 * SPAN + number) = parts.low[0];
            *(uint4*)(line + 3 * SPAN + number) = parts.low[1];
        }
    }
    __syncthreads();
    constexpr int PIECES = SPAN / 4;                 // of 16 bytes in a line
#pragma unroll
    for (int i = threadIdx.x; i < 32 * PIECES; i += 512) {
        const int c = i / PIECES, at = i % PIECES * 16;
        if (column0 + c < N) *(uint4*)(right + (long long)(column0 + c) * PITCH + span * 4 * SPAN + at) = *(const uint4*)(shared + c * LINE + at);
    }
}
extern "C" __global__ void __launch_bounds__(512, 2) prepare(const float* __restrict__ a, const float* __restrict__ b, char* workspace) {
    extern __shared__ __align__(16) char staging[];
    float *scales = scales_of(workspace), *factors = factors_of(workspace);
    constexpr int RIGHTS = SPANS * (COLUMNS / 32);
    if (blockIdx.x < RIGHTS) prepare_right(b, factors + K, workspace + (long long)PITCH * M, scales + SPANS * ROWS, staging, blockIdx.x);
    else prepare_left(a, factors, workspace, scales, (float*)staging, blockIdx.x - RIGHTS);
}

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void barrier_init(uint64_t* b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(unsigned b, unsigned parity) {
    unsigned done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                     : "=r"(done) : "r"(b), "r"(parity) : "memory");
    } while (!done);
}
__device__ __forceinline__ void tensor_load(void* to, const CUtensorMap* map, int row, int column, uint64_t* b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(shared_address(b)) : "memory");
}
// Multicasts the box to both blocks of the cluster, at the same address, counted by the same barrier of each.
__device__ __forceinline__ void tensor_multicast(void* to, const CUtensorMap* map, int row, int column, uint64_t* b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                 ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(shared_address(b)), "h"((unsigned short)3) : "memory");
}
__device__ __forceinline__ unsigned cluster_rank() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Arrives at the barrier at the same address in block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive_at(unsigned ours, unsigned rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}\n"
                 ::"r"(ours), "r"(rank) : "memory");
}
__device__ __forceinline__ void async_copy(float2* to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void async_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_sync(int name) { asm volatile("bar.sync %0, 128;" ::"r"(name) : "memory"); }
__device__ __forceinline__ void other_may_start() { asm volatile("bar.arrive 1, 256;" ::: "memory"); }
__device__ __forceinline__ void wait_to_start() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
// Rows of 128 bytes in a 128-byte swizzle, groups of eight rows 1024 bytes apart.
__device__ __forceinline__ uint64_t tile_descriptor(unsigned tile) {
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 | (tile & 0x3FFFF) >> 4;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
// Keeps the compiler from moving uses of the accumulators across this point.
template <int COUNT> __device__ __forceinline__ void pin(unsigned (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(d[i])::"memory");
}
__device__ __forceinline__ void wgmma_m64n192k16(unsigned (&d)[96], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
                 "%96, %97, p, 1, 1, 0, 0;\n}\n"
                 :
                 "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
                 "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]),
                 "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), "+r"(d[23]),
                 "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31]),
                 "+r"(d[32]), "+r"(d[33]), "+r"(d[34]), "+r"(d[35]), "+r"(d[36]), "+r"(d[37]), "+r"(d[38]), "+r"(d[39]),
                 "+r"(d[40]), "+r"(d[41]), "+r"(d[42]), "+r"(d[43]), "+r"(d[44]), "+r"(d[45]), "+r"(d[46]), "+r"(d[47]),
                 "+r"(d[48]), "+r"(d[49]), "+r"(d[50]), "+r"(d[51]), "+r"(d[52]), "+r"(d[53]), "+r"(d[54]), "+r"(d[55]),
                 "+r"(d[56]), "+r"(d[57]), "+r"(d[58]), "+r"(d[59]), "+r"(d[60]), "+r"(d[61]), "+r"(d[62]), "+r"(d[63]),
                 "+r"(d[64]), "+r"(d[65]), "+r"(d[66]), "+r"(d[67]), "+r"(d[68]), "+r"(d[69]), "+r"(d[70]), "+r"(d[71]),
                 "+r"(d[72]), "+r"(d[73]), "+r"(d[74]), "+r"(d[75]), "+r"(d[76]), "+r"(d[77]), "+r"(d[78]), "+r"(d[79]),
                 "+r"(d[80]), "+r"(d[81]), "+r"(d[82]), "+r"(d[83]), "+r"(d[84]), "+r"(d[85]), "+r"(d[86]), "+r"(d[87]),
                 "+r"(d[88]), "+r"(d[89]), "+r"(d[90]), "+r"(d[91]), "+r"(d[92]), "+r"(d[93]), "+r"(d[94]), "+r"(d[95])
                 : "l"(a), "l"(b), "r"(accumulate));
}
__device__ __forceinline__ void wgmma_m64n192k32(unsigned (&d)[96], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k32.s32.s8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
                 "%96, %97, p;\n}\n"
                 :
                 "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
                 "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]),
                 "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), "+r"(d[23]),
                 "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31]),
                 "+r"(d[32]), "+r"(d[33]), "+r"(d[34]), "+r"(d[35]), "+r"(d[36]), "+r"(d[37]), "+r"(d[38]), "+r"(d[39]),
                 "+r"(d[40]), "+r"(d[41]), "+r"(d[42]), "+r"(d[43]), "+r"(d[44]), "+r"(d[45]), "+r"(d[46]), "+r"(d[47]),
                 "+r"(d[48]), "+r"(d[49]), "+r"(d[50]), "+r"(d[51]), "+r"(d[52]), "+r"(d[53]), "+r"(d[54]), "+r"(d[55]),
                 "+r"(d[56]), "+r"(d[57]), "+r"(d[58]), "+r"(d[59]), "+r"(d[60]), "+r"(d[61]), "+r"(d[62]), "+r"(d[63]),
                 "+r"(d[64]), "+r"(d[65]), "+r"(d[66]), "+r"(d[67]), "+r"(d[68]), "+r"(d[69]), "+r"(d[70]), "+r"(d[71]),
                 "+r"(d[72]), "+r"(d[73]), "+r"(d[74]), "+r"(d[75]), "+r"(d[76]), "+r"(d[77]), "+r"(d[78]), "+r"(d[79]),
                 "+r"(d[80]), "+r"(d[81]), "+r"(d[82]), "+r"(d[83]), "+r"(d[84]), "+r"(d[85]), "+r"(d[86]), "+r"(d[87]),
                 "+r"(d[88]), "+r"(d[89]), "+r"(d[90]), "+r"(d[91]), "+r"(d[92]), "+r"(d[93]), "+r"(d[94]), "+r"(d[95])
                 : "l"(a), "l"(b), "r"(accumulate));
}
__device__ __forceinline__ void wgmma_m64n128k16(unsigned (&d)[64], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, p, 1, 1, 0, 0;\n}\n"
                 :
                 "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
                 "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]),
                 "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), "+r"(d[23]),
                 "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31]),
                 "+r"(d[32]), "+r"(d[33]), "+r"(d[34]), "+r"(d[35]), "+r"(d[36]), "+r"(d[37]), "+r"(d[38]), "+r"(d[39]),
                 "+r"(d[40]), "+r"(d[41]), "+r"(d[42]), "+r"(d[43]), "+r"(d[44]), "+r"(d[45]), "+r"(d[46]), "+r"(d[47]),
                 "+r"(d[48]), "+r"(d[49]), "+r"(d[50]), "+r"(d[51]), "+r"(d[52]), "+r"(d[53]), "+r"(d[54]), "+r"(d[55]),
                 "+r"(d[56]), "+r"(d[57]), "+r"(d[58]), "+r"(d[59]), "+r"(d[60]), "+r"(d[61]), "+r"(d[62]), "+r"(d[63])
                 : "l"(a), "l"(b), "r"(accumulate));
}
__device__ __forceinline__ void wgmma_m64n128k32(unsigned (&d)[64], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, p;\n}\n"
                 :
                 "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
                 "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]),
                 "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), "+r"(d[23]),
                 "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31]),
                 "+r"(d[32]), "+r"(d[33]), "+r"(d[34]), "+r"(d[35]), "+r"(d[36]), "+r"(d[37]), "+r"(d[38]), "+r"(d[39]),
                 "+r"(d[40]), "+r"(d[41]), "+r"(d[42]), "+r"(d[43]), "+r"(d[44]), "+r"(d[45]), "+r"(d[46]), "+r"(d[47]),
                 "+r"(d[48]), "+r"(d[49]), "+r"(d[50]), "+r"(d[51]), "+r"(d[52]), "+r"(d[53]), "+r"(d[54]), "+r"(d[55]),
                 "+r"(d[56]), "+r"(d[57]), "+r"(d[58]), "+r"(d[59]), "+r"(d[60]), "+r"(d[61]), "+r"(d[62]), "+r"(d[63])
                 : "l"(a), "l"(b), "r"(accumulate));
}
// 64 rows by WIDTH columns, 32 bytes deep: of bytes, summed into integers, or of halves, into floats. Both in the same registers.
template <int WIDTH, bool BYTES> __device__ __forceinline__ void multiply(unsigned (&d)[WIDTH / 2], uint64_t a, uint64_t b, int accumulate) {
    if constexpr (WIDTH == 192 && BYTES) wgmma_m64n192k32(d, a, b, accumulate);
    else if constexpr (WIDTH == 192) wgmma_m64n192k16(d, a, b, accumulate);
    else if constexpr (BYTES) wgmma_m64n128k32(d, a, b, accumulate);
    else wgmma_m64n128k16(d, a, b, accumulate);
}

constexpr int NARROW = 128, BOX = 128 * 128, STAGE = BOX + WIDE * 128;               // bytes: 128 rows of a, WIDE columns of b
constexpr int HALF_STEPS = SPAN / 64, STEPS = (EXACT ? 3 : 2) * HALF_STEPS, CORRECTIONS = HALF_STEPS;
// Tiles of 256 rows a cluster, in WIDES columns of WIDE and NARROWS of NARROW, so that CLUSTERS end together; narrow ones come last.
constexpr int CLUSTERS = 66;                        // of an H100 or H200
constexpr int DOWN = (M + 255) / 256;
constexpr int wides(int narrows) { return N > narrows * NARROW ? (N - narrows * NARROW + WIDE - 1) / WIDE : 0; }
constexpr int rounds(int columns) { return (DOWN * columns + CLUSTERS - 1) / CLUSTERS; }
constexpr int cost(int narrows) {                                       // narrow tiles are a tenth slower than their width
    return rounds(wides(narrows)) * WIDE * 10 + (rounds(wides(narrows) + narrows) - rounds(wides(narrows))) * NARROW * 11;
}
constexpr int best_narrows() {
    int best = 0;
    for (int n = 1; n <= (N + NARROW - 1) / NARROW; ++n)
        if (cost(n) < cost(best)) best = n;
    return best;
}
constexpr int NARROWS = best_narrows(), WIDES = wides(NARROWS), TILES = DOWN * (WIDES + NARROWS);
// Tensor cores cut off the bits of products that are below the sum's last ones. So the sum of FOLD steps of halves is added to a rounded one.
// Few steps where a library rounds less: it divides long sums of small matrices.
constexpr int FOLD = EXACT || TILES < CLUSTERS ? 1 : HALF_STEPS, FOLDS = HALF_STEPS / FOLD;
struct Tile { int row, column; bool wide; };
__device__ __forceinline__ Tile tile_at(int index) {
    if (index >= DOWN * WIDES) {
        const int i = index - DOWN * WIDES;
        return {i % DOWN * 256, WIDES * WIDE + i / DOWN * NARROW, false};
    }
    const int band = index / (BAND * WIDES + !WIDES), height = min(BAND, DOWN - band * BAND), inside = index - band * BAND * WIDES;
    return {(band * BAND + inside % height) * 256, inside / height * WIDE, true};
}
// The 128 bytes of a's and b's rows that a span's step multiplies: of bytes, high * rest and then rest * high, before the halves; of halves alone,
// the three products of the same numbers.
__device__ __forceinline__ int left_piece(int step) {
    if (EXACT) return step / 3 + (step % 3 == 0 ? HALF_STEPS : 0);
    return step < CORRECTIONS ? HALF_STEPS + step : step - CORRECTIONS;
}
__device__ __forceinline__ int right_piece(int step) {
    if (EXACT) return step / 3 + (step % 3 == 1 ? HALF_STEPS : 0);
    return step < CORRECTIONS ? HALF_STEPS + (step ^ HALF_STEPS / 2) : step - CORRECTIONS;
}

// Where a warpgroup stands in the ring of stages. Addresses in shared memory.
struct Place {
    unsigned barriers, stages;                                          // `full`, then `empty`
    int s, phase;                                                       // the stage, and its parity
    int turn;                                                           // spans so far, modulo 2
};
__device__ __forceinline__ void release(const Place& at, int back) {   // the stage `back` steps ago, in both blocks
    const int s = at.s - back + (at.s < back ? STAGES : 0);
    if (threadIdx.x % 128 < 2) barrier_arrive_at(at.barriers + 8 * (STAGES + s), threadIdx.x % 128);
}
template <int WIDTH, bool BYTES> __device__ __forceinline__ void step(unsigned (&sum)[WIDTH / 2], Place& at, bool first, bool alone) {
    barrier_wait(at.barriers + 8 * at.s, at.phase);
    const unsigned stage = at.stages + at.s * STAGE;
    const uint64_t l = tile_descriptor(stage + threadIdx.x / 128 * (BOX / 2)), r = tile_descriptor(stage + BOX);
    pin(sum);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) multiply<WIDTH, BYTES>(sum, l + 2 * k, r + 2 * k, !first || k > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (!alone) release(at, 1);
    if (++at.s == STAGES) at.s = 0, at.phase ^= 1;
}
template <int WIDTH> __device__ __forceinline__ void finish(unsigned (&sum)[WIDTH / 2], Place& at) {
    wgmma_wait<0>();
    pin(sum);
    release(at, 1);
}
typedef float2 Scales[WIDE / 2 + 32];                                   // of b's columns, then of a's rows
// A warpgroup's 64 x WIDTH results of one tile. `early`: the first of all, after SKEW steps of which the other warpgroup starts.
template <int WIDTH> __device__ __forceinline__ void multiply_tile(Place& at, const float* scales, Scales* shared, float* __restrict__ out, int row0, int column0,
                                                                    bool& early) {
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
    row0 += 64 * group;
    float sum[WIDTH / 2] = {};
#pragma unroll 1
    for (int span = 0; span < SPANS; ++span) {
        float2* ours = shared[2 * group + at.turn];
        at.turn ^= 1;
        if (thread < WIDTH / 2) async_copy(ours + thread, scales + SPANS * ROWS + span * COLUMNS + column0 + 2 * thread);
        else if (thread < WIDTH / 2 + 32) async_copy(ours + thread, scales + span * ROWS + row0 + 2 * (thread - WIDTH / 2));
        unsigned part[WIDTH / 2];
        if (!EXACT) {
#pragma unroll 1
            for (int i = 0; i < CORRECTIONS; ++i) {
                step<WIDTH, true>(part, at, i == 0, i == 0);
                if (early && i == SKEW - 1) other_may_start(), early = false;
            }
            finish<WIDTH>(part, at);
#pragma unroll
            for (int i = 0; i < WIDTH / 2; ++i) part[i] = __float_as_uint(__int2float_rn(part[i]));
        }
#pragma unroll 1
        for (int fold = 0; fold < FOLDS; ++fold) {
#pragma unroll 1
            for (int i = 0; i < (EXACT ? 3 : 1) * FOLD; ++i) {
                step<WIDTH, false>(part, at, (EXACT || (FOLDS > 1 && fold > 0)) && i == 0, i == 0);
                if (EXACT && early && i == SKEW - 1) other_may_start(), early = false;
            }
            if (FOLDS == 1 || fold == 0) {
                async_wait();
                warpgroup_sync(2 + group);
            }
            finish<WIDTH>(part, at);
            const float* rows = (const float*)(ours + WIDTH / 2) + thread / 32 * 16 + lane / 4;
            const float upper = rows[0], lower = rows[8];
#pragma unroll
            for (int i = 0; i < WIDTH / 2; i += 4) {
                const float2 c = ours[i + lane % 4];
#pragma unroll
                for (int j = 0; j < 4; ++j)                             // the product of two small scales would lose bits
                    sum[i + j] = fmaf(__uint_as_float(part[i + j]) * (j < 2 ? upper : lower), j % 2 ? c.y : c.x, sum[i + j]);
            }
        }
    }
    const int row = row0 + thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i += 2) {
        const int r = row + i / 2 % 2 * 8, c = column0 + i / 4 * 8 + lane % 4 * 2;
        if (r >= M) continue;
        float* to = out + (long long)r * N + c;
#if N % 2 == 0
        if (c < N) __stcs((float2*)to, make_float2(sum[i], sum[i + 1]));
#else
        if (c < N) to[0] = sum[i];
        if (c + 1 < N) to[1] = sum[i + 1];
#endif
    }
}

extern "C" __global__ void __launch_bounds__(384, 1)
product(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right, char* workspace, float* __restrict__ out) {
    extern __shared__ char raw[];
    char* stages = (char*)(((uintptr_t)raw + 1023) / 1024 * 1024);
    __shared__ uint64_t full[2 * STAGES];
    uint64_t* empty = full + STAGES;
    __shared__ Scales shared_scales[4];                                 // by warpgroup, by turn
    const int rank = cluster_rank(), clusters = gridDim.x / 2;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) barrier_init(&full[s], 1), barrier_init(&empty[s], 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 256) {
            int s = 0, phase = 0, unused = STAGES;
            for (int index = blockIdx.x / 2; index < TILES; index += clusters) {
                const Tile tile = tile_at(index);
                const int width = tile.wide ? WIDE : NARROW, row = tile.row + 128 * rank, column = tile.column + width / 2 * rank;
                for (int span = 0; span < SPANS; ++span)
                    for (int i = 0; i < STEPS; ++i) {
                        if (unused) --unused;
                        else barrier_wait(shared_address(&empty[s]), phase ^ 1);
                        barrier_expect(&full[s], BOX + width * 128);
                        char* to = stages + s * STAGE;
                        tensor_load(to, &left, row, span * 4 * SPAN + left_piece(i) * 128, &full[s]);
                        for (int h = 0; h < width / 2; h += 32)
                            tensor_multicast(to + BOX + (width / 2 * rank + h) * 128, &right, column + h, span * 4 * SPAN + right_piece(i) * 128,
                                             &full[s]);
                        if (++s == STAGES) s = 0, phase ^= 1;
                    }
            }
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        const float* scales = scales_of(workspace);
        Place at = {shared_address(full), shared_address(stages), 0, 0, 0};
        bool early = SKEW > 0 && threadIdx.x < 128;
        if (SKEW > 0 && threadIdx.x >= 128 && blockIdx.x / 2 < TILES) wait_to_start();      // out of step: one adds while the other multiplies
        int index = blockIdx.x / 2;
        for (; index < DOWN * WIDES; index += clusters) {
            const Tile tile = tile_at(index);
            multiply_tile<WIDE>(at, scales, shared_scales, out, tile.row + 128 * rank, tile.column, early);
        }
        for (; index < TILES; index += clusters) {
            const Tile tile = tile_at(index);
            multiply_tile<NARROW>(at, scales, shared_scales, out, tile.row + 128 * rank, tile.column, early);
        }
    }
    cluster_sync();                     // no block exits while its peer may still write to it or arrive at its barriers
}
