# Convolution as a matrix product in Triton: output pixels by filters, the patches gathered while they are read.
import triton
import triton.language as tl

# @tune BM = 64, 128
# @tune BN = 32, 64, 128
# @tune BK = 32, 16
# @tune num_warps = 4, 8
# @tune num_stages = 2, 3
# @launch conv(x, conv1_weight, conv1_bias, out, HIGH=OUT_DIM2, WIDE=OUT_DIM3) grid(ceil_div(OUT_DIM2 * OUT_DIM3, BM), ceil_div(OUT_CHANNELS, BN), BATCH_SIZE)


@triton.jit
def conv(
    x, weight, bias, out, IN_CHANNELS: tl.constexpr, OUT_CHANNELS: tl.constexpr, KERNEL_SIZE: tl.constexpr, STRIDE: tl.constexpr,
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
    place = out + ((image * OUT_CHANNELS + o[None, :]) * HIGH * WIDE).to(tl.int64) + i[:, None]
    tl.store(place, acc, mask=(i[:, None] < HIGH * WIDE) & (o[None, :] < OUT_CHANNELS))
