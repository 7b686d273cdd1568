"""What perturbed inputs keep of the problem's own: zeros among other numbers, (skew) symmetry, order, range. Imports torch.

A product of triangular, banded or symmetric matrices invites a kernel that reads a part of them, and sorted numbers, such as
the edges of buckets, one that searches them. It is right for the inputs that the problem states, and would be wrong if a
perturbation filled the zeros, broke the symmetry or changed the order.
"""

from __future__ import annotations

import torch

from engine.trial.judge.outputs.blocks import in_blocks, read_numbers


def kept(own: torch.Tensor, perturbed: torch.Tensor) -> torch.Tensor:
    """``perturbed``, a contiguous changed copy of ``own``, with ``own``'s zeros, and (skew) symmetric or sorted if ``own`` is.

    Changes ``perturbed``.
    Complex tensors come as their two parts: of Hermitian matrices one is symmetric and the other skew symmetric. A tensor of
    one number only has none of these: a bias of zeros is to differ.
    """
    if own.numel() < 2 or _is_one_number(own):
        return perturbed
    if _has_zeros_to_keep(own):
        for changed, before in in_blocks(perturbed, own, own_type=True):
            changed.masked_fill_(before == 0, 0)
    if is_symmetric(own):
        return torch.triu(perturbed) + torch.triu(perturbed, 1).mT
    if _is_skew_symmetric(own):
        return torch.triu(perturbed, 1) - torch.triu(perturbed, 1).mT
    order = _order(own)
    return torch.sort(perturbed, dim=-1, descending=order < 0).values if order else perturbed


def in_range(own: torch.Tensor, perturbed: torch.Tensor) -> torch.Tensor:
    """``perturbed``, a changed copy of ``own``, with ``own``'s elements where the changed ones leave the range of its type.

    An infinite input has a rule of its own (``special_values``). Changes ``perturbed``, which may be of a wider type.
    """
    most = torch.finfo(own.dtype).max
    if most < _WIDE_RANGE and own.numel():
        for changed, before in in_blocks(perturbed, own, own_type=True):
            changed.copy_(torch.where(changed.abs() <= most, changed, before.to(changed.dtype)))
    return perturbed


_WIDE_RANGE = 1e30
"""Types that hold such numbers hold whatever a perturbation makes of common ones."""


def _order(tensor: torch.Tensor) -> int:
    """1 if every line along the last dimension ascends, −1 if every one descends; 0 for too few numbers to say so."""
    if not tensor.dim() or tensor.shape[-1] < _SHORTEST_SORTED:
        return 0
    for order in (1, -1):
        # The first line first: reading all of a large matrix takes longer than most kernels.
        steps = _wide(tensor.reshape(-1, tensor.shape[-1])[0]).diff() * order
        if bool((steps >= 0).all()) and bool((_wide(tensor).diff(dim=-1) * order >= 0).all()):
            return order
    return 0


_SHORTEST_SORTED = 6
"""Numbers of a line that is taken for sorted: six random ones ascend in one draw of 720."""


def _is_one_number(tensor: torch.Tensor) -> bool:
    first = tensor.reshape(-1)[:1]
    return all(bool((block == first).all()) for (block,) in in_blocks(tensor, own_type=True))


def _has_zeros_to_keep(tensor: torch.Tensor) -> bool:
    """Whether the tensor has zeros that are structure. Torch has no ``all`` for floats of one byte: theirs always count.

    In a large tensor a few zeros are chance: ``torch.rand`` draws one 0 in 2^24 numbers of 32 bits.
    """
    if tensor.dtype.itemsize == 1:
        return True
    if tensor.numel() < _LARGE:
        return not bool(tensor.all())
    if tensor.is_cuda and tensor.numel() >= _SCANNED and tensor.is_contiguous() and _are_zeros_rare(tensor.view(-1)):
        return False
    return _zeros(tensor) > _BY_CHANCE * tensor.numel()


def _are_zeros_rare(flat: torch.Tensor) -> bool:
    """Whether random places, the same for all tensors of a size, hold next to no zeros.

    With a share of 2⁻¹⁹ zeros, 32 are expected there, and fewer than ``_SEEN`` in one draw of ten million.
    """
    generator = torch.Generator(flat.device).manual_seed(flat.numel())
    kind = torch.int32 if flat.numel() < 1 << 31 else torch.int64
    places = torch.randint(flat.numel(), (_SAMPLED,), generator=generator, device=flat.device, dtype=kind)
    return int((flat.index_select(0, places) == 0).sum()) < _SEEN


def _zeros(tensor: torch.Tensor) -> int:
    """How many elements are zero, exactly, in one pass over memory.

    The norm of order 0 counts the others, in float32: that holds every whole number up to ``_COUNTED_EXACTLY``. Summing
    booleans converts each to an int64 first: on an H200 11 ms for 1.6e9 numbers, of 48 for drawing and checking them.
    """
    found = 0
    for (block,) in in_blocks(tensor, own_type=True):
        wide = None if block.dtype is torch.float64 else torch.float32
        counts = [torch.linalg.vector_norm(part, 0, dtype=wide) for part in torch.split(block, _COUNTED_EXACTLY)]
        found += block.numel() - sum(map(int, read_numbers(counts)))
    return found


_COUNTED_EXACTLY = 1 << 24
"""Elements up to which float32 counts."""
_LARGE = 1 << 25
"""Elements from which on zeros can be chance."""
_SCANNED = 1 << 28
"""Elements of a tensor on a GPU up to which all are counted."""
_SAMPLED, _SEEN = 1 << 24, 8
"""Elements that are looked at of more, and the zeros among them from which on all are counted."""
_BY_CHANCE = 2.0**-22
"""Largest share of zeros that is taken for chance: four times that of ``torch.rand``."""


def is_symmetric(tensor: torch.Tensor) -> bool:
    """Whether the last two dimensions are those of symmetric matrices larger than 1 × 1."""
    # The first row and column first: reading all of a large matrix takes longer than most kernels.
    return _is_square(tensor) and torch.equal(tensor[..., 0, :], tensor[..., :, 0]) and torch.equal(tensor, tensor.mT)


def _is_skew_symmetric(tensor: torch.Tensor) -> bool:
    if not _is_square(tensor) or not torch.equal(_wide(tensor[..., 0, :]), -_wide(tensor[..., :, 0])):
        return False
    wide = _wide(tensor)
    return torch.equal(wide, -wide.mT)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a type with arithmetic, which those of one byte lack."""
    return tensor.float() if tensor.dtype.itemsize == 1 else tensor


def _is_square(tensor: torch.Tensor) -> bool:
    return tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2] > 1
