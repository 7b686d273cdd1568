"""Where a session can be forked, and what the fork does not contain. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.domain import events as e
from engine.domain.model import Interval
from engine.report.facts.forks import LeftBehind
from tui.viewmodel import fmt

_NAMED = 12


@dataclass(frozen=True, slots=True)
class Point:
    """A point to fork from, and how many entries the fork keeps."""

    position: int
    words: str


def points(entries: Sequence[e.Entry]) -> tuple[Point, ...]:
    """Points to fork from, latest first: now; for each round, before its decisions and before it opened."""
    found = [Point(len(entries), "now, with all events")]
    for place in range(len(entries) - 1, -1, -1):
        match entries[place].event:
            case e.IdeasProposed(number, ideas, True) if ideas and number > 0:
                approved = f"{fmt.counted(len(ideas), 'idea')} {'is' if len(ideas) == 1 else 'are'} approved"
                found.append(Point(place + 1, f"round {number}, before its {approved}"))
            case e.RoundOpened(number) if number > 0:
                found.append(Point(place, f"before round {number}"))
            case _:
                pass
    return tuple(found)


def left_counts(left: LeftBehind) -> str:
    """``1 round, 3 ideas and 4 kernels``; empty if the fork contains everything."""
    counts = ((left.rounds, "round"), (left.ideas, "idea"), (len(left.kernels), "kernel"))
    parts = [fmt.counted(number, thing) for number, thing in counts if number]
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1]))) if parts else ""


def left_words(left: LeftBehind) -> str:
    """What the fork does not contain, as text."""
    counts = left_counts(left)
    if not counts:
        return "The fork contains everything."
    named = ", ".join(left.kernels[:_NAMED]) + (" …" if len(left.kernels) > _NAMED else "")
    lines = [f"Not in the fork: {counts}{f' ({named})' if named else ''}.", f"Incumbent of the fork: {_figure(left.kept)}."]
    return "\n".join((*lines, *((f"Faster, but not in the fork: {_figure(left.lost)}.",) if left.lost else ())))


def _figure(incumbent: tuple[str, Interval | None] | None) -> str:
    if incumbent is None:
        return "no verified kernel"
    kernel, ratio = incumbent
    return f"{kernel} {fmt.ratio_of(ratio) if ratio is not None else ''}".strip()
