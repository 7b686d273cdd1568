"""The lineage of a kernel, one line for each ancestor."""

from __future__ import annotations

from dataclasses import dataclass

from engine.domain import queries
from engine.domain.state import Idea, Kernel, SessionState
from tui.viewmodel import kernels
from tui.viewmodel.cells import Cell, Ink, Line, line, pad_cells
from tui.viewmodel.pages import INDENT

_KEPT = 4096


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The line of a measured ancestor, with all that it depends on."""

    ancestor: Kernel
    idea: Idea | None
    opened: object
    epoch: int
    line: Line

    def is_right(self, state: SessionState, ancestor: Kernel) -> bool:
        return (
            self.ancestor is ancestor
            and self.idea is state.ideas.get(ancestor.idea)
            and (self.opened, self.epoch) == (state.opened, state.epoch)
        )


class LineageLines:
    """Keeps the lines that it made: of a long lineage most are those of the kernel shown before."""

    def __init__(self) -> None:
        self._drawn: dict[tuple[str, int, int, bool], _Drawn] = {}

    def lines(self, state: SessionState, kernel: Kernel, room: int) -> list[Line]:
        """From the root to the kernel."""
        lineage = queries.lineage(state, kernel.id)
        return [self._line(state, one, (depth, room, one.id == kernel.id)) for depth, one in enumerate(lineage)]

    def _line(self, state: SessionState, ancestor: Kernel, place: tuple[int, int, bool]) -> Line:
        key = (ancestor.id, *place)
        drawn = self._drawn.get(key)
        if drawn is not None and drawn.is_right(state, ancestor):
            return drawn.line
        made = _ancestor_line(state, ancestor, place)
        if queries.speedup(state, ancestor):
            if len(self._drawn) >= _KEPT:
                self._drawn.clear()
            self._drawn[key] = _Drawn(ancestor, state.ideas.get(ancestor.idea), state.opened, state.epoch, made)
        return made


def _ancestor_line(state: SessionState, ancestor: Kernel, place: tuple[int, int, bool]) -> Line:
    """``place``: its depth, the room, and whether it is the kernel itself."""
    depth, room, here = place
    ratio = queries.speedup(state, ancestor)
    figure = kernels.speedup(ancestor, ratio) if ratio else kernels.outcome(state, ancestor).cell
    name = (
        Cell(INDENT + "   " * max(0, min(depth, 12) - 1) + ("╰─ " if depth else ""), Ink.RULE),
        Cell(f"{ancestor.id} ", Ink.STRONG),
        Cell(kernels.title(state, ancestor), Ink.TITLE if here else Ink.PLAIN),
    )
    return line(*pad_cells(name, max(16, min(room, 100) - 16)), Cell("  "), figure)
