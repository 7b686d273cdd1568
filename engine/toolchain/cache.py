"""The build cache: one folder per key, published atomically, bounded in size and age.

A key is the caller's SHA-256 of everything the artefact depends on. Concurrent processes may share the cache: one rename
publishes an entry and one removes it, and no entry is removed while a process uses it (``cache_bound``). Every disk error
becomes one ``EspalierError`` that names the folder.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.domain.errors import EspalierError
from engine.domain.model import Resources
from engine.journal.user_folders import cache_root
from engine.journal.whole_file import write_whole
from engine.toolchain import cache_bound
from engine.toolchain.cache_bound import WORK, CacheSize

ENTRY = "entry.json"
LOG = "log.txt"
_STALE = 24 * 3600.0
"""Seconds after which a private folder is considered left behind by a killed process."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """Metadata of an artefact's folder; ``digest`` is the SHA-256 of the binary."""

    key: str
    binary: str
    digest: str
    seconds: float
    identity: tuple[str, ...]
    resources: tuple[Resources, ...] = ()
    included: tuple[str, ...] = ()
    """What was read of the user's header trees, a line each."""


def cache_folder() -> Path:
    """``build`` in the folder named by ESPALIER_CACHE, else in the user's cache folder."""
    return cache_root() / "build"


class Cache:
    """The artefacts in one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, key: str) -> Path:
        """Where the entry of ``key`` is, or would be."""
        return self.root / key[:2] / key

    def find(self, key: str) -> CacheEntry | None:
        """The entry of ``key`` when it exists and is intact; a damaged one counts as absent.

        It is not evicted before this process ends.

        Raises:
            EspalierError: the cache cannot be read.
        """
        folder = self.folder(key)
        cache_bound.mark_used(self.root, key)
        with self.disk_errors():
            try:
                entry = msgspec.json.decode((folder / ENTRY).read_bytes(), type=CacheEntry)
                (folder / LOG).stat()
                intact = entry.key == key and digest(folder / entry.binary) == entry.digest
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
                return None
        return entry if intact else None

    def log(self, key: str) -> str:
        """Compiler output of the build of ``key``."""
        with self.disk_errors():
            return (self.folder(key) / LOG).read_text(encoding="utf-8", errors="replace")

    @contextlib.contextmanager
    def build_folder(self) -> Iterator[Path]:
        """A private folder to build in, on the cache's disk; deleted afterwards.

        Raises:
            EspalierError: it cannot be created.
        """
        places = self.root / WORK
        with self.disk_errors():
            places.mkdir(parents=True, exist_ok=True)
            self._sweep(places)
            folder = Path(tempfile.mkdtemp(prefix="build-", dir=places))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, folder: Path, entry: CacheEntry) -> None:
        """Turn a finished private folder into the entry of ``entry.key``; an intact entry of another process is kept.

        It is not evicted before this process ends.

        Raises:
            EspalierError: the folder cannot be written.
        """
        target = self.folder(entry.key)
        cache_bound.mark_used(self.root, entry.key)
        with self.disk_errors():
            (folder / ENTRY).write_bytes(msgspec.json.encode(entry))
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists() and self.find(entry.key) is None:
                aside = Path(tempfile.mkdtemp(prefix="damaged-", dir=self.root / WORK))
                with contextlib.suppress(FileNotFoundError):
                    target.rename(aside / "entry")
                shutil.rmtree(aside, ignore_errors=True)
            try:
                folder.rename(target)
            except OSError:
                if self.find(entry.key) is None:
                    raise

    def usage(self) -> CacheSize:
        """How many entries there are, and their bytes. Raises EspalierError."""
        with self.disk_errors():
            return cache_bound.usage(self.root)

    def needs_trim(self) -> bool:
        """Whether no process has applied the bound in the last minutes."""
        return cache_bound.is_due(self.root)

    def trim(self) -> CacheSize:
        """Apply the bound; returns what was deleted.

        Raises:
            EspalierError: the cache cannot be written, or an environment variable is not a number.
        """
        with self.disk_errors():
            return cache_bound.trim(self.root, cache_bound.bound())

    def clear(self) -> CacheSize:
        """Delete every entry that no process uses; returns what was deleted. Raises EspalierError."""
        with self.disk_errors():
            return cache_bound.trim(self.root, cache_bound.Bound(size=0, age=0))

    @contextlib.contextmanager
    def disk_errors(self) -> Iterator[None]:
        """Turn disk errors into one line that names the folder."""
        try:
            yield
        except OSError as error:
            advice = "set ESPALIER_CACHE to another folder"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                advice = f"free some space, or {advice}"
            raise EspalierError(f"the build cache {self.root} cannot be used: {error.strerror or error}; {advice}") from error

    @staticmethod
    def _sweep(places: Path) -> None:
        for left in places.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > _STALE:
                    shutil.rmtree(left, ignore_errors=True)


def write_atomically(path: Path, data: bytes) -> bool:
    """Write a small cache file whole or not at all; returns whether it was written."""
    try:
        write_whole(path, data)
    except OSError:
        return False
    return True


def digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
