"""Convolutions of many small samples as a few matrix products. Imports torch.

On a GPU, torch's own convolution in float64 makes a product for each sample: LeNet's two on 4096 images took half a second
of an H200, and most of the time of its verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

LEAST_SAMPLES = 64
"""Fewer are left to torch."""
MOST_OF_A_SAMPLE = 1 << 21
"""Elements of a sample's windows; the product of a larger one takes longer than what launches it. AlexNet's first two layers on
1024 images, with 1.1 and 1.75 million, take 17 and 26 ms of an H200 instead of 47 and 44."""
_AT_A_TIME = 1 << 25
"""Elements of the windows that are copied at a time: 256 MiB in float64."""


def suits(x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> bool:
    """Whether the batch is large and its samples are small. ``x`` has a batch and a channel dimension."""
    if x.dim() != weight.dim() or x.shape[0] < LEAST_SAMPLES:
        return False
    places = math.prod(_output_shape(x, weight, stride, padding, dilation))
    return 0 < places * x.shape[1] * math.prod(weight.shape[2:]) <= MOST_OF_A_SAMPLE


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    groups: int,
) -> Tensor:  # fmt: skip
    """The convolution, not transposed, as torch defines it. Dimensions of ``stride`` and the others as of the windows."""
    shape = _output_shape(x, weight, stride, padding, dilation)
    sample = math.prod(shape) * x.shape[1] * math.prod(weight.shape[2:])
    matrices = weight.reshape(groups, weight.shape[0] // groups, -1).mT
    parts = []
    for part in torch.split(x, max(1, _AT_A_TIME // max(1, sample))):
        windows = _windows(part, weight, shape, stride, padding, dilation, groups)
        product = torch.bmm(windows.reshape(groups, len(part) * math.prod(shape), -1), matrices)
        split = product.reshape(groups, len(part), math.prod(shape), -1)
        parts.append(split.permute(1, 0, 3, 2).reshape(len(part), weight.shape[0], *shape))
    found = torch.cat(parts)
    return found if bias is None else found.add_(bias.reshape(-1, *[1] * len(shape)))


def _windows(
    x: Tensor, weight: Tensor, shape: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    groups: int,
) -> Tensor:  # fmt: skip
    """A view with dimensions (group, sample, *place, channel of the group, *offset in the window)."""
    padded = torch.nn.functional.pad(x, [side for one in reversed(padding) for side in (one, one)])
    of_sample, of_channel, *steps = padded.stride()
    channels, kernel = x.shape[1] // groups, weight.shape[2:]
    return padded.as_strided(
        (groups, len(x), *shape, channels, *kernel),
        (
            channels * of_channel,
            of_sample,
            *(step * by for step, by in zip(steps, stride, strict=True)),
            of_channel,
            *(step * by for step, by in zip(steps, dilation, strict=True)),
        ),
    )


def _output_shape(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    sides = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    return tuple((size + 2 * pad - hole * (kernel - 1) - 1) // step + 1 for size, kernel, step, pad, hole in sides)
