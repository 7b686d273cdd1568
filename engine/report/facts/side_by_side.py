"""Sessions of one problem side by side: the incumbent's speedup at equal verdicts, tokens and device time. Numbers only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine.domain import events as e
from engine.domain import predictions, queries
from engine.domain.errors import ProblemError
from engine.domain.folds import advance
from engine.domain.model import Interval
from engine.domain.state import SessionState

_VERDICTS = e.KernelMeasured | e.KernelFailed | e.KernelQuarantined
_ON_DEVICE = e.KernelVerified | e.KernelMeasured | e.KernelQuarantined | e.KernelRaced | e.KernelSanitized
_SHARES = (0.25, 0.5, 0.75, 1.0)


class Budget(StrEnum):
    """What is held equal."""

    VERDICTS = "verdicts"
    TOKENS = "tokens"
    DEVICE_SECONDS = "device seconds"


@dataclass(frozen=True, slots=True)
class CoursePoint:
    """What had been spent when the incumbent's speedup changed."""

    verdicts: int
    tokens: int
    device_seconds: float
    kernel: str
    speedup: Interval

    def spent(self, budget: Budget) -> float:
        return {
            Budget.VERDICTS: self.verdicts, Budget.TOKENS: self.tokens, Budget.DEVICE_SECONDS: self.device_seconds,
        }[budget]  # fmt: skip


@dataclass(frozen=True, slots=True)
class WinningIdea:
    """An idea in the lineage of the final incumbent."""

    idea: str
    title: str
    author: str
    kernel: str
    gain: Interval | None
    """Measured speedup over the parent."""


@dataclass(frozen=True, slots=True)
class Course:
    """One session: its best-so-far curve, what it spent in all, and who had the ideas that won."""

    session: str
    points: tuple[CoursePoint, ...]
    verdicts: int
    tokens: int
    device_seconds: float
    decisions: int
    """Commands of people and agents."""
    winners: tuple[WinningIdea, ...]
    sustained: Interval | None = None
    """The final incumbent's speedup back to back; ``null`` if it was not measured."""

    def total(self, budget: Budget) -> float:
        return {
            Budget.VERDICTS: self.verdicts, Budget.TOKENS: self.tokens, Budget.DEVICE_SECONDS: self.device_seconds,
        }[budget]  # fmt: skip

    def best(self, budget: Budget, spent: float) -> CoursePoint | None:
        """The incumbent once ``spent`` had been spent; ``None`` before the first one."""
        return next((point for point in reversed(self.points) if point.spent(budget) <= spent), None)


@dataclass(frozen=True, slots=True)
class Row:
    """The sessions' incumbents at one equal budget."""

    budget: Budget
    spent: float
    best: tuple[CoursePoint | None, ...]
    faster: int | None
    """Index of the session whose whole interval lies above those of all others; ``None`` if they overlap."""


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Sessions at equal budgets: at quarters of what the one that spent least has spent."""

    problem: str
    workload: str
    device: str
    baseline: str
    courses: tuple[Course, ...]
    rows: tuple[Row, ...]


def course(name: str, entries: Iterable[e.Entry]) -> Course:
    """A session's course, from its journal alone."""
    state = SessionState()
    verdicts = tokens = decisions = 0
    seconds = 0.0
    points: list[CoursePoint] = []
    for entry in entries:
        state = advance(state, (entry,))
        event = entry.event
        verdicts += isinstance(event, _VERDICTS)
        tokens += event.usage.total if isinstance(event, e.CallAnswered | e.CallFailed) else 0
        seconds += event.seconds if isinstance(event, _ON_DEVICE) else 0.0
        decisions += (entry.by.decides or entry.by.is_agent) and not isinstance(event, _NO_DECISION)
        best = queries.incumbent(state)
        ratio = queries.speedup(state, best) if best is not None else None
        if best is not None and ratio is not None and queries.is_precise(best):
            point = CoursePoint(verdicts, tokens, seconds, best.id, ratio)
            if not points or (points[-1].kernel, points[-1].speedup) != (best.id, ratio):
                points.append(point)
    return Course(name, tuple(points), verdicts, tokens, seconds, decisions, _winners(state), _sustained(state))


_NO_DECISION = e.SessionOpened | e.SessionResumed | e.WorkRetried | e.CommandAnswered


def side_by_side(sessions: Sequence[tuple[str, Sequence[e.Entry]]]) -> SideBySide:
    """The comparison of at least two sessions.

    Raises ProblemError if they are not on the same reference, workload, kind of device and baseline: their speedups would not
    mean the same; or if one was never prepared.
    """
    for name, entries in sessions:
        _require_prepared(name, entries)
    states = [advance(SessionState(), entries) for _, entries in sessions]
    settings = [_setting(state) for state in states]
    first = settings[0]
    for (other, _), found in zip(sessions[1:], settings[1:], strict=True):
        for what, mine, theirs in ((what, first[what], found[what]) for what in _SAME):
            if mine != theirs:
                shown = "" if what == "reference" else f" ({mine} and {theirs})"
                raise ProblemError(
                    f"{sessions[0][0]} and {other} have different {what}s{shown}: compare sessions of one problem"
                )
    courses = tuple(course(name, entries) for name, entries in sessions)
    rows = tuple(row for budget in Budget for row in _rows(courses, budget))
    return SideBySide(first["problem"], first["workload"], first["device"], first["baseline"], courses, rows)


def beside_comparable(
    first: tuple[str, Sequence[e.Entry]], others: Iterable[tuple[str, Sequence[e.Entry]]], most: int = 6
) -> SideBySide:
    """The first session beside those of the others whose speedups mean the same, at most ``most`` in all.

    Raises ProblemError if there is none.
    """
    _require_prepared(*first)
    found = [first]
    for other in others:
        if len(found) == most:
            break
        try:
            side_by_side([first, other])
        except ProblemError:
            continue
        found.append(other)
    if len(found) == 1:
        raise ProblemError(f"no other session has the problem, workload, device and baseline of {first[0]}")
    return side_by_side(found)


_SAME = ("reference", "workload", "device", "baseline")
"""What must be the same in sessions that are compared. The problem's name may differ."""


def _require_prepared(name: str, entries: Sequence[e.Entry]) -> None:
    if not any(isinstance(entry.event, e.SessionPrepared) for entry in entries):
        raise ProblemError(f"{name} stopped before it had measured a baseline: it has nothing to compare")


def _setting(state: SessionState) -> Mapping[str, str]:
    """What a prepared session's speedups refer to, by name."""
    assert state.opened is not None, "a journal begins with it"
    assert state.device is not None, "it is recorded when the session is prepared"
    problem, workload = queries.problem_and_workload(state)
    return {
        "problem": problem, "reference": state.opened.problem.reference, "workload": workload, "device": state.device.name,
        "baseline": queries.ranking_baseline(state),
    }  # fmt: skip


def _rows(courses: tuple[Course, ...], budget: Budget) -> Iterable[Row]:
    """Where no session spent any, or not all did, there is nothing equal to compare."""
    least = min(one.total(budget) for one in courses)
    if least <= 0:
        return
    for share in _SHARES:
        spent = round(least * share) if budget is not Budget.DEVICE_SECONDS else least * share
        best = tuple(one.best(budget, spent) for one in courses)
        yield Row(budget, spent, best, _clearly_faster(best))


def _clearly_faster(best: tuple[CoursePoint | None, ...]) -> int | None:
    for index, point in enumerate(best):
        others = [one for place, one in enumerate(best) if place != index]
        if point is not None and all(one is None or point.speedup.low > one.speedup.high for one in others):
            return index
    return None


def _sustained(state: SessionState) -> Interval | None:
    """The incumbent's speedup in the sustained regime."""
    best = queries.incumbent(state)
    found = best.measurement.sustained if best is not None and best.measurement is not None else None
    return found.speedup.get(queries.ranking_baseline(state)) if found is not None else None


def _winners(state: SessionState) -> tuple[WinningIdea, ...]:
    """The ideas along the lineage of the final incumbent, the root first."""
    best = queries.incumbent(state)
    if best is None:
        return ()
    born = {kernel: place for place, kernel in enumerate(state.kernels)}
    return tuple(
        WinningIdea(kernel.idea, queries.title(state, kernel), queries.idea_author(state, kernel), kernel.id,
                    predictions.gain(state, kernel))
        for kernel in sorted(queries.lineage(state, best.id), key=lambda one: born[one.id])
    )  # fmt: skip
