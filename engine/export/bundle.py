"""A session as one file: its journal, the blobs that its events name, and their checksums.

An archive is untrusted: unpacking accepts only the names that packing writes, as plain files of bounded size, checks every byte
against its checksum, and leaves nothing behind when it refuses.
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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import IO

from engine.domain.errors import JournalCorrupt, JournalError
from engine.domain.events import Entry, UnknownEvent
from engine.domain.model import Blob
from engine.journal import journal
from engine.journal.blobs import FOLDER as BLOBS
from engine.journal.blobs import Blobs, is_blob_name
from engine.journal.lock import unwritable_error

SUFFIX = ".tar.gz"
SUMS = "SHA256SUMS"
LARGEST_MEMBER = 1 << 30
LARGEST_ARCHIVE = 8 << 30
"""Unpacked; far above any real session."""


def references(entries: Iterable[Entry]) -> tuple[Blob, ...]:
    """Names of all blobs that the events name, each once, in order. Of unknown events every text that could be a name."""
    found: dict[Blob, None] = {}
    for entry in entries:
        found.update(dict.fromkeys(_blobs_in(entry.event)))
    return tuple(found)


def pack(folder: Path, target: Path) -> Path:
    """Writes the session into ``target`` and returns it; the same session always gives the same bytes.

    A torn last line and blobs that no event names stay behind. Raises JournalError when the name does not end in ``.tar.gz``,
    JournalCorrupt when a blob is missing or damaged, JournalUnwritable.
    """
    if not target.name.endswith(SUFFIX):
        raise JournalError(f"{target} is no name for a bundle: let it end in {SUFFIX}")
    recording = journal.read(folder)
    blobs = Blobs(folder)
    unknown = {name for entry in recording.entries if isinstance(entry.event, UnknownEvent) for name in _blobs_in(entry.event)}
    names = [name for name in references(recording.entries) if name not in unknown or blobs.path(name).exists()]
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".bundle-")
        try:
            with os.fdopen(handle, "wb") as file:
                _write(file, journal.whole_lines(folder), blobs, sorted(names))
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise unwritable_error(target, error, "bundle") from error
    return target


def unpack(archive: Path, folder: Path) -> Path:
    """Makes ``folder`` the session that the archive holds, and returns it.

    Raises JournalCorrupt for an archive that is damaged, or that ``pack`` would not have written; JournalError when it is not
    there or the folder is taken; JournalUnwritable. After any of them the folder is as it was.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise JournalError(f"{folder} is there already: name a folder that is new or empty")
    try:
        source = archive.open("rb")
    except OSError as error:
        raise JournalError(f"bundle {archive} cannot be read ({error.strerror})") from error
    with source:
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


def session_name(archive: Path) -> str:
    """The name of a session that is unpacked from this file: the file's name without its suffix."""
    name = archive.name
    stem = next((name[: -len(suffix)] for suffix in (SUFFIX, ".tgz", ".tar") if name.endswith(suffix)), name)
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


def _write(file: IO[bytes], lines: bytes, blobs: Blobs, names: list[Blob]) -> None:
    sums = [f"{hashlib.sha256(lines).hexdigest()}  {journal.NAME}", *(f"{name}  {BLOBS}/{name}" for name in names)]
    with (
        gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
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
        with gzip.GzipFile(fileobj=source) as unpacked, tarfile.open(fileobj=unpacked, mode="r|") as tar:
            for member in tar:
                total += _checked(archive, member, total)
                content = tar.extractfile(member)
                assert content is not None, "a plain file has content"
                if member.name == SUMS:
                    sums = content.read()
                    continue
                if member.name in digests:
                    raise JournalCorrupt(f"bundle {archive} holds {member.name} twice: it is not unpacked")
                digests[member.name] = _copy(content, scratch / member.name)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise JournalCorrupt(f"bundle {archive} is damaged or no {SUFFIX} at all ({error}): fetch it again") from error
    _compare(archive, digests, sums)
    blobs = Blobs(scratch)
    for name in references(e for e in journal.read(scratch).entries if not isinstance(e.event, UnknownEvent)):
        if not blobs.path(name).exists():
            raise JournalCorrupt(f"bundle {archive} lacks blob {name}: fetch it again")


def _checked(archive: Path, member: tarfile.TarInfo, so_far: int) -> int:
    """The member's size, if it is one that ``pack`` writes."""
    folder, _, blob = member.name.partition("/")
    known = member.name in (SUMS, journal.NAME) or (folder == BLOBS and is_blob_name(blob))
    if not known or not member.isreg():
        raise JournalCorrupt(f"bundle {archive} holds {member.name[:200]!r}, which is no part of a session: it is not unpacked")
    if member.size > LARGEST_MEMBER or so_far + member.size > LARGEST_ARCHIVE:
        raise JournalCorrupt(f"bundle {archive} unpacks to more than any session holds: it is not unpacked")
    return member.size


def _copy(content: IO[bytes], path: Path) -> str:
    digest = hashlib.sha256()
    path.parent.mkdir(exist_ok=True)
    with path.open("xb") as file:
        while chunk := content.read(1 << 20):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _compare(archive: Path, digests: dict[str, str], sums: bytes) -> None:
    rows = (line.partition("  ") for line in sums.decode("ascii", "replace").splitlines())
    listed = {name: digest for digest, _, name in rows}
    if listed != digests or journal.NAME not in digests:
        wrong = sorted(listed.items() ^ digests.items())
        raise JournalCorrupt(
            f"bundle {archive} does not match its checksums at {wrong[0][0] if wrong else SUMS}: fetch it again"
        )
    for name, digest in digests.items():
        if name != journal.NAME and name != f"{BLOBS}/{digest}":
            raise JournalCorrupt(f"bundle {archive}: {name} is damaged; fetch it again")
