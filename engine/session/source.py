"""The one interface of a session as something to look at: live, replayed or followed.

Whoever shows or prints a session holds a ``SessionSource`` and asks for its capabilities; never which kind it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from engine.domain.commands import Command
from engine.domain.errors import CommandRejected
from engine.domain.events import Entry
from engine.domain.state import SessionState


class Capability(StrEnum):
    """What a source can do beyond being watched."""

    SUBMIT = "submit"
    """It takes commands."""
    SEEK = "seek"
    """It has a transport: play, pause, seek."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What was recorded since the batch before, and the state after it.

    ``entries`` is empty after a seek: only the state counts then, and everything shown is to be drawn anew from it.
    """

    entries: tuple[Entry, ...]
    state: SessionState


@dataclass(frozen=True, slots=True)
class Progress:
    """A word on a piece of work under way; never journalled, and dropped where nobody keeps up."""

    work: str
    """Key of the work, e.g. ``measure:k7:0``."""
    text: str


class SessionSource(Protocol):
    """A stream of a session's entries with the state they lead to."""

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    @property
    def state(self) -> SessionState: ...

    def batches(self) -> AsyncIterator[Batch]:
        """All that is recorded so far as one batch, then what follows; ends when the source is closed.

        Each call is a stream of its own. A slow reader gets fewer and larger batches.
        """
        ...

    def progress(self) -> AsyncIterator[Progress]:
        """Words from now on; ends when the source is closed."""
        ...

    async def submit(self, command: Command) -> None:
        """Ask for something. Raises CommandRejected with the reason; what it caused arrives as a batch."""
        ...

    async def close(self) -> None: ...


class ReadOnly:
    """``submit`` and ``progress`` of a source that takes no commands and has nothing under way."""

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal

    async def submit(self, command: Command) -> None:
        raise CommandRejected(self._refusal)

    async def progress(self) -> AsyncIterator[Progress]:
        nothing: tuple[Progress, ...] = ()
        for word in nothing:
            yield word


class Pulse:
    """Wakes everyone who waits for the next beat; who does not wait misses nothing but the beat."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def beat(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def next(self) -> None:
        await self._event.wait()
