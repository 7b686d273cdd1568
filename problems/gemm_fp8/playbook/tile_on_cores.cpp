// Decoded strips of b in vectors of columns, and register tiles of ROWS x COLUMNS vectors, on all cores.
// @tune ROWS = 6, 12, 4
// @tune COLUMNS = 4, 2
// @require ROWS * COLUMNS <= 24
#include <cstring>
#include "problem.h"

#if defined(__AVX512F__)
constexpr long LANES = 16;
#else
constexpr long LANES = 8;
#endif
using vec = float __attribute__((vector_size(4 * LANES)));
using loose = float __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }
static inline vec broadcast(float v) { return v - vec{}; }

constexpr long WIDTH = COLUMNS * LANES, BLOCKS = K / SCALE_BLOCK;
constexpr long STRIPS = (N + WIDTH - 1) / WIDTH, HEIGHT = (M + ROWS - 1) / ROWS * ROWS;

struct Table {
    float value[256];
    Table() {
        for (int bits = 0; bits < 256; ++bits) {
            fp8_e4m3 number;
            number.bits = static_cast<std::uint8_t>(bits);
            value[bits] = number;
        }
    }
};

// WIDTH columns of the product's right side, depth after depth, scaled; columns beyond N are zero.
static void pack_strip(const Table& table, const fp8_e4m3* b, const float* scale_b, long strip, float* to) {
    for (long c = 0; c < WIDTH; ++c) {
        const long column = strip * WIDTH + c;
        for (long step = 0; step < K; ++step)
            to[step * WIDTH + c] = column < N ? table.value[b[column * K + step].bits] *
                scale_b[column / SCALE_BLOCK * BLOCKS + step / SCALE_BLOCK] : 0;
    }
}

// One row of the left side, scaled; rows beyond M are zero.
static void widen_row(const Table& table, const fp8_e4m3* a, const float* scale_a, long row, float* to) {
    for (long step = 0; step < K; ++step)
        to[step] = row < M ? table.value[a[row * K + step].bits] * scale_a[step / SCALE_BLOCK * M + row] : 0;
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
    const Table table;
    float* strips = static_cast<float*>(workspace);
    float* left = strips + STRIPS * WIDTH * K;
#pragma omp parallel
    {
#pragma omp for schedule(static) nowait
        for (long strip = 0; strip < STRIPS; ++strip) pack_strip(table, b, scale_b, strip, strips + strip * WIDTH * K);
#pragma omp for schedule(static)
        for (long row = 0; row < HEIGHT; ++row) widen_row(table, a, scale_a, row, left + row * K);
#pragma omp for collapse(2) schedule(static)
        for (long strip = 0; strip < STRIPS; ++strip)
            for (long row = 0; row < M; row += ROWS)
                tile(left + row * K, strips + strip * WIDTH * K, out + row * N + strip * WIDTH, M - row,
                     N - strip * WIDTH < WIDTH ? N - strip * WIDTH : WIDTH);
    }
}
