# Softmax in Triton: a row in the registers of the blocks of a cluster, one read and one write. Triton reduces the maximum and the sum
# of a row across the cluster.
import triton
import triton.language as tl

# @tune num_ctas = 4, 8
# @tune num_warps = 16, 8
# @launch softmax_rows(x, out) grid(X_DIM0)


@triton.jit
def softmax_rows(x, out, X_DIM1: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * X_DIM1
    at = tl.arange(0, triton.next_power_of_2(X_DIM1))
    value = tl.load(x + base + at, mask=at < X_DIM1, other=-float("inf"), eviction_policy="evict_first")
    power = tl.exp(value - tl.max(value, 0))
    tl.store(out + base + at, power * (1.0 / tl.sum(power, 0)), mask=at < X_DIM1, eviction_policy="evict_first")
