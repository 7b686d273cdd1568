"""The lock of a session: only one process at a time can write it.

An advisory lock on the file ``lock`` in the session's folder, released when the process ends. The file itself stays. In a
session from elsewhere the name may stand for a pipe or for a link to another file: neither is opened.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from engine.domain.errors import JournalLocked, JournalUnwritable
from engine.journal.regular_file import opened
from engine.journal.shipped import is_shipped

NAME = "lock"
_PROBES, _PROBE_SECONDS = 2, 0.005
"""How often and for how long the lock is tried again, before the session counts as written by another process."""
SESSION = "session"
SESSIONS = "the folder of sessions"
"""What an error says cannot be written."""
_JOURNAL = "journal.jsonl"


class WriterLock:
    """The exclusive right to write a session, until ``release`` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        """Take the lock.

        Raises JournalLocked with the writer's process, JournalUnwritable if the folder is read-only or a recording that ships.
        """
        refuse_shipped(folder)
        path = folder / NAME
        try:
            self._handle = opened(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        except OSError as error:
            raise unwritable_error(folder, error) from error
        try:
            _take(self._handle)
        except BlockingIOError as error:
            holder = os.pread(self._handle, 200, 0).decode("ascii", "replace").split()
            os.close(self._handle)
            raise JournalLocked(_locked_message(folder, holder)) from error
        except OSError as error:
            os.close(self._handle)
            raise JournalUnwritable(f"cannot lock {folder} ({error.strerror}): keep sessions on a local disk") from error
        with suppress(OSError):
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, f"{os.getpid()} {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def require_writable(folder: Path) -> None:
    """Raise what taking the lock raises, if this process could not write the session now."""
    WriterLock(folder).release()


def require_creatable(folder: Path, what: str = SESSION) -> None:
    """Raise JournalUnwritable if files could not be made in this folder, which need not exist yet. Creates nothing."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(one))
    if not os.path.isdir(there):
        number = errno.ENOTDIR
    elif os.access(there, os.W_OK | os.X_OK):
        return
    else:
        number = errno.EROFS if os.statvfs(there).f_flag & os.ST_RDONLY else errno.EACCES
    raise unwritable_error(folder, OSError(number, os.strerror(number)), what)


def is_written(folder: Path) -> bool:
    """Whether a process holds the session's lock: it runs the session. Changes nothing."""
    try:
        handle = opened(folder / NAME, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def _take(handle: int) -> None:
    """Lock the file for this process. Raises BlockingIOError while another process writes the session; ``is_written`` holds the
    lock for a moment, which is waited out."""
    for _ in range(_PROBES):
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_PROBE_SECONDS)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def unwritable_error(place: Path, error: OSError, what: str = SESSION) -> JournalUnwritable:
    """The error for a failed write to ``place``, with advice."""
    how = " with ESPALIER_HOME" if what == SESSIONS else ""
    match error:
        case FileNotFoundError() | NotADirectoryError():
            advice = f"restore its folder, or name another one{how}"
        case PermissionError() | OSError(errno=errno.EROFS):
            copied = what == SESSION and os.path.exists(place)
            advice = "copy it to a writable folder, and use the copy" if copied else f"name a writable folder{how}"
        case IsADirectoryError() | OSError(errno=errno.EINVAL, filename=str()):
            advice = f"move {error.filename} away: a file belongs there"
        case _:
            is_recorded = os.path.exists(place / _JOURNAL)
            kept = " and continue: everything recorded before is kept" if is_recorded else ", then repeat the command"
            advice = f"free some space{kept}"
    return JournalUnwritable(f"{what} {place} cannot be written ({error.strerror}): {advice}")


def refuse_shipped(folder: Path) -> None:
    """Raise JournalUnwritable if the folder holds a recording that ships with the program."""
    if is_shipped(folder) and (folder / _JOURNAL).exists():
        name = folder.resolve().name
        raise JournalUnwritable(f"{name} is a recording that ships with Espalier: `espalier fork {name}` continues from a copy")


def _locked_message(folder: Path, holder: list[str]) -> str:
    if not holder or not holder[0].isdigit():
        return f"session {folder} is open in another process: close it there first"
    pid, since = holder[0], f" since {holder[1]}" if len(holder) > 1 else ""
    if _is_alive(int(pid)):
        steering = "or steer it from here with `espalier idea`, `kernel` and `session`"
        return f"session {folder} is open in process {pid}{since}: close it there first, {steering}"
    return f"session {folder} is locked by a child of process {pid}, which has ended: end that child process first"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
