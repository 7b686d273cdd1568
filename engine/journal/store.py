"""Finds, names, summarises and deletes session folders.

Reads journals but never writes into a session. A damaged session does not prevent the others from being listed.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Literal

from engine.domain import corroboration, queries
from engine.domain.errors import EspalierError, JournalError, JournalUnwritable
from engine.domain.folds import advance
from engine.domain.model import Interval
from engine.domain.state import SessionState
from engine.journal import journal, trust_records
from engine.journal.blobs import FOLDER as BLOBS
from engine.journal.inbox import FOLDER as INBOX
from engine.journal.lock import NAME as LOCK
from engine.journal.lock import SESSIONS, WriterLock, require_writable, unwritable_error
from engine.journal.shipped import is_shipped, shipped_folder
from engine.journal.torn_lines import TORN
from engine.journal.user_folders import HOME, sessions_root


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One line of a list of sessions. An unreadable session only has name, folder, time, status and reason."""

    name: str
    folder: Path
    status: Literal["open", "closed", "unreadable"]
    reason: str
    """Why it closed, or why it is unreadable."""
    last_activity: float
    """Time of the last event in seconds since the epoch; for an unreadable session, of the last change of its journal."""
    problem: str = ""
    workload: str = ""
    device: str = ""
    """The device's name once the session is prepared; before that, the requested label."""
    baseline: str = ""
    best: Interval | None = None
    """The incumbent's speedup over the baseline."""
    incumbent: str = ""
    rounds: int = 0
    """Rounds after the naive port."""
    kernels: int = 0
    verified: int = 0
    best_so_far: tuple[float, ...] = ()
    """The incumbent's speedup at the end of each round, for a sparkline."""
    awaiting: int = 0
    """Ideas awaiting approval."""
    corroborated: bool = False
    """Whether the incumbent's time is corroborated. If there is an incumbent and it is not, the engineer accepted it."""
    doubts: tuple[str, ...] = ()
    """The doubts about the incumbent that the engineer dismissed."""
    doubted: tuple[str, ...] = ()
    """Kernels that are not corroborated, or quarantined."""
    strategy: str = ""
    origin: str = ""
    """Where the problem was read from: the name of a shipped one, or a path as it was given."""

    @property
    def shipped(self) -> bool:
        """Whether it is a recording that ships: an example to replay, which cannot be resumed."""
        return is_shipped(self.folder)


def shipped_root() -> Path | None:
    """The folder of the recorded sessions that ship; ``None`` where there is none."""
    folder = shipped_folder("sessions")
    return folder if folder.is_dir() else None


def new_folder(problem: str) -> Path:
    """Create an empty folder with a new name, e.g. ``softmax-2026-11-20-1``.

    Raises JournalUnwritable.
    """
    root = sessions_root()
    slug = re.sub(r"[^a-z0-9_]+", "-", Path(problem).stem.lower()).strip("-") or "session"
    stem = f"{slug[:60]}-{datetime.now(UTC).astimezone():%Y-%m-%d}"
    number = 1
    try:
        root.mkdir(parents=True, exist_ok=True)
        while True:
            folder = root / f"{stem}-{number}"
            try:
                folder.mkdir()
            except FileExistsError:
                number += 1
            else:
                return folder
    except OSError as error:
        raise unwritable_error(root, error, SESSIONS) from error


def short_name(folder: Path) -> str:
    """The shortest text that identifies a session on the command line: its name in the default place, else its folder."""
    own = sessions_root()
    shipped = folder.parent == shipped_root() and not is_session(own / folder.name)
    return folder.name if folder.parent == own or shipped else str(folder)


def is_session(folder: Path) -> bool:
    """Whether the folder contains a journal, readable or not."""
    return _holds(Path.is_file, folder / journal.NAME)


def holds_events(folder: Path) -> bool:
    """Whether a new session would overwrite events, readable or not. A journal whose first event is incomplete has none."""
    try:
        return is_session(folder) and bool(journal.tail(folder).poll())
    except JournalError:
        return True


def folders() -> tuple[Path, ...]:
    """All session folders: the user's, then the shipped ones, each sorted by name."""
    return tuple(folder for folder in _folders_with_journals() if is_session(folder))


def _folders_with_journals() -> tuple[Path, ...]:
    """As ``folders``, and those whose journal is no file but a folder, a pipe or a dangling link, or that cannot be read."""
    found: list[Path] = []
    for root in (sessions_root(), shipped_root()):
        try:
            found += sorted(folder for folder in root.iterdir() if _may_be_session(folder)) if root else ()
        except OSError:
            continue
    return tuple(found)


def _may_be_session(folder: Path) -> bool:
    """Whether the folder holds a journal, or cannot be looked into."""
    try:
        os.lstat(folder / journal.NAME)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def root_fault() -> str:
    """Why the user's sessions cannot be listed; empty where they can, and before the first one."""
    root = sessions_root()
    try:
        with os.scandir(root) as found:
            next(found, None)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{SESSIONS} {root} cannot be read ({error.strerror}): make it readable, or name another one with {HOME}"
    return ""


def _no_file(folder: Path) -> str:
    """Why a folder with a journal is not a session."""
    return f"its {journal.NAME} is not a file" if _holds(os.path.lexists, folder / journal.NAME) else ""


_served: Path | None = None


def serve_only(folder: Path) -> None:
    """From now on ``resolve`` knows this session only."""
    global _served
    _served = folder.resolve()


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """The names of sessions; of those with equal names, as much of the path as tells them apart."""
    paths = [folder.absolute() for folder in folders]

    def name(path: Path) -> str:
        alike = [other for other in paths if other != path and other.name == path.name]
        depths = range(1, len(path.parts) + 1)
        tails = (path.parts[-depth:] for depth in depths)
        tail = next(tail for tail in tails if all(other.parts[-len(tail) :] != tail for other in alike))
        return str(Path(*tail))

    return [name(path) for path in paths]


def resolve(text: str) -> Path:
    """The folder of a session, given as a folder, its journal, or a session's name.

    Raises JournalError, with similar names, for an unknown one.
    """
    if _served is not None:
        here = _as_path(text)
        if text == _served.name or (here is not None and _holds(lambda path: path.resolve() == _served, here)):
            return _served
        raise JournalError(f"this workspace reaches the session {_served.name} only")
    here = _as_path(text)
    if here is not None and is_session(here):
        return here
    if here is not None and here.name == journal.NAME and is_session(here.parent):
        return here.parent
    known = folders()
    for folder in _folders_with_journals():
        if folder.name == text:
            if is_session(folder):
                return folder
            raise JournalError(f"folder {folder} is not a session ({_no_file(folder)}): move it away, or restore the file")
    names = list(dict.fromkeys(folder.name for folder in known))
    near = [name for name in names if text and name.startswith(text)] or difflib.get_close_matches(text, names, 3, 0.8)
    near = near or [name for name in names if difflib.get_close_matches(text, [name.partition("-")[0]], 1, 0.8)]
    hint = f"did you mean {' or '.join(map(repr, near[-3:]))}?" if near else "`espalier session list` lists the sessions"
    if here is not None and _holds(Path.is_dir, here):
        if not os.access(here, os.X_OK, effective_ids=True):
            raise JournalError(f"{text} cannot be read (Permission denied): make it readable, or use a copy")
        if has := _no_file(here):
            raise JournalError(f"folder {text} is not a session ({has}): restore the file")
        raise JournalError(f"folder {text} is not a session (it has no {journal.NAME}): {hint}")
    if here is not None and _holds(Path.is_file, here):
        ways = "use its folder or its name, or import a bundle with `espalier session import`"
        raise JournalError(f"file {text} is not a session: {ways}; {hint}")
    raise JournalError(f"unknown session {text[:200]!r}: {root_fault() or hint}")


def state_of(folder: Path) -> SessionState:
    """The state that a session's journal folds to. Raises JournalError and its subclasses."""
    return advance(SessionState(), journal.read(folder).entries)


def summaries(searched: Path | None = None) -> list[SessionSummary]:
    """All sessions, latest activity first. Never raises for a damaged session.

    ``searched``: the one that the caller searches. It is among them wherever it lies, by this path.
    """
    found = _folders_with_journals()
    if searched is not None:
        here = os.path.realpath(searched)
        found = (searched, *(folder for folder in found if os.path.realpath(folder) != here))
    return sorted((summary(folder) for folder in found), key=lambda s: s.last_activity, reverse=True)


def summary(folder: Path) -> SessionSummary:
    """The summary of one session, with the reason if it is unreadable."""
    if reason := "" if is_session(folder) else _no_file(folder):  # a pipe would be read indefinitely
        return SessionSummary(folder.name, folder, "unreadable", f"{reason}: restore it", _last_change(folder))
    try:
        return _summary(folder, journal.version(folder))
    except EspalierError as error:
        return SessionSummary(folder.name, folder, "unreadable", str(error), _last_change(folder))


@lru_cache(maxsize=256)  # home lists all sessions again whenever it is shown
def _summary(folder: Path, version: object) -> SessionSummary:
    """``version``: of its journal. Raises EspalierError."""
    state = state_of(folder)
    best = queries.incumbent(state)
    problem, workload = queries.problem_and_workload(state)
    opened = state.opened
    asked = opened.device if opened else ""
    return SessionSummary(
        folder.name, folder, "open" if state.closed is None else "closed", state.closed or "", state.at,
        problem, workload, state.device.name if state.device else asked, queries.ranking_baseline(state),
        queries.speedup(state, best) if best else None, best.id if best else "",
        max(0, queries.last_round(state)), len(state.kernels), len(queries.verified(state)),
        tuple(value for _, value in queries.incumbent_by_round(state)), len(queries.pending_ideas(state)),
        best is not None and corroboration.is_corroborated(best), corroboration.of_kernel(best) if best else (),
        tuple(kernel.id for kernel in corroboration.doubted(state)), opened.settings.strategy if opened else "",
        opened.problem.origin if opened else "",
    )  # fmt: skip


def require_deletable(folder: Path) -> None:
    """Raise what ``delete`` raises, if the session's files could not be deleted now."""
    try:
        require_writable(folder)
    except JournalUnwritable as error:
        if isinstance(error.__cause__, OSError):
            raise _undeletable_error(folder, error.__cause__) from error
        raise


def _undeletable_error(folder: Path, error: OSError) -> JournalUnwritable:
    return JournalUnwritable(f"session {folder} cannot be deleted ({error.strerror}): make its folder writable first")


def delete(folder: Path) -> None:
    """Delete a session: its journal, torn lines, blobs, inbox, its record of trust, and the folder if it is empty then.

    A folder among the blobs or in the inbox is not part of a session, and stays. The journal goes last: what a killed command
    leaves is still a session, and can be deleted.
    Raises JournalError if the folder is not a session, JournalLocked while a process writes it, JournalUnwritable.
    """
    if not is_session(folder):
        raise JournalError(f"{folder} is not a session: nothing was deleted")
    require_deletable(folder)
    lock = WriterLock(folder)
    try:
        own = list(folder.glob(f"{TORN}-*"))
        kept = [folder / BLOBS, folder / INBOX]
        inner = [path for place in kept if place.is_dir() and not place.is_symlink() for path in place.iterdir()]
        own += [path for path in inner if path.is_symlink() or not path.is_dir()]
        own += [folder / journal.NAME, folder / LOCK]
        for path in own:
            path.unlink(missing_ok=True)
        for place in (*kept, folder):
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()
    except OSError as error:
        raise _undeletable_error(folder, error) from error
    finally:
        lock.release()
    trust_records.remove(folder)


def _as_path(text: str) -> Path | None:
    try:
        return Path(text).expanduser() if text else None
    except RuntimeError:
        return None  # ~user for an unknown user


def _holds(what: Callable[[Path], bool], path: Path) -> bool:
    """Apply ``Path.is_dir`` or the like to typed text, which may not be a valid path."""
    try:
        return what(path)
    except (OSError, ValueError):
        return False


def _last_change(folder: Path) -> float:
    try:
        return (folder / journal.NAME).stat().st_mtime
    except OSError:
        return 0.0
