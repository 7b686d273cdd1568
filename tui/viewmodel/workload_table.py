"""The workload × kernel table of a session: speedups, sorted by a column, with the best of each column. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.domain import columns, corroboration, queries
from engine.domain.model import Interval
from engine.domain.state import Kernel, SessionState, Stage
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import Cell, Ink, pad, width

_FIGURE = 7
"""Columns of a speedup: figures end below each other."""
MEAN = "mean"
"""The first column: the geometric mean over the suite, or the speedup on the one workload."""


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One kernel: its name, and a cell for each column."""

    kernel: str
    name: Cell
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class WorkloadTable:
    """The table. ``sorted_by`` is a column's name."""

    heads: tuple[str, ...]
    rows: tuple[WorkloadRow, ...]
    sorted_by: str


def workload_table(state: SessionState, sorted_by: str = MEAN) -> WorkloadTable:
    """The measured kernels of the present device, those with the greatest speedup in a column first."""
    names = tuple(one.name for one in columns.workloads(state))
    each = names if len(names) > 1 else ()
    heads = (MEAN, *each)
    chosen = sorted_by if sorted_by in heads else MEAN
    best = {name: kernel.id for name, kernel in columns.leaders(state).items() if name in each}
    incumbent = queries.incumbent(state)
    best[MEAN] = incumbent.id if incumbent is not None else ""
    shown = [(kernel, _speedups(state, kernel)) for kernel in state.kernels.values() if kernel.stage is Stage.MEASURED]
    rated = [(kernel, ratios) for kernel, ratios in shown if MEAN in ratios]
    rated.sort(key=lambda pair: -(pair[1][chosen].value if chosen in pair[1] else 0.0))
    longest = {head: max((width(_choice(kernel, head)) for kernel, _ in rated), default=0) for head in heads}
    rows = tuple(_row(state, kernel, ratios, longest, best) for kernel, ratios in rated)
    return WorkloadTable(heads, rows, chosen)


def legend(state: SessionState) -> str:
    """What stands beside a figure; of what this table has."""
    measured = [kernel for kernel in state.kernels.values() if kernel.stage is Stage.MEASURED]
    chosen = [kernel for kernel in measured if kernel.choices]
    tuned = next((one.tunables for kernel in chosen if len(kernel.members) < 2 for one in kernel.choices if one.tunables), {})
    member = next((one.member for kernel in chosen if len(kernel.members) > 1 for one in kernel.choices), "")
    parts = (
        f"{kernels.INCUMBENT} best of the column",
        "dim: not corroborated" if any(map(corroboration.is_doubted, measured)) else "",
        f"{member}: what a dispatch runs there" if member else "",
        f"{'·'.join(map(str, tuned.values()))}: tuned there, {fmt.tunables(tuned)}" if tuned else "",
    )
    return "   ".join(filter(None, parts))


def _speedups(state: SessionState, kernel: Kernel) -> Mapping[str, Interval]:
    overall = queries.speedup(state, kernel)
    return {MEAN: overall, **columns.speedups(state, kernel)} if overall is not None else {}


def _choice(kernel: Kernel, workload: str) -> str:
    """What a dispatch of several kernels runs there, or the values of the tunables of a kernel that was tuned."""
    several = len(kernel.members) > 1
    for one in kernel.choices:
        if one.workload == workload:
            return one.member if several else "·".join(map(str, one.tunables.values()))
    return ""


def _row(
    state: SessionState, kernel: Kernel, ratios: Mapping[str, Interval], longest: Mapping[str, int], best: Mapping[str, str]
) -> WorkloadRow:
    """``longest``: the columns and the room that each has for choices, so that figures stand below each other."""
    title = Cell(f"{kernel.id} {kernels.title(state, kernel)}", Ink.BEST if best[MEAN] == kernel.id else Ink.PLAIN)
    doubted = corroboration.is_doubted(kernel)
    cells = []
    for head, room in longest.items():
        ratio = ratios.get(head)
        if ratio is None:
            cells.append(Cell(pad("—", _FIGURE, right=True), Ink.FAINT))
            continue
        leads = best.get(head) == kernel.id
        mark = f" {kernels.INCUMBENT}" if leads else "  "
        ink = Ink.UNDECIDED if doubted else Ink.BEST if leads else fmt.speedup_ink(ratio)
        words = f" {pad(_choice(kernel, head), room)}" if room else ""
        cells.append(Cell(f"{pad(fmt.ratio_of(ratio), _FIGURE, right=True)}{mark}{words}", ink))
    return WorkloadRow(kernel.id, title, tuple(cells))
