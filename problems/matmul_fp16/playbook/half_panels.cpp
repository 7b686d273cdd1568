// Panels of b stay in half precision and are converted when a tile loads them; sums are single precision.
// @tune ROWS = 6, 8, 12
// @tune COLUMNS = 4, 2, 3
// @require ROWS * COLUMNS % 12 == 0
// @require ROWS * COLUMNS <= 24
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
constexpr long STRIPS = (N + WIDTH - 1) / WIDTH;
constexpr long BANDS = (M + ROWS - 1) / ROWS;

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

// ROWS x WIDTH elements of the result from a packed band of a and a packed strip of b.
static void tile(const float* left, const half* right, half* to, long rows, long columns) {
    vec sums[ROWS][COLUMNS] = {};
    for (long step = 0; step < K; ++step, left += ROWS, right += WIDTH) {
        vec across[COLUMNS];
#pragma GCC unroll 8
        for (long c = 0; c < COLUMNS; ++c) across[c] = widened(right + c * LANES);
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
static void pack_strip(const half* b, long strip, half* to) {
    const long column = strip * WIDTH;
    for (long step = 0; step < K; ++step, to += WIDTH)
        if (column + WIDTH <= N)
            std::memcpy(to, b + step * N + column, WIDTH * sizeof(half));
        else
            for (long c = 0; c < WIDTH; ++c) to[c] = column + c < N ? b[step * N + column + c] : half(0);
}

// ROWS rows of a, column after column, padded with zeros.
static void pack_band(const half* a, long band, float* to) {
    const long first = band * ROWS;
    for (long step = 0; step < K; ++step, to += ROWS)
        if (first + ROWS <= M)
            for (long r = 0; r < ROWS; ++r) to[r] = static_cast<float>(a[(first + r) * K + step]);
        else
            for (long r = 0; r < ROWS; ++r) to[r] = first + r < M ? static_cast<float>(a[(first + r) * K + step]) : 0;
}

extern "C" size_t workspace_bytes(void) {
    return STRIPS * K * WIDTH * sizeof(half) + BANDS * K * ROWS * sizeof(float);
}

extern "C" void launch(const half* a, const half* b, half* out, void* workspace) {
    half* strips = static_cast<half*>(workspace);
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
