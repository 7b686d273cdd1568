"""The only writer of a session: holds the lock and the journal, and folds appended events into the state.

Events are recorded before they are folded: an event that was not recorded has no effect. A writer starts no work.
``engine.session.live`` runs the search on top of a writer; commands that only steer a session use a writer alone.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from engine.domain import events as e
from engine.domain import rules
from engine.domain.commands import Command, EditIdea
from engine.domain.errors import CommandRejected, ProposerError
from engine.domain.folds import advance
from engine.domain.model import ENGINE, ENGINEER, Author, Blob
from engine.domain.state import SessionState
from engine.ideas.mix import check_proposer
from engine.journal.blobs import Blobs
from engine.journal.journal import Journal
from engine.session.ports import Clock
from engine.session.source import Batch, Notifier


class SessionWriter:
    """A session open for writing. Made by ``create`` or ``open``; released by ``close`` or on leaving its context."""

    def __init__(self, journal: Journal, entries: Sequence[e.Entry], clock: Clock) -> None:
        """Use ``create`` or ``open``."""
        self._journal = journal
        self._clock = clock
        self._entries = list(entries)
        self._state = advance(SessionState(), entries)
        self._listeners: list[Callable[[Sequence[e.Entry]], None]] = []
        self._appended = Notifier()
        self._closed = False

    @classmethod
    def create(cls, folder: Path, opened: e.SessionOpened, clock: Clock = time.time) -> Self:
        """Create a session in ``folder``, and the folder if needed.

        Raises:
            JournalError: the folder already holds a session, or cannot be written.
        """
        return cls(Journal.create(folder), (), clock)._begin((opened,), ENGINEER)

    @classmethod
    def open(cls, folder: Path, clock: Clock = time.time) -> Self:
        """Open the session in ``folder``; work that was running when its last process died is owed again.

        Raises:
            JournalError: no session there, another process is writing it, or it cannot be read or written.
        """
        journal, entries, repaired = Journal.open_for_append(folder)
        writer = cls(journal, entries, clock)
        return writer._begin(rules.resume_events(writer.state, repaired), ENGINE)

    def _begin(self, first: Sequence[e.Event], by: Author) -> Self:
        """Record the first events and return the writer; closes the journal on failure."""
        try:
            self.append(first, by)
        except BaseException:
            self._journal.close()
            raise
        return self

    @property
    def folder(self) -> Path:
        return self._journal.folder

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def blobs(self) -> Blobs:
        return self._journal.blobs

    def store_blob(self, data: bytes) -> Blob:
        """Store a payload as a blob, e.g. the code of a kernel to seed. Raises JournalUnwritable."""
        return self.blobs.put(data)

    @property
    def entries(self) -> Sequence[e.Entry]:
        """All entries, oldest first."""
        return self._entries

    def submit(self, command: Command, by: Author) -> tuple[e.Entry, ...]:
        """Record the events of a command and return their entries.

        Raises:
            CommandRejected: the rules do not allow it in this state, or to this author; or it names an unknown writer.
            JournalError: recording failed; the command has no effect.
        """
        _check_writer(command)
        return self.append(rules.decide(self._state, command, by), by)

    def append(self, events: Sequence[e.Event], by: Author) -> tuple[e.Entry, ...]:
        """Record events as one batch, fold them, and return their entries. Raises JournalError."""
        if not events:
            return ()
        entries = self._journal.append(tuple(events), by, self._clock)
        self._entries.extend(entries)
        self._state = advance(self._state, entries)
        if any(isinstance(event, e.RoundClosed | e.SessionClosed) for event in events):
            self._journal.sync()
        for listener in self._listeners:
            listener(entries)
        self._appended.notify()
        return entries

    def subscribe(self, listener: Callable[[Sequence[e.Entry]], None]) -> None:
        """Call ``listener`` with the entries of every append, once the state includes them."""
        self._listeners.append(listener)

    async def wait_until(self, condition: Callable[[SessionState], bool]) -> None:
        """Wait until the condition holds."""
        while not condition(self._state):
            await self._appended.wait()

    async def batches(self) -> AsyncIterator[Batch]:
        """See ``SessionSource``."""
        seen = 0
        while True:
            if seen < len(self._entries):
                news = tuple(self._entries[seen:])
                seen += len(news)
                yield Batch(news, self._state)
            elif self._closed:
                return
            else:
                await self._appended.wait()

    def close(self) -> None:
        """Sync the journal and release the session."""
        self._closed = True
        self._appended.notify()
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _check_writer(command: Command) -> None:
    """Raises CommandRejected for an unknown writer: work that names one fails, and stops the search."""
    if isinstance(command, EditIdea) and command.writer:
        try:
            check_proposer(command.writer)
        except ProposerError as error:
            raise CommandRejected(str(error)) from error
