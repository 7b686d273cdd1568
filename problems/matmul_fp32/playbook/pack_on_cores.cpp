// All cores pack the panels and then share out the tiles of ROWS x COLUMNS vectors.
// @tune ROWS = 6, 8, 12
// @tune COLUMNS = 4, 2, 3
// @require ROWS * COLUMNS % 12 == 0
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
static inline void store(float* p, vec v) { *reinterpret_cast<loose*>(p) = v; }
static inline vec broadcast(float v) { return v - vec{}; }
constexpr long WIDTH = COLUMNS * LANES;
constexpr long STRIPS = (N + WIDTH - 1) / WIDTH;
constexpr long BANDS = (M + ROWS - 1) / ROWS;

// Writes the part of a tile that lies inside the result.
template <long HEIGHT>
static void save(const vec (&sums)[HEIGHT][COLUMNS], float* to, long rows, long columns) {
    for (long r = 0; r < HEIGHT; ++r) {
        if (r >= rows) return;
        if (columns == WIDTH) {
#pragma GCC unroll 8
            for (long c = 0; c < COLUMNS; ++c) store(to + r * N + c * LANES, sums[r][c]);
        } else {
            float line[WIDTH];
            for (long c = 0; c < COLUMNS; ++c) store(line + c * LANES, sums[r][c]);
            std::memcpy(to + r * N, line, columns * sizeof(float));
        }
    }
}

// ROWS x WIDTH elements of the result from a packed band of a and a packed strip of b.
static void tile(const float* left, const float* right, float* to, long rows, long columns) {
    vec sums[ROWS][COLUMNS] = {};
    for (long step = 0; step < K; ++step, left += ROWS, right += WIDTH) {
        vec across[COLUMNS];
#pragma GCC unroll 8
        for (long c = 0; c < COLUMNS; ++c) across[c] = load(right + c * LANES);
#pragma GCC unroll 16
        for (long r = 0; r < ROWS; ++r) {
            const vec down = broadcast(left[r]);
#pragma GCC unroll 8
            for (long c = 0; c < COLUMNS; ++c) sums[r][c] += down * across[c];
        }
    }
    save<ROWS>(sums, to, rows, columns);
}

// WIDTH columns of b, row after row, padded with zeros.
static void pack_strip(const float* b, long strip, float* to) {
    const long column = strip * WIDTH;
    for (long step = 0; step < K; ++step, to += WIDTH)
        if (column + WIDTH <= N)
            std::memcpy(to, b + step * N + column, WIDTH * sizeof(float));
        else
            for (long c = 0; c < WIDTH; ++c) to[c] = column + c < N ? b[step * N + column + c] : 0;
}

// ROWS rows of a, column after column, padded with zeros.
static void pack_band(const float* a, long band, float* to) {
    const long first = band * ROWS;
    for (long step = 0; step < K; ++step, to += ROWS)
        if (first + ROWS <= M)
            for (long r = 0; r < ROWS; ++r) to[r] = a[(first + r) * K + step];
        else
            for (long r = 0; r < ROWS; ++r) to[r] = first + r < M ? a[(first + r) * K + step] : 0;
}

extern "C" size_t workspace_bytes(void) {
    return STRIPS * K * WIDTH * sizeof(float) + BANDS * K * ROWS * sizeof(float);
}

extern "C" void launch(const float* a, const float* b, float* out, void* workspace) {
    float* strips = static_cast<float*>(workspace);
    float* bands = reinterpret_cast<float*>(strips + STRIPS * K * WIDTH);
#pragma omp parallel
    {
#pragma omp for schedule(static) nowait
        for (long strip = 0; strip < STRIPS; ++strip) pack_strip(b, strip, strips + strip * K * WIDTH);
#pragma omp for schedule(static)
        for (long band = 0; band < BANDS; ++band) pack_band(a, band, bands + band * K * ROWS);
#pragma omp for collapse(2) schedule(static)
        for (long strip = 0; strip < STRIPS; ++strip)
            for (long band = 0; band < BANDS; ++band)
                tile(bands + band * K * ROWS, strips + strip * K * WIDTH, out + band * ROWS * N + strip * WIDTH,
                     M - band * ROWS, N - strip * WIDTH < WIDTH ? N - strip * WIDTH : WIDTH);
    }
}
