"""Changes a few elements of inputs that a kernel has seen: what it knows of them by samples is then wrong. Imports torch.

Zeros among other numbers stay, as in perturbed inputs, and symmetric matrices stay symmetric. Those that may be positive
definite stay so: a factorisation of others fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch

from engine.problem.arguments.values import map_arguments
from engine.trial.judge.inputs import structure

_FEW = 3
_TRIED = 40
"""Pairs of places drawn. Of a triangular matrix, every second place lies in the triangle."""
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by their bytes: some types of one byte have no indexing of their own."""


def swap_few(tensor: torch.Tensor, rng: Random) -> None:
    """Swap a few random elements of a contiguous floating-point tensor with others of it, in place.

    Zeros are left where they are, unless most elements are zero. Of symmetric matrices, whose zeros always are, the mirrored
    elements are swapped too; of those that may be positive definite, a few elements change sign instead.
    """
    if not tensor.is_floating_point() or not tensor.numel():
        return
    bits = tensor.view(-1).view(_BITS[tensor.element_size()])
    if not structure.is_symmetric(tensor):
        places = [rng.randrange(bits.numel()) for _ in range(2 * _TRIED)]
        _swap(bits, _nonzero(bits, places)[: 2 * _FEW] or places[: 2 * _FEW])
        return
    size = tensor.shape[-1]
    drawn = [(rng.randrange(bits.numel() // size**2), rng.sample(range(size), 2)) for _ in range(2 * _TRIED)]
    chosen = _nonzero(bits, [(matrix * size + min(pair)) * size + max(pair) for matrix, pair in drawn])[: 2 * _FEW]
    matrices = tensor.view(-1, size, size)
    if _may_be_definite(matrices):
        _negate(matrices, chosen[:_FEW])
    else:
        _swap(bits, chosen)
        _swap(bits, [_mirrored(place, size) for place in chosen])


def _nonzero(bits: torch.Tensor, places: Sequence[int]) -> list[int]:
    """Those of ``places`` at which there is another number than 0, in pairs."""
    found = [place for place, kept in zip(places, (bits[list(places)] != 0).tolist(), strict=True) if kept]
    return found[: len(found) // 2 * 2]


def _swap(bits: torch.Tensor, places: Sequence[int]) -> None:
    """Swap the elements at each two of ``places``."""
    for here, there in zip(places[::2], places[1::2], strict=True):
        bits[[here, there]] = bits[[there, here]]


def _mirrored(place: int, size: int) -> int:
    """The flat index of the transposed element, in a batch of square matrices."""
    rows, column = divmod(place, size)
    matrix, row = divmod(rows, size)
    return (matrix * size + column) * size + row


def _may_be_definite(matrices: torch.Tensor) -> bool:
    """Whether every diagonal element is positive, and every other smaller than the geometric mean of the two in line with it.

    All positive definite matrices are such. Computed element by element: two copies of a tensor get the same answer.
    """
    if matrices.element_size() == 1:
        return False  # no factorisation takes these types
    roots = matrices.diagonal(dim1=-2, dim2=-1).float().sqrt()
    bounds = roots[:, :, None] * roots[:, None, :]
    bounds.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    return bool((roots > 0).all()) and bool((matrices.abs() < bounds).all())


def _negate(matrices: torch.Tensor, places: Sequence[int]) -> None:
    """Negate elements of symmetric matrices and their mirrored ones, and add twice their size to both diagonal elements.

    That adds a positive semidefinite matrix: those that were definite stay so.
    """
    size = matrices.shape[-1]
    for place in dict.fromkeys(places):
        matrix, (row, column) = matrices[place // size**2], divmod(place % size**2, size)
        added = 2 * matrix[row, column].abs()
        for diagonal in (row, column):
            matrix[diagonal, diagonal] += added
        for one, other in ((row, column), (column, row)):
            matrix[one, other].neg_()


def with_swaps(inputs: tuple[object, ...], seeds: Sequence[int]) -> tuple[object, ...]:
    """Copies of ``inputs`` after ``swap_few`` with each of these seeds, tensor by tensor."""
    if not seeds:
        return inputs
    orders = [Random(seed) for seed in seeds]

    def swapped(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone(memory_format=torch.contiguous_format)
        for rng in orders:
            swap_few(copy, rng)
        return copy

    return map_arguments(swapped, inputs)
