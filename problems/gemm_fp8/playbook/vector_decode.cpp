// Eight-bit floats decoded LANES at a time by shifts and one product, and transposed in registers into strips of columns.
// Register tiles of ROWS x COLUMNS vectors, on all cores.
// @tune ROWS = 6, 12, 4
// @tune COLUMNS = 4, 2
// @require ROWS * COLUMNS <= 24
#include <cstring>
#include "problem.h"

#if defined(__AVX512F__)
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif
using vec = float __attribute__((vector_size(4 * LANES)));
using loose = float __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
using ints = std::int32_t __attribute__((vector_size(4 * LANES)));
using words = std::uint32_t __attribute__((vector_size(4 * LANES)));
using bytes = std::uint8_t __attribute__((vector_size(LANES)));

static inline vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }
static inline void store(float* p, vec v) { *reinterpret_cast<loose*>(p) = v; }
static inline vec broadcast(float v) { return v - vec{}; }

constexpr long WIDTH = COLUMNS * LANES, BLOCKS = K / SCALE_BLOCK;
constexpr long STRIPS = (N + WIDTH - 1) / WIDTH, HEIGHT = (M + ROWS - 1) / ROWS * ROWS;
static_assert(SCALE_BLOCK % LANES == 0, "a block is a number of whole vectors");

// Four bits of exponent and three of mantissa, moved to their places in a float, are the value times 2^-120, subnormal
// ones too. All ones are NaN.
static inline vec decoded(const fp8_e4m3* p) {
    bytes narrow;
    std::memcpy(&narrow, p, sizeof narrow);
    const words bits = __builtin_convertvector(narrow, words), magnitude = bits & 0x7fu;
    const words placed = magnitude << 20;
    vec v;
    std::memcpy(&v, &placed, sizeof v);
    v *= 0x1p120f;
    words found;
    std::memcpy(&found, &v, sizeof found);
    found = (magnitude == 0x7fu ? found | 0x7fc00000u : found) | (bits & 0x80u) << 24;
    std::memcpy(&v, &found, sizeof v);
    return v;
}

// Lane i of vector j becomes lane j of vector i.
static inline void transpose(vec (&v)[LANES]) {
    ints lane;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) lane[i] = i;
#pragma GCC unroll 4
    for (int half = LANES / 2; half; half /= 2) {
        const ints first = (lane & half) == 0 ? lane : lane + (LANES - half), second = first + half;
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i) {
            if (i & half) continue;
            const vec low = v[i], high = v[i + half];
            v[i] = __builtin_shuffle(low, high, first);
            v[i + half] = __builtin_shuffle(low, high, second);
        }
    }
}

// WIDTH columns of the product's right side, depth after depth, scaled; columns beyond N are zero.
static void pack_strip(const fp8_e4m3* b, const float* scale_b, long strip, float* to) {
    for (long part = 0; part < WIDTH; part += LANES)
        for (long step = 0; step < K; step += LANES) {
            vec square[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; ++i) {
                const long column = strip * WIDTH + part + i;
                const float scale = column < N ? scale_b[column / SCALE_BLOCK * BLOCKS + step / SCALE_BLOCK] : 0;
                square[i] = column < N ? decoded(b + column * K + step) * scale : vec{};
            }
            transpose(square);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; ++i) store(to + (step + i) * WIDTH + part, square[i]);
        }
}

// One row of the left side, scaled; rows beyond M are zero.
static void widen_row(const fp8_e4m3* a, const float* scale_a, long row, float* to) {
    for (long step = 0; step < K; step += LANES)
        store(to + step, row < M ? decoded(a + row * K + step) * scale_a[step / SCALE_BLOCK * M + row] : vec{});
}

// ROWS x WIDTH elements of the result, kept in registers.
static void tile(const float* left, const float* right, bf16* to, long rows, long columns) {
    vec sums[ROWS][COLUMNS] = {};
    for (long step = 0; step < K; ++step) {
        vec across[COLUMNS];
#pragma GCC unroll 8
        for (long c = 0; c < COLUMNS; ++c) across[c] = load(right + step * WIDTH + c * LANES);
#pragma GCC unroll 16
        for (long r = 0; r < ROWS; ++r) {
            const vec down = broadcast(left[r * K + step]);
#pragma GCC unroll 8
            for (long c = 0; c < COLUMNS; ++c) sums[r][c] += down * across[c];
        }
    }
    for (long r = 0; r < ROWS && r < rows; ++r) {
        float line[WIDTH];
        std::memcpy(line, sums[r], sizeof line);
        for (long c = 0; c < columns; ++c) to[r * N + c] = line[c];
    }
}

extern "C" size_t workspace_bytes(void) { return (STRIPS * WIDTH + HEIGHT) * K * sizeof(float); }

extern "C" void launch(const fp8_e4m3* a, const fp8_e4m3* b, const float* scale_a, const float* scale_b, bf16* out,
                       void* workspace) {
    float* strips = static_cast<float*>(workspace);
    float* left = strips + STRIPS * WIDTH * K;
#pragma omp parallel
    {
#pragma omp for schedule(static) nowait
        for (long strip = 0; strip < STRIPS; ++strip) pack_strip(b, scale_b, strip, strips + strip * WIDTH * K);
#pragma omp for schedule(static)
        for (long row = 0; row < HEIGHT; ++row) widen_row(a, scale_a, row, left + row * K);
#pragma omp for collapse(2) schedule(static)
        for (long strip = 0; strip < STRIPS; ++strip)
            for (long row = 0; row < M; row += ROWS)
                tile(left + row * K, strips + strip * WIDTH * K, out + row * N + strip * WIDTH, M - row,
                     N - strip * WIDTH < WIDTH ? N - strip * WIDTH : WIDTH);
    }
}
