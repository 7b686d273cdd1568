"""What perturbed inputs keep of the problem's own: zeros among other numbers, and symmetry. Imports torch.

A product of triangular, banded or symmetric matrices invites a kernel that reads a part of them. It is right for the inputs
that the problem states, and would be wrong if a perturbation filled the zeros or broke the symmetry.
"""

from __future__ import annotations

import torch

from engine.trial.judge.blocks import in_blocks


def kept(own: torch.Tensor, bent: torch.Tensor) -> torch.Tensor:
    """``bent``, a contiguous changed copy of ``own``, with the zeros of ``own``, and symmetric if that is. Changes ``bent``.

    A tensor of one number only has neither: a bias of zeros is to differ.
    """
    if own.numel() < 2 or _is_one_number(own):
        return bent
    if _may_hold_zeros(own):
        for changed, before in in_blocks(bent, own):
            changed.masked_fill_(before == 0, 0)
    return torch.triu(bent) + torch.triu(bent, 1).mT if is_symmetric(own) else bent


def _is_one_number(tensor: torch.Tensor) -> bool:
    first = tensor.reshape(-1)[:1]
    return all(bool((block == first).all()) for (block,) in in_blocks(tensor))


def _may_hold_zeros(tensor: torch.Tensor) -> bool:
    """Whether a block-wise pass is needed; types of one byte cannot be counted."""
    return tensor.dtype.itemsize == 1 or int(torch.count_nonzero(tensor)) < tensor.numel()


def is_symmetric(tensor: torch.Tensor) -> bool:
    """Whether the last two dimensions are those of symmetric matrices larger than 1 × 1."""
    square = tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2] > 1
    # The first row and column first: reading all of a large matrix takes longer than most kernels.
    return square and bool(torch.equal(tensor[..., 0, :], tensor[..., :, 0])) and bool(torch.equal(tensor, tensor.mT))
