"""Plots as lines of cells: axes with units, lines, dots, and labels that never cover anything. Pure.

A ``Plane`` maps figures to cells. A ``Canvas`` holds the cells of the plane; the axes are drawn around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from engine.report.facts.ticks import Span
from tui.viewmodel.cells import Cell, Ink, Line, merge_cells, width

_ZOOM = 1.5
"""How much one step zooms."""
_MOST_ZOOM = 12
_PAN = 0.2
"""How much of the window one step moves."""
_BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


@dataclass(frozen=True, slots=True)
class PlotWindow:
    """The part of a plot that is shown: magnification, and the middle as a fraction of each axis."""

    steps: int = 0
    x: float = 0.5
    y: float = 0.5

    @property
    def share(self) -> float:
        """The fraction of each axis that is shown."""
        return float(_ZOOM**-self.steps)

    def zoomed(self, steps: int) -> PlotWindow:
        """The window after zooming in, or out again."""
        return replace(self, steps=min(_MOST_ZOOM, max(0, self.steps + steps)))._kept()

    def moved(self, right: int, up: int) -> PlotWindow:
        """The window after moving; it stays within the plot."""
        return replace(self, x=self.x + right * _PAN * self.share, y=self.y + up * _PAN * self.share)._kept()

    def _kept(self) -> PlotWindow:
        low = self.share / 2
        return replace(self, x=min(1 - low, max(low, self.x)), y=min(1 - low, max(low, self.y)))

    def spans(self, x: Span, y: Span) -> tuple[Span, Span]:
        """The shown part of both axes."""
        return self._part(x, self.x), self._part(y, self.y)

    def _part(self, whole: Span, middle: float) -> Span:
        length = whole[1] - whole[0]
        centre = whole[0] + middle * length
        return (centre - self.share * length / 2, centre + self.share * length / 2)


WHOLE = PlotWindow()


@dataclass(frozen=True, slots=True)
class Plane:
    """Maps figures to cells: column 0 is at the left, row 0 at the top."""

    x: Span
    y: Span
    columns: int
    rows: int

    def column(self, x: float) -> int:
        return math.floor(self._fraction(x, self.x) * (self.columns - 1) + 0.5)

    def row(self, y: float) -> int:
        return self.rows - 1 - math.floor(self._fraction(y, self.y) * (self.rows - 1) + 0.5)

    def holds(self, column: int, row: int) -> bool:
        return 0 <= column < self.columns and 0 <= row < self.rows

    def x_at(self, column: float) -> float:
        return self.x[0] + column / max(1, self.columns - 1) * (self.x[1] - self.x[0])

    def fine_row(self, y: float) -> int:
        """The row in quarters of a cell."""
        return math.floor((1 - self._fraction(y, self.y)) * (self.rows - 1) * 4 + 2)

    @staticmethod
    def _fraction(value: float, span: Span) -> float:
        return (value - span[0]) / (span[1] - span[0] or 1.0)


class Canvas:
    """The cells of a plane. Marks cover what was drawn before; text only goes where nothing is."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self._cells: dict[tuple[int, int], Cell] = {}
        self._fine: dict[tuple[int, int], int] = {}

    def mark(self, x: float, y: float, glyph: str, ink: Ink) -> None:
        """One glyph at a figure."""
        self.put(self.plane.column(x), self.plane.row(y), glyph, ink)

    def put(self, column: int, row: int, glyph: str, ink: Ink) -> None:
        if self.plane.holds(column, row):
            self._cells[column, row] = Cell(glyph, ink)

    def along(self, y: float, left: float, right: float, glyph: str, ink: Ink) -> None:
        """A horizontal line."""
        row = self.plane.row(y)
        for column in range(max(0, self.plane.column(left)), min(self.plane.columns - 1, self.plane.column(right)) + 1):
            self.put(column, row, glyph, ink)

    def up(self, x: float, low: float, high: float, glyph: str, ink: Ink) -> None:
        """A vertical line, without its ends."""
        column, rows = self.plane.column(x), sorted((self.plane.row(low), self.plane.row(high)))
        for row in range(max(0, rows[0] + 1), min(self.plane.rows, rows[1])):
            self.put(column, row, glyph, ink)

    def curve(self, height: Callable[[float], float], left: float, right: float, ink: Ink) -> None:
        """A line in eighths of a cell."""
        last: int | None = None
        for half in range(2 * self.plane.columns):
            x = self.plane.x_at(half / 2 - 0.25)
            if not left <= x <= right:
                continue
            here = self.plane.fine_row(height(x))
            for fine in range(min(here, here if last is None else last), max(here, here if last is None else last) + 1):
                column, row = half // 2, fine // 4
                if self.plane.holds(column, row):
                    bits = self._fine[column, row] = self._fine.get((column, row), 0) | _BRAILLE[half % 2][fine % 4]
                    self._cells[column, row] = Cell(chr(0x2800 + bits), ink)
            last = here

    def is_free(self, column: int, row: int, length: int) -> bool:
        """Whether a text with a blank on each side crosses nothing."""
        inside = column >= 0 and column + length <= self.plane.columns and 0 <= row < self.plane.rows
        return inside and all((place, row) not in self._cells for place in range(column - 1, column + length + 1))

    def text(self, words: str, places: Iterable[tuple[int, int]], ink: Ink) -> bool:
        """Write the words at the first of the (column, row) places where they cross nothing."""
        for column, row in places:
            if self.is_free(column, row, width(words)):
                for offset, char in enumerate(words):
                    self._cells[column + offset, row] = Cell(char, ink)
                return True
        return False

    def line(self, row: int) -> tuple[Cell, ...]:
        blank = Cell(" ")
        return merge_cells(self._cells.get((column, row), blank) for column in range(self.plane.columns))


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """The ticks of an axis: (figure, label), and its unit; empty if the title names it."""

    ticks: tuple[tuple[float, str], ...]
    unit: str


def plane_of(x: Span, y: Span, y_axis: PlotAxis, room: int, height: int) -> Plane:
    """The plane inside axes, in this many cells: one row is for the unit, if there is one, two are for the x axis."""
    return Plane(x, y, max(2, room - _margin(y_axis) - 1), max(2, height - 2 - bool(y_axis.unit)))


def _margin(axis: PlotAxis) -> int:
    return max((width(label) for _, label in axis.ticks), default=0)


def framed(canvas: Canvas, x_axis: PlotAxis, y_axis: PlotAxis) -> tuple[Line, ...]:
    """The canvas with its axes, ticks and units."""
    plane, margin = canvas.plane, _margin(y_axis)
    labels = _row_labels(plane, y_axis)
    head = Line((Cell(" " * margin + "│", Ink.RULE), Cell(f" {y_axis.unit}", Ink.FAINT)))
    lines = [head] if y_axis.unit else []
    for row in range(plane.rows):
        label = labels.get(row)
        stroke = Cell("│" if label is None else "┤", Ink.RULE)
        lines.append(Line((Cell(f"{label or '':>{margin}}", Ink.FAINT), stroke, *canvas.line(row))))
    return (*lines, *_bottom(plane, x_axis, margin))


def _row_labels(plane: Plane, axis: PlotAxis) -> dict[int, str]:
    """Row → label; the first of several ticks in neighbouring rows stays."""
    labels: dict[int, str] = {}
    for value, label in axis.ticks:
        row = plane.row(value)
        if 0 <= row < plane.rows and not labels.keys() & {row - 1, row, row + 1}:
            labels[row] = label
    return labels


def _bottom(plane: Plane, axis: PlotAxis, margin: int) -> list[Line]:
    """The x axis with its ticks, and their labels; the unit is at the right end."""
    strokes, words = ["─"] * plane.columns, [" "] * plane.columns
    end = plane.columns - width(axis.unit)
    if axis.unit:
        words[max(0, end) :] = list(axis.unit[: plane.columns])
    taken = -1
    for value, label in axis.ticks:
        column = plane.column(value)
        start = column - width(label) // 2
        if not 0 <= column < plane.columns:
            continue
        start = max(0, start)
        if start > taken and start + width(label) < end + (not axis.unit):
            strokes[column] = "┬"
            words[start : start + len(label)] = list(label)
            taken = start + width(label)
    return [
        Line((Cell(" " * margin + "└" + "".join(strokes), Ink.RULE),)),
        Line((Cell(" " * (margin + 1) + "".join(words), Ink.FAINT),)),
    ]
