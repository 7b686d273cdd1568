"""The timing page of a kernel: intervals on one scale, races, samples as a histogram, conditions. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from engine.domain import columns, corroboration, queries, races, suite
from engine.domain.model import Interval, Measurement, RaceOutcome
from engine.domain.state import Kernel, SessionState
from engine.report.text import races as race_text
from engine.report.text.regimes import NOT_MEASURED, disagreement, sustained_words
from engine.report.text.suite import choice_words
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import BLANK, Cell, Ink, Line, line, one_line, pad
from tui.viewmodel.pages import empty_page, section, table

_KERNEL = "kernel"
"""The name of the kernel's samples in their blob."""
_LABEL = 12
_BESIDE_RATIO = 28
"""Columns of a workload's line beside its name and speedup: its time, its share of SOL."""


def page(state: SessionState, kernel: Kernel, room: int, raw: str = "", *, race_key: str = "") -> tuple[Line, ...]:
    """The whole page. ``raw``: the blob of samples, empty if there is none.

    ``race_key``: the key that requests a race; empty where none does.
    """
    measured = kernel.measurement
    if measured is None:
        return empty_page("not measured yet")
    lines = [BLANK, *_figures(state, kernel, measured, room), BLANK, section("speedup over the baselines", room)]
    lines += _intervals(state, kernel, measured, room)
    lines += _workloads(state, kernel, measured, room)
    lines += _races(state, kernel, room, race_key)
    times = claimed_times(raw)
    if times.get(_KERNEL):
        lines += [BLANK, section("samples", room), *_histograms(state, times, room)]
    elif measured.raw and not measured.by_workload:
        lines += [BLANK, line(Cell("  the samples are missing from the session folder", Ink.FAINT))]
    return tuple(lines)


def _figures(state: SessionState, kernel: Kernel, measured: Measurement, room: int) -> list[Line]:
    depth = "screened in one process pair" if measured.depth == "screen" else fmt.counted(measured.processes, "process pair")
    rows: list[tuple[str, tuple[Cell, ...]]] = [
        ("time", (Cell(fmt.duration_interval(measured.time_us), Ink.STRONG),)),
        ("samples", (Cell(f"{measured.samples}, {depth}"),)),
    ]
    if measured.light is not None:
        meter = fmt.meter(measured.light.fraction, max(4, min(24, room - 52)))
        words = f"  floor {fmt.duration(measured.light.floor_us)}, bound by {one_line(measured.light.bound)}"
        share = Cell(f" {fmt.percent(measured.light.fraction)}", Ink.STRONG)
        rows.append(("SOL", (*meter, share, Cell(words, Ink.FAINT))))
    corroborated = Cell("✓ corroborated", Ink.GOOD) if measured.corroborated else Cell("✗ not corroborated", Ink.BAD)
    rows.append(("judge", (corroborated,)))
    if kernels.outcome(state, kernel) is kernels.NOT_COMPARED:
        rows.append((kernels.NOT_COMPARED.word, (Cell(kernels.WHY_NOT_COMPARED, Ink.WARN),)))
    rows += [("doubt", (Cell(one_line(doubt), Ink.WARN),)) for doubt in corroboration.of_measurement(measured)]
    if measured.conditions:
        rows.append(("conditions", (Cell("; ".join(map(one_line, measured.conditions))),)))
    rows += _sustained(state, measured, leads=kernel.id == state.incumbent)
    if state.preparation is not None:
        same = state.preparation.same
        name = queries.ranking_baseline(state)
        rows.append(("noise", (Cell(f"{name} against itself {fmt.times(same)}", Ink.FAINT),)))
    return table(rows, room)


def _sustained(state: SessionState, measured: Measurement, *, leads: bool) -> list[tuple[str, tuple[Cell, ...]]]:
    """The sustained regime beside the single calls above, and where the two disagree."""
    base = queries.ranking_baseline(state)
    found = measured.sustained
    if found is None:
        return [("sustained", (Cell(NOT_MEASURED, Ink.FAINT),))] if leads else []
    ink = fmt.speedup_ink(found.speedup[base]) if base in found.speedup else Ink.PLAIN
    conditions = Cell(", ".join(map(one_line, found.conditions)), Ink.FAINT)
    rows: list[tuple[str, tuple[Cell, ...]]] = [("sustained", (Cell(sustained_words(found, base), ink),)), ("", (conditions,))]
    rows += [("doubt", (Cell(one_line(doubt), Ink.WARN),)) for doubt in found.doubts]
    if sentence := disagreement(measured, base, races.deciding_regime(state)):
        rows.append(("decides", (Cell(sentence, Ink.WARN),)))
    return rows


def _intervals(state: SessionState, kernel: Kernel, measured: Measurement, room: int) -> list[Line]:
    """Speedup over each baseline, and below it the parent's and the incumbent's, on one scale."""
    base = queries.ranking_baseline(state)
    shown: list[tuple[str, Interval, Ink]] = [
        (f"× {name}", ratio, Ink.UNDECIDED if corroboration.is_doubted(kernel) else fmt.speedup_ink(ratio))
        for name, ratio in measured.speedup.items()
    ]
    own = len(shown)
    others = {"parent": state.kernels.get(kernel.parent or ""), "incumbent": kernels.incumbent(state)}
    for role, other in others.items():
        theirs = queries.speedup(state, other) if other is not None and other.id != kernel.id else None
        if other is not None and theirs is not None:
            shown.append((f"{role} {other.id}", theirs, Ink.FAINT))
    if not shown:
        return [line(Cell("  no baseline measured", Ink.FAINT))]
    low, high = _scale([ratio for _, ratio, _ in shown])
    label = max([_LABEL, *(len(name) for name, _, _ in shown)])
    room = max(12, min(64, room - label - 28))
    lines: list[Line] = []
    for number, (name, ratio, ink) in enumerate(shown):
        if number == own:
            lines.append(line(Cell(f"  other kernels over {base}", Ink.FAINT)))
        drawn = fmt.interval_line(ratio, low, high, room, ink)
        figures = (Cell(f" {fmt.times(ratio).partition(' [')[0]}", ink), Cell(f" {fmt.interval_ends(ratio)}", Ink.FAINT))
        lines.append(line(Cell(f"  {pad(name, label)} ", Ink.LABEL), *drawn, *figures))
    return [*lines, *_axis(low, high, room, base, label)]


_INKS = {RaceOutcome.FASTER: Ink.FASTER, RaceOutcome.SLOWER: Ink.SLOWER, RaceOutcome.UNDECIDED: Ink.UNDECIDED}


def _workloads(state: SessionState, kernel: Kernel, measured: Measurement, room: int) -> list[Line]:
    """Time and speedup on each workload of a suite, and who is better there."""
    base = queries.ranking_baseline(state)
    better = {one.workload: one for one in columns.behind(state, kernel)}
    slowest = suite.worst(measured, base)
    chosen = {one.workload: one for one in kernel.choices}
    ratios = {one.workload: one.speedup[base] for one in measured.by_workload if base in one.speedup}
    longest = max((len(name) + len(fmt.times(ratio)) for name, ratio in ratios.items()), default=0)
    shown = fmt.times if longest + _BESIDE_RATIO <= room else fmt.ratio_of
    width = max((len(shown(ratio)) for ratio in ratios.values()), default=0) + 2
    rows: list[tuple[str, tuple[Cell, ...]]] = []
    for one in measured.by_workload:
        ratio, loss = ratios.get(one.workload), better.get(one.workload)
        cells = [Cell(pad(fmt.duration(one.time_us.value), 9))]
        if ratio is not None:
            ink = Ink.UNDECIDED if corroboration.is_doubted(kernel) else fmt.speedup_ink(ratio)
            cells.append(Cell(pad(shown(ratio), width), ink))
        light = fmt.percent(one.light.fraction) if one.light is not None else ""
        words = [f"SOL {light}" if light else "", "worst" if one is slowest else ""]
        words.append(choice_words(chosen.get(one.workload)))
        words.append(f"{loss.best.id} {fmt.ratio_of(loss.theirs)}" if loss is not None else "")
        cells.append(Cell("  ".join(filter(None, words)), Ink.FAINT))
        rows.append((one.workload, tuple(cells)))
    return [BLANK, section("workloads of the suite", room), *table(rows, room)] if rows else []


def _races(state: SessionState, kernel: Kernel, room: int, race_key: str) -> list[Line]:
    """Races with other kernels, latest first."""
    rows: list[tuple[str, tuple[Cell, ...]]] = []
    for race in reversed(state.races):
        if kernel.id not in (race.kernel, race.against):
            continue
        other, outcome, ratio = race_text.seen_by(race, kernel.id)
        past = "" if races.is_current(state, race) else ", before a remeasurement"
        repeat = race_key and outcome is RaceOutcome.UNDECIDED and races.latest_race(state, kernel.id, other) is race
        cells = [Cell(f"{race_text.GLYPHS[outcome]} {outcome.value}", _INKS[outcome])]
        if ratio is not None:
            cells.append(Cell(f"  {fmt.times(ratio)}", Ink.STRONG))
        pairs = f"  {fmt.counted(race.pairs, 'process pair')}" if race.pairs else ""
        note = "".join(f"; {one_line(words)}" for words in (*race.doubts, race.note) if words)
        cells.append(Cell(f"{pairs}{note}{past}{f'; {race_key}: race again' if repeat else ''}", Ink.FAINT))
        rows.append((f"against {other}", tuple(cells)))
    return [BLANK, section("races", room), *table(rows, room)] if rows else []


def _scale(ratios: Sequence[Interval]) -> tuple[float, float]:
    """A scale that spans all intervals but for infinite ends, and the baseline if it is close."""
    ends = [end for ratio in ratios for end in (ratio.low, ratio.value, ratio.high) if math.isfinite(end)]
    low, high = min(ends, default=1.0), max(ends, default=1.0)
    if low - 1.0 < high - low:
        low, high = min(low, 1.0), max(high, 1.0)
    margin = 0.06 * (high - low) or 0.01
    return max(0.0, low - margin), high + margin


def _axis(low: float, high: float, room: int, base: str, label: int) -> list[Line]:
    """A line with both ends labelled, and the baseline if it is on the scale."""
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
    """Claimed times in microseconds by name (``kernel`` or a baseline) from a blob of samples; empty for anything else.

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
