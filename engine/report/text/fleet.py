"""The workers of a session as lines: one a worker."""

from __future__ import annotations

from collections.abc import Sequence

from engine.report.facts.fleet import FleetRows, WorkerRow
from engine.report.text.lines import Line, Span, Tone, line, one_line, table


def fleet_lines(fleet: FleetRows) -> list[Line]:
    """A row for each worker, then what waits."""
    waits = [line(Span(f"{fleet.queued} queued", Tone.FAINT))] if fleet.queued else []
    return [*table([_row(worker) for worker in fleet.workers]), *waits]


def _row(worker: WorkerRow) -> Sequence[Span]:
    return [
        Span(one_line(worker.name), Tone.STRONG), _work_span(worker), Span(rate(worker)), Span(reading(worker), Tone.FAINT),
        Span(device(worker), Tone.FAINT),
    ]  # fmt: skip


def _work_span(worker: WorkerRow) -> Span:
    return Span(f"lost: {one_line(worker.lost)}", Tone.WARN) if worker.lost else Span(work_words(worker))


def work_words(worker: WorkerRow) -> str:
    """``verify k7, build k9`` or ``idle``."""
    return ", ".join(one_line(key).replace(":", " ", 1).partition(":")[0] for key in worker.doing) or "idle"


def device(worker: WorkerRow) -> str:
    """What it measures on."""
    return one_line(worker.device) or "builder"


def rate(worker: WorkerRow) -> str:
    """``3.5/min, 41 verdicts``; nothing for a builder."""
    if not worker.device:
        return ""
    return f"{worker.per_minute:g}/min, {worker.verdicts} verdict{'s' if worker.verdicts != 1 else ''}"


def reading(worker: WorkerRow) -> str:
    """``1980 MHz, 54 °C``, as far as it is known."""
    clock = f"{worker.clock_mhz} MHz" if worker.clock_mhz is not None else ""
    heat = f"{worker.celsius} °C" if worker.celsius is not None else ""
    return ", ".join(filter(None, (clock, heat)))
