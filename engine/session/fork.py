"""Forks a session: copies its first entries into a new session; the original stays unchanged.

The fork copies all blobs that its entries name and records its origin. It can recall the replies of the original: the same
prompts are not paid for twice.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from engine.domain.errors import CommandRejected, EspalierError, JournalCorrupt
from engine.domain.events import Entry, RoundClosed, SessionOpened
from engine.domain.folds import advance
from engine.domain.model import Blob
from engine.domain.state import SessionState
from engine.export import bundle
from engine.journal import journal, store
from engine.journal.blobs import Blobs
from engine.journal.lock import unwritable_error
from engine.session import trust

_ASIDE = ".fork-"
"""Begins the name of a folder that a killed fork leaves."""


def after_round(entries: Sequence[Entry], number: int) -> int:
    """The number of entries up to the end of a round. Raises CommandRejected if the round has not ended."""
    last = None
    for place, entry in enumerate(entries):
        if isinstance(entry.event, RoundClosed):
            last = entry.event.round
            if last == number:
                return place + 1
    ended = "none has ended yet" if last is None else f"the last one that ended is round {last}"
    raise CommandRejected(f"unknown round {number}: {ended}")


@dataclass(frozen=True, slots=True)
class Fork:
    """A new session from an earlier point of another."""

    folder: Path
    missing: tuple[Blob, ...] = ()
    """Payloads that its entries name and the original does not have, or has damaged: code, logs or replies."""


def fork(folder: Path, position: int, target: Path | None = None, *, recall: bool = False, strategy: str | None = None) -> Fork:
    """Copy the first ``position`` entries of the session in ``folder`` to ``target``, or to a new folder.

    The fork of a session that is not trusted is not trusted either. ``recall``: the recorded replies of the original, also
    those after ``position``, answer the same prompts. ``strategy``:
    that of the fork, if not the original's. Raises JournalError and its subclasses.
    """
    recorded = journal.read(folder).entries
    entries = recorded[: max(1, position)]
    trusted = trust.is_trusted(folder, advance(SessionState(), recorded))
    original, opened = Blobs(folder), entries[0].event
    assert isinstance(opened, SessionOpened), "a journal begins with it"
    target = target or store.new_folder(opened.problem.name)
    settings = replace(opened.settings, recall=str(folder.absolute())) if recall else opened.settings
    if strategy is not None:
        settings = replace(settings, strategy=strategy)
    first = replace(opened, settings=settings, forked_from=f"{folder.name} after {entries[-1].seq + 1} events")
    with journal.Journal.create(target) as empty:
        blobs = empty.blobs
    try:
        missing = [name for name in bundle.payloads(entries, original) if not _copied(name, original, blobs)]
        _write_whole(target, [replace(entries[0], event=first), *entries[1:]])
    except BaseException:
        with contextlib.suppress(EspalierError):
            store.delete(target)  # what was copied cannot be opened
        raise
    if trusted:
        trust.made_here(target, advance(SessionState(), entries))
    return Fork(target, tuple(missing))


def _write_whole(folder: Path, entries: Sequence[Entry]) -> None:
    """The journal of these entries, in place of the empty one: a fork that is killed leaves no shorter session.

    Raises JournalUnwritable.
    """
    try:
        for left in folder.glob(f"{_ASIDE}*"):
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(prefix=_ASIDE, dir=folder) as aside:
            with journal.Journal.create(Path(aside)) as copy:
                for entry in entries:
                    copy.append((entry.event,), entry.by, partial(float, entry.at))
            os.replace(Path(aside) / journal.NAME, folder / journal.NAME)
    except OSError as error:
        raise unwritable_error(folder, error) from error


def _copied(name: Blob, original: Blobs, copy: Blobs) -> bool:
    """Whether the original has the blob whole; it is then copied."""
    try:
        payload = original.get(name)
    except JournalCorrupt:
        return False
    copy.put(payload)
    return True
