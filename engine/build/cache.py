"""Where built artefacts are kept: one folder per key, published whole or not at all.

Knows folders and checksums; a key is any SHA-256 the caller made of everything the artefact depends on. Safe against
other processes using the same folder: an entry appears by one rename. Every trouble with the disk is one
``EspalierError`` that names the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import platformdirs

from engine.domain.errors import EspalierError
from engine.domain.model import Resources

ENTRY = "entry.json"
LOG = "log.txt"
_STALE = 24 * 3600.0
"""Seconds after which a private folder is one that a killed process left behind."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What an artefact's folder says of itself; ``digest`` is the SHA-256 of the binary."""

    key: str
    binary: str
    digest: str
    seconds: float
    identity: tuple[str, ...]
    resources: tuple[Resources, ...] = ()


def cache_folder() -> Path:
    """``build`` in the folder that ESPALIER_CACHE names, else in the user's cache folder of this program."""
    named = os.environ.get("ESPALIER_CACHE")
    root = Path(named).absolute() if named else platformdirs.user_cache_path("espalier")
    return root / "build"


class Cache:
    """The artefacts in one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, key: str) -> Path:
        """Where the entry of ``key`` is, or would be."""
        return self.root / key[:2] / key

    def find(self, key: str) -> Entry | None:
        """The entry of ``key`` when it is there and whole; a damaged one counts as absent.

        Raises:
            EspalierError: the cache cannot be read.
        """
        folder = self.folder(key)
        with self.trouble():
            try:
                entry = msgspec.json.decode((folder / ENTRY).read_bytes(), type=Entry)
                (folder / LOG).stat()
                whole = entry.key == key and digest(folder / entry.binary) == entry.digest
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
                return None
        return entry if whole else None

    def log(self, key: str) -> str:
        """What the compiler said when the entry of ``key`` was made."""
        with self.trouble():
            return (self.folder(key) / LOG).read_text(encoding="utf-8", errors="replace")

    @contextlib.contextmanager
    def workplace(self) -> Iterator[Path]:
        """A private folder to build in, on the cache's own disk; gone afterwards.

        Raises:
            EspalierError: it cannot be made.
        """
        places = self.root / "work"
        with self.trouble():
            places.mkdir(parents=True, exist_ok=True)
            self._sweep(places)
            folder = Path(tempfile.mkdtemp(prefix="build-", dir=places))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, folder: Path, entry: Entry) -> None:
        """Make a finished private folder the entry of ``entry.key``; where another process was first, keep theirs.

        Raises:
            EspalierError: the folder cannot be written.
        """
        target = self.folder(entry.key)
        with self.trouble():
            (folder / ENTRY).write_bytes(msgspec.json.encode(entry))
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists() and self.find(entry.key) is None:
                aside = Path(tempfile.mkdtemp(prefix="damaged-", dir=self.root / "work"))
                with contextlib.suppress(FileNotFoundError):
                    target.rename(aside / "entry")
                shutil.rmtree(aside, ignore_errors=True)
            try:
                folder.rename(target)
            except OSError:
                if self.find(entry.key) is None:
                    raise

    @contextlib.contextmanager
    def trouble(self) -> Iterator[None]:
        """Turn whatever the disk objects to into one line that names the folder."""
        try:
            yield
        except OSError as error:
            raise EspalierError(
                f"the build cache {self.root} cannot be used: {error.strerror or error}; "
                "make room there, or set ESPALIER_CACHE to another folder"
            ) from error

    @staticmethod
    def _sweep(places: Path) -> None:
        for left in places.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > _STALE:
                    shutil.rmtree(left, ignore_errors=True)


def keep_whole(path: Path, data: bytes) -> bool:
    """Write a small file of the user's cache whole or not at all; says whether. What cannot be kept is found out again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(data)
        os.replace(file.name, path)
    except OSError:
        return False
    return True


def digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
