"""Sessions of one problem side by side as one self-contained HTML page, from the same facts as the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.report.facts.side_by_side import Budget, Course, CoursePoint, SideBySide
from engine.report.facts.ticks import round_ticks
from engine.report.page.axes import FRAME, Axis
from engine.report.page.render import TEXTS, environment
from engine.report.text.lines import ratio
from engine.report.text.side_by_side import spent_words, verdict_words

_LABEL = (90.0, 14.0)
"""Room for a label, in pixels."""
COLOURS = 6
"""Colours of the style sheet; further sessions begin again."""
LEGEND = (
    "Each line is the incumbent of a session, the kernel to beat; its band is the 95% interval of the speedup. Where bands "
    "overlap, neither session is shown to be faster. At the dashed line the session that spent least ended: the comparison at "
    "equal budgets is to its left."
)


@dataclass(frozen=True, slots=True)
class Curve:
    """One session in one chart: SVG points of its line and of its band."""

    session: str
    colour: int
    line: str
    band: str
    label: str
    at: tuple[float, float]
    """Where the label stands: at the end of the line, beside no other label."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Best so far over one budget."""

    budget: Budget
    x: Axis
    y: Axis
    curves: tuple[Curve, ...]
    equal: float
    """What the session that spent least has spent."""
    ticks: tuple[float, ...]


def charts(found: SideBySide) -> tuple[Chart, ...]:
    """One chart for each budget that every session spent some of; none without an incumbent."""
    return tuple(chart for budget in Budget if (chart := _chart(found, budget)) is not None)


def _chart(found: SideBySide, budget: Budget) -> Chart | None:
    totals = [course.total(budget) for course in found.courses]
    points = [point for course in found.courses for point in course.points]
    if min(totals) <= 0 or not points:
        return None
    low, high = min(p.speedup.low for p in points), max(p.speedup.high for p in points)
    x = Axis(0.0, max(totals), FRAME.left, FRAME.right, logarithmic=False)
    y = Axis(min(0.9, low) / 1.1, max(1.1, high) * 1.15, FRAME.bottom, FRAME.top)
    curves = [_curve(course, number, budget, x, y) for number, course in enumerate(found.courses) if course.points]
    return Chart(budget, x, y, tuple(_apart(curves)), min(totals), tuple(round_ticks((0.0, max(totals)), 8)))


def _apart(curves: Sequence[Curve]) -> list[Curve]:
    """The curves with labels that do not overlap, the highest first."""
    placed: list[Curve] = []
    for curve in sorted(curves, key=lambda one: one.at[1]):
        near = [other.at[1] for other in placed if abs(other.at[0] - curve.at[0]) < _LABEL[0]]
        lowest = max(near, default=-_LABEL[1])
        placed.append(replace(curve, at=(curve.at[0], max(curve.at[1], lowest + _LABEL[1]))))
    return placed


def _curve(course: Course, number: int, budget: Budget, x: Axis, y: Axis) -> Curve:
    end = course.total(budget)
    values = _stairs([(p.spent(budget), p.speedup.value) for p in course.points], end)
    lows = _stairs([(p.spent(budget), p.speedup.low) for p in course.points], end)
    highs = _stairs([(p.spent(budget), p.speedup.high) for p in course.points], end)
    last: CoursePoint = course.points[-1]
    return Curve(
        course.session, number % COLOURS, _svg(values, x, y), _svg([*highs, *reversed(lows)], x, y),
        f"{last.kernel} {ratio(last.speedup.value)}×", (x(end) - 4, y(last.speedup.value) - 7),
    )  # fmt: skip


def _stairs(points: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """The corners of a step function that keeps each value until the next."""
    corners: list[tuple[float, float]] = []
    for spent, value in points:
        if corners:
            corners.append((spent, corners[-1][1]))
        corners.append((spent, value))
    return [*corners, (end, corners[-1][1])]


def _svg(points: Sequence[tuple[float, float]], x: Axis, y: Axis) -> str:
    return " ".join(f"{x(spent):.1f},{y(value):.1f}" for spent, value in points)


def html(found: SideBySide) -> str:
    """The page: inline style and SVG, no script, nothing fetched."""
    return (
        environment(lambda value: value)
        .get_template("compare.html.j2")
        .render(
            found=found, charts=charts(found), frame=FRAME, policy=TEXTS["POLICY"], legend=LEGEND, colours=COLOURS,
            spent_words=spent_words, verdict_words=verdict_words,
        )
        .lstrip()
    )  # fmt: skip
