# RMS normalisation in Triton: one program a token, which keeps the whole vector in registers.
import triton
import triton.language as tl

# @tune num_warps = 4, 8, 2
# @launch rms_norm(x, weight, out, BLOCK=next_pow2(HIDDEN)) grid(TOKENS)


@triton.jit
def rms_norm(x, weight, out, HIDDEN: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * HIDDEN
    at = tl.arange(0, BLOCK)
    inside = at < HIDDEN
    value = tl.load(x + base + at, mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / HIDDEN + EPS)
    tl.store(out + base + at, (value * scale * gain).to(out.dtype.element_ty), mask=inside)
