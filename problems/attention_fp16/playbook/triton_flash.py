# Attention in Triton without storing the scores: blocks of keys with a running maximum and sum.
import triton
import triton.language as tl

# @tune BM = 128, 64
# @tune BN = 64, 128
# @tune num_warps = 8, 4
# @tune num_stages = 3, 2
# @launch attention(q, k, v, out, BD=next_pow2(HEAD_DIM)) grid(ceil_div(SEQUENCE, BM), BATCH_SIZE * HEADS)


@triton.jit
def attention(
    q, k, v, out, SEQUENCE: tl.constexpr, HEAD_DIM: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    base = tl.program_id(1).to(tl.int64) * SEQUENCE * HEAD_DIM
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, BD)
    wanted = (i[:, None] < SEQUENCE) & (d[None, :] < HEAD_DIM)
    query = tl.load(q + base + i[:, None] * HEAD_DIM + d[None, :], mask=wanted, other=0.0)
    # Base-2 exponentials: log2(e) goes into the scale.
    scale = 1.4426950408889634 / tl.sqrt(float(HEAD_DIM) + tl.zeros((BM,), tl.float32))
    top = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BD), tl.float32)
    for start in range(0, SEQUENCE, BN):
        j = start + tl.arange(0, BN)
        column = (j[None, :] < SEQUENCE) & (d[:, None] < HEAD_DIM)
        key = tl.load(k + base + j[None, :] * HEAD_DIM + d[:, None], mask=column, other=0.0)
        score = tl.dot(query, key) * scale[:, None]
        score = tl.where(j[None, :] < SEQUENCE, score, -float("inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(weight, 1)
        row = (j[:, None] < SEQUENCE) & (d[None, :] < HEAD_DIM)
        value = tl.load(v + base + j[:, None] * HEAD_DIM + d[None, :], mask=row, other=0.0)
        acc = tl.dot(weight.to(value.dtype), value, acc * shrink[:, None])
        top = higher
    tl.store(out + base + i[:, None] * HEAD_DIM + d[None, :], (acc / total[:, None]).to(out.dtype.element_ty), mask=wanted)
