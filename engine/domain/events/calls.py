"""Events of model calls and of work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from engine.domain.model import Blob, CallRole, Usage


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A model is about to be asked. The prompt is stored before the first token is spent."""

    KIND: ClassVar[str] = "call.started"
    call: str
    work: str
    """Key of the work that needs it."""
    role: CallRole
    model: str
    """The model's name as an author: ``openai:NAME``, ``paste``, ``command:CMD``."""
    prompt: Blob
    ceiling: int = 0
    """The highest possible number of tokens; 0 if the call costs none."""
    max_output: int = 0
    """The part of ``ceiling`` that the reply may take; 0 in older journals."""


@dataclass(frozen=True, slots=True)
class CallAnswered:
    """The reply, recorded before it is parsed."""

    KIND: ClassVar[str] = "call.answered"
    call: str
    reply: Blob
    usage: Usage = field(default_factory=Usage)
    usd: float | None = None
    """``None``: the model's price is unknown."""
    finish: str = "stop"
    """Why the model stopped."""
    seconds: float = 0.0
    recalled: bool = False
    """Answered from a recorded reply at no cost."""
    estimated: bool = False
    """The provider reported no usage: ``usage`` is what the call could have cost."""


@dataclass(frozen=True, slots=True)
class CallFailed:
    """No reply came, or it is unusable; such replies are never recalled."""

    KIND: ClassVar[str] = "call.failed"
    call: str
    reason: str
    usage: Usage = field(default_factory=Usage)
    """Tokens in addition to those of a recorded answer."""
    usd: float | None = None
    cancelled: bool = False
    """Someone cancelled the call; its work does not ask again."""
    estimated: bool = False
    """What the call cost is unknown: ``usage`` is what it could have cost."""


@dataclass(frozen=True, slots=True)
class BudgetReached:
    """The next call could exceed a hard cap and was not made."""

    KIND: ClassVar[str] = "budget.reached"
    work: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkStarted:
    """Work is about to start. If no result follows, the process died during the work."""

    KIND: ClassVar[str] = "work.started"
    work: str


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """Work failed in the engine (device lost, disk full, no answer). This is not a verdict on a kernel."""

    KIND: ClassVar[str] = "work.failed"
    work: str
    reason: str
    called_off: bool = False
    """Someone cancelled the call that the work needed; the engine is not at fault."""


@dataclass(frozen=True, slots=True)
class WorkRetried:
    """Failed work is owed again, because somebody asked for it."""

    KIND: ClassVar[str] = "work.retried"
    works: tuple[str, ...]
    """Empty if the search stopped because it could not be recorded."""


CallEvent = CallStarted | CallAnswered | CallFailed | BudgetReached | WorkStarted | WorkFailed | WorkRetried
