"""Large tensors a block at a time: comparing two of them takes no further tensor of their size. Imports torch.

Tensors of one call may lie on different devices, because float64 may run on the host: each block is brought to the first one's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

ELEMENTS = {"cpu": 1 << 17, "cuda": 1 << 22}
"""Elements of a block, by the kind of device. In float64 that is 1 MiB on a CPU: intermediate results stay in its caches, and
their memory is used again. On a GPU it is 32 MiB, because every block costs the launches of its operators."""
_IN_OWN_TYPE = {"cpu": 1, "cuda": 4}
"""So many times as large are blocks of which nothing is made in float64. On an H200, replacing a third of 1.6e9 numbers takes
15 instead of 21 ms, a sign for each of many short blocks 10 instead of 22, and reading all of them 7 instead of 17."""
_WIDE = 8
"""Bytes of an ``int64``."""
Blocks = Callable[[], Iterator[torch.Tensor]]
"""The blocks of one tensor, from the start at every call."""


def in_blocks(*tensors: torch.Tensor, own_type: bool = False) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same elements of several tensors of one size, flat, on the first one's device.

    ``own_type``: nothing is made of them in float64, so blocks may be larger.
    """
    flat = [tensor.reshape(-1) for tensor in tensors]
    device = flat[0].device
    size = ELEMENTS[device.type] * (_IN_OWN_TYPE[device.type] if own_type else 1)
    for start in range(0, flat[0].numel(), size):
        yield tuple(one[start : start + size].to(device) for one in flat)


_LEAST_SQUARE, _MOST_SQUARE = 1e-200, 1e280
"""Mean squares between these leave room for the squares of errors in float64."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Of real numbers ÷ ``scale``: how many, their mean, their mean square, and the variance."""

    count: int = 0
    mean: float = 0.0
    square: float = 0.0
    variance: float = 0.0
    scale: float = 1.0
    """A power of two, other than 1 where squares of the numbers leave the range of float64."""
    zero: bool = False
    """Whether every number is known to be 0, and its square not merely too small for float64."""

    @property
    def rms(self) -> float:
        return self.scale * math.sqrt(self.square)

    @property
    def deviation(self) -> float:
        return self.scale * math.sqrt(self.variance)

    @property
    def in_range(self) -> bool:
        """Whether the squares are within the range of float64."""
        return self.zero or _LEAST_SQUARE <= self.square <= _MOST_SQUARE

    def joined(self, count: int, mean: float, square: float, variance: float) -> Moments:
        """With further numbers, divided by the same scale."""
        total = self.count + count
        share, apart = count / total, mean - self.mean
        return Moments(
            total,
            self.mean + apart * share,
            self.square * (1 - share) + square * share,
            self.variance * (1 - share) + variance * share + apart * apart * share * (1 - share),
            self.scale,
        )


def moments(blocks: Blocks) -> Moments:
    """Of all elements, in float64. Finite numbers are scaled where their squares leave its range."""
    found = _moments(blocks())
    if found.in_range or not found.count:
        return found
    largest = max(read_numbers([block.to(torch.float64).abs().amax() for block in blocks() if block.numel()]))
    if not 0 < largest < math.inf:
        return replace(found, zero=not largest)
    scale = math.ldexp(1.0, math.frexp(largest)[1] - 1)
    return replace(_moments(block.to(torch.float64) / scale for block in blocks()), scale=scale)


def _moments(blocks: Iterator[torch.Tensor]) -> Moments:
    """Without a scale. The device is waited for once, not for every block."""
    counts: list[int] = []
    rows: list[torch.Tensor] = []
    for block in blocks:
        if count := block.numel():
            rows.append(torch.stack(torch.var_mean(block.to(torch.float64), correction=0)))
            counts.append(count)
    found = Moments()
    for count, (spread, centre) in zip(counts, read_rows(rows), strict=True):
        found = found.joined(count, centre, spread + centre * centre, spread)
    return found


def read_rows(rows: Sequence[torch.Tensor]) -> list[list[float]]:
    """The numbers of small tensors of one device, read at once."""
    found: list[list[float]] = torch.stack(tuple(rows)).tolist() if rows else []
    return found


def read_numbers(found: Sequence[torch.Tensor]) -> list[float]:
    """Single numbers of one device, read at once."""
    numbers: list[float] = torch.stack(tuple(found)).tolist() if found else []
    return numbers


def as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Booleans as bytes: any value but 0 and 1 could be unwritten."""
    return tensor.contiguous().view(torch.uint8) if tensor.dtype == torch.bool else tensor


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """As integers: equal NaNs compare equal. As int64 where the size allows it, which compares many times faster than bytes.

    A slice that is not aligned is copied for that: tensors of one size and type have integers of one type.
    """
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    if flat.numel() % _WIDE:
        return flat
    return (flat.clone() if flat.storage_offset() % _WIDE else flat).view(torch.int64)


def as_rows_of_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of every element, one row each."""
    return tensor.contiguous().reshape(-1, 1).view(torch.uint8)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in page-locked memory, which a GPU reads and writes many times faster; in other memory where that is refused."""
    try:
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    except RuntimeError:
        copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    return copy.copy_(tensor)
