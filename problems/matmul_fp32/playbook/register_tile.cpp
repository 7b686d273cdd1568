// ROWS x COLUMNS vectors of the result stay in registers through the whole inner dimension.
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

// HEIGHT x WIDTH elements of the result, kept in registers. `pitch` is the distance between rows of b.
template <long HEIGHT>
static void tile(const float* a, const float* b, long pitch, float* to, long columns) {
    vec sums[HEIGHT][COLUMNS] = {};
    for (long step = 0; step < K; ++step) {
        vec right[COLUMNS];
#pragma GCC unroll 8
        for (long c = 0; c < COLUMNS; ++c) right[c] = load(b + step * pitch + c * LANES);
#pragma GCC unroll 16
        for (long r = 0; r < HEIGHT; ++r) {
            const vec left = broadcast(a[r * K + step]);
#pragma GCC unroll 8
            for (long c = 0; c < COLUMNS; ++c) sums[r][c] += left * right[c];
        }
    }
    save<HEIGHT>(sums, to, HEIGHT, columns);
}

// The last columns of b that do not fill a tile, copied and padded with zeros.
static void copy_edge(const float* b, float* edge) {
    constexpr long FIRST = N / WIDTH * WIDTH;
    for (long step = 0; step < K; ++step)
        for (long c = 0; c < WIDTH; ++c) edge[step * WIDTH + c] = FIRST + c < N ? b[step * N + FIRST + c] : 0;
}

static void tile_at(const float* a, const float* b, const float* edge, float* out, long row, long column) {
    const bool whole = column + WIDTH <= N;
    const float* right = whole ? b + column : edge;
    const long pitch = whole ? N : WIDTH;
    const long columns = whole ? WIDTH : N - column;
    float* to = out + row * N + column;
    if (row + ROWS <= M)
        tile<ROWS>(a + row * K, right, pitch, to, columns);
    else if constexpr (M % ROWS != 0)
        tile<M % ROWS>(a + row * K, right, pitch, to, columns);
}

extern "C" size_t workspace_bytes(void) { return K * WIDTH * sizeof(float); }

extern "C" void launch(const float* a, const float* b, float* out, void* workspace) {
    float* edge = static_cast<float*>(workspace);
    if (N % WIDTH) copy_edge(b, edge);
    for (long column = 0; column < N; column += WIDTH)
        for (long row = 0; row < M; row += ROWS) tile_at(a, b, edge, out, row, column);
}
