"""The append-only log of a session, ``journal.jsonl``: one writer, many readers, whole lines only.

Opening repairs a file that a killed process left incomplete. About events, this module only requires that the first is
``session.opened``, that sequence numbers have no gaps, and what ``references`` and ``plausible``
check.

A kill loses at most the batch being written: the file may end within that batch, and a torn last line is set aside. Lines go to
the operating system at every append and are synced to disk by ``sync``.
"""

from __future__ import annotations

import gc
import os
import secrets
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from engine.domain.errors import JournalCorrupt, JournalError, JournalUnwritable
from engine.domain.events import Entry, Event, SessionOpened
from engine.domain.model import Author
from engine.journal import codec, plausible
from engine.journal.blobs import Blobs
from engine.journal.lock import WriterLock, unwritable_error
from engine.journal.references import References
from engine.journal.torn_lines import set_aside

NAME = "journal.jsonl"
LONGEST_LINE = 64 << 20
"""Bytes of the longest line. A file whose end was lost can go on with gigabytes of zeros; events are short."""


@dataclass(frozen=True, slots=True)
class JournalContents:
    """The entries of a journal. ``torn``: what is wrong with its last line, which is not included; empty for nothing."""

    entries: tuple[Entry, ...]
    torn: str


@dataclass(frozen=True, slots=True)
class _Scan:
    """The result of reading a journal. ``whole_bytes``: length of the complete lines. The rest is either one readable line
    without its newline (``unfinished``; its entry is included) or ``torn``."""

    entries: tuple[Entry, ...]
    whole_bytes: int
    unfinished: bytes = b""
    torn: bytes = b""


def read(folder: Path) -> JournalContents:
    """All entries of a session. Takes no lock and changes nothing; another process may be writing the session.

    Raises JournalError if the folder is not a session, JournalCorrupt or JournalTooNew if its journal is unreadable.
    """
    scan = _scan(folder)
    if not scan.entries:
        raise _empty_journal_error(folder)
    return JournalContents(scan.entries, codec.json_fault(scan.torn) if scan.torn else "")


def version(folder: Path) -> tuple[int, int, int]:
    """Which journal this is and how far it was written, without reading it: another version is another tuple.

    Raises JournalError if the folder is not a session.
    """
    try:
        found = (folder / NAME).stat()
    except OSError as error:
        raise _unreadable_error(folder, error) from error
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def whole_lines(folder: Path) -> bytes:
    """The journal's bytes up to its last complete event, for a copy. Raises like ``read``."""
    scan = _scan(folder)
    if not scan.entries:
        raise _empty_journal_error(folder)
    with _opened(folder) as file:
        whole = file.read(scan.whole_bytes)
    return whole + scan.unfinished + b"\n" if scan.unfinished else whole


class Journal:
    """The only writer of a session. Made by ``create`` or ``open_for_append``; holds the session's lock until closed."""

    def __init__(self, folder: Path, lock: WriterLock, handle: int, size: int, seq: int, session: str) -> None:
        self.folder = folder
        self._session = session
        self.blobs = Blobs(folder)
        self._lock = lock
        self._handle = handle
        self._size, self._seq = size, seq
        self._half_written = False

    @classmethod
    def create(cls, folder: Path) -> Journal:
        """Create a journal without events, and the folder if needed.

        Replaces a journal whose first event is incomplete. Raises JournalError if the folder holds a session, JournalLocked,
        JournalUnwritable.
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
            journal = cls(folder, lock, _open(folder, os.O_CREAT), 0, 0, secrets.token_hex(4))
        except BaseException:
            lock.release()
            raise
        _sync_folder(folder)
        return journal

    @classmethod
    def open_for_append(cls, folder: Path) -> tuple[Journal, tuple[Entry, ...], str]:
        """The journal, its entries, and what was repaired (empty for nothing).

        Moves a torn last line to ``journal.torn-N`` beside the journal; adds a missing last newline. Raises JournalLocked,
        JournalUnwritable, JournalCorrupt, JournalTooNew, or JournalError if the folder is not a session; then nothing is
        changed.
        """
        with _opened(folder):
            pass  # a folder without a journal gets no lock
        lock = WriterLock(folder)
        try:
            scan = _scan(folder)
            if not scan.entries:
                raise _empty_journal_error(folder)
            handle = _open(folder)
        except BaseException:
            lock.release()
            raise
        journal = cls(folder, lock, handle, scan.whole_bytes, scan.entries[-1].seq + 1, scan.entries[0].session)
        try:
            return journal, scan.entries, journal._repair(scan)
        except BaseException:
            journal._release()
            raise

    def append(self, events: Sequence[Event], by: Author, clock: Callable[[], float]) -> tuple[Entry, ...]:
        """Write the events as one batch with one time, and return the entries as readers will see them.

        After JournalUnwritable (disk full, read-only) the journal contains nothing of the batch, and the call can be repeated.
        """
        if not events:
            return ()
        if self._seq == 0 and not isinstance(events[0], SessionOpened):
            raise ValueError("the first event of a journal is session.opened")
        at = clock()
        entries = [Entry(self._seq + index, at, by, event, self._session) for index, event in enumerate(events)]
        lines = [codec.encode(entry) for entry in entries]
        if (longest := max(map(len, lines)) + 1) >= LONGEST_LINE:
            raise JournalUnwritable(f"an event of {longest} bytes is longer than a journal's line may be: nothing was written")
        as_read = tuple(codec.decode(line, entry.seq + 1) for line, entry in zip(lines, entries, strict=True))
        self._write(b"\n".join(lines) + b"\n")
        self._seq += len(entries)
        return as_read

    def sync(self) -> None:
        """Wait until all appended lines are on disk. Raises JournalUnwritable, also if the journal was removed or replaced."""
        try:
            os.fsync(self._handle)
            here, there = os.fstat(self._handle), os.stat(self.folder / NAME)
        except OSError as error:
            raise unwritable_error(self.folder, error) from error
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
            raise unwritable_error(self.folder, FileNotFoundError(None, "another file replaced the journal"))

    def close(self) -> None:
        """Sync and release the session. A second call does nothing."""
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
        aside, fault = set_aside(self.folder, scan.torn), codec.json_fault(scan.torn)
        self._truncate()
        line = "a torn last line" if fault == codec.CUT_SHORT else f"the last line, which {fault},"
        return f"set {line} of {len(scan.torn)} bytes aside as {aside}"

    def _truncate(self) -> None:
        try:
            os.ftruncate(self._handle, self._size)
            os.fsync(self._handle)
        except OSError as error:
            raise unwritable_error(self.folder, error) from error


class Tail:
    """Follows a journal that another process writes. ``poll`` returns new complete entries and never waits."""

    def __init__(self, folder: Path, from_seq: int) -> None:
        self._folder = folder
        self._name = str(folder / NAME)
        self._skip = from_seq
        self._lines, self._offset = 0, 0
        self._named = References()

    def poll(self) -> tuple[Entry, ...]:
        """Entries since the last call, from ``from_seq`` on. A line that is still being written, or a last line that is
        damaged, is left for a later call.

        Raises JournalError if the journal was removed or truncated, JournalCorrupt, JournalTooNew.
        """
        entries = []
        with _opened(self._folder) as file:
            if file.seek(0, os.SEEK_END) < self._offset:
                raise JournalError(f"the journal of {self._folder} was truncated while it was followed: open it again")
            file.seek(self._offset)
            for line in _lines(file, self._lines, self._name):
                if not line.whole or (line.last and codec.json_fault(line.text)):
                    break  # torn, as ``read`` has it: its writer sets it aside
                entry = _entry(line.text, self._lines, self._name, self._named)
                if self._lines >= self._skip:
                    entries.append(entry)
                self._lines += 1
                self._offset += len(line.text) + 1
        return tuple(entries)


def tail(folder: Path, from_seq: int = 0) -> Tail:
    """A reader that follows a session from entry ``from_seq`` on, e.g. ``from_seq=len(contents.entries)``."""
    return Tail(folder, from_seq)


@contextmanager
def _opened(folder: Path) -> Iterator[BinaryIO]:
    try:
        with (folder / NAME).open("rb") as file:
            yield file
    except OSError as error:
        raise _unreadable_error(folder, error) from error


@dataclass(frozen=True, slots=True)
class _RawLine:
    """``whole``: its newline, which ``text`` lacks, is there. ``last``: nothing follows it."""

    text: bytes
    whole: bool
    last: bool


def _lines(file: BinaryIO, number: int, name: str) -> Iterator[_RawLine]:
    """The lines from here on, the first being line ``number + 1`` of the journal ``name``.

    Raises JournalCorrupt for one that is too long to be an event, without reading on.
    """
    line = file.readline(LONGEST_LINE)
    while line:
        number += 1
        if len(line) == LONGEST_LINE:
            raise codec.damaged(f"is longer than {LONGEST_LINE >> 20} MiB", number, name)
        following = file.readline(LONGEST_LINE)
        yield _RawLine(line.removesuffix(b"\n"), line.endswith(b"\n"), not following)
        line = following


def _unreadable_error(folder: Path, error: OSError) -> JournalError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        what = f"{folder} is not a session: it has no {NAME}" if folder.is_dir() else f"session {folder} not found"
        return JournalError(f"{what}; `espalier session list` lists the sessions")
    return JournalError(f"{folder / NAME} cannot be read ({error.strerror}): make it readable, or use a copy")


def _empty_journal_error(folder: Path) -> JournalCorrupt:
    start = f"start a new session there with `espalier run PROBLEM --session {shlex.quote(str(folder))}`"
    return JournalCorrupt(f"the journal of {folder} has no complete event: restore it from a copy, or {start}")


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Pause the garbage collector: entries have no cycles, and collecting 100,000 new objects takes longer than reading."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_gc_paused()
def _scan(folder: Path) -> _Scan:
    name = str(folder / NAME)
    entries: list[Entry] = []
    named, whole = References(), 0
    with _opened(folder) as file:
        for line in _lines(file, 0, name):
            if line.last and codec.json_fault(line.text):
                return _Scan(tuple(entries), whole, torn=line.text + b"\n" * line.whole)
            entries.append(_entry(line.text, len(entries), name, named))
            if not line.whole:
                return _Scan(tuple(entries), whole, unfinished=line.text)
            whole += len(line.text) + 1
    return _Scan(tuple(entries), whole)


def _entry(line: bytes, seq: int, name: str, named: References) -> Entry:
    """The entry on line ``seq + 1`` of the journal ``name``. Raises JournalCorrupt, JournalTooNew."""
    entry = codec.decode(line, seq + 1, name)
    if entry.seq != seq:
        given = f"{codec.number_text(entry.seq)}, not {seq} (events are {'missing' if entry.seq > seq else 'repeated'}"
        raise codec.damaged(f"has sequence number {given} or out of order)", seq + 1, name)
    if seq == 0 and not isinstance(entry.event, SessionOpened):
        raise codec.damaged("is not session.opened (the beginning is missing)", 1, name)
    if fault := named.fault(entry) or plausible.fault(entry):
        raise codec.damaged(fault, seq + 1, name)
    return entry


def _remove_empty_journal(folder: Path) -> None:
    """Remove a journal whose first event is incomplete."""
    scan = _scan(folder)
    if scan.entries:
        raise JournalError(f"{folder} already holds a session: open it, or name another folder")
    if scan.torn:
        set_aside(folder, scan.torn)
    try:
        (folder / NAME).unlink()
    except OSError as error:
        raise unwritable_error(folder, error) from error


def _sync_folder(folder: Path) -> None:
    """Sync the folder's directory entry, if the file system supports it."""
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
