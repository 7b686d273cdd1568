# Tiled matrix product in Triton, tiles grouped so that programs that run together share their operands in the L2 cache.
# FP32 products on the CUDA cores, as the reference's precision class asks.
import triton
import triton.language as tl

# @tune BM = 64, 128
# @tune BN = 64, 128
# @tune BK = 16, 32
# @tune num_warps = 4, 8
# @tune num_stages = 3, 2
# @tune GROUP = 8, 4
# @launch matmul_tiles(a, b, out) grid(ceil_div(M, BM) * ceil_div(N, BN))


@triton.jit
def matmul_tiles(
    a, b, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr,
):
    program = tl.program_id(0)
    rows: tl.constexpr = (M + BM - 1) // BM
    columns: tl.constexpr = (N + BN - 1) // BN
    group = program // (GROUP * columns)
    height = tl.minimum(rows - group * GROUP, GROUP)
    row = group * GROUP + (program % (GROUP * columns)) % height
    column = (program % (GROUP * columns)) // height
    i = row * BM + tl.arange(0, BM)
    j = column * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + i[:, None] * K + k[None, :], mask=(i[:, None] < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + j[None, :], mask=(k[:, None] < K) & (j[None, :] < N), other=0.0)
        acc = tl.dot(left, right, acc, input_precision="ieee")
    place = out + i[:, None].to(tl.int64) * N + j[None, :]
    tl.store(place, acc.to(out.dtype.element_ty), mask=(i[:, None] < M) & (j[None, :] < N))
