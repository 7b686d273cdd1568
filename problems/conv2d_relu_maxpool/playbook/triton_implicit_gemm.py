# Convolution as a matrix product with ReLU in Triton, then max pooling of what it stored.
import triton
import triton.language as tl

# @tune BM = 64, 128
# @tune BN = 32, 64, 128
# @tune BK = 32, 16
# @tune num_warps = 4, 8
# @tune num_stages = 2, 3
# @tune POOL = 1024, 512
# @workspace 4 * BATCH_SIZE * OUT_CHANNELS * ((HEIGHT + 2 * PADDING - KERNEL_SIZE) / STRIDE + 1) * ((WIDTH + 2 * PADDING - KERNEL_SIZE) / STRIDE + 1)
# @launch conv_relu(x, conv1_weight, conv1_bias, workspace, HIGH=(HEIGHT + 2 * PADDING - KERNEL_SIZE) / STRIDE + 1, WIDE=(WIDTH + 2 * PADDING - KERNEL_SIZE) / STRIDE + 1) grid(ceil_div(((HEIGHT + 2 * PADDING - KERNEL_SIZE) / STRIDE + 1) * ((WIDTH + 2 * PADDING - KERNEL_SIZE) / STRIDE + 1), BM), ceil_div(OUT_CHANNELS, BN), BATCH_SIZE)
# @launch maxpool(workspace, out, HIGH=(HEIGHT + 2 * PADDING - KERNEL_SIZE) / STRIDE + 1, WIDE=(WIDTH + 2 * PADDING - KERNEL_SIZE) / STRIDE + 1) grid(ceil_div(OUT_NUMEL, POOL))


@triton.jit
def conv_relu(
    x, weight, bias, kept, IN_CHANNELS: tl.constexpr, OUT_CHANNELS: tl.constexpr, KERNEL_SIZE: tl.constexpr, STRIDE: tl.constexpr,
    PADDING: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):
    image = tl.program_id(2)
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    y, x0 = i // WIDE, i % WIDE
    taps: tl.constexpr = IN_CHANNELS * KERNEL_SIZE * KERNEL_SIZE
    acc = tl.zeros((BM, BN), tl.float32)
    base = image.to(tl.int64) * IN_CHANNELS * HEIGHT * WIDTH
    for start in range(0, taps, BK):
        t = start + tl.arange(0, BK)
        channel, within = t // (KERNEL_SIZE * KERNEL_SIZE), t % (KERNEL_SIZE * KERNEL_SIZE)
        row = y[:, None] * STRIDE - PADDING + (within // KERNEL_SIZE)[None, :]
        column = x0[:, None] * STRIDE - PADDING + (within % KERNEL_SIZE)[None, :]
        inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH) & (t[None, :] < taps) & (i[:, None] < HIGH * WIDE)
        patch = tl.load(x + base + (channel[None, :] * HEIGHT + row) * WIDTH + column, mask=inside, other=0.0)
        filters = tl.load(weight + o[None, :] * taps + t[:, None], mask=(o[None, :] < OUT_CHANNELS) & (t[:, None] < taps), other=0.0)
        acc = tl.dot(patch, filters, acc, input_precision="ieee")
    acc += tl.load(bias + o, mask=o < OUT_CHANNELS, other=0.0)[None, :]
    place = kept + ((image * OUT_CHANNELS + o[None, :]) * HIGH * WIDE).to(tl.int64) + i[:, None]
    tl.store(place, tl.maximum(acc, 0.0, propagate_nan=tl.PropagateNan.ALL), mask=(i[:, None] < HIGH * WIDE) & (o[None, :] < OUT_CHANNELS))


@triton.jit
def maxpool(
    kept, out, HIGH: tl.constexpr, WIDE: tl.constexpr, OUT_NUMEL: tl.constexpr, OUT_DIM2: tl.constexpr, OUT_DIM3: tl.constexpr,
    POOL_KERNEL: tl.constexpr, POOL_STRIDE: tl.constexpr, POOL: tl.constexpr,
):
    at = tl.program_id(0) * POOL + tl.arange(0, POOL)
    inside = at < OUT_NUMEL
    plane, y, x0 = at // (OUT_DIM2 * OUT_DIM3), at // OUT_DIM3 % OUT_DIM2, at % OUT_DIM3
    corner = kept + plane.to(tl.int64) * (HIGH * WIDE) + y * POOL_STRIDE * WIDE + x0 * POOL_STRIDE
    best = tl.full((POOL,), -float("inf"), tl.float32)
    for down in range(POOL_KERNEL):
        for right in range(POOL_KERNEL):
            value = tl.load(corner + down * WIDE + right, mask=inside, other=0.0)
            best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + at, best, mask=inside)
