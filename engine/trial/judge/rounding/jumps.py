"""Elements that jump where rounding alone decides what a reference selects, rounds or compares. Imports torch.

A token whose second and third best experts nearly tie is routed to one or the other, by the order in which a sum is added, and
all its outputs jump. Such an element is right if it is one that the reference shows on inputs that differ in their last places,
or with its sums in another order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.trial.judge.outputs.comparison import finite_moments, spread_of

_JUMPING = frozenset(
    "topk sort argsort argmax argmin max min median kthvalue mode bucketize searchsorted round floor ceil trunc sign "
    "floor_divide remainder fmod gt lt ge le eq ne heaviside".split()
)
"""Operators, without a trailing underscore, of which a small change can change the result by much."""
MOST, MOST_AT_ODDS = 0.01, 0.1
"""The largest share of the elements of an output that may jump: more are taken for a fault. The second where more do, in half
precision and on perturbed inputs: in bf16 two experts tie for one or two tokens of a hundred."""
FAR_IN_HALF = 4
"""So many times the limit of the whole output an element jumps at least, in half precision on the problem's own inputs: a row
that chose another code has elements that change little, and the worst element's limit is wide."""
_MOST_ELEMENTS = 2**27
"""Larger outputs are not looked into: the device may lack the room."""
_ENOUGH = 8
"""Runs after which wrong elements, of which none has jumped, are taken for a fault: each run calls the reference."""


def may_jump(operators: frozenset[str]) -> bool:
    """Whether a reference with these operators has outputs that can jump."""
    return any(name.rstrip("_") in _JUMPING for name in operators)


def nearest_seen(
    output: torch.Tensor, expected: torch.Tensor, runs: Iterator[torch.Tensor], limit: float, most: float
) -> torch.Tensor | None:
    """``expected`` with, at elements that are wrong and jump in one of ``runs``, the seen value nearest to the output's.

    ``limit``: what an element may err, in units of its scale (``comparison``). ``None`` where nothing is wrong, more than the
    share ``most`` of the elements is, or none of them jumps.
    """
    if output.numel() > _MOST_ELEMENTS or not output.dtype.is_floating_point:
        return None
    right, mine = expected.double(), output.double().to(expected.device)
    allowed = _allowed(right, limit)
    wrong = (mine - right).abs() > allowed
    if not 0 < int(wrong.sum()) <= most * output.numel():
        return None
    nearest = right.clone()
    for count, run in enumerate(runs, 1):
        seen = run.double().to(expected.device)
        better = wrong & ((seen - right).abs() > allowed) & ((mine - seen).abs() < (mine - nearest).abs())
        nearest = torch.where(better, seen, nearest)
        if count == _ENOUGH and torch.equal(nearest, right):
            return None
    return nearest.to(expected.dtype)


def with_far_ones(expected: torch.Tensor, output: torch.Tensor, limit: float) -> torch.Tensor:
    """``expected`` with the elements of the reference's own ``output`` that are further off: where others jump, they do too."""
    right, mine = expected.double(), output.double().to(expected.device)
    return torch.where((mine - right).abs() > _allowed(right, limit), mine, right).to(expected.dtype)


def _allowed(expected: torch.Tensor, limit: float) -> torch.Tensor:
    """What each element may err, by ``limit`` in units of its scale."""
    return limit * (expected.abs() + spread_of(finite_moments(expected)))
