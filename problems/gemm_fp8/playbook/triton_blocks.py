# Block-scaled product in Triton: eight-bit tensor-core products of one block of scales, added up in FP32 with their scales.
import triton
import triton.language as tl

# @tune BM = 128, 64, 16
# @tune BN = 128, 64
# @tune num_warps = 4, 8
# @tune num_stages = 3, 4
# @tune GROUP = 8, 4
# @require SCALE_BLOCK % BN == 0
# @launch product(a, b, scale_a, scale_b, out) grid(ceil_div(M, BM) * ceil_div(N, BN))


@triton.jit
def product(
    a, b, scale_a, scale_b, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SCALE_BLOCK: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, GROUP: tl.constexpr,
):
    program = tl.program_id(0)
    rows: tl.constexpr = (M + BM - 1) // BM
    columns: tl.constexpr = (N + BN - 1) // BN
    blocks: tl.constexpr = K // SCALE_BLOCK
    group = program // (GROUP * columns)
    height = tl.minimum(rows - group * GROUP, GROUP)
    row = group * GROUP + (program % (GROUP * columns)) % height
    column = (program % (GROUP * columns)) // height
    i = row * BM + tl.arange(0, BM)
    j = column * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for block in range(0, blocks):
        k = block * SCALE_BLOCK + tl.arange(0, SCALE_BLOCK)
        left = tl.load(a + i[:, None] * K + k[None, :], mask=i[:, None] < M, other=0.0)
        right = tl.load(b + j[None, :] * K + k[:, None], mask=j[None, :] < N, other=0.0)
        down = tl.load(scale_a + block * M + i, mask=i < M, other=0.0)
        across = tl.load(scale_b + column * BN // SCALE_BLOCK * blocks + block)
        acc += tl.dot(left, right) * (down * across)[:, None]
    place = out + i[:, None].to(tl.int64) * N + j[None, :]
    tl.store(place, acc.to(out.dtype.element_ty), mask=(i[:, None] < M) & (j[None, :] < N))
