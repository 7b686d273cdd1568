"""Renders lines of the view models as strips. The only module that maps an ink to a colour.

Text is plain: markup in it is never interpreted.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Self

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color, ColorParseError
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from tui import inks, theme
from tui.viewmodel.cells import Cell, Ground, Ink, Line, clean


class Painter:
    """Renders for one widget under the app's theme; create a new one when the styles change."""

    def __init__(self, widget: Widget) -> None:
        app = widget.app
        dark = app.current_theme.dark
        self._variables = {**theme.variable_defaults(dark), **app.theme_variables}
        self._inks = {ink: self._ink(look) for ink, look in inks.INKS.items()}
        self._grounds = {ground: Style(bgcolor=self._colour(name)) for ground, name in inks.GROUNDS.items()}
        self._mixed: dict[tuple[Ink, Ground, Ground, Style], Style] = {}

    def strip(self, line: Line, width: int, base: Style) -> Strip:
        """The line in exactly ``width`` cells on the style ``base``."""
        return self.segments(line, base).adjust_cell_length(width, self._over(base, line.ground))

    def segments(self, line: Line, base: Style) -> Strip:
        """The line in its natural width. Neighbours of one style are one segment: each would name its colours."""
        styled = ((clean(cell.text), self._style(cell, line.ground, base)) for cell in line.cells)
        runs = groupby(styled, key=itemgetter(1))
        return Strip([Segment("".join(text for text, _ in run), style) for style, run in runs])

    def _style(self, cell: Cell, ground: Ground, base: Style) -> Style:
        key = (cell.ink, cell.ground, ground, base)
        style = self._mixed.get(key)
        if style is None:
            under = ground if cell.ground is Ground.NONE else cell.ground
            style = self._mixed[key] = self._over(base, under) + self._inks[cell.ink]
        return style

    def _over(self, base: Style, ground: Ground) -> Style:
        return base if ground is Ground.NONE else base + self._grounds[ground]

    def _ink(self, look: inks.InkStyle) -> Style:
        colour = self._colour(look.variable) if look.variable else None
        return Style(color=colour, bold=look.bold or None, italic=look.italic or None)

    def _colour(self, variable: str) -> RichColor:
        return _parsed(self._variables[variable])

    def rgb(self, variable: str) -> tuple[int, int, int]:
        """A theme variable as red, green and blue."""
        red, green, blue = Color.parse(self._variables[variable]).rgb
        return (red, green, blue)


class PaintedWidget(Widget):
    """A widget that renders lines with its own painter."""

    _painter: Painter | None = None
    _base_style: Style | None = None

    @property
    def painter(self) -> Painter:
        """The painter; a new one after the styles change."""
        if self._painter is None:
            self._painter = Painter(self)
        return self._painter

    @property
    def base_style(self) -> Style:
        """``rich_style``, which mixes the styles of all ancestors; kept until the next repaint."""
        if self._base_style is None:
            self._base_style = self.rich_style
        return self._base_style

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        self._base_style = None
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def notify_style_update(self) -> None:
        self._painter = self._base_style = None
        super().notify_style_update()


@lru_cache(maxsize=256)
def _parsed(value: str) -> RichColor:
    try:
        return Color.parse(value).rich_color
    except ColorParseError:
        return RichColor.default()
