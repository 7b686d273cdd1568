# Matrix product in Triton with tensor descriptors: the copy engine fills a ring of tiles, wgmma multiplies them, and the copy
# engine writes the results. A persistent program takes tiles in groups that share operands in L2.
# Rows that do not start on 16 bytes have no descriptors: those sizes use plain loads.
import triton
import triton.language as tl

# @tune BM = 128
# @tune BN = 256
# @tune BK = 64
# @tune num_warps = 8
# @tune num_stages = 4, 3
# @tune GROUP = 8
# @launch matmul_tiles(a, b, out) grid(min(SMS, ceil_div(M, BM) * ceil_div(N, BN)))


@triton.jit
def matmul_tiles(
    a, b, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr,
):
    rows: tl.constexpr = (M + BM - 1) // BM
    columns: tl.constexpr = (N + BN - 1) // BN
    described: tl.constexpr = K % 8 == 0 and N % 8 == 0
    if described:
        left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
        right = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
        result = tl.make_tensor_descriptor(out, [M, N], [N, 1], [BM, BN // 2])
    for tile in tl.range(tl.program_id(0), rows * columns, tl.num_programs(0), flatten=described):
        group = tile // (GROUP * columns)
        height = min(rows - group * GROUP, GROUP)
        row = (group * GROUP + (tile % (GROUP * columns)) % height) * BM
        column = (tile % (GROUP * columns)) // height * BN
        acc = tl.zeros((BM, BN), tl.float32)
        if described:
            for start in range(0, K, BK):
                acc = tl.dot(left.load([row, start]), right.load([start, column]), acc)
            halves = tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1))
            low, high = tl.split(halves)
            result.store([row, column], low.to(out.dtype.element_ty))
            result.store([row, column + BN // 2], high.to(out.dtype.element_ty))
        else:
            i = row + tl.arange(0, BM)
            j = column + tl.arange(0, BN)
            for start in range(0, K, BK):
                k = start + tl.arange(0, BK)
                x = tl.load(a + i[:, None] * K + k[None, :], mask=(i[:, None] < M) & (k[None, :] < K), other=0.0)
                y = tl.load(b + k[:, None] * N + j[None, :], mask=(k[:, None] < K) & (j[None, :] < N), other=0.0)
                acc = tl.dot(x, y, acc)
            place = out + i[:, None].to(tl.int64) * N + j[None, :]
            tl.store(place, acc.to(out.dtype.element_ty), mask=(i[:, None] < M) & (j[None, :] < N))
