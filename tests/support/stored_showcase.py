"""The showcase as a session on disk, as ``scripts/pictures.py`` shows it."""

from __future__ import annotations

from pathlib import Path

from support import builders, showcase

from engine.domain.model import ENGINE
from engine.journal.journal import Journal


def store(folder: Path) -> Path:
    """Writes the session into ``folder``, which must not exist, and returns it."""
    with Journal.create(folder) as journal:
        for text in showcase.BLOBS.values():
            journal.blobs.put(text.encode())
        moment = iter(range(10**6))
        journal.append(tuple(showcase.history()), ENGINE, lambda: builders.START + 6.0 * next(moment))
    return folder
