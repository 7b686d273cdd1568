"""The transport of a recording as one line: state, speed, a track with the rounds on it, the place. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tui.viewmodel.cells import Cell, Ink, Line, cut, flat, line, merged, width

_LEAD = 11


@dataclass(frozen=True, slots=True)
class Transport:
    """Where a recording stands."""

    position: int
    length: int
    playing: bool
    speed: float
    ticks: tuple[int, ...] = ()
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """The line, and where its track lies in it."""

    line: Line
    start: int
    room: int


def bar(shown: Transport, room: int) -> Bar:
    """``▶ 4×  ━━━━┿━━━●────┼────  127/430  caption``."""
    state = Cell(" ▶ " if shown.playing else " ‖ ", Ink.GOOD if shown.playing else Ink.WARN)
    speed = Cell(f"{speed_words(shown.speed):<{_LEAD - 4}} ", Ink.STRONG)
    count = f" {shown.position}/{shown.length} "
    caption = cut(flat(shown.caption), max(0, room // 3)) if room >= 60 else ""
    left = max(4, room - _LEAD - width(count) - (width(caption) + 2 if caption else 0))
    track = _track(shown, left)
    words = Cell(f" {caption} " if caption else "", Ink.FAINT)
    return Bar(line(state, speed, *track, Cell(count), words), width(state.text) + width(speed.text), left)


def speed_words(speed: float) -> str:
    """``4×``, ``½×``: as people say it."""
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
    return merged(cells)


def position_at(x: int, shown: Bar, length: int) -> int | None:
    """The position that a click at this cell means; ``None`` beside the track."""
    if not shown.start <= x < shown.start + shown.room or shown.room < 2:
        return None
    return round((x - shown.start) / (shown.room - 1) * length)


def next_speed(speed: float, *, faster: bool, steps: Sequence[float] = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)) -> float:
    """The next step up or down, within the steps there are."""
    if faster:
        return next((s for s in steps if s > speed), steps[-1])
    return next((s for s in reversed(steps) if s < speed), steps[0])
