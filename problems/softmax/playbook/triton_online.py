# Online softmax in Triton: one program a row, running maximum and sum for each lane, two reads and one write.
import triton
import triton.language as tl

# @tune BLOCK = 4096, 2048, 8192, 1024
# @tune num_warps = 8, 4, 16
# @launch softmax_rows(x, out) grid(X_DIM0)


@triton.jit
def softmax_rows(x, out, X_DIM1: tl.constexpr, BLOCK: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * X_DIM1
    lane = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, X_DIM1, BLOCK):
        at = start + lane
        value = tl.load(x + base + at, mask=at < X_DIM1, other=-float("inf"))
        higher = tl.maximum(top, value)
        # A lane that has seen nothing keeps -inf: 0 instead avoids inf - inf.
        shift = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(top - shift) + tl.exp(value - shift)
        top = higher
    row_top = tl.max(top, 0)
    scale = 1.0 / tl.sum(total * tl.exp(top - row_top), 0)
    for start in range(0, X_DIM1, BLOCK):
        at = start + lane
        value = tl.load(x + base + at, mask=at < X_DIM1, other=0.0)
        tl.store(out + base + at, tl.exp(value - row_top) * scale, mask=at < X_DIM1)
