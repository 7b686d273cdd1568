"""What the user allowed to run, one file per path, outside of every session: a session cannot contain its own permission."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.domain.errors import JournalError
from engine.domain.trust import PathKind, Permissions
from engine.journal.lock import unwritable_error
from engine.journal.user_folders import data_folder
from engine.journal.whole_file import write_whole

_FOLDER = "trust"
_LARGEST = 1 << 20
_WHAT = "the record of trust"


@dataclass(frozen=True, slots=True)
class TrustRecord:
    """What may run from a path."""

    path: str
    """Absolute, without symbolic links."""
    kind: PathKind
    needs: Permissions
    confirmed: bool
    """Whether the user confirmed it; otherwise it was made here."""
    at: float
    """Seconds since the epoch."""


class _RecordFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    record: TrustRecord


class DamagedTrustError(JournalError):
    """A record of trust that cannot be read. It allows nothing."""


def folder() -> Path:
    """The folder of the records, beside the folder of sessions; it need not exist."""
    return data_folder() / _FOLDER


def read(path: Path) -> TrustRecord | None:
    """The record of ``path``; ``None`` if there is none. Raises DamagedTrustError."""
    record = _read(_file(_key(path)))
    if record is not None and record.path != _key(path):
        raise DamagedTrustError(f"{_WHAT} {_file(_key(path))} belongs to another path")
    return record


def write(path: Path, kind: PathKind, needs: Permissions, *, confirmed: bool, at: float) -> None:
    """Replace the record of ``path``. Raises JournalUnwritable."""
    key = _key(path)
    file = _file(key)
    data = msgspec.json.format(msgspec.json.encode(_RecordFile(1, TrustRecord(key, kind, needs, confirmed, at))))
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(file, data)
    except OSError as error:
        raise unwritable_error(file, error, _WHAT) from error


def remove(path: Path) -> bool:
    """Remove the record of ``path``, damaged or not; whether there was one. Raises JournalUnwritable."""
    file = _file(_key(path))
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unwritable_error(file, error, _WHAT) from error
    return True


def records() -> Iterator[TrustRecord | DamagedTrustError]:
    """All records, sorted by path, then the damaged ones."""
    found: list[TrustRecord] = []
    damaged: list[DamagedTrustError] = []
    try:
        files = sorted(folder().glob("*.json"))
    except OSError:
        files = []
    for file in files:
        try:
            record = _read(file)
        except DamagedTrustError as error:
            damaged.append(error)
        else:
            found += [record] if record is not None and _file(record.path) == file else []
    yield from sorted(found, key=lambda record: record.path)
    yield from damaged


def _key(path: Path) -> str:
    """The path without symbolic links: a link is what it points to."""
    try:
        return str(path.resolve())
    except (OSError, RuntimeError) as error:
        raise JournalError(f"{path} cannot be resolved: {error}") from error


def _file(key: str) -> Path:
    return folder() / f"{hashlib.sha256(os.fsencode(key)).hexdigest()}.json"


def _read(file: Path) -> TrustRecord | None:
    try:
        with file.open("rb") as handle:
            data = handle.read(_LARGEST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedTrustError(f"{_WHAT} {file} cannot be read ({error.strerror})") from error
    try:
        written = msgspec.json.decode(data, type=_RecordFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedTrustError(f"{_WHAT} {file} is damaged") from error
    if written.version != 1:
        raise DamagedTrustError(f"{_WHAT} {file} is damaged")
    return written.record
