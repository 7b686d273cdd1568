"""Where another strategy would have gone its own way, round by round, on the evidence that a session had at that point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from engine.domain.events import Entry, RoundOpened
from engine.domain.folds import advance
from engine.domain.rules import adaptive, lifecycle
from engine.domain.state import SessionState


@dataclass(frozen=True, slots=True)
class RoundReplay:
    """One round: the parents that it had, and those that the other strategy would have chosen."""

    round: int
    parents: tuple[str, ...]
    instead: tuple[str, ...]
    reason: str = ""
    """The other strategy's, if it gives one."""

    @property
    def differs(self) -> bool:
        return set(self.parents) != set(self.instead)


def replayed(entries: Sequence[Entry], strategy: str) -> Iterator[RoundReplay]:
    """Every round after the naive port. Its evidence is the session's own: only the next decision is another strategy's."""
    state, done = SessionState(), 0
    for place, entry in enumerate(entries):
        opened = entry.event
        if isinstance(opened, RoundOpened) and opened.round > 0:
            state, done = advance(state, entries[done:place]), place
            instead, reason = _decision(_with_strategy(state, strategy), opened.round)
            yield RoundReplay(opened.round, opened.parents, instead, reason)


def _with_strategy(state: SessionState, strategy: str) -> SessionState:
    assert state.opened is not None, "a round opens in an opened session"
    settings = replace(state.opened.settings, strategy=strategy)
    return replace(state, opened=replace(state.opened, settings=settings))


def _decision(state: SessionState, number: int) -> tuple[tuple[str, ...], str]:
    if not adaptive.is_adaptive(state):
        return lifecycle.parents(state), ""
    event = adaptive.opened_round(state, number)
    return event.parents, event.plan.reason if event.plan is not None else ""
