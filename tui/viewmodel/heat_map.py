"""The heat map of a suite: workloads down, kernels across, the fastest kernel first. Readable without colour. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from engine.domain import columns, queries
from engine.domain.model import Interval
from engine.domain.state import Kernel, SessionState
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import Cell, Ground, Ink, cut_middle, line, pad
from tui.viewmodel.charts import ChartPage

_SHADES = "▁▂▃▄▅▆▇█"
_MEAN = "mean"
_TITLE_EDGES = 4
"""Columns of the border beside a title."""
_NUMBER = 7
"""Cells of a figure with its shade."""
_SHARE = 3
"""The names of the workloads take at most one part in so many."""
_LEGENDS = ("▁ slowest … █ fastest   ★ best on the workload   green above 1×, red below", "▁ slowest … █ fastest   ★ best")


def has_heat_map(state: SessionState) -> bool:
    """Whether the session is on a suite of several workloads."""
    return len(columns.workloads(state)) > 1


def workload_names(state: SessionState) -> list[str]:
    """The workloads of the suite, in its order."""
    return [one.name for one in columns.workloads(state)]


def heat_map(state: SessionState, selected: str, first: int, top: int, room: int, height: int) -> ChartPage:
    """The speedups from the kernel at ``first`` and the workload at ``top`` on; figures where there is room, else shades
    alone."""
    ranked = [kernel for kernel in queries.ranked(state) if columns.speedups(state, kernel)]
    workloads = workload_names(state)
    names = min(max((len(name) for name in (*workloads, _MEAN)), default=0), max(6, room // _SHARE))
    most = max(1, height - 2)
    rows = [_MEAN, *workloads[max(0, min(top, len(workloads) - most)) :][:most]]
    across = room - names - 2
    wide = _NUMBER if across // _NUMBER >= min(4, len(ranked)) else max((len(kernel.id) for kernel in ranked), default=2) + 1
    shown = ranked[max(0, min(first, len(ranked) - across // wide)) :][: max(1, across // wide)]
    ratios = {kernel.id: _ratios(state, kernel) for kernel in ranked}
    scale = _scale([ratio.value for by_name in ratios.values() for ratio in by_name.values()])
    best = {name: kernel.id for name, kernel in columns.leaders(state).items()}
    lead = queries.incumbent(state)
    best[_MEAN] = lead.id if lead is not None else ""
    lines = [line(Cell(" " * (names + 2)), *(_head(kernel, selected, best[_MEAN], wide) for kernel in shown))]
    for name in rows:
        cells = [_cell(ratios[kernel.id].get(name), best.get(name) == kernel.id, scale, wide) for kernel in shown]
        lines.append(line(Cell(f" {pad(cut_middle(name, names), names)} ", Ink.LABEL), *cells))
    title = _title(state, (len(rows) - 1, len(workloads)), (len(shown), len(ranked)), room)
    return ChartPage(title, tuple(lines), _LEGENDS)


def _title(state: SessionState, workloads: tuple[int, int], kernels_shown: tuple[int, int], room: int) -> str:
    """What is drawn, and how much of it; ``(shown, all)`` of each axis."""
    base = queries.ranking_baseline(state)
    parts = [f"{shown} of {every} {name}" for (shown, every), name in ((workloads, "workloads"), (kernels_shown, "kernels"))
             if shown < every]  # fmt: skip
    brief = [part.replace(" of ", "/") for part in parts]
    forms = (
        ", ".join((f"speedup × {base} by workload and kernel", *parts)), ", ".join((f"speedup × {base} by workload", *parts)),
        ", ".join((f"× {base}", *brief)),
    )  # fmt: skip
    return next((form for form in forms if len(form) <= room - _TITLE_EDGES), forms[-1])


def _ratios(state: SessionState, kernel: Kernel) -> Mapping[str, Interval]:
    overall = queries.speedup(state, kernel)
    return {**({_MEAN: overall} if overall is not None else {}), **columns.speedups(state, kernel)}


def _scale(values: list[float]) -> tuple[float, float]:
    logs = [math.log(value) for value in values if value > 0]
    return (min(logs), max(logs)) if logs else (0.0, 1.0)


def _head(kernel: Kernel, selected: str, incumbent: str, wide: int) -> Cell:
    ink = Ink.MARK if kernel.id == selected else Ink.BEST if kernel.id == incumbent else Ink.STRONG
    return Cell(pad(f"{kernel.id} ", wide, right=True), ink)


def _cell(ratio: Interval | None, leads: bool, scale: tuple[float, float], wide: int) -> Cell:
    if ratio is None:
        return Cell(pad("— ", wide, right=True), Ink.FAINT)
    low, high = scale
    share = (math.log(ratio.value) - low) / (high - low or 1.0) if ratio.value > 0 else 0.0
    shade = kernels.INCUMBENT if leads and wide < _NUMBER else _SHADES[round(share * (len(_SHADES) - 1))]
    ink = fmt.speedup_ink(ratio)
    ground = {Ink.FASTER: Ground.FASTER_BAND, Ink.SLOWER: Ground.SLOWER_BAND}.get(ink, Ground.UNDECIDED_BAND)
    if wide < _NUMBER:
        return Cell(pad(shade if leads else shade * (wide - 1), wide), ink)
    number = fmt.digits(ratio.value)
    return Cell(f"{kernels.INCUMBENT if leads else ' '}{shade}{number:>{wide - 3}} ", Ink.BEST if leads else ink, ground)
