"""Which idea of a lineage is worth what: the steps of an ablation in figures and in a table. Pure.

A gain counts as shown when its interval leaves out 1.0 and it is larger than what the baseline shows against itself here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.domain import predictions, stats
from engine.domain.model import Interval
from engine.domain.state import SessionState
from engine.report.text import Line, Span, Tone, line, one_line, shortened, table, times, tunables

_TITLE = 48
NOT_SHOWN = "not shown"


@dataclass(frozen=True, slots=True)
class Worth:
    """One kernel of the lineage and what its idea is worth here."""

    kernel: str
    idea: str
    author: str
    against: str
    """The kernel that it was raced against; empty for the first one."""
    gain: Interval | None
    cumulative: Interval | None
    """Over the first kernel: the product of the gains so far, their intervals combined as those of independent errors."""
    recorded: Interval | None
    """The gain that the session recorded."""
    verdict: str
    """``faster``, ``slower``, ``not shown``, ``first``, or ``failed``."""
    trouble: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """What a bench says of one kernel of the lineage."""

    kernel: str
    trouble: str
    """Why there is no gain: how the kernel failed; empty where there is one, and for the first right kernel."""
    against: str
    """The kernel that it was raced against: its nearest ancestor that is right here."""
    gain: Interval | None


def worths(state: SessionState, steps: Sequence[Step], same: Interval) -> tuple[Worth, ...]:
    """``same``: the baseline against itself, measured in the same run."""
    rows: list[Worth] = []
    so_far: Interval | None = None
    for step in steps:
        kernel = state.kernels[step.kernel]
        idea = state.ideas.get(kernel.idea)
        if step.gain is not None:
            so_far = step.gain if so_far is None else product(so_far, step.gain)
        rows.append(
            Worth(
                step.kernel, idea.text.title if idea else kernel.name, idea.author.name if idea else kernel.author.name,
                step.against, step.gain, so_far if step.gain is not None else None, predictions.gain(state, kernel),
                verdict(step.gain, same) if step.gain is not None else "failed" if step.trouble else "first",
                one_line(step.trouble) or None,
            )
        )  # fmt: skip
    return tuple(rows)


def verdict(gain: Interval, same: Interval) -> str:
    """``faster``, ``slower``, or that nothing is shown."""
    word = stats.significant(gain)
    floor = max(abs(math.log(same.low)), abs(math.log(same.high))) if same.low > 0 and same.high < math.inf else math.inf
    return NOT_SHOWN if word == "undecided" or abs(math.log(gain.value)) <= floor else word


def product(a: Interval, b: Interval) -> Interval:
    """The product of two ratios whose errors are independent."""
    value = a.value * b.value
    if not all(0 < end < math.inf for one in (a, b) for end in (one.low, one.high)):
        return Interval(value, 0.0, math.inf)
    down = math.hypot(math.log(a.value / a.low), math.log(b.value / b.low))
    up = math.hypot(math.log(a.high / a.value), math.log(b.high / b.value))
    return Interval(value, value * math.exp(-down), value * math.exp(up))


def lines(state: SessionState, found: Sequence[Worth], first: Interval | None, total: Interval | None, base: str) -> list[Line]:
    """A table for people."""
    heads = ("kernel", "", "gain", "over", "recorded", "so far", "")
    rows = [[Span(head, Tone.FAINT) for head in heads], *(_row(state, one, first, base) for one in found)]
    said = table(rows)
    if total is not None:
        ends = [one.kernel for one in found if one.verdict != "failed"]
        said.append(line(f"{ends[-1]} against {ends[0]} directly: {times(total)}"))
    return said


def _row(state: SessionState, one: Worth, first: Interval | None, base: str) -> list[Span]:
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
            Span("the first", Tone.FAINT),
        ]
    tone = {"faster": Tone.GOOD, "slower": Tone.WARN}.get(one.verdict, Tone.FAINT)
    cells = [times(one.recorded) if one.recorded else "", times(one.cumulative) if one.cumulative else ""]
    return [*head, Span(times(one.gain), tone), Span(one.against, Tone.FAINT), *map(Span, cells), Span(one.verdict, tone)]
