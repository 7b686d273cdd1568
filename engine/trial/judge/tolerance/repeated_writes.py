"""References that write several values to one element, so that which one stays is undefined. Imports torch.

``x[i] = v``, ``index_copy``, ``scatter`` and ``put`` leave open which of several values for one element stays: threads decide.
The reference is called with the first of them staying, then with the last. Where its outputs differ, they are an accident.
Equal values, and elements that no output depends on (the slot of a cache that padding is written to), do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.problem.arguments.values import equal_values
from engine.problem.reference import Reference
from engine.problem.torch_modes.operator_mode import OperatorMode
from engine.trial.judge.inputs.cases import Case
from engine.trial.judge.inputs.perturbations import OWN
from engine.trial.judge.outputs.comparison import NO_ERROR
from engine.trial.judge.tolerance.policy import CheckResult
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase

DISTINCT = "make get_inputs() draw distinct indices (torch.randperm), or accumulate the values"
"""What to do about it."""

_Writes = tuple[Tensor, Tensor]
"""Flat positions in the tensor, and the value that is written to each."""


def _positions(tensor: Tensor) -> Tensor:
    return torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape)


def _repeats(indices: Tensor, dim: int = 0) -> bool:
    """Whether a number occurs twice along ``dim``."""
    return bool((indices.sort(dim).values.diff(dim=dim) == 0).any()) if indices.numel() > 1 else False


def _by_index(tensor: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> _Writes | None:
    given = [(size, index) for size, index in zip(tensor.shape, indices, strict=False) if index is not None]
    if accumulate or values.numel() == 1 or any(index.dtype in (torch.bool, torch.uint8) for _, index in given):
        return None  # a mask names no element twice
    places = torch.arange(1, device=tensor.device)
    for size, index in given:
        places = places * size + index.to(tensor.device) % size
    if not _repeats(places.flatten()):
        return None
    targets = torch.ops.aten.index.Tensor(_positions(tensor), indices)
    return targets, values.expand_as(targets)


def _by_copy(tensor: Tensor, dim: int, index: Tensor, source: Tensor) -> _Writes | None:
    return (_positions(tensor).index_select(dim, index), source) if tensor.dim() and _repeats(index.flatten()) else None


def _by_scatter(tensor: Tensor, dim: int, index: Tensor, source: Tensor) -> _Writes | None:
    if not index.dim() or not _repeats(index, dim):
        return None
    return _positions(tensor).gather(dim, index), source[tuple(slice(size) for size in index.shape)]


def _by_put(tensor: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> _Writes | None:
    places = index.flatten() % max(tensor.numel(), 1)
    return None if accumulate or not _repeats(places) else (places, source.flatten())


_aten = torch.ops.aten
_WRITES: Mapping[Any, Callable[..., _Writes | None]] = {
    _aten.index_put.default: _by_index, _aten.index_put_.default: _by_index, _aten._unsafe_index_put.default: _by_index,
    _aten.index_copy.default: _by_copy, _aten.index_copy_.default: _by_copy,
    _aten.scatter.src: _by_scatter, _aten.scatter_.src: _by_scatter,
    _aten.put.default: _by_put, _aten.put_.default: _by_put,
}  # fmt: skip
_NAMES = frozenset(operator._overloadpacket.__name__ for operator in _WRITES)


class OrderedWrites(OperatorMode):  # type: ignore[no-untyped-call]
    """Of several different values that one operator writes to an element, the first or the last stays.

    ``operators``: those that wrote such values.
    """

    def __init__(self, *, first: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: set[str] = set()
        self._first = first

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        found = func(*args, **given)
        if func in _WRITES and (writes := _WRITES[func](*args, **given)) is not None:
            targets, values = (one.reshape(-1) for one in writes)
            order = targets.argsort(stable=True)
            targets, values = targets[order], values[order].to(found.dtype)
            repeated, (one, other) = targets[1:] == targets[:-1], (values[:-1], values[1:])
            if bool((repeated & (one != other) & ~((one != one) & (other != other))).any()):
                self.operators.add(func._overloadpacket.__name__)
                end = torch.ones_like(targets[:1], dtype=torch.bool)
                stays = torch.cat([end, ~repeated] if self._first else [~repeated, end])
                ordered = found.flatten().index_copy(0, targets[stays], values[stays])
                found.copy_(ordered.view(found.shape))
        return found


def undefined_writes(reference: Reference, case: Case) -> str:
    """Why the outputs of a case are undefined: the operators that write several values to one element. Else empty."""
    if not _NAMES & reference.operators():
        return ""
    with (ordered := OrderedWrites(first=True)):
        first = reference.call(case.model, case.inputs)
    if not ordered.operators:
        return ""
    with OrderedWrites(first=False):
        last = reference.call(case.model, case.inputs)
    if all(map(equal_values, first, last)):
        return ""
    names = " and ".join(sorted(ordered.operators))
    return f"the reference writes several values to one element with {names}: which one stays is undefined"


def unless_undefined(ruling: CheckResult, asked: ReferenceOnCase, distribution: str) -> CheckResult:
    """``ruling``; where outputs fail whose right values are undefined, on perturbed inputs they pass, else it says why."""
    if ruling.passed or not (undefined := undefined_writes(asked.reference, asked.case)):
        return ruling
    return replace(ruling, undefined=undefined) if distribution == OWN else CheckResult(NO_ERROR, passed=True)
