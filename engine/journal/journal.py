"""The append-only log of a session: one writer, many readers, whole lines only.

Repairs what a killed process left of the file ``journal.jsonl``. Of the events it knows only that the first is
``session.opened`` and that sequence numbers have no gap.

A kill costs at most events of the write in flight: the file then ends within its batch, and a torn line is set aside. Lines go
to the operating system at every append and reach the disk at ``sync``.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from engine.domain.errors import JournalCorrupt, JournalError
from engine.domain.events import Entry, Event, SessionOpened
from engine.domain.model import Author
from engine.journal import codec
from engine.journal.blobs import Blobs
from engine.journal.lock import WriterLock, unwritable_error

NAME = "journal.jsonl"
TORN = "journal.torn"


@dataclass(frozen=True, slots=True)
class JournalContents:
    """The entries of a journal. ``torn``: its last line was cut short and is not among them."""

    entries: tuple[Entry, ...]
    torn: bool


@dataclass(frozen=True, slots=True)
class _Scan:
    """``whole_bytes``: length of the whole lines. What follows is one readable line without its newline (``unfinished``, its
    entry is included) or torn."""

    entries: tuple[Entry, ...]
    whole_bytes: int
    unfinished: bool
    torn: bytes


def read(folder: Path) -> JournalContents:
    """All entries of a session. Takes no lock and changes nothing, whoever is writing it.

    Raises JournalError when the folder is no session, JournalCorrupt and JournalTooNew when it cannot be understood.
    """
    scan = _scan(_load(folder))
    if not scan.entries:
        raise _empty_journal_error(folder)
    return JournalContents(scan.entries, bool(scan.torn))


def whole_lines(folder: Path) -> bytes:
    """The journal's bytes up to its last whole event, for a copy. Raises like ``read``."""
    data = _load(folder)
    scan = _scan(data)
    if not scan.entries:
        raise _empty_journal_error(folder)
    return data + b"\n" if scan.unfinished else data[: scan.whole_bytes]


class Journal:
    """The one writer of a session. Made by ``create`` or ``open_for_append``; holds the session's lock until closed."""

    def __init__(self, folder: Path, lock: WriterLock, handle: int, size: int, seq: int) -> None:
        self.folder = folder
        self.blobs = Blobs(folder)
        self._lock = lock
        self._handle = handle
        self._size = size
        self._seq = seq
        self._half_written = False

    @classmethod
    def create(cls, folder: Path) -> Journal:
        """A journal without events. The folder is made if it does not exist.

        A journal whose first event was never whole is replaced. Raises JournalError when the folder holds a session,
        JournalLocked, JournalUnwritable.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise JournalError(f"{folder} is a file: name a folder for the session") from error
        except OSError as error:
            raise unwritable_error(folder, error) from error
        lock = WriterLock(folder)
        try:
            if (folder / NAME).exists():
                _remove_empty_journal(folder)
            journal = cls(folder, lock, _open(folder, os.O_CREAT), 0, 0)
        except BaseException:
            lock.release()
            raise
        _sync_folder(folder)
        return journal

    @classmethod
    def open_for_append(cls, folder: Path) -> tuple[Journal, tuple[Entry, ...], str]:
        """The journal, its entries, and what was repaired (empty for nothing).

        A torn last line is moved to ``journal.torn-N`` beside the journal; a missing last newline is added. Raises
        JournalLocked,
        JournalUnwritable, JournalCorrupt, JournalTooNew, or JournalError when the folder is no session; then nothing is
        changed.
        """
        _load(folder)
        lock = WriterLock(folder)
        try:
            scan = _scan(_load(folder))
            if not scan.entries:
                raise _empty_journal_error(folder)
            handle = _open(folder)
        except BaseException:
            lock.release()
            raise
        journal = cls(folder, lock, handle, scan.whole_bytes, scan.entries[-1].seq + 1)
        try:
            return journal, scan.entries, journal._repair(scan)
        except BaseException:
            journal._release()
            raise

    def append(self, events: Sequence[Event], by: Author, clock: Callable[[], float]) -> tuple[Entry, ...]:
        """Writes the events as one batch with one time, and returns them as every reader will see them.

        After JournalUnwritable (disk full, read-only) nothing of the batch is in the journal, and the call may be repeated.
        """
        if not events:
            return ()
        if self._seq == 0 and not isinstance(events[0], SessionOpened):
            raise ValueError("the first event of a journal is session.opened")
        at = clock()
        entries = [Entry(self._seq + index, at, by, event) for index, event in enumerate(events)]
        lines = [codec.encode(entry) for entry in entries]
        as_read = tuple(codec.decode(line, entry.seq + 1) for line, entry in zip(lines, entries, strict=True))
        self._write(b"\n".join(lines) + b"\n")
        self._seq += len(entries)
        return as_read

    def sync(self) -> None:
        """Waits until everything appended is on the disk. Raises JournalUnwritable, also when the journal was removed or
        replaced."""
        try:
            os.fsync(self._handle)
            here, there = os.fstat(self._handle), os.stat(self.folder / NAME)
        except OSError as error:
            raise unwritable_error(self.folder, error) from error
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
            raise unwritable_error(self.folder, FileNotFoundError(None, "another file has taken the journal's place"))

    def close(self) -> None:
        """Syncs and releases the session. A second call does nothing."""
        if self._handle < 0:
            return
        try:
            self.sync()
        finally:
            self._release()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _release(self) -> None:
        os.close(self._handle)
        self._handle = -1
        self._lock.release()

    def _write(self, data: bytes) -> None:
        try:
            if self._half_written:
                os.ftruncate(self._handle, self._size)
            self._half_written = True
            done = 0
            while done < len(data):
                done += os.pwrite(self._handle, data[done:], self._size + done)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._handle, self._size)
                self._half_written = False
            raise unwritable_error(self.folder, error) from error
        self._half_written = False
        self._size += len(data)

    def _repair(self, scan: _Scan) -> str:
        if scan.unfinished:
            self._size = os.fstat(self._handle).st_size
            self._write(b"\n")
            return "completed the last line, which lacked its newline"
        if not scan.torn:
            return ""
        aside = _set_aside(self.folder, scan.torn)
        self._truncate()
        return f"set a torn last line of {len(scan.torn)} bytes aside as {aside}"

    def _truncate(self) -> None:
        try:
            os.ftruncate(self._handle, self._size)
            os.fsync(self._handle)
        except OSError as error:
            raise unwritable_error(self.folder, error) from error


class Tail:
    """Follows a journal that another process writes. ``poll`` returns the new whole entries and never waits."""

    def __init__(self, folder: Path, from_seq: int) -> None:
        self._folder = folder
        self._skip = from_seq
        self._lines = 0
        self._offset = 0

    def poll(self) -> tuple[Entry, ...]:
        """Entries since the last call, from ``from_seq`` on. A line that is still being written comes with a later call.

        Raises JournalError when the journal was removed or shortened, JournalCorrupt, JournalTooNew.
        """
        data = self._new_bytes()
        lines = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]
        entries = []
        for line in lines:
            if self._lines >= self._skip:
                entries.append(_checked(codec.decode(line, self._lines + 1), self._lines))
            self._lines += 1
            self._offset += len(line) + 1
        return tuple(entries)

    def _new_bytes(self) -> bytes:
        try:
            with (self._folder / NAME).open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._offset:
                    raise JournalError(f"the journal of {self._folder} was shortened while it was followed: open it again")
                file.seek(self._offset)
                return file.read()
        except OSError as error:
            raise _unreadable_error(self._folder, error) from error


def tail(folder: Path, from_seq: int = 0) -> Tail:
    """A reader that follows a session from an event on, e.g. ``from_seq=len(contents.entries)``."""
    return Tail(folder, from_seq)


def _load(folder: Path) -> bytes:
    try:
        return (folder / NAME).read_bytes()
    except OSError as error:
        raise _unreadable_error(folder, error) from error


def _unreadable_error(folder: Path, error: OSError) -> JournalError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        what = f"is no session: it has no {NAME}" if folder.is_dir() else "is not there"
        return JournalError(f"session {folder} {what}; `espalier session list` lists the sessions")
    return JournalError(f"the journal of {folder} cannot be read ({error.strerror})")


def _empty_journal_error(folder: Path) -> JournalCorrupt:
    return JournalCorrupt(f"the journal of {folder} holds no event, so nothing was recorded: start a new session there")


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Pauses the garbage collector: entries hold no cycles, and collecting among 100,000 new objects takes longer than
    reading."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_gc_paused()
def _scan(data: bytes) -> _Scan:
    lines = data.split(b"\n")
    rest = lines.pop()
    entries: list[Entry] = []
    whole = 0
    for number, line in enumerate(lines):
        if number == len(lines) - 1 and not rest and not codec.is_json(line):
            return _Scan(tuple(entries), whole, False, data[whole:])
        entries.append(_checked(codec.decode(line, number + 1), number))
        whole += len(line) + 1
    if not rest:
        return _Scan(tuple(entries), whole, False, b"")
    if not codec.is_json(rest):
        return _Scan(tuple(entries), whole, False, rest)
    entries.append(_checked(codec.decode(rest, len(lines) + 1), len(lines)))
    return _Scan(tuple(entries), whole, True, b"")


def _checked(entry: Entry, seq: int) -> Entry:
    if entry.seq != seq:
        raise JournalCorrupt(f"line {seq + 1} of the journal has sequence number {entry.seq}, not {seq}: events are missing")
    if seq == 0 and not isinstance(entry.event, SessionOpened):
        raise JournalCorrupt("line 1 of the journal is not session.opened: its beginning is missing")
    return entry


def _remove_empty_journal(folder: Path) -> None:
    """Removes a journal whose first event was never whole."""
    scan = _scan(_load(folder))
    if scan.entries:
        raise JournalError(f"{folder} already holds a session: open it, or name another folder")
    if scan.torn:
        _set_aside(folder, scan.torn)
    try:
        (folder / NAME).unlink()
    except OSError as error:
        raise unwritable_error(folder, error) from error


def _set_aside(folder: Path, torn: bytes) -> str:
    """Writes the bytes to the first free name and returns it; they are on the disk before anything else changes."""
    number = 1
    while (folder / f"{TORN}-{number}").exists():
        number += 1
    path = folder / f"{TORN}-{number}"
    try:
        with path.open("xb") as file:
            file.write(torn)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable_error(folder, error) from error
    return path.name


def _sync_folder(folder: Path) -> None:
    """Syncs the folder's directory entry, where the file system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _open(folder: Path, flags: int = 0) -> int:
    try:
        return os.open(folder / NAME, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
    except OSError as error:
        raise unwritable_error(folder, error) from error
