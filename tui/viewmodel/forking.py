"""Where a session can be gone on with from, and what stays behind when it is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.domain import events as e
from engine.domain import queries
from engine.domain.model import Interval
from engine.domain.state import Kernel, SessionState, advance
from tui.viewmodel import fmt

_NAMED = 12


@dataclass(frozen=True, slots=True)
class Point:
    """A place between two entries: so many are kept."""

    position: int
    words: str


@dataclass(frozen=True, slots=True)
class Left:
    """What a fork keeps and what it leaves behind."""

    rounds: int
    kernels: tuple[str, ...]
    ideas: int
    kept_best: str
    left_best: str
    """A better kernel that is not taken along; empty where there is none."""

    @property
    def counted(self) -> str:
        """``1 round, 3 ideas and 4 kernels``; empty where nothing is left."""
        parts = [
            fmt.counted(number, thing)
            for number, thing in ((self.rounds, "round"), (self.ideas, "idea"), (len(self.kernels), "kernel"))
            if number
        ]
        return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1]))) if parts else ""

    @property
    def words(self) -> str:
        """For a person who is about to decide."""
        if not self.counted:
            return "Nothing is left behind."
        named = ", ".join(self.kernels[:_NAMED]) + (" …" if len(self.kernels) > _NAMED else "")
        lines = [f"Left behind: {self.counted}{f' ({named})' if named else ''}.", f"Best taken along: {self.kept_best}."]
        return "\n".join((*lines, *((f"Better, and left behind: {self.left_best}.",) if self.left_best else ())))


def points(entries: Sequence[e.Entry]) -> tuple[Point, ...]:
    """Where to go on from, the latest first: now, and for each round before its decisions and before it opened."""
    found = [Point(len(entries), "now, with all that happened")]
    for place in range(len(entries) - 1, -1, -1):
        match entries[place].event:
            case e.IdeasProposed(number, ideas, True) if ideas and number > 0:
                found.append(Point(place + 1, f"round {number}, its {fmt.counted(len(ideas), 'idea')} undecided"))
            case e.RoundOpened(number) if number > 0:
                found.append(Point(place, f"before round {number}"))
            case _:
                pass
    return tuple(found)


def left_behind(entries: Sequence[e.Entry], position: int) -> Left:
    """What stays behind when the first ``position`` entries are gone on with."""
    kept = advance(SessionState(), entries[:position])
    whole = advance(kept, entries[position:])
    behind = [entry.event for entry in entries[position:]]
    before, after = queries.incumbent(kept), queries.incumbent(whole)
    better = after is not None and after.id not in kept.kernels
    return Left(
        sum(isinstance(event, e.RoundOpened) for event in behind),
        tuple(event.kernel for event in behind if isinstance(event, e.KernelDrafted)),
        sum(len(event.ideas) for event in behind if isinstance(event, e.IdeasProposed)),
        _figure(kept, before) if before is not None else "no verified kernel",
        _figure(whole, after) if after is not None and better else "",
    )


def _figure(state: SessionState, kernel: Kernel) -> str:
    ratio: Interval | None = queries.speedup(state, kernel)
    return f"{kernel.id} {fmt.ratio(ratio.value) if ratio is not None else ''}".strip()
