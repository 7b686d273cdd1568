// Conversion and register tiles over all cores: bands of BAND tiles, one strip of b after the other.
// @tune ROWS = 6, 8, 12
// @tune COLUMNS = 4, 2, 3
// @require ROWS * COLUMNS % 12 == 0
// @require ROWS * COLUMNS <= 24
// @tune BAND = 8, 43
#include <cstring>
#if defined(__F16C__)
#include <immintrin.h>
#endif
#include "problem.h"

using half = a_t;
#if defined(__AVX512F__)
constexpr long LANES = 16;
#else
constexpr long LANES = 8;
#endif
using vec = float __attribute__((vector_size(4 * LANES)));
using loose = float __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }
static inline vec broadcast(float v) { return v - vec{}; }
constexpr long WIDTH = COLUMNS * LANES;
constexpr long PITCH = (N + WIDTH - 1) / WIDTH * WIDTH;
constexpr long HEIGHT = (M + ROWS - 1) / ROWS * ROWS;

static inline vec widened(const half* p) {
#if defined(__AVX512F__)
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
    vec v;
    for (long lane = 0; lane < LANES; ++lane) v[lane] = static_cast<float>(p[lane]);
    return v;
#endif
}

static inline void store(half* p, vec v) {
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
    for (long lane = 0; lane < LANES; ++lane) p[lane] = static_cast<half>(v[lane]);
#endif
}
static inline void store(float* p, vec v) { *reinterpret_cast<loose*>(p) = v; }

// Writes the part of a tile that lies inside the result.
template <long HEIGHT>
static void save(const vec (&sums)[HEIGHT][COLUMNS], half* to, long rows, long columns) {
    for (long r = 0; r < HEIGHT; ++r) {
        if (r >= rows) return;
        if (columns == WIDTH) {
#pragma GCC unroll 8
            for (long c = 0; c < COLUMNS; ++c) store(to + r * N + c * LANES, sums[r][c]);
        } else {
            half line[WIDTH];
            for (long c = 0; c < COLUMNS; ++c) store(line + c * LANES, sums[r][c]);
            std::memcpy(to + r * N, line, columns * sizeof(half));
        }
    }
}

// ROWS x WIDTH elements of the result, kept in registers.
static void tile(const float* a, const float* b, half* to, long rows, long columns) {
    vec sums[ROWS][COLUMNS] = {};
    for (long step = 0; step < K; ++step) {
        vec right[COLUMNS];
#pragma GCC unroll 8
        for (long c = 0; c < COLUMNS; ++c) right[c] = load(b + step * PITCH + c * LANES);
#pragma GCC unroll 16
        for (long r = 0; r < ROWS; ++r) {
            const vec left = broadcast(a[r * K + step]);
#pragma GCC unroll 8
            for (long c = 0; c < COLUMNS; ++c) sums[r][c] += left * right[c];
        }
    }
    save<ROWS>(sums, to, rows, columns);
}

// One row in single precision, padded with zeros to `pitch`.
static void widen_row(const half* from, long count, float* to, long pitch) {
    const long whole = count / LANES * LANES;
    for (long i = 0; i < whole; i += LANES) store(to + i, widened(from + i));
    for (long i = whole; i < pitch; ++i) to[i] = i < count ? static_cast<float>(from[i]) : 0;
}

extern "C" size_t workspace_bytes(void) { return (K * PITCH + HEIGHT * K) * sizeof(float); }

static void tile_at(const float* left, const float* right, half* out, long row, long column) {
    tile(left + row * K, right + column, out + row * N + column, M - row, N - column < WIDTH ? N - column : WIDTH);
}

extern "C" void launch(const half* a, const half* b, half* out, void* workspace) {
    float* right = static_cast<float*>(workspace);
    float* left = right + K * PITCH;
#pragma omp parallel
    {
#pragma omp for schedule(static) nowait
        for (long step = 0; step < K; ++step) widen_row(b + step * N, N, right + step * PITCH, PITCH);
#pragma omp for schedule(static)
        for (long row = 0; row < HEIGHT; ++row) widen_row(a + row * K, row < M ? K : 0, left + row * K, K);
#pragma omp for collapse(2) schedule(static)
        for (long column = 0; column < N; column += WIDTH)
            for (long band = 0; band < M; band += BAND * ROWS)
                for (long row = band; row < band + BAND * ROWS && row < M; row += ROWS)
                    tile_at(left, right, out, row, column);
    }
}
