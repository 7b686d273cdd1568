// Both matrices are decoded and scaled once, by a table of the 256 values; dot products of vectors follow. One core.
#include "problem.h"

constexpr long LANES = 16, UNROLL = 4, BLOCKS = K / SCALE_BLOCK;
using vec = float __attribute__((vector_size(4 * LANES)));
using loose = float __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }

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

// One row, each block times its scale; `step` is the distance between scales of adjacent blocks.
static void widen(const Table& table, const fp8_e4m3* from, const float* scales, long step, float* to) {
    for (long block = 0; block < BLOCKS; ++block)
        for (long i = block * SCALE_BLOCK; i < (block + 1) * SCALE_BLOCK; ++i)
            to[i] = table.value[from[i].bits] * scales[block * step];
}

static float dot(const float* left, const float* right) {
    vec parts[UNROLL] = {};
    constexpr long WHOLE = K / (UNROLL * LANES) * (UNROLL * LANES);
    for (long i = 0; i < WHOLE; i += UNROLL * LANES)
#pragma GCC unroll 8
        for (long u = 0; u < UNROLL; ++u) parts[u] += load(left + i + u * LANES) * load(right + i + u * LANES);
    float sum = 0;
    for (long i = WHOLE; i < K; ++i) sum += left[i] * right[i];
    for (long u = 1; u < UNROLL; ++u) parts[0] += parts[u];
    for (long lane = 0; lane < LANES; ++lane) sum += parts[0][lane];
    return sum;
}

extern "C" size_t workspace_bytes(void) { return (M + N) * K * sizeof(float); }

extern "C" void launch(const fp8_e4m3* a, const fp8_e4m3* b, const float* scale_a, const float* scale_b, bf16* out,
                       void* workspace) {
    const Table table;
    float* left = static_cast<float*>(workspace);
    float* right = left + M * K;
    for (long row = 0; row < M; ++row) widen(table, a + row * K, scale_a + row, M, left + row * K);
    for (long column = 0; column < N; ++column)
        widen(table, b + column * K, scale_b + column / SCALE_BLOCK * BLOCKS, 1, right + column * K);
    for (long row = 0; row < M; ++row)
        for (long column = 0; column < N; ++column) out[row * N + column] = dot(left + row * K, right + column * K);
}
