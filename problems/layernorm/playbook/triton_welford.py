# Layer norm in Triton: partial sums of every sample by many programs, then one pass that normalises.
import triton
import triton.language as tl

# @tune PARTS = 64, 32, 128
# @tune BLOCK = 2048, 1024, 4096
# @tune num_warps = 8, 4
# @workspace 12 * X_DIM0 * PARTS
# @launch partial(x, workspace) grid(PARTS, X_DIM0)
# @launch normalise(x, ln_weight, ln_bias, workspace, out) grid(ceil_div(LN_WEIGHT_NUMEL, BLOCK), X_DIM0)


@triton.jit
def partial(x, kept, LN_WEIGHT_NUMEL: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Number, mean and squared deviations of one part of a sample."""
    part, sample = tl.program_id(0), tl.program_id(1)
    size: tl.constexpr = (LN_WEIGHT_NUMEL + PARTS - 1) // PARTS
    lane = tl.arange(0, BLOCK)
    first = part * size
    last = tl.minimum(first + size, LN_WEIGHT_NUMEL)
    base = sample.to(tl.int64) * LN_WEIGHT_NUMEL
    count = tl.zeros((BLOCK,), tl.float32)
    mean = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        at = first + start + lane
        inside = at < last
        value = tl.load(x + base + at, mask=inside, other=0.0)
        count += tl.where(inside, 1.0, 0.0)
        away = tl.where(inside, value - mean, 0.0)
        mean += away / tl.maximum(count, 1.0)
        squares += away * tl.where(inside, value - mean, 0.0)
    number = tl.sum(count, 0)
    centre = tl.sum(mean * count, 0) / tl.maximum(number, 1.0)
    away = mean - centre
    spread = tl.sum(squares + count * away * away, 0)
    place = kept + (sample * PARTS + part) * 3
    tl.store(place, number)
    tl.store(place + 1, centre)
    tl.store(place + 2, spread)


@triton.jit
def normalise(x, weight, bias, kept, out, LN_WEIGHT_NUMEL: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    sample = tl.program_id(1)
    part = kept + (sample * PARTS + tl.arange(0, PARTS)) * 3
    number, centre, spread = tl.load(part), tl.load(part + 1), tl.load(part + 2)
    mean = tl.sum(centre * number, 0) / LN_WEIGHT_NUMEL
    away = centre - mean
    variance = tl.sum(spread + number * away * away, 0) / LN_WEIGHT_NUMEL
    scale = 1.0 / tl.sqrt(variance + 1e-5)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < LN_WEIGHT_NUMEL
    base = sample.to(tl.int64) * LN_WEIGHT_NUMEL
    value = tl.load(x + base + at, mask=inside, other=0.0)
    gain = tl.load(weight + at, mask=inside, other=0.0)
    offset = tl.load(bias + at, mask=inside, other=0.0)
    tl.store(out + base + at, (value - mean) * scale * gain + offset, mask=inside)
