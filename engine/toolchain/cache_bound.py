"""The bound of the build cache: its size and age, and which entries a running process uses.

An entry in use is never evicted. Each process lists the keys that it found or published in a file of its own under ``use/`` and
holds a lock on that file until it ends. Eviction reads the lists of the processes that are alive and renames entries away while
it holds the cache's lock; a process takes the same lock to add a key to its list, before it looks at the entry.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.domain.errors import EspalierError

WORK = "work"
"""Folder of builds under way, and of what is being deleted."""
SIZE = "ESPALIER_CACHE_GB"
AGE = "ESPALIER_CACHE_DAYS"
GB = 10**9
_DAY_S = 24 * 3600.0
_DEFAULT_GB, _DEFAULT_DAYS = 5.0, 30.0
_INTERVAL_S = 600.0
"""The least time between two evictions, by whichever process."""
_LOCK, _TRIMMED, _USE = "lock", "trimmed", "use"
_ENTRY = "entry.json"


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that the cache may hold: bytes, and seconds since an entry was last used."""

    size: float
    age: float

    def __str__(self) -> str:
        size = f"at most {self.size / GB:g} GB" if math.isfinite(self.size) else "of any size"
        return f"{size}, {self.age / _DAY_S:g} days unused" if math.isfinite(self.age) else size


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Entries and bytes: of the cache, or of what was deleted from it."""

    entries: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class _Entry:
    folder: Path
    size: int
    used: float
    """When it was last found or published, in seconds since the epoch."""


def bound() -> Bound:
    """The bound by ESPALIER_CACHE_GB and ESPALIER_CACHE_DAYS. Raises EspalierError for a value that is not a number."""
    return Bound(_setting(SIZE, _DEFAULT_GB) * GB, _setting(AGE, _DEFAULT_DAYS) * _DAY_S)


def _setting(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise EspalierError(f"{name} is {text[:80]!r}: set it to a number of 0 or more, such as {default:g}, or to inf")
    return value


def usage(root: Path) -> CacheSize:
    """How many entries the cache in ``root`` holds, and their bytes."""
    found = _entries(root)
    return CacheSize(len(found), sum(entry.size for entry in found))


def is_due(root: Path) -> bool:
    """Whether no process has trimmed the cache lately."""
    with contextlib.suppress(OSError):
        return not 0 <= time.time() - (root / _TRIMMED).stat().st_mtime < _INTERVAL_S
    return True


def trim(root: Path, limits: Bound) -> CacheSize:
    """Delete what is older than the bound, then the least recently used entries beyond its size; returns what was deleted.

    Entries that a living process uses stay, and count.
    """
    if not root.is_dir():
        return CacheSize()
    (root / _TRIMMED).touch()
    now = time.time()
    found = sorted(_entries(root), key=lambda entry: entry.used)
    size = sum(entry.size for entry in found)
    if size <= limits.size and all(now - entry.used <= limits.age for entry in found):
        return CacheSize()
    places = root / WORK
    places.mkdir(exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix="evicted-", dir=places))
    evicted: list[_Entry] = []
    with _locked(root, fcntl.LOCK_EX):
        used = _keys_in_use(root)
        for entry in found:
            if entry.folder.name in used or (size <= limits.size and now - entry.used <= limits.age):
                continue
            try:
                entry.folder.rename(aside / entry.folder.name)
            except FileNotFoundError:  # another process deleted it
                size -= entry.size
            except OSError:
                continue
            else:
                size -= entry.size
                evicted.append(entry)
    shutil.rmtree(aside, ignore_errors=True)
    return CacheSize(len(evicted), sum(entry.size for entry in evicted))


def _entries(root: Path) -> list[_Entry]:
    """Every entry, damaged ones included. One that disappears meanwhile is left out."""
    found = []
    for folder in root.glob("??/*"):
        with contextlib.suppress(OSError):
            files = [file.stat() for file in folder.iterdir()] if folder.is_dir() else [folder.stat()]
            entry = folder / _ENTRY
            used = (entry if entry.is_file() else folder).stat().st_mtime
            found.append(_Entry(folder, sum(file.st_blocks * 512 for file in files), used))
    return found


@dataclass(slots=True)
class _UseList:
    """The keys that this process uses, in a file that it keeps open and locked."""

    descriptor: int
    keys: set[str]

    @property
    def exists(self) -> bool:
        """Whether the file is still on disk: somebody may have deleted the cache."""
        return os.fstat(self.descriptor).st_nlink > 0


_lists: dict[tuple[Path, int], _UseList] = {}
"""By cache and process: a forked child starts a list of its own."""


def mark_used(root: Path, key: str) -> None:
    """Record that this process uses an entry until it ends, and that the entry was used now.

    Where the cache cannot be written nothing is recorded: nothing can be evicted from it either.
    """
    with contextlib.suppress(OSError):
        os.utime(root / key[:2] / key / _ENTRY)
    with contextlib.suppress(OSError):
        known = _lists.get((root, os.getpid()))
        if known is not None and key in known.keys and known.exists:
            return
        with _locked(root, fcntl.LOCK_SH):
            if known is None or not known.exists:
                if known is not None:
                    os.close(known.descriptor)
                known = _lists[root, os.getpid()] = _new_list(root)
            os.write(known.descriptor, f"{key}\n".encode())
            known.keys.add(key)


def _new_list(root: Path) -> _UseList:
    folder = root / _USE
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, _ = tempfile.mkstemp(prefix=f"{os.getpid()}-", dir=folder)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return _UseList(descriptor, set())


def _keys_in_use(root: Path) -> set[str]:
    """The keys in the lists of living processes; lists of dead ones are deleted. The cache's lock is held."""
    keys: set[str] = set()
    for path in (root / _USE).glob("*"):
        with contextlib.suppress(OSError), path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                keys.update(file.read().split())
            else:
                path.unlink()
    return keys


@contextlib.contextmanager
def _locked(root: Path, mode: int) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    with (root / _LOCK).open("w") as file:
        fcntl.flock(file, mode)
        yield
