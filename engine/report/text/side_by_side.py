"""Sessions of one problem side by side, as text."""

from __future__ import annotations

import itertools
import math

from engine.report.facts.side_by_side import Budget, Course, CoursePoint, Row, SideBySide
from engine.report.text.lines import Line, Span, Tone, line, one_line, shortened, shortened_within, table, times
from engine.report.text.regimes import NOT_MEASURED

_TITLE = 48
_COLUMNS = 32
_BARS = "▁▂▃▄▅▆▇█"
_NAME = 28
_LEAST_NAME = 12
_BESIDE_NAMES = 62
"""The width of a row of totals without its name."""
_BESIDE_TITLES = 46
"""The width of a row of an idea without its title."""


def lines(found: SideBySide, room: int = 0) -> list[Line]:
    """What was compared, the incumbents at equal budgets, and whose ideas won.

    ``room``: the width to keep to, by shorter names and by a table for as many sessions as fit; 0: any width.
    """
    name, title = _limits(room)
    head = f"{found.problem}, {found.workload}, {found.device}: the incumbent's speedup over {found.baseline}"
    parts = (*_at_equal_budgets(found, room, name), *_curves(found, name), table(_totals(found, name)))
    return [line(Span(head, Tone.STRONG)), *(one for part in parts if part for one in (line(), *part)), *_winners(found, title)]


def _limits(room: int) -> tuple[int, int]:
    """The widths of a session's name and of an idea's title."""
    if not room:
        return _NAME, _TITLE
    return max(_LEAST_NAME, min(_NAME, room - _BESIDE_NAMES)), max(_LEAST_NAME, min(_TITLE, room - _BESIDE_TITLES))


def _at_equal_budgets(found: SideBySide, room: int, name: int) -> list[list[Line]]:
    """The fewest tables that fit, each of some of the sessions; the last says which session is faster."""
    every = len(found.courses)
    for count, brief in itertools.product(range(every, 0, -1), (False, True)):
        parts = [table(_rows(found, slice(start, start + count), name, brief)) for start in range(0, every, count)]
        if not room or all(sum(len(span.text) for span in one) <= room for part in parts for one in part):
            break
    return parts


def _rows(found: SideBySide, some: slice, name: int, brief: bool) -> list[list[Span]]:
    """The incumbents of some sessions at equal budgets. ``brief``: the faster session is named by its place."""
    names = [Span(shortened_within(course.session, name), Tone.STRONG) for course in found.courses[some]]
    rows = [[Span("at equal"), *names]]
    for row in found.rows:
        cells = [_cell(point, row.faster == index) for index, point in list(enumerate(row.best))[some]]
        rows.append([Span(spent_words(row), Tone.FAINT), *cells])
    if some.stop >= len(found.courses):
        words = ("", *(_place_words(row) if brief else verdict_words(row, found, name) for row in found.rows))
        rows = [[*row, Span(word, Tone.FAINT)] for row, word in zip(rows, words, strict=True)]
    return rows


def _curves(found: SideBySide, name: int) -> list[list[Line]]:
    """Best so far over each budget, as bars on one logarithmic scale; each ends where its session ended."""
    points = [point for course in found.courses for point in course.points]
    if not points:
        return []
    low, high = (pick(map(_logarithm, points)) for pick in (min, max))
    parts = []
    for budget in dict.fromkeys(row.budget for row in found.rows):
        most = max(course.total(budget) for course in found.courses)
        rows = []
        for course in found.courses:
            steps = [most * (step + 1) / _COLUMNS for step in range(_COLUMNS)]
            bars = "".join(_bar(course, budget, spent, most / _COLUMNS, low, high) for spent in steps)
            last = f"{times(course.points[-1].speedup)}" if course.points else ""
            rows.append([Span(shortened_within(course.session, name), Tone.STRONG), Span(bars), Span(last, Tone.FAINT)])
        parts.append([line(Span(f"best so far by {budget.value}", Tone.FAINT)), *table(rows)])
    return parts


def _bar(course: Course, budget: Budget, spent: float, step: float, low: float, high: float) -> str:
    if spent - step >= course.total(budget):
        return " "
    best = course.best(budget, spent)
    if best is None:
        return "·"
    return _BARS[round((_logarithm(best) - low) / (high - low) * (len(_BARS) - 1)) if high > low else 3]


def _logarithm(point: CoursePoint) -> float:
    """That of a speedup, which only a damaged journal has as 0 or infinite."""
    return math.log(min(max(point.speedup.value, 1e-300), 1e300))


def spent_words(row: Row) -> str:
    """What is held equal in a row: ``12 verdicts``."""
    return f"{row.spent:,.0f} {row.budget.value}" if row.budget is not Budget.DEVICE_SECONDS else f"{row.spent:.1f} device s"


def verdict_words(row: Row, found: SideBySide, name: int = _NAME) -> str:
    """Which session is faster in a row; ``name``: the most characters of its name."""
    return "overlap" if row.faster is None else f"{shortened_within(found.courses[row.faster].session, name)} is faster"


def _place_words(row: Row) -> str:
    """Which session is faster, by its place from the left."""
    if row.faster is None:
        return "overlap"
    return f"{('1st', '2nd', '3rd')[row.faster] if row.faster < 3 else f'{row.faster + 1}th'} faster"


def _cell(point: CoursePoint | None, faster: bool) -> Span:
    if point is None:
        return Span("no incumbent", Tone.FAINT)
    return Span(f"{times(point.speedup)} {point.kernel}", Tone.GOOD if faster else Tone.PLAIN)


def _totals(found: SideBySide, name: int) -> list[list[Span]]:
    sustained = any(course.sustained is not None for course in found.courses)
    head = ["session", "verdicts", "tokens", "device s", "decisions", *(["incumbent sustained"] if sustained else [])]
    rows = [[Span(word, Tone.FAINT) for word in head]]
    for course in found.courses:
        figures = [f"{course.verdicts}", f"{course.tokens:,}", f"{course.device_seconds:.1f}", f"{course.decisions}"]
        if sustained:
            figures.append(times(course.sustained) if course.sustained is not None else NOT_MEASURED)
        rows.append([Span(shortened_within(course.session, name), Tone.STRONG), *(Span(figure) for figure in figures)])
    return rows


def _winners(found: SideBySide, title: int) -> list[Line]:
    shown: list[Line] = []
    for course in found.courses:
        shown += [line(), line("ideas that won in ", Span(course.session, Tone.STRONG), " (× parent)")]
        shown += [line("  ", *spans) for spans in table(_ideas(course, title))] or [line(Span("  no incumbent", Tone.FAINT))]
    return shown


def _ideas(course: Course, title: int) -> list[list[Span]]:
    return [
        [Span(one.kernel), Span(shortened(one_line(one.title), title)), Span(one.author, Tone.FAINT),
         Span(times(one.gain) if one.gain is not None else "")]
        for one in course.winners
    ]  # fmt: skip
