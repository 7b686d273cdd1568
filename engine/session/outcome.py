"""When a run of a session stops, and with which outcome. All outcomes are expected; none is an exception."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from engine.domain.work import WorkKey


class Until(StrEnum):
    """When a run stops. Every run also stops when the engine itself fails."""

    CLOSED = "closed"
    """When the session closes; waits for the engineer's decisions."""
    ROUND = "round"
    """At the end of the round, or when the engineer must decide. Round 0, the naive port, does not count."""
    IDLE = "idle"
    """When the session closes, or when the engineer must decide."""


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
    """No work is running or owed: the engineer must decide on these ideas, answer these prompts, resume the session, or add
    ideas."""

    ideas: tuple[str, ...]
    calls: tuple[str, ...] = ()
    """Calls whose prompts a person answers."""
    paused: str | None = None


@dataclass(frozen=True, slots=True)
class EngineStopped:
    """Some work failed in the engine (key → reason). ``LiveSession.retry`` makes it owed again."""

    reasons: Mapping[WorkKey, str]


Outcome = SessionEnded | RoundEnded | AwaitingEngineer | EngineStopped
