"""How far a run of a session goes, and how it ends. All outcomes are expected; none is an exception."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from engine.domain.work import WorkKey


class Until(StrEnum):
    """How far a run goes. Every run also ends when the engine itself fails."""

    CLOSED = "closed"
    """To the end of the session, waiting for the engineer's decisions."""
    ROUND = "round"
    """To the end of the round, or to a decision of the engineer's. Round 0, the naive port, does not count."""
    IDLE = "idle"
    """To the end of the session, or to a decision of the engineer's."""


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session is closed."""

    reason: str


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """The round's kernels have settled, and the session is not closed."""

    round: int


@dataclass(frozen=True, slots=True)
class AwaitingEngineer:
    """No work is under way or owed: the engineer must decide on these ideas, answer these prompts, resume after a pause, or add
    ideas."""

    ideas: tuple[str, ...]
    calls: tuple[str, ...] = ()
    """Calls whose prompt a person answers."""
    paused: str | None = None


@dataclass(frozen=True, slots=True)
class EngineStopped:
    """The engine could not do some of the work (key → reason). ``LiveSession.retry`` makes it owed again."""

    reasons: Mapping[WorkKey, str]


Outcome = SessionEnded | RoundEnded | AwaitingEngineer | EngineStopped
