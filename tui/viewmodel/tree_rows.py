"""The kernel tree as rows, given folded nodes, filter and sort order. Pure and iterative.

A row is a position in the tree, without figures: ``tree_cells`` makes cells for the visible rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from engine.domain import queries
from engine.domain.state import Kernel, SessionState
from engine.report.text.tree import outcome as plain_outcome
from tui.viewmodel import fmt

GUIDE_LEVELS = 24
"""How many levels of guide strokes are kept: a chain of 10,000 kernels must not take 10,000² characters."""
_CORNER, _TEE, _PIPE, _GAP = "╰─", "├─", "│ ", "  "


class Sort(StrEnum):
    """The sort order of the kernels."""

    BORN = "born"
    """A tree, siblings by age."""
    BRANCH = "branch"
    """A tree, the sibling with the fastest kernel in its branch first."""
    RANK = "rank"
    """A flat list, fastest kernel first; the orders below are flat lists too."""
    OUTCOME = "outcome"
    TIME = "time"
    SOL = "sol"
    CLASS = "class"
    TUNABLES = "tunables"
    AUTHOR = "author"


class NodeRow(NamedTuple):
    """One line of the tree; a tuple because ten thousand are made at a time."""

    kernel: str
    depth: int
    guides: str
    """The guide strokes before it, at most ``GUIDE_LEVELS`` levels."""
    children: int
    folded: bool
    hidden: int
    """Kernels hidden by folding."""
    pruned: bool
    """It or an ancestor was pruned."""
    context: bool = False
    """Shown only because a kernel below it matches the filter."""


@dataclass(frozen=True, slots=True)
class TreeShape:
    """What the rows depend on, besides the state."""

    folded: frozenset[str] = frozenset()
    pattern: str = ""
    """Every word must occur in the kernel's id, title, name, author, outcome or tunables, in any case."""
    sort: Sort = Sort.BORN


PLAIN = TreeShape()


def rows(state: SessionState, shape: TreeShape = PLAIN) -> tuple[NodeRow, ...]:
    """The rows of the tree from top to bottom. A filter unfolds the ancestors of its matches."""
    matches = _matching(state, shape.pattern) if shape.pattern.strip() else None
    if shape.sort not in (Sort.BORN, Sort.BRANCH):
        return tuple(_flat(state, matches, shape.sort))
    shown = None if matches is None else _with_ancestors(state, matches)
    order = _best_branch_first(state) if shape.sort is Sort.BRANCH else None
    return tuple(_walk(state, shape.folded if matches is None else frozenset(), matches, shown, order))


Order = Callable[[Sequence[str]], Sequence[str]]


def _walk(
    state: SessionState, folded: frozenset[str], matches: set[str] | None, shown: set[str] | None, order: Order | None
) -> Iterable[NodeRow]:
    kernels = state.kernels
    sizes = _sizes(state) if folded else {}
    pruned_here = frozenset(state.pruned)
    todo: list[tuple[str, int, str, str, bool]] = []

    def push(ids: Sequence[str], depth: int, below: str, *, pruned: bool) -> None:
        ids = order(ids) if order is not None and len(ids) > 1 else ids
        last = len(ids) - 1
        for place in range(last, -1, -1):
            stroke, under = (_CORNER, _GAP) if place == last else (_TEE, _PIPE)
            guides = (below + stroke)[-2 * GUIDE_LEVELS :] if depth else ""
            beneath = (below + under)[-2 * GUIDE_LEVELS :] if depth else ""
            todo.append((ids[place], depth, guides, beneath, pruned))

    push([k for k in _roots(kernels) if shown is None or k in shown], 0, "", pruned=False)
    while todo:
        name, depth, guides, below, pruned = todo.pop()
        pruned = pruned or name in pruned_here
        children = [c for c in kernels[name].children if c in kernels and (shown is None or c in shown)]
        is_folded = bool(children) and name in folded
        hidden = sizes[name] - 1 if is_folded else 0
        context = matches is not None and name not in matches
        yield NodeRow(name, depth, guides, len(children), is_folded, hidden, pruned, context)
        if children and not is_folded:
            push(children, depth + 1, below, pruned=pruned)


def _roots(kernels: Mapping[str, Kernel]) -> list[str]:
    return [k.id for k in kernels.values() if k.parent is None or k.parent not in kernels]


def _flat(state: SessionState, matches: set[str] | None, sort: Sort) -> Iterable[NodeRow]:
    """The fastest first; in another order those that have no such figure last, and equal ones the fastest first."""
    leading = [k.id for k in queries.ranked(state)]
    known = set(leading)
    pruned = _all_pruned(state)
    names = [*leading, *(k for k in state.kernels if k not in known)]
    if sort is not Sort.RANK:
        keys = {name: _key(state.kernels[name], sort) for name in names}
        names.sort(key=lambda name: (keys[name] is None, keys[name] or ()))
    for name in names:
        if matches is None or name in matches:
            yield NodeRow(name, 0, "", 0, False, 0, name in pruned)


def _key(kernel: Kernel, sort: Sort) -> tuple[float | str, ...] | None:
    """What the kernel is sorted by, smallest first; ``None`` if it has none."""
    measured = kernel.measurement
    match sort:
        case Sort.TIME:
            return (measured.time_us.value,) if measured is not None else None
        case Sort.SOL:
            return (-measured.light.fraction,) if measured is not None and measured.light is not None else None
        case Sort.CLASS:
            return (kernel.verification.precision_class.value,) if kernel.verification is not None else None
        case Sort.TUNABLES:
            return tuple(part for name, value in sorted(kernel.tunables.items()) for part in (name, value)) or None
        case Sort.AUTHOR:
            return (kernel.author.name.casefold(),)
        case _:
            return (plain_outcome(kernel),)


def _all_pruned(state: SessionState) -> set[str]:
    found: set[str] = set()
    for kernel in state.pruned:
        found.update(queries.descendants(state, kernel))
    return found


def _topological(state: SessionState) -> list[str]:
    """Parents before children."""
    ordered = _roots(state.kernels)
    for name in ordered:
        ordered.extend(c for c in state.kernels[name].children if c in state.kernels)
    return ordered


def _sizes(state: SessionState) -> dict[str, int]:
    """Kernel → number of kernels in its branch, including itself."""
    sizes = dict.fromkeys(state.kernels, 1)
    for name in reversed(_topological(state)):
        parent = state.kernels[name].parent
        if parent is not None and parent in sizes:
            sizes[parent] += sizes[name]
    return sizes


def _best_branch_first(state: SessionState) -> Order:
    """By the rank of a branch's best kernel; branches without a ranked kernel keep their order, last."""
    best = {kernel.id: place for place, kernel in enumerate(queries.ranked(state))}
    last = len(best)
    for name in reversed(_topological(state)):
        parent = state.kernels[name].parent
        if parent is not None:
            best[parent] = min(best.get(parent, last), best.get(name, last))
    return lambda ids: sorted(ids, key=lambda name: best.get(name, last))


def _with_ancestors(state: SessionState, matches: set[str]) -> set[str]:
    shown: set[str] = set()
    for name in matches:
        at: str | None = name
        while at is not None and at in state.kernels and at not in shown:
            shown.add(at)
            at = state.kernels[at].parent
    return shown


def _matching(state: SessionState, pattern: str) -> set[str]:
    words = pattern.casefold().split()
    return {k.id for k in state.kernels.values() if _matches(state, k, words)}


def _matches(state: SessionState, kernel: Kernel, words: Sequence[str]) -> bool:
    idea = state.ideas.get(kernel.idea)
    text = " ".join(
        (kernel.id, idea.text.title if idea else "", idea.text.category if idea else "", kernel.name, kernel.author.name,
         plain_outcome(kernel), fmt.tunables(kernel.tunables), "seed" if kernel.seed else "")
    ).casefold()  # fmt: skip
    return all(word in text for word in words)


def parent_row(found: Sequence[NodeRow], place: int) -> int | None:
    """Index of the parent's row; ``None`` for a root."""
    depth = found[place].depth
    return next((n for n in range(place - 1, -1, -1) if found[n].depth < depth), None)
