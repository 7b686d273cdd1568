"""A session as one file: its journal, the blobs that its events reference, and their checksums.

An archive is untrusted: unpacking accepts only the names that packing writes, as regular files of bounded size, without
extended headers. It verifies every checksum, and removes what it wrote if it rejects the archive.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import IO

from engine.domain.errors import JournalCorrupt, JournalError
from engine.domain.events import Entry, UnknownEvent
from engine.domain.model import Blob
from engine.journal import journal
from engine.journal.blobs import FOLDER as BLOBS
from engine.journal.blobs import Blobs, is_blob_name
from engine.journal.codec import LFS_POINTER
from engine.journal.lock import unwritable_error
from engine.journal.regular_file import open_regular

SUFFIX = ".tar.gz"
SUFFIXES = (SUFFIX, ".tgz", ".tar")
"""Suffixes of a bundle's name; ``.tar`` is not compressed."""
SUMS = "SHA256SUMS"
LARGEST_SUMS = 64 << 20
LARGEST_MEMBER = 1 << 30
LARGEST_ARCHIVE = 8 << 30
"""Unpacked sizes, far above any real session."""

_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20


def references(entries: Iterable[Entry]) -> tuple[Blob, ...]:
    """Names of all blobs that the events reference, each once, in order. In unknown events, every text that may be a name."""
    found: dict[Blob, None] = {}
    for entry in entries:
        found.update(dict.fromkeys(_blobs_in(entry.event)))
    return tuple(found)


def payloads(entries: Sequence[Entry], blobs: Blobs) -> tuple[Blob, ...]:
    """Names of all blobs that belong to the entries, missing ones included; of a text in an unknown event, if it exists."""
    unknown = {name for entry in entries if isinstance(entry.event, UnknownEvent) for name in _blobs_in(entry.event)}
    return tuple(name for name in references(entries) if name not in unknown or blobs.path(name).exists())


def pack(folder: Path, target: Path) -> Path:
    """Write the session into ``target`` and return it. The same session always gives the same bytes.

    Omits a torn last line and blobs that no event references. Raises JournalError for a name with another suffix,
    JournalCorrupt if a blob is missing or damaged, JournalUnwritable.
    """
    if not target.name.endswith(SUFFIXES):
        raise JournalError(f"unknown bundle suffix in {target}: use a name that ends in {', '.join(SUFFIXES)}")
    recording = journal.read(folder)
    blobs = Blobs(folder)
    names = payloads(recording.entries, blobs)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".bundle-")
        try:
            with os.fdopen(handle, "wb") as file:
                _write(file, journal.whole_lines(folder), blobs, sorted(names), target.suffix != ".tar")
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise unwritable_error(target, error, "bundle") from error
    return target


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack the archive's session into ``folder`` and return it.

    Raises JournalCorrupt for an archive that is damaged, or that ``pack`` would not have written; JournalError if it cannot
    be read or the folder exists; JournalUnwritable. The folder is unchanged after any of them.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise JournalError(f"{folder} already exists: use a new or an empty folder")
    try:
        source = open_regular(archive)
    except OSError as error:
        advice = "name a file that `espalier export --format bundle` wrote"
        raise JournalError(f"cannot read bundle {archive} ({error.strerror}): {advice}") from error
    with source:
        if source.read(len(LFS_POINTER)) == LFS_POINTER:
            raise JournalCorrupt(f"bundle {archive} is a Git LFS pointer: fetch the file with `git lfs pull`")
        source.seek(0)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".unpacking-"))
        except OSError as error:
            raise unwritable_error(folder.parent, error) from error
        try:
            _extract(source, archive, scratch)
            scratch.chmod(0o755)
            os.replace(scratch, folder)
        except OSError as error:
            raise unwritable_error(folder, error) from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def is_bundle(path: Path) -> bool:
    """Whether the path is a file with a bundle's suffix."""
    return path.name.endswith(SUFFIXES) and path.is_file()


def session_name(archive: Path) -> str:
    """The name of the session in this file: the file's name without its suffix."""
    name = archive.name
    stem = next((name[: -len(suffix)] for suffix in SUFFIXES if name.endswith(suffix)), name)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.") or "session"


def _blobs_in(value: object) -> Iterator[Blob]:
    """The fields that ``events`` and ``model`` declare as ``Blob``, at any depth."""
    if isinstance(value, UnknownEvent):
        yield from (text for text in _texts(dict(value.data)) if is_blob_name(text))
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            inner = getattr(value, field.name)
            if field.type != "Blob":
                yield from _blobs_in(inner)
            elif inner:
                yield inner
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _blobs_in(inner)
    elif isinstance(value, tuple):
        for inner in value:
            yield from _blobs_in(inner)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _write(file: IO[bytes], lines: bytes, blobs: Blobs, names: list[Blob], compressed: bool) -> None:
    sums = [f"{hashlib.sha256(lines).hexdigest()}  {journal.NAME}", *(f"{name}  {BLOBS}/{name}" for name in names)]
    with (
        gzip.GzipFile("", "wb", 6, file, mtime=0) if compressed else nullcontext(file) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        _add(tar, SUMS, ("\n".join(sums) + "\n").encode())
        _add(tar, journal.NAME, lines)
        for name in names:
            _add(tar, f"{BLOBS}/{name}", blobs.get(name))


def _add(tar: tarfile.TarFile, name: str, payload: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(payload)
    member.mode = 0o644
    tar.addfile(member, io.BytesIO(payload))


def _extract(source: IO[bytes], archive: Path, scratch: Path) -> None:
    digests: dict[str, str] = {}
    sums = b""
    total = 0
    try:
        with _opened(source) as stream:
            for member in _members(stream):
                total += _checked(archive, member, total)
                if member.name == SUMS:
                    sums = b"".join(_chunks(stream, member.size))
                    continue
                if member.name in digests:
                    raise JournalCorrupt(f"bundle {archive} contains {member.name} twice: not unpacked")
                digests[member.name] = _copy(stream, member.size, scratch / member.name)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise JournalCorrupt(f"bundle {archive} is damaged or not a bundle ({error}): copy it again") from error
    _compare(archive, digests, sums)
    blobs = Blobs(scratch)
    for name in references(e for e in journal.read(scratch).entries if not isinstance(e.event, UnknownEvent)):
        if not blobs.path(name).exists():
            raise JournalCorrupt(f"bundle {archive} is missing blob {name}: copy it again")


def _opened(source: IO[bytes]) -> AbstractContextManager[IO[bytes]]:
    """The archive's bytes, uncompressed."""
    magic = source.read(len(_GZIP))
    source.seek(0)
    return gzip.GzipFile(fileobj=source) if magic == _GZIP else nullcontext(source)  # type: ignore[return-value]


def _members(stream: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """The headers of the archive. The caller reads each content before the next header.

    ``tarfile`` would read an extended header of any size into memory; here ``_checked`` rejects it like any other entry.
    """
    while True:
        block = b"".join(_chunks(stream, tarfile.BLOCKSIZE))
        if block == bytes(tarfile.BLOCKSIZE):
            if len(stream.read(_CHUNK)) == _CHUNK:  # reads to the end, where gzip verifies its own checksum
                raise tarfile.ReadError("data after the end of the archive")
            return
        member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        yield member
        for _ in _chunks(stream, -member.size % tarfile.BLOCKSIZE):
            pass


def _chunks(stream: IO[bytes], size: int) -> Iterator[bytes]:
    """The next ``size`` bytes. Raises EOFError if there are fewer."""
    while size > 0:
        chunk = stream.read(min(size, _CHUNK))
        if not chunk:
            raise EOFError("truncated")
        size -= len(chunk)
        yield chunk


def _checked(archive: Path, member: tarfile.TarInfo, so_far: int) -> int:
    """The member's size, if it is one that ``pack`` writes."""
    folder, _, blob = member.name.partition("/")
    known = member.name in (SUMS, journal.NAME) or (folder == BLOBS and is_blob_name(blob))
    if not known or not member.isreg():
        raise JournalCorrupt(f"bundle {archive} contains {member.name[:200]!r}, which is not part of a session: not unpacked")
    if member.size > (LARGEST_SUMS if member.name == SUMS else LARGEST_MEMBER) or so_far + member.size > LARGEST_ARCHIVE:
        raise JournalCorrupt(f"bundle {archive} unpacks to more than any session needs: not unpacked")
    return member.size


def _copy(stream: IO[bytes], size: int, path: Path) -> str:
    digest = hashlib.sha256()
    path.parent.mkdir(exist_ok=True)
    with path.open("xb") as file:
        for chunk in _chunks(stream, size):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _compare(archive: Path, digests: dict[str, str], sums: bytes) -> None:
    rows = (line.partition("  ") for line in sums.decode("ascii", "replace").splitlines())
    listed = {name: digest for digest, _, name in rows}
    if listed != digests or journal.NAME not in digests:
        wrong = sorted(listed.items() ^ digests.items())
        raise JournalCorrupt(
            f"bundle {archive} does not match its checksums at {wrong[0][0] if wrong else SUMS}: copy it again"
        )
    for name, digest in digests.items():
        if name != journal.NAME and name != f"{BLOBS}/{digest}":
            raise JournalCorrupt(f"bundle {archive}: {name} is damaged; copy it again")
