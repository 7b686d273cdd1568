"""The strip of a session's workers. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from engine.domain.state import SessionState
from engine.report.facts.fleet import WorkerRow, fleet_rows
from engine.report.text.fleet import device, rate, reading, work_words
from tui.viewmodel.cells import Cell, Ink, Line, line, one_line

_MOST_ROWS = 4


def height(state: SessionState | None) -> int:
    """Lines of the strip; 0 without a fleet."""
    return min(len(state.workers), _MOST_ROWS) if state is not None else 0


def strip(state: SessionState) -> Sequence[Line]:
    """A line a worker: what it does, verdicts a minute, clock and temperature, device. Many workers share the last line."""
    rows = fleet_rows(state, state.at)
    if rows is None:
        return ()
    shown = rows.workers if len(rows.workers) <= _MOST_ROWS else rows.workers[: _MOST_ROWS - 1]
    lines = [_line(worker) for worker in shown]
    if rest := rows.workers[len(shown) :]:
        lines.append(_summary(rest))
    if rows.queued:
        lines[0] = line(*lines[0].cells, Cell(f"  {rows.queued} queued", Ink.WAITING))
    return tuple(lines)


def _line(worker: WorkerRow) -> Line:
    if worker.lost:
        return line(Cell(f"{one_line(worker.name):<12}", Ink.STRONG), Cell(f"lost: {one_line(worker.lost)}", Ink.WARN))
    doing = work_words(worker)
    return line(
        Cell(f"{one_line(worker.name):<12}", Ink.STRONG), Cell(f"{doing:<22}", Ink.MEASURE if worker.doing else Ink.FAINT),
        Cell(f"{rate(worker):<24}"), Cell(f"{reading(worker):<18}", Ink.FAINT), Cell(device(worker), Ink.FAINT),
    )  # fmt: skip


def _summary(workers: Sequence[WorkerRow]) -> Line:
    """``60 more: 58 at work, 1 idle, 1 lost  210/min``."""
    lost = sum(bool(one.lost) for one in workers)
    at_work = sum(bool(one.doing) for one in workers)
    words = f"{len(workers)} more: {at_work} at work, {len(workers) - at_work - lost} idle"
    rates = f"  {sum(one.per_minute for one in workers):g}/min"
    return line(Cell(words, Ink.FAINT), Cell(f", {lost} lost", Ink.WARN) if lost else Cell(""), Cell(rates))
