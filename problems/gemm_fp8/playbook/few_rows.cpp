// For few rows: b is decoded where it is used, once for up to MOST rows of the result, and never stored. Columns on all cores.
// @tune MOST = 8, 16, 4
// @tune COLUMNS = 2, 1, 4
// @require MOST * COLUMNS <= 16
#include <cstring>
#include "problem.h"

#if defined(__AVX512F__)
constexpr long LANES = 16;
#else
constexpr long LANES = 8;
#endif
using vec = float __attribute__((vector_size(4 * LANES)));
using loose = float __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
using words = std::uint32_t __attribute__((vector_size(4 * LANES)));
using bytes = std::uint8_t __attribute__((vector_size(LANES)));

static inline vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }
static inline void store(float* p, vec v) { *reinterpret_cast<loose*>(p) = v; }

constexpr long BLOCKS = K / SCALE_BLOCK, ROWS = M < MOST ? M : MOST, HEIGHT = (M + ROWS - 1) / ROWS * ROWS;
static_assert(SCALE_BLOCK % LANES == 0 && SCALE_BLOCK % COLUMNS == 0 && N % SCALE_BLOCK == 0, "blocks are whole");

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

static inline float total_of(vec v) {
    float sum = 0;
    for (long lane = 0; lane < LANES; ++lane) sum += v[lane];
    return sum;
}

// ROWS x COLUMNS elements of the result: vectors run along the depth; a block's sums are multiplied by its scale of b.
static void products(const float* left, const fp8_e4m3* b, const float* scales, bf16* to, long rows) {
    vec sums[ROWS][COLUMNS] = {};
    for (long block = 0; block < BLOCKS; ++block) {
        vec parts[ROWS][COLUMNS] = {};
        for (long step = block * SCALE_BLOCK; step < (block + 1) * SCALE_BLOCK; step += LANES) {
            vec right[COLUMNS];
#pragma GCC unroll 4
            for (long c = 0; c < COLUMNS; ++c) right[c] = decoded(b + c * K + step);
#pragma GCC unroll 16
            for (long r = 0; r < ROWS; ++r) {
                const vec down = load(left + r * K + step);
#pragma GCC unroll 4
                for (long c = 0; c < COLUMNS; ++c) parts[r][c] += down * right[c];
            }
        }
#pragma GCC unroll 16
        for (long r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
            for (long c = 0; c < COLUMNS; ++c) sums[r][c] += parts[r][c] * scales[block];
    }
    for (long r = 0; r < ROWS && r < rows; ++r)
        for (long c = 0; c < COLUMNS; ++c) to[r * N + c] = total_of(sums[r][c]);
}

extern "C" size_t workspace_bytes(void) { return HEIGHT * K * sizeof(float); }

extern "C" void launch(const fp8_e4m3* a, const fp8_e4m3* b, const float* scale_a, const float* scale_b, bf16* out,
                       void* workspace) {
    float* left = static_cast<float*>(workspace);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (long row = 0; row < HEIGHT; ++row)
            for (long step = 0; step < K; step += LANES)
                store(left + row * K + step, row < M ? decoded(a + row * K + step) * scale_a[step / SCALE_BLOCK * M + row] : vec{});
#pragma omp for schedule(static)
        for (long column = 0; column < N; column += COLUMNS)
            for (long row = 0; row < M; row += ROWS)
                products(left + row * K, b + column * K, scale_b + column / SCALE_BLOCK * BLOCKS, out + row * N + column, M - row);
    }
}
