"""Sessions of one problem side by side, as text."""

from __future__ import annotations

from engine.report.facts.side_by_side import Budget, Course, CoursePoint, Row, SideBySide
from engine.report.text.lines import Line, Span, Tone, line, one_line, shortened, table, times

_TITLE = 48
_NAME = 28


def lines(found: SideBySide) -> list[Line]:
    """What was compared, the incumbents at equal budgets, and whose ideas won."""
    head = f"{found.problem}, {found.workload}, {found.device}: the incumbent's speedup over {found.baseline}"
    names = [Span(shortened(course.session, _NAME), Tone.STRONG) for course in found.courses]
    rows = [[Span("at equal"), *names, Span("")], *(_row(row, found) for row in found.rows)]
    return [line(Span(head, Tone.STRONG)), line(), *table(rows), line(), *table(_totals(found)), *_winners(found)]


def _row(row: Row, found: SideBySide) -> list[Span]:
    words = f"{row.spent:,.0f} {row.budget.value}" if row.budget is not Budget.DEVICE_SECONDS else f"{row.spent:.1f} device s"
    cells = [_cell(point, row.faster == index) for index, point in enumerate(row.best)]
    verdict = "overlap" if row.faster is None else f"{shortened(found.courses[row.faster].session, _NAME)} is faster"
    return [Span(words, Tone.FAINT), *cells, Span(verdict, Tone.FAINT)]


def _cell(point: CoursePoint | None, faster: bool) -> Span:
    if point is None:
        return Span("no incumbent", Tone.FAINT)
    return Span(f"{times(point.speedup)} {point.kernel}", Tone.GOOD if faster else Tone.PLAIN)


def _totals(found: SideBySide) -> list[list[Span]]:
    head = ["session", "verdicts", "tokens", "device s", "decisions"]
    rows = [[Span(word, Tone.FAINT) for word in head]]
    for course in found.courses:
        figures = (f"{course.verdicts}", f"{course.tokens:,}", f"{course.device_seconds:.1f}", f"{course.decisions}")
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
