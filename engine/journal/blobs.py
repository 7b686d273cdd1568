"""Stores payloads beside a journal by their SHA-256: code, logs, prompts, samples.

Manages the folder ``blobs/``; the content is opaque. A name always refers to the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from engine.domain.errors import JournalCorrupt, JournalUnwritable
from engine.domain.model import Blob
from engine.journal.regular_file import open_regular

FOLDER = "blobs"
_NAME = re.compile(r"[0-9a-f]{64}")


def is_blob_name(text: str) -> bool:
    """Whether the text is 64 lower-case hexadecimal digits."""
    return _NAME.fullmatch(text) is not None


class Blobs:
    """The payloads of one session. Thread-safe; nothing is written before the first ``put``."""

    def __init__(self, session: Path) -> None:
        """``session`` is the session's folder, not ``blobs/`` itself."""
        self._folder = session / FOLDER

    def path(self, name: Blob) -> Path:
        """The path of the blob, whether or not it exists. Raises JournalCorrupt if ``name`` is not a valid blob name."""
        if not is_blob_name(name):
            raise JournalCorrupt(f"invalid blob name {name[:80]!r}: the journal was edited or is damaged")
        return self._folder / name

    def put(self, payload: bytes) -> Blob:
        """Store the payload and return its name. Storing it again changes nothing.

        The bytes are first written under a temporary name, so a blob is complete or absent. Raises JournalUnwritable.
        """
        name = hashlib.sha256(payload).hexdigest()
        target = self._folder / name
        try:
            if not _is_whole(target, len(payload)):
                self._write(target, payload)
        except OSError as error:
            raise JournalUnwritable(
                f"cannot write {len(payload)} bytes to {self._folder} ({error.strerror}): free some space or make it writable"
            ) from error
        return name

    def get(self, name: Blob) -> bytes:
        """The payload. Raises JournalCorrupt if it is missing or does not match its name."""
        path = self.path(name)
        try:
            with open_regular(path) as file:
                payload = file.read()
        except FileNotFoundError as error:
            raise JournalCorrupt(f"blob {name} is missing from {self._folder}: copy it from the original session") from error
        except OSError as error:
            reason = f"{error.strerror}): copy it from the original session"
            raise JournalCorrupt(f"blob {name} cannot be read from {self._folder} ({reason}") from error
        if hashlib.sha256(payload).hexdigest() != name:
            raise JournalCorrupt(f"blob {name} in {self._folder} is damaged: copy it from the original session")
        return payload

    def text(self, name: Blob) -> str:
        """The payload as UTF-8; invalid bytes become U+FFFD. Raises JournalCorrupt like ``get``."""
        return self.get(name).decode("utf-8", "replace")

    def _write(self, target: Path, payload: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self._folder, prefix=".incoming-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise


def _is_whole(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False
