"""How far a run of a session goes, and what it can end with. All of these are expected; none is an exception."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Until(StrEnum):
    """How far a run goes. Every run also ends when the engine itself failed."""

    CLOSED = "closed"
    """To the end of the session; where the engineer's decision is awaited, wait for it."""
    ROUND = "round"
    """To the end of the round, or to a decision of the engineer's. Round 0, the first port, is not counted."""
    IDLE = "idle"
    """To the end of the session, or to a decision of the engineer's."""


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session is closed."""

    reason: str


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """The round's kernels have settled and the session goes on."""

    round: int


@dataclass(frozen=True, slots=True)
class AwaitingEngineer:
    """Nothing is under way and nothing is owed: someone must decide on these ideas, answer these prompts, say go on after a
    pause, or bring new ideas."""

    ideas: tuple[str, ...]
    calls: tuple[str, ...] = ()
    """Prompts given out by hand whose reply is awaited."""
    paused: str | None = None


@dataclass(frozen=True, slots=True)
class EngineStopped:
    """The engine itself could not do some of the work (work key → reason). ``LiveSession.retry`` takes it up again."""

    reasons: Mapping[str, str]


Outcome = SessionEnded | RoundEnded | AwaitingEngineer | EngineStopped
