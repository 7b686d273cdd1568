// Eight-bit floats are exact in bfloat16: pairs of them in strips of columns, multiplied and added in one instruction. A block's
// sums are multiplied by its two scales. On all cores.
// @tune ROWS = 6, 8, 4
// @tune COLUMNS = 2, 1, 4
// @require ROWS * COLUMNS <= 24
#include <cstring>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif
#include "problem.h"

#if defined(__AVX512F__)
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif
using vec = float __attribute__((vector_size(4 * LANES)));
using ints = std::int32_t __attribute__((vector_size(4 * LANES)));
using words = std::uint32_t __attribute__((vector_size(4 * LANES)));
using shorts = std::uint16_t __attribute__((vector_size(4 * LANES)));
using bytes = std::uint8_t __attribute__((vector_size(2 * LANES)));
using loose = std::uint32_t __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vec as_floats(words bits) {
    vec v;
    std::memcpy(&v, &bits, sizeof v);
    return v;
}

// Adds the products of two pairs of bfloat16 to each lane.
static inline vec add_products(vec sum, words left, words right) {
#if defined(__AVX512BF16__)
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)left, (__m512bh)right);
#else
    sum += as_floats(left << 16) * as_floats(right << 16);
    return sum + as_floats(left & 0xffff0000u) * as_floats(right & 0xffff0000u);
#endif
}

constexpr long WIDTH = COLUMNS * LANES, BLOCKS = K / SCALE_BLOCK, PAIRS = K / 2, STEP = SCALE_BLOCK / 2;
constexpr long STRIPS = (N + WIDTH - 1) / WIDTH, HEIGHT = (M + ROWS - 1) / ROWS * ROWS;
static_assert(N % SCALE_BLOCK == 0 && SCALE_BLOCK % WIDTH == 0, "a strip has one scale for each block");
static_assert(STEP % LANES == 0, "a block is a number of whole vectors");

// LANES pairs of one row as bfloat16. Exponent and mantissa move to their places and the exponent grows by 120; the eight
// smallest magnitudes, which have no exponent, come from a table. All ones are NaN.
static inline words pairs_of(const fp8_e4m3* p) {
    bytes narrow;
    std::memcpy(&narrow, p, sizeof narrow);
    const shorts codes = __builtin_convertvector(narrow, shorts), magnitude = codes & 0x7f;
    const shorts smallest = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
    shorts found = (magnitude << 4) + (120 << 7);
    found = magnitude < 8 ? __builtin_shuffle(smallest, magnitude & 7) : found;
    found = (magnitude == 0x7f ? found | 0x7fc0 : found) | (codes & 0x80) << 8;
    words pairs;
    std::memcpy(&pairs, &found, sizeof pairs);
    return pairs;
}

// Lane i of vector j becomes lane j of vector i.
static inline void transpose(words (&v)[LANES]) {
    ints lane;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) lane[i] = i;
#pragma GCC unroll 4
    for (int half = LANES / 2; half; half /= 2) {
        const ints first = (lane & half) == 0 ? lane : lane + (LANES - half), second = first + half;
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i) {
            if (i & half) continue;
            const words low = v[i], high = v[i + half];
            v[i] = __builtin_shuffle(low, high, first);
            v[i + half] = __builtin_shuffle(low, high, second);
        }
    }
}

// WIDTH columns of the product's right side, pair after pair of the depth.
static void pack_strip(const fp8_e4m3* b, long strip, std::uint32_t* to) {
    for (long part = 0; part < WIDTH; part += LANES)
        for (long pair = 0; pair < PAIRS; pair += LANES) {
            words square[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; ++i) square[i] = pairs_of(b + (strip * WIDTH + part + i) * K + 2 * pair);
            transpose(square);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; ++i) *reinterpret_cast<loose*>(to + (pair + i) * WIDTH + part) = square[i];
        }
}

// ROWS x WIDTH elements of the result.
static void tile(const std::uint32_t* left, const std::uint32_t* right, const float* scale_a, const float* scale_b, bf16* to,
                 long rows) {
    vec sums[ROWS][COLUMNS] = {};
    for (long block = 0; block < BLOCKS; ++block) {
        vec parts[ROWS][COLUMNS] = {};
        for (long pair = block * STEP; pair < (block + 1) * STEP; ++pair) {
            words across[COLUMNS];
#pragma GCC unroll 4
            for (long c = 0; c < COLUMNS; ++c) across[c] = *reinterpret_cast<const loose*>(right + pair * WIDTH + c * LANES);
#pragma GCC unroll 16
            for (long r = 0; r < ROWS; ++r) {
                const words down = left[r * PAIRS + pair] - words{};
#pragma GCC unroll 4
                for (long c = 0; c < COLUMNS; ++c) parts[r][c] = add_products(parts[r][c], down, across[c]);
            }
        }
#pragma GCC unroll 16
        for (long r = 0; r < ROWS; ++r) {
            const float scale = r < rows ? scale_a[block * M + r] * scale_b[block] : 0;
#pragma GCC unroll 4
            for (long c = 0; c < COLUMNS; ++c) sums[r][c] += parts[r][c] * scale;
        }
    }
    for (long r = 0; r < ROWS && r < rows; ++r) {
        float line[WIDTH];
        std::memcpy(line, sums[r], sizeof line);
        for (long c = 0; c < WIDTH; ++c) to[r * N + c] = line[c];
    }
}

extern "C" size_t workspace_bytes(void) { return (STRIPS * WIDTH + HEIGHT) * PAIRS * sizeof(std::uint32_t); }

extern "C" void launch(const fp8_e4m3* a, const fp8_e4m3* b, const float* scale_a, const float* scale_b, bf16* out,
                       void* workspace) {
    std::uint32_t* strips = static_cast<std::uint32_t*>(workspace);
    std::uint32_t* left = strips + STRIPS * WIDTH * PAIRS;
#pragma omp parallel
    {
#pragma omp for schedule(static) nowait
        for (long strip = 0; strip < STRIPS; ++strip) pack_strip(b, strip, strips + strip * WIDTH * PAIRS);
#pragma omp for schedule(static)
        for (long row = 0; row < HEIGHT; ++row)
            for (long pair = 0; pair < PAIRS; pair += LANES)
                *reinterpret_cast<loose*>(left + row * PAIRS + pair) = row < M ? pairs_of(a + row * K + 2 * pair) : words{};
#pragma omp for collapse(2) schedule(static)
        for (long strip = 0; strip < STRIPS; ++strip)
            for (long row = 0; row < M; row += ROWS)
                tile(left + row * PAIRS, strips + strip * WIDTH * PAIRS, scale_a + row,
                     scale_b + strip * WIDTH / SCALE_BLOCK * BLOCKS, out + row * N + strip * WIDTH, M - row);
    }
}
