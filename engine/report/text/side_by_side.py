"""Sessions of one problem side by side, as text."""

from __future__ import annotations

import math

from engine.report.facts.side_by_side import Budget, Course, CoursePoint, Row, SideBySide
from engine.report.text.lines import Line, Span, Tone, line, one_line, shortened, table, times
from engine.report.text.regimes import NOT_MEASURED

_TITLE = 48
_COLUMNS = 32
_BARS = "▁▂▃▄▅▆▇█"
_NAME = 28


def lines(found: SideBySide, room: int = 0) -> list[Line]:
    """What was compared, the incumbents at equal budgets, and whose ideas won.

    ``room``: the width to keep to, by a table for as many sessions as fit; 0: one table.
    """
    head = f"{found.problem}, {found.workload}, {found.device}: the incumbent's speedup over {found.baseline}"
    parts = (*_at_equal_budgets(found, room), *_curves(found), table(_totals(found)))
    return [line(Span(head, Tone.STRONG)), *(one for part in parts if part for one in (line(), *part)), *_winners(found)]


def _at_equal_budgets(found: SideBySide, room: int) -> list[list[Line]]:
    """The fewest tables that fit, each of some of the sessions; the last says which session is faster."""
    every = len(found.courses)
    for count in range(every, 0, -1):
        parts = [table(_rows(found, slice(start, start + count))) for start in range(0, every, count)]
        if not room or all(sum(len(span.text) for span in one) <= room for part in parts for one in part):
            break
    return parts


def _rows(found: SideBySide, some: slice) -> list[list[Span]]:
    """The incumbents of some sessions at equal budgets."""
    names = [Span(shortened(course.session, _NAME), Tone.STRONG) for course in found.courses[some]]
    rows = [[Span("at equal"), *names]]
    for row in found.rows:
        cells = [_cell(point, row.faster == index) for index, point in list(enumerate(row.best))[some]]
        rows.append([Span(spent_words(row), Tone.FAINT), *cells])
    if some.stop >= len(found.courses):
        words = ("", *(verdict_words(row, found) for row in found.rows))
        rows = [[*row, Span(word, Tone.FAINT)] for row, word in zip(rows, words, strict=True)]
    return rows


def _curves(found: SideBySide) -> list[list[Line]]:
    """Best so far over each budget, as bars on one logarithmic scale; each ends where its session ended."""
    points = [point for course in found.courses for point in course.points]
    if not points:
        return []
    low, high = (math.log(pick(point.speedup.value for point in points)) for pick in (min, max))
    parts = []
    for budget in dict.fromkeys(row.budget for row in found.rows):
        most = max(course.total(budget) for course in found.courses)
        rows = []
        for course in found.courses:
            steps = [most * (step + 1) / _COLUMNS for step in range(_COLUMNS)]
            bars = "".join(_bar(course, budget, spent, most / _COLUMNS, low, high) for spent in steps)
            last = f"{times(course.points[-1].speedup)}" if course.points else ""
            rows.append([Span(shortened(course.session, _NAME), Tone.STRONG), Span(bars), Span(last, Tone.FAINT)])
        parts.append([line(Span(f"best so far by {budget.value}", Tone.FAINT)), *table(rows)])
    return parts


def _bar(course: Course, budget: Budget, spent: float, step: float, low: float, high: float) -> str:
    if spent - step >= course.total(budget):
        return " "
    best = course.best(budget, spent)
    if best is None:
        return "·"
    return _BARS[round((math.log(best.speedup.value) - low) / (high - low) * (len(_BARS) - 1)) if high > low else 3]


def spent_words(row: Row) -> str:
    """What is held equal in a row: ``12 verdicts``."""
    return f"{row.spent:,.0f} {row.budget.value}" if row.budget is not Budget.DEVICE_SECONDS else f"{row.spent:.1f} device s"


def verdict_words(row: Row, found: SideBySide) -> str:
    """Which session is faster in a row."""
    return "overlap" if row.faster is None else f"{shortened(found.courses[row.faster].session, _NAME)} is faster"


def _cell(point: CoursePoint | None, faster: bool) -> Span:
    if point is None:
        return Span("no incumbent", Tone.FAINT)
    return Span(f"{times(point.speedup)} {point.kernel}", Tone.GOOD if faster else Tone.PLAIN)


def _totals(found: SideBySide) -> list[list[Span]]:
    sustained = any(course.sustained is not None for course in found.courses)
    head = ["session", "verdicts", "tokens", "device s", "decisions", *(["incumbent sustained"] if sustained else [])]
    rows = [[Span(word, Tone.FAINT) for word in head]]
    for course in found.courses:
        figures = [f"{course.verdicts}", f"{course.tokens:,}", f"{course.device_seconds:.1f}", f"{course.decisions}"]
        if sustained:
            figures.append(times(course.sustained) if course.sustained is not None else NOT_MEASURED)
        rows.append([Span(shortened(course.session, _NAME), Tone.STRONG), *(Span(figure) for figure in figures)])
    return rows


def _winners(found: SideBySide) -> list[Line]:
    shown: list[Line] = []
    for course in found.courses:
        shown += [line(), line("ideas that won in ", Span(course.session, Tone.STRONG))]
        shown += [line("  ", *spans) for spans in table(_ideas(course))] or [line(Span("  no incumbent", Tone.FAINT))]
    return shown


def _ideas(course: Course) -> list[list[Span]]:
    return [
        [Span(one.kernel), Span(shortened(one_line(one.title), _TITLE)), Span(one.author, Tone.FAINT),
         Span(f"{times(one.gain)} over its parent" if one.gain is not None else "")]
        for one in course.winners
    ]  # fmt: skip
