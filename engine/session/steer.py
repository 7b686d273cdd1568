"""Steers a session from outside: directly if no process holds it, else through the inbox of the process that does."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from engine.domain import events as e
from engine.domain.commands import Command
from engine.domain.errors import CommandRejected, JournalError, JournalLocked
from engine.domain.folds import advance
from engine.domain.model import ENGINEER, Author, Blob
from engine.domain.state import SessionState
from engine.journal import inbox, journal
from engine.journal.lock import require_writable
from engine.session import trust
from engine.session.inbox import InboxReader, blobs_of
from engine.session.writer import SessionWriter

PATIENCE = 60.0
"""Seconds to wait for the process that holds the session."""
_POLL = (0.005, 0.1)
_LOCK_EVERY = 0.5


class Steering(Protocol):
    """What a command may be made from: the session's state, and a place for payloads."""

    @property
    def state(self) -> SessionState: ...

    def store_blob(self, data: bytes) -> Blob: ...


Commands = Callable[[Steering], Sequence[Command]]


@dataclass(frozen=True, slots=True)
class Steered:
    """What commands changed: the states before and after, and the entries that they caused."""

    before: SessionState
    after: SessionState
    entries: tuple[e.Entry, ...]
    held: bool = False
    """Whether another process holds the session: what is owed starts there."""


def steer(folder: Path, commands: Commands, by: Author = ENGINEER, *, patience: float = PATIENCE) -> Steered:
    """Submit commands to a session without running it, whether or not another process holds it.

    ``commands`` receives the state and stores payloads. Blocks until the holder has answered each command.

    Raises:
        CommandRejected: a command was refused; those before it are recorded.
        JournalLocked: the holder did not answer within ``patience`` seconds; the command was withdrawn.
        JournalError: the session cannot be read or written.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            with SessionWriter.open(folder) as writer:
                return _directly(writer, commands, by)
        except JournalLocked:
            try:
                return _through_inbox(folder, commands, by, patience)
            except _Released:
                if time.monotonic() > deadline:
                    raise


class _Released(Exception):
    """The holder ended before it took the first command, which was withdrawn."""


def _directly(writer: SessionWriter, commands: Commands, by: Author) -> Steered:
    """Commands that were left for an earlier holder come first."""
    folder, before = writer.folder, writer.state
    trusted = trust.is_trusted(folder, before)
    reader = InboxReader(writer)
    try:
        while reader.take():
            pass
        before = writer.state
        for command in commands(writer):
            writer.submit(command, by)
    finally:
        if by.is_engineer and trusted and trust.needs_of(writer.state) != trust.needs_of(before):
            trust.made_here(folder, writer.state)
    return Steered(before, writer.state, tuple(entry for entry in writer.entries if entry.seq > before.seq))


@dataclass(slots=True)
class _Remote:
    """The view of a process that does not hold the session."""

    state: SessionState
    payloads: dict[Blob, bytes] = field(default_factory=dict)

    def store_blob(self, data: bytes) -> Blob:
        name = hashlib.sha256(data).hexdigest()
        self.payloads[name] = data
        return name


def _through_inbox(folder: Path, commands: Commands, by: Author, patience: float) -> Steered:
    follower = _Follower(folder)
    before = follower.state
    view = _Remote(before)
    caused: list[e.Entry] = []
    for number, command in enumerate(commands(view)):
        payloads = {name: view.payloads[name] for name in blobs_of(command) if name in view.payloads}
        request = inbox.put(folder, command, by, payloads)
        answer = follower.answer_of(request, patience, first=number == 0)
        if not answer.accepted:
            raise CommandRejected(answer.reason)
        caused += follower.caused(answer)
    return Steered(before, follower.state, tuple(caused), held=True)


class _Follower:
    """Reads the growing journal until an answer appears."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tail = journal.tail(folder)
        self._entries: list[e.Entry] = []
        self.state = SessionState()
        self._answers: dict[str, tuple[int, e.CommandAnswered]] = {}
        self._poll()

    def _poll(self) -> None:
        for entry in (news := self._tail.poll()):
            if isinstance(entry.event, e.CommandAnswered):
                self._answers[entry.event.request] = entry.seq, entry.event
        self._entries.extend(news)
        self.state = advance(self.state, news) if news else self.state

    def caused(self, answer: e.CommandAnswered) -> tuple[e.Entry, ...]:
        seq = self._answers[answer.request][0]
        return tuple(self._entries[seq - answer.events : seq])

    def answer_of(self, request: str, patience: float, *, first: bool) -> e.CommandAnswered:
        """The answer to a request. Raises _Released, JournalLocked, JournalError."""
        deadline = time.monotonic() + patience
        check_lock = time.monotonic() + _LOCK_EVERY
        for pause in _pauses():
            self._poll()
            if request in self._answers:
                return self._answers[request][1]
            now = time.monotonic()
            if now > check_lock:
                check_lock = now + _LOCK_EVERY
                if _is_free(self._folder):
                    self._answer_by_self(request, first)
                    continue
            if now > deadline:
                self._give_up(request, patience)
            time.sleep(pause)
        raise AssertionError("the pauses do not end")

    def _answer_by_self(self, request: str, first: bool) -> None:
        """The holder has ended: whoever holds the session next answers its inbox, so this process does."""
        if first and inbox.withdraw(self._folder, request):
            raise _Released
        with contextlib.suppress(JournalLocked), SessionWriter.open(self._folder) as writer:
            reader = InboxReader(writer)
            while reader.take():
                pass

    def _give_up(self, request: str, patience: float) -> None:
        withdrawn = inbox.withdraw(self._folder, request)
        self._poll()
        if request in self._answers:
            return
        try:
            require_writable(self._folder)
            holder = "a process that has ended"
        except JournalLocked as error:
            holder = str(error).partition(":")[0]
        if withdrawn:
            reason = f"{holder} and did not take the command within {patience:g} s: nothing was changed; close it there first"
            raise JournalLocked(reason)
        raise JournalError(f"{holder} and has not recorded the command yet: look at the session before you repeat it")


def _is_free(folder: Path) -> bool:
    try:
        require_writable(folder)
    except JournalError:
        return False
    return True


def _pauses() -> Iterator[float]:
    """Short at first: a running holder answers within milliseconds."""
    pause, longest = _POLL
    while True:
        yield pause
        pause = min(longest, pause * 1.3)
