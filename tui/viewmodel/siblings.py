"""What tells the kernels of one idea apart: their tunables, those with other values first. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.domain.state import Kernel, SessionState


@dataclass(frozen=True, slots=True)
class Label:
    """A kernel's tunables: ``first`` those that tell it apart, then the ``rest``."""

    first: Mapping[str, int]
    rest: Mapping[str, int]


def labels(state: SessionState, kernel: Kernel) -> dict[str, Label]:
    """The labels of the kernel and of its siblings: the kernels of its idea with its parent.

    A variant of its parent (the same tunables) is told apart by what it changed; other kernels by the tunables whose values
    differ among the siblings.
    """
    idea = state.ideas.get(kernel.idea)
    names = dict.fromkeys((*(idea.kernels if idea is not None else ()), kernel.id))
    group = [one for one in (state.kernels.get(name) for name in names) if one is not None and one.parent == kernel.parent]
    parent = state.kernels.get(kernel.parent) if kernel.parent is not None else None
    values: dict[str, set[int]] = {}
    for one in group:
        for name, value in one.tunables.items():
            values.setdefault(name, set()).add(value)
    among = {name for name, found in values.items() if len(found) > 1}
    return {one.id: _label(one, parent, among) for one in group}


def _label(kernel: Kernel, parent: Kernel | None, among: set[str]) -> Label:
    before = parent.tunables if parent is not None else {}
    changed = [name for name, value in kernel.tunables.items() if before.get(name) != value]
    is_variant = bool(changed) and before.keys() == kernel.tunables.keys()
    first = set(changed) if is_variant else among
    return Label(
        {name: value for name, value in kernel.tunables.items() if name in first},
        {name: value for name, value in kernel.tunables.items() if name not in first},
    )
