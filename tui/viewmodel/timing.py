"""The page on a kernel's time: intervals on one scale, the samples as a histogram, the conditions. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache

from engine.domain import queries, races
from engine.domain.model import Interval, Measurement, RaceOutcome
from engine.domain.state import Kernel, SessionState
from engine.report.text import races as race_text
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import BLANK, Cell, Ink, Line, line, one_line, pad
from tui.viewmodel.pages import empty_page, section, table

_KERNEL = "kernel"
"""What the samples of the kernel under test are called in their blob."""
_LABEL = 12


def page(state: SessionState, kernel: Kernel, room: int, raw: str = "", *, steered: bool = True) -> tuple[Line, ...]:
    """Everything known about the kernel's time. ``raw`` is the samples' blob, empty where there is none.

    ``steered``: whether a race can be asked for where this is shown; else its key is not named.
    """
    measured = kernel.measurement
    if measured is None:
        return empty_page("not measured yet")
    lines = [BLANK, *_figures(state, measured, room), BLANK, section("against the baselines", room)]
    lines += _intervals(state, kernel, measured, room)
    lines += _races(state, kernel, room, steered)
    times = claimed_times(raw)
    if times.get(_KERNEL):
        lines += [BLANK, section("samples", room), *_histograms(state, times, room)]
    elif measured.raw:
        lines += [BLANK, line(Cell("  the samples are not kept here", Ink.FAINT))]
    return tuple(lines)


def _figures(state: SessionState, measured: Measurement, room: int) -> list[Line]:
    depth = "screened in one process" if measured.depth == "screen" else fmt.counted(measured.processes, "process pair")
    count = fmt.counted(measured.samples, "sample")
    rows: list[tuple[str, tuple[Cell, ...]]] = [
        ("time", (Cell(fmt.duration_interval(measured.time_us), Ink.STRONG), Cell(f"  {count}, {depth}", Ink.FAINT))),
    ]
    if measured.light is not None:
        meter = fmt.meter(measured.light.fraction, max(8, min(24, room - 56)))
        words = f" of the speed of light: {fmt.duration(measured.light.floor_us)}, {one_line(measured.light.bound)}"
        rows.append(("light", (*meter, Cell(f" {fmt.percent(measured.light.fraction)}", Ink.STRONG), Cell(words, Ink.FAINT))))
    borne = Cell("✓ the judge's clock bears it out", Ink.GOOD) if measured.corroborated else Cell("✗ not corroborated", Ink.BAD)
    rows.append(("clock", (borne,)))
    if measured.conditions:
        rows.append(("conditions", (Cell("; ".join(map(one_line, measured.conditions))),)))
    if state.preparation is not None:
        same = state.preparation.same
        name = queries.ranking_baseline(state)
        rows.append(("noise", (Cell(f"{name} against itself {fmt.times(same)}", Ink.FAINT),)))
    return table(rows, room)


def _intervals(state: SessionState, kernel: Kernel, measured: Measurement, room: int) -> list[Line]:
    """Speedups over each baseline, the parent's and the incumbent's beside them, on one scale."""
    base = queries.ranking_baseline(state)
    shown: list[tuple[str, Interval, Ink]] = [
        (f"× {name}", ratio, fmt.speedup_ink(ratio)) for name, ratio in measured.speedup.items()
    ]
    others = {"parent": state.kernels.get(kernel.parent or ""), "incumbent": kernels.incumbent(state)}
    for role, other in others.items():
        theirs = queries.speedup(state, other) if other is not None and other.id != kernel.id else None
        if other is not None and theirs is not None:
            shown.append((f"{role} {other.id}", theirs, Ink.FAINT))
    if not shown:
        return [line(Cell("  against nothing yet", Ink.FAINT))]
    low, high = _scale([ratio for _, ratio, _ in shown])
    label = max([_LABEL, *(len(name) for name, _, _ in shown)])
    room = max(12, min(64, room - label - 28))
    lines = []
    for name, ratio, ink in shown:
        drawn = fmt.interval_line(ratio, low, high, room, ink)
        figures = (Cell(f" {fmt.figures(ratio)[0]}×", ink), Cell(f" {fmt.interval_ends(ratio)}", Ink.FAINT))
        lines.append(line(Cell(f"  {pad(name, label)} ", Ink.LABEL), *drawn, *figures))
    return [*lines, *_axis(low, high, room, base, label)]


_INKS = {RaceOutcome.FASTER: Ink.FASTER, RaceOutcome.SLOWER: Ink.SLOWER, RaceOutcome.UNDECIDED: Ink.UNDECIDED}


def _races(state: SessionState, kernel: Kernel, room: int, steered: bool) -> list[Line]:
    """Races with other kernels, the latest first."""
    rows: list[tuple[str, tuple[Cell, ...]]] = []
    for race in reversed(state.races):
        if kernel.id not in (race.kernel, race.against):
            continue
        other, outcome, ratio = race_text.seen_by(race, kernel.id)
        past = "" if races.is_current(state, race) else ", before one of them was measured anew"
        spend = steered and outcome is RaceOutcome.UNDECIDED and races.latest_race(state, kernel.id, other) is race
        cells = [Cell(f"{race_text.GLYPHS[outcome]} {outcome.value}", _INKS[outcome])]
        if ratio is not None:
            cells.append(Cell(f"  {fmt.times(ratio)}", Ink.STRONG))
        pairs = f"  {fmt.counted(race.pairs, 'process pair')}" if race.pairs else ""
        note = f"; {one_line(race.note)}" if race.note else ""
        cells.append(Cell(f"{pairs}{note}{past}{'; r spends more on it' if spend else ''}", Ink.FAINT))
        rows.append((f"against {other}", tuple(cells)))
    return [BLANK, section("races", room), *table(rows, room)] if rows else []


def _scale(ratios: Sequence[Interval]) -> tuple[float, float]:
    """From below the lowest to above the highest; includes the baseline where it is near."""
    low, high = min(r.low for r in ratios), max(r.high for r in ratios)
    if low - 1.0 < high - low:
        low, high = min(low, 1.0), max(high, 1.0)
    margin = 0.06 * (high - low) or 0.01
    return max(0.0, low - margin), high + margin


def _axis(low: float, high: float, room: int, base: str, label: int) -> list[Line]:
    """A line with both ends named, and the baseline where it lies on it."""
    marks = ["─"] * room
    words = [" "] * room
    for text, at in ((fmt.ratio(low), 0), (fmt.ratio(high), room - len(fmt.ratio(high)))):
        words[at : at + len(text)] = text
    if low <= 1.0 <= high:
        one = round((1.0 - low) / (high - low) * (room - 1))
        marks[one] = "┴"
        name = f"1× {base}"
        start = min(max(one - 1, 0), room - len(name))
        if start < 8:
            words[:8] = " " * 8
        if all(char == " " for char in words[max(0, start - 1) : start + len(name) + 1]):
            words[start : start + len(name)] = name
    indent = " " * (label + 3)
    return [line(Cell(indent + "".join(marks), Ink.RULE)), line(Cell(indent + "".join(words), Ink.FAINT))]


def _histograms(state: SessionState, times_us: Mapping[str, Sequence[float]], room: int) -> list[Line]:
    base = queries.ranking_baseline(state)
    lines: list[Line] = []
    wide = max(16, min(72, room - 6))
    for name, words, ink in ((_KERNEL, "kernel", Ink.FASTER_BAR), (base, base, Ink.UNDECIDED_BAR)):
        times = times_us.get(name)
        if not times:
            continue
        rows, low, high = fmt.histogram(times, wide)
        lines.append(line(Cell(f"  {words}", Ink.LABEL), Cell(f"  {fmt.counted(len(times), 'sample')}", Ink.FAINT)))
        lines += [line("  ", Cell(row, ink)) for row in rows]
        left, right = fmt.duration(low), fmt.duration(high)
        lines += [line(Cell(f"  {left}{right.rjust(wide - len(left))}", Ink.FAINT)), BLANK]
    return lines[:-1]


@lru_cache(maxsize=4)
def claimed_times(text: str) -> Mapping[str, Sequence[float]]:
    """Claimed times in microseconds by name (``kernel`` or a baseline's) out of a samples' blob; empty where it is not one.

    A blob is ``{"columns": [...], "pairs": [{name: [[claimed, wall, idle], …]}]}``.
    """
    try:
        data = json.loads(text)
        column = data["columns"].index("claimed")
        times: dict[str, list[float]] = {}
        for pair in data["pairs"]:
            for name, rows in pair.items():
                times.setdefault(str(name), []).extend(float(row[column]) for row in rows)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return {}
    return times
