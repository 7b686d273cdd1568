"""The transport bar of a replay: play state, speed, track with rounds, position. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tui.viewmodel.cells import Cell, Ink, Line, line, merge_cells, width

_LEAD = 11


@dataclass(frozen=True, slots=True)
class Transport:
    """The state of the transport."""

    position: int
    length: int
    playing: bool
    speed: float
    ticks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """The line, and the position of its track."""

    line: Line
    start: int
    room: int


def bar(shown: Transport, room: int) -> Bar:
    """``▶ 4×  ━━━━┿━━━●────┼────  127/430``."""
    state = Cell(" ▶ " if shown.playing else " ‖ ", Ink.GOOD if shown.playing else Ink.WARN)
    speed = Cell(f"{speed_text(shown.speed):<{_LEAD - 4}} ", Ink.STRONG)
    count = f" {shown.position}/{shown.length} "
    left = max(4, room - _LEAD - width(count))
    track = _track(shown, left)
    return Bar(line(state, speed, *track, Cell(count)), width(state.text) + width(speed.text), left)


def speed_text(speed: float) -> str:
    """``4×``, ``½×``."""
    return {0.5: "½×", 0.25: "¼×"}.get(speed, f"{speed:g}×")


def _place(position: int, length: int, room: int) -> int:
    return round(position / length * (room - 1)) if length > 0 else 0


def _track(shown: Transport, room: int) -> tuple[Cell, ...]:
    here = _place(shown.position, shown.length, room)
    marks = {_place(tick, shown.length, room) for tick in shown.ticks}
    cells = []
    for x in range(room):
        if x == here:
            cells.append(Cell("●", Ink.BEST))
        elif x < here:
            cells.append(Cell("┿" if x in marks else "━", Ink.ACCENT))
        else:
            cells.append(Cell("┼" if x in marks else "─", Ink.RULE))
    return merge_cells(cells)


def position_at(x: int, shown: Bar, length: int) -> int | None:
    """The position for a click at this cell; ``None`` outside the track."""
    if not shown.start <= x < shown.start + shown.room or shown.room < 2:
        return None
    return round((x - shown.start) / (shown.room - 1) * length)


def next_speed(speed: float, *, faster: bool, steps: Sequence[float] = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)) -> float:
    """The next faster or slower step."""
    if faster:
        return next((s for s in steps if s > speed), steps[-1])
    return next((s for s in reversed(steps) if s < speed), steps[0])
