"""Sessions on disk for tests: a list of events, written by the real journal with real blobs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from support import builders as b

from engine.domain import events as e
from engine.domain.model import ENGINE
from engine.journal.journal import Journal

BLOBS = ("source of k1", "source of k2", "log", "problem.h", "compiler output", "samples 1.0", "samples 1.3", "samples 1.5")


def stored(folder: Path, events: Iterable[e.Event], at: float = b.START, blobs: Iterable[str] = BLOBS) -> Path:
    """A closed session with these events, one per second from ``at``, and blobs with these texts."""
    with Journal.create(folder) as log:
        for number, event in enumerate(events):
            log.append((event,), ENGINE, lambda now=at + number: now)
        for text in blobs:
            log.blobs.put(text.encode())
    return folder
