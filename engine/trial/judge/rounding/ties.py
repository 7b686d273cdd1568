"""Indices where ties decide: an index is right when the value that it selects is. Imports torch.

``topk``, ``sort``, ``argmax`` and their like return one of several equal elements; which one is an accident of the algorithm.
The reference is traced in float64, and each index output is matched with the operator that made it. An index of the kernel's
is right if it is in range, selects the same value as the reference's, and (for a sort) occurs once. Scores that the reference
computes may differ by the error of its own arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Any, Protocol

import torch

from engine.problem.arguments.values import tensors
from engine.problem.torch_modes.operator_mode import MOVING, OperatorMode, named_arguments

_ALL_DIFFERENT = frozenset({"topk", "sort", "argsort"})
_INDEX_OPERATORS = _ALL_DIFFERENT | {
    "argmax", "argmin", "max", "min", "median", "nanmedian", "kthvalue", "mode", "cummax", "cummin",
    "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d",
}  # fmt: skip
_INDEX_ONLY = frozenset({"argmax", "argmin", "argsort"})
_PLANES = {"max_pool2d_with_indices": 2, "adaptive_max_pool2d": 2, "max_pool3d_with_indices": 3, "adaptive_max_pool3d": 3}
"""Poolings index the flattened plane: its number of dimensions."""
_ROUNDING = 10.0
"""The allowed multiple of the error of the reference's own scores."""
_APART = 1e-12
"""How far apart equal scores are set, in units of the largest."""
_LARGEST_SHARE = 0.02
"""Limit on that error, as a share of the scores' spread: beyond it they do not say which element is right."""


def selects(operators: frozenset[str]) -> bool:
    """Whether one of these operators returns indices."""
    return any(name.rstrip("_") in _INDEX_OPERATORS for name in operators)


@dataclass(frozen=True, slots=True)
class IndexSource:
    """Where an index points: it selects along ``dim`` of ``scores``."""

    scores: torch.Tensor
    dim: int
    indices: torch.Tensor
    name: str
    """The operator's."""

    @property
    def all_different(self) -> bool:
        return self.name in _ALL_DIFFERENT


class IndexTrace(OperatorMode):  # type: ignore[no-untyped-call]
    """Records the operators that return indices. ``consumed``: whether a later operator computes with one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sources: list[IndexSource] = []
        self.consumed = False
        self._indices: set[int] = set()
        self._alive: list[torch.Tensor] = []

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        found = func(*args, **given)
        name = func._overloadpacket.__name__.rstrip("_")
        if any(_place(t) in self._indices for t in tensors([*args, *given.values()])):
            if name in MOVING:
                moved = list(tensors([found]))
                self._indices |= {_place(t) for t in moved}
                self._alive += moved
            else:
                self.consumed = True
        if name in _INDEX_OPERATORS:
            self._record(name, named_arguments(func, args, given), found)
        return found

    def _record(self, name: str, arguments: Mapping[str, Any], found: object) -> None:
        index, scores, dim = _index_of(name, found), arguments["self"].detach(), arguments.get("dim")
        if index is None or not scores.dim():
            return
        self._indices.add(_place(index))
        self._alive.append(index)
        if arguments.get("stable"):  # the reference asks for the first of equal elements
            return
        if name in _PLANES:
            index, scores, dim = index.flatten(-_PLANES[name]), scores.flatten(-_PLANES[name]), -1
        elif dim is None and name in ("argmax", "argmin"):
            index, scores, dim = index.reshape(-1), scores.reshape(-1), 0
        dim = (-1 if dim is None else dim) % scores.dim()
        shaped = index if index.dim() == scores.dim() else index.unsqueeze(dim)
        self.sources.append(IndexSource(scores, dim, shaped, name))


def _index_of(name: str, found: object) -> torch.Tensor | None:
    """The indices that an index operator returned; ``None`` of one that returned a value only. Values may be integers too."""
    if isinstance(found, torch.Tensor):
        return found if name in _INDEX_ONLY else None
    index = list(tensors([found]))[-1]
    return index if index.dtype == torch.int64 else None


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)


def equivalent(output: torch.Tensor, expected: torch.Tensor, exact: IndexTrace, eager: IndexTrace) -> torch.Tensor | None:
    """The elements of an index output that select what ``expected`` selects; ``None`` if it is not an index output."""
    for position, source in enumerate(exact.sources):
        dim, shown = source.dim, source.indices
        if expected.dim() == shown.dim() and shown.shape[dim] > expected.shape[dim]:
            shown = shown.narrow(dim, 0, expected.shape[dim])  # the first few of a sort
        if shown.numel() != expected.numel() or not torch.equal(shown.reshape(-1), expected.reshape(-1).to(torch.int64)):
            continue
        chosen = output.to(shown.device, torch.int64).reshape(shown.shape)
        same = _selects_the_same(chosen, shown, source, slack(exact.sources, eager.sources, position))
        return same.reshape(output.shape).to(output.device)
    return None


class OpenChoice(StrEnum):
    """What equal scores leave open of an index that the reference computes with."""

    NONE = auto()
    OTHER = auto()
    """Scores are equal: another index is as right (``OtherChoices``)."""
    ANY = auto()
    """Scores are as close as rounding errs: whatever may be chosen."""


def open_choice(exact: IndexTrace, eager: IndexTrace) -> OpenChoice:
    """What equal scores leave open of the indices that the reference computes with."""
    found = OpenChoice.NONE
    for place, source in enumerate(exact.sources if exact.consumed else ()):
        ties = _choice(source, slack(exact.sources, eager.sources, place))
        if ties is OpenChoice.ANY:
            return ties
        found = ties if ties is OpenChoice.OTHER else found
    return found


def _choice(source: IndexSource, within: float) -> OpenChoice:
    ordered = source.scores.sort(source.dim).values.double()
    lower, upper = (
        ordered.narrow(source.dim, 0, ordered.shape[source.dim] - 1),
        ordered.narrow(source.dim, 1, ordered.shape[source.dim] - 1),
    )
    picked = source.scores.gather(source.dim, source.indices).double()
    least, most = picked.amin(source.dim, keepdim=True) - within, picked.amax(source.dim, keepdim=True) + within
    tied = _tied(lower, upper, within) & (upper >= least) & (lower <= most)
    if not bool(tied.any()):
        return OpenChoice.NONE
    return OpenChoice.ANY if source.name == "mode" or bool((tied & (lower != upper)).any()) else OpenChoice.OTHER


class OtherChoices(OperatorMode):  # type: ignore[no-untyped-call]
    """Has every operator that returns an index choose another one of equal scores, at random.

    Of two modes with the same seed and opposite signs, one at least chooses otherwise than the operator itself.
    """

    def __init__(self, seed: int, sign: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed, self._sign = seed, sign

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        found = func(*args, **given)
        name = func._overloadpacket.__name__.rstrip("_")
        if name not in _INDEX_OPERATORS or _index_of(name, found) is None:
            return found
        scores, *others = args
        arguments = named_arguments(func, args, given)
        if not scores.dim() or arguments.get("stable"):
            return found
        self._seed += 1
        other = func(self._apart(scores), *others, **given)
        index = _index_of(name, other)
        if isinstance(found, torch.Tensor) or index is None:
            return other
        return self._values(name, scores, arguments.get("dim"), index), index

    def _apart(self, scores: torch.Tensor) -> torch.Tensor:
        """The scores with equal ones a little apart, and infinite ones beyond all others."""
        wide = scores.double()
        largest = float(torch.where(wide.isfinite(), wide, 0.0).abs().max()) if wide.numel() else 0.0
        bound = 2 * largest + 1
        generator = torch.Generator(wide.device).manual_seed(self._seed)
        order = torch.rand(wide.shape, generator=generator, dtype=wide.dtype, device=wide.device) - 0.5
        return wide.clamp(-bound, bound) + self._sign * _APART * bound * order

    def _values(self, name: str, scores: torch.Tensor, dim: int | None, index: torch.Tensor) -> torch.Tensor:
        if name in _PLANES:
            planes = _PLANES[name]
            return scores.flatten(-planes).gather(-1, index.flatten(-planes)).view(index.shape)
        dim = (-1 if dim is None else dim) % scores.dim()
        if index.dim() == scores.dim():
            return scores.gather(dim, index)
        return scores.gather(dim, index.unsqueeze(dim)).squeeze(dim)


def _selects_the_same(chosen: torch.Tensor, right: torch.Tensor, source: IndexSource, within: float) -> torch.Tensor:
    scores, dim = source.scores, source.dim
    inside = (chosen >= 0) & (chosen < scores.shape[dim])
    picked = scores.gather(dim, chosen.clamp(0, scores.shape[dim] - 1)).double()
    wanted = scores.gather(dim, right).double()
    same = inside & _tied(picked, wanted, within)
    if source.all_different:
        same &= all_different(chosen, dim)
    return same


def selects_a_tied_set(
    chosen: torch.Tensor, right: torch.Tensor, scores: torch.Tensor, dim: int, within: float
) -> torch.Tensor:
    """Where ``chosen`` selects, in any order along ``dim``, elements that tie with those of ``right``; size 1 along ``dim``."""
    inside = (chosen >= 0) & (chosen < scores.shape[dim])
    picked = scores.gather(dim, chosen.clamp(0, scores.shape[dim] - 1)).double()
    wanted = scores.gather(dim, right).double()
    tied = _tied(picked.sort(dim).values, wanted.sort(dim).values, within)
    return (inside & tied).all(dim, keepdim=True) & all_different(chosen, dim)


def _tied(one: torch.Tensor, other: torch.Tensor, within: float) -> torch.Tensor:
    return (one == other) | ((one - other).abs() <= within)


def all_different(indices: torch.Tensor, dim: int) -> torch.Tensor:
    """Whether no index occurs twice along ``dim``, which has size 1 in the result."""
    return ~(indices.sort(dim).values.diff(dim=dim) == 0).any(dim, keepdim=True)


class Scored(Protocol):
    """A selection that was recorded while the reference ran."""

    @property
    def scores(self) -> torch.Tensor: ...


def slack(exact: Sequence[Scored], eager: Sequence[Scored], place: int) -> float:
    """How far apart two scores of the selection at ``place`` may be and still count as tied.

    ``exact``, ``eager``: all selections of a run in float64, and of one in the reference's own arithmetic, which may have less.
    """
    return _tied_within(exact[place].scores, eager[place].scores if place < len(eager) else None)


def _tied_within(scores: torch.Tensor, eager: torch.Tensor | None) -> float:
    """A multiple of the error of the reference's own arithmetic; ``eager``: the same scores in it."""
    if eager is None or eager.shape != scores.shape or not scores.dtype.is_floating_point or scores.numel() < 2:
        return 0.0
    exact = scores.double()
    error = float((eager.to(exact.device).double() - exact).abs().nan_to_num(0.0, 0.0, 0.0).max())
    spread = float(exact[torch.isfinite(exact)].std(correction=0)) if bool(torch.isfinite(exact).any()) else 0.0
    return min(_ROUNDING * error, _LARGEST_SHARE * spread)
