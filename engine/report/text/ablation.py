"""An ablation: the gain of each idea of a lineage over its parent, as figures and as a table. Pure.

A gain is significant if its interval excludes 1.0 and it is larger than the baseline-against-itself (A/A) difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.domain import predictions, queries, stats
from engine.domain.model import Interval
from engine.domain.state import SessionState
from engine.report.text.lines import Line, Span, Tone, line, one_line, shortened, table, times, tunables

_TITLE = 48
NOT_SHOWN = "not shown"
NOT_CORROBORATED = "not corroborated"


@dataclass(frozen=True, slots=True)
class StepGain:
    """One kernel of the lineage and the gain of its idea."""

    kernel: str
    idea: str
    author: str
    against: str
    """The kernel it was raced against; empty for the first one."""
    gain: Interval | None
    cumulative: Interval | None
    """Over the first kernel: the product of the gains so far. Intervals are combined as independent errors."""
    recorded: Interval | None
    """The gain recorded in the session."""
    verdict: str
    """``faster``, ``slower``, ``not shown``, ``not corroborated``, ``first``, or ``failed``."""
    trouble: str | None
    doubts: tuple[str, ...]
    """Why the gain is not corroborated. The following kernels then have no cumulative gain."""


@dataclass(frozen=True, slots=True)
class AblationStep:
    """The measurement of one kernel of the lineage."""

    kernel: str
    trouble: str
    """How the kernel failed. Empty if it has a gain, and for the first verified kernel."""
    against: str
    """The kernel it was raced against: its nearest verified ancestor."""
    gain: Interval | None
    doubts: tuple[str, ...] = ()


def step_gains(state: SessionState, steps: Sequence[AblationStep], same: Interval) -> tuple[StepGain, ...]:
    """Each step with its gain. ``same`` is the baseline against itself, measured in the same run."""
    rows: list[StepGain] = []
    so_far: Interval | None = None
    doubted = False
    for step in steps:
        kernel = state.kernels[step.kernel]
        doubted = doubted or bool(step.doubts)
        if step.gain is not None:
            so_far = None if doubted else step.gain if so_far is None else product(so_far, step.gain)
        rows.append(
            StepGain(
                step.kernel, queries.title(state, kernel), queries.idea_author(state, kernel),
                step.against, step.gain, so_far if step.gain is not None else None, predictions.gain(state, kernel),
                verdict(step.gain, same, step.doubts) if step.gain is not None else "failed" if step.trouble else "first",
                one_line(step.trouble) or None, step.doubts,
            )
        )  # fmt: skip
    return tuple(rows)


def verdict(gain: Interval, same: Interval, doubts: Sequence[str] = ()) -> str:
    """``faster``, ``slower``, ``not shown``, or ``not corroborated``: faster only by a doubted claim."""
    word = stats.significant(gain)
    if doubts and word == "faster":
        return NOT_CORROBORATED
    floor = max(abs(math.log(same.low)), abs(math.log(same.high))) if same.low > 0 and same.high < math.inf else math.inf
    return NOT_SHOWN if word == "undecided" or abs(math.log(gain.value)) <= floor else word


def product(a: Interval, b: Interval) -> Interval:
    """The product of two ratios with independent errors."""
    value = a.value * b.value
    if not all(0 < end < math.inf for one in (a, b) for end in (one.low, one.high)):
        return Interval(value, 0.0, math.inf)
    down = math.hypot(math.log(a.value / a.low), math.log(b.value / b.low))
    up = math.hypot(math.log(a.high / a.value), math.log(b.high / b.value))
    return Interval(value, value * math.exp(-down), value * math.exp(up))


def lines(
    state: SessionState, gains: Sequence[StepGain], first: Interval | None, total: Interval | None, base: str
) -> list[Line]:
    """The table that ``ablate`` prints."""
    heads = ("kernel", "", "gain", "over", "recorded", "cumulative", "")
    rows = [[Span(head, Tone.FAINT) for head in heads], *(_row(state, one, first, base) for one in gains)]
    result = table(rows)
    if total is not None:
        ends = [one.kernel for one in gains if one.verdict != "failed"]
        result.append(line(f"{ends[-1]} raced directly against {ends[0]}: {times(total)}"))
    return result


def _row(state: SessionState, one: StepGain, first: Interval | None, base: str) -> list[Span]:
    chosen = tunables(state.kernels[one.kernel].tunables)
    title = Span(f"{one.kernel} {shortened(one_line(one.idea), _TITLE)}", Tone.STRONG)
    head = [title, Span(chosen, Tone.FAINT)]
    if one.trouble is not None:
        return [*head, Span(one.trouble, Tone.BAD)]
    if one.gain is None:
        return [
            *head,
            Span(times(first) if first else ""),
            Span(base, Tone.FAINT),
            Span(""),
            Span(""),
            Span("first kernel", Tone.FAINT),
        ]
    tone = {"faster": Tone.GOOD, "slower": Tone.WARN, NOT_CORROBORATED: Tone.WARN}.get(one.verdict, Tone.FAINT)
    cells = [times(one.recorded) if one.recorded else "", times(one.cumulative) if one.cumulative else ""]
    return [*head, Span(times(one.gain), tone), Span(one.against, Tone.FAINT), *map(Span, cells), Span(one.verdict, tone)]
