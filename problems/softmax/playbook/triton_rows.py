# Softmax in Triton, one program a row: the first KEPT values stay in registers between the two passes, and the others are read
# again soon after, from L2.
import triton
import triton.language as tl

# @tune KEPT = 32768, 16384
# @tune BLOCK = 8192
# @tune num_warps = 32, 16
# @launch softmax_rows(x, out) grid(X_DIM0)


@triton.jit
def softmax_rows(x, out, X_DIM1: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * X_DIM1
    first = tl.arange(0, KEPT)
    kept = tl.load(x + base + first, mask=first < X_DIM1, other=-float("inf"), eviction_policy="evict_first")
    lane = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(KEPT, X_DIM1, BLOCK):
        at = start + lane
        value = tl.load(x + base + at, mask=at < X_DIM1, other=-float("inf"), eviction_policy="evict_last")
        higher = tl.maximum(top, value)
        # A lane that has seen nothing keeps -inf: 0 instead avoids inf - inf.
        shift = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(top - shift) + tl.exp(value - shift)
        top = higher
    row_top = tl.maximum(tl.max(kept, 0), tl.max(top, 0))
    kept = tl.exp(kept - row_top)
    scale = 1.0 / (tl.sum(kept, 0) + tl.sum(total * tl.exp(top - row_top), 0))
    tl.store(out + base + first, kept * scale, mask=first < X_DIM1, eviction_policy="evict_first")
    for start in range(KEPT, X_DIM1, BLOCK):
        at = start + lane
        value = tl.load(x + base + at, mask=at < X_DIM1, other=0.0, eviction_policy="evict_first")
        tl.store(out + base + at, tl.exp(value - row_top) * scale, mask=at < X_DIM1, eviction_policy="evict_first")
