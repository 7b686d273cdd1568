"""The showcase as a session on disk, used by ``scripts/pictures.py``."""

from __future__ import annotations

from pathlib import Path

from support import builders, showcase

from engine.domain.model import ENGINE
from engine.journal.journal import Journal


def store(folder: Path) -> Path:
    """Write the session into ``folder``, which must not exist, and return it."""
    with Journal.create(folder) as journal:
        for text in showcase.BLOBS.values():
            journal.blobs.put(text.encode())
        moment = iter(range(10**6))
        journal.append(tuple(showcase.history()), ENGINE, lambda: builders.START + 6.0 * next(moment))
    return folder
