"""What a wait for a provider says while it lasts. Pure, but for the clock of the patience."""

from __future__ import annotations

import math
from collections.abc import Callable

from engine.ideas.models.keys import scrub
from engine.ideas.models.model import ModelError
from engine.ideas.models.retry_policy import Persistence


def countdown(error: ModelError, persistence: Persistence) -> Callable[[float], str]:
    """What a wait within a call says, by the seconds until its end."""
    return _countdown(f"{scrub(str(error))}; retrying", persistence)


def repetition(call: str, persistence: Persistence) -> Callable[[float], str]:
    """What the wait after a call says whose failure is in the journal."""
    return _countdown(f"repeating {call}", persistence)


def _countdown(what: str, persistence: Persistence) -> Callable[[float], str]:
    def words(left: float) -> str:
        return f"{what} in {_clock(left)}, giving up in {_clock(persistence.left())}"

    return words


def _clock(seconds: float) -> str:
    """``42 s``, ``12:05`` or ``1:00:00``."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
