"""The workload × kernel table of a session: speedups, sorted by a column, with the best of each column. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.domain import columns, corroboration, queries
from engine.domain.model import Interval
from engine.domain.state import Kernel, SessionState, Stage
from engine.report.text.suite import choice_words
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import Cell, Ink

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
    return WorkloadTable(heads, tuple(_row(state, kernel, ratios, heads, best) for kernel, ratios in rated), chosen)


def _speedups(state: SessionState, kernel: Kernel) -> Mapping[str, Interval]:
    overall = queries.speedup(state, kernel)
    return {MEAN: overall, **columns.speedups(state, kernel)} if overall is not None else {}


def _row(
    state: SessionState, kernel: Kernel, ratios: Mapping[str, Interval], heads: tuple[str, ...], best: Mapping[str, str]
) -> WorkloadRow:
    title = Cell(f"{kernel.id} {kernels.title(state, kernel)}", Ink.BEST if best[MEAN] == kernel.id else Ink.PLAIN)
    doubted = corroboration.is_doubted(kernel)
    chosen = {one.workload: one for one in kernel.choices}
    cells = []
    for head in heads:
        ratio = ratios.get(head)
        if ratio is None:
            cells.append(Cell("—", Ink.FAINT))
            continue
        leads = best.get(head) == kernel.id
        mark = f" {kernels.INCUMBENT}" if leads else "  "
        ink = Ink.UNDECIDED if doubted else Ink.BEST if leads else fmt.speedup_ink(ratio)
        words = f"  {choice_words(chosen[head])}" if head in chosen else ""
        cells.append(Cell(f"{fmt.ratio(ratio.value)}{mark}{words}", ink))
    return WorkloadRow(kernel.id, title, tuple(cells))
