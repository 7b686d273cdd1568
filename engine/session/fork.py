"""A fork: the first entries of a session as a new session; the original stays as it is.

The fork copies every payload that its entries name and records its origin. It may recall the replies of the original, so that
the same prompts are not paid for twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from engine.domain.errors import CommandRejected, JournalCorrupt
from engine.domain.events import Entry, RoundClosed, SessionOpened
from engine.export import bundle
from engine.journal import journal, store
from engine.journal.blobs import Blobs


def after_round(entries: Sequence[Entry], number: int) -> int:
    """How many entries there are up to the end of a round. Raises CommandRejected where it has not ended."""
    for place, entry in enumerate(entries):
        if isinstance(entry.event, RoundClosed) and entry.event.round == number:
            return place + 1
    raise CommandRejected(f"round {number} has not ended in this session")


def fork(folder: Path, position: int, target: Path | None = None, *, recall: bool = False) -> Path:
    """The first ``position`` entries of the session in ``folder`` as a session in ``target``, or in a new folder.

    ``recall``: prompts that the original has answered, also after ``position``, are answered from it. Raises JournalError and
    its kinds.
    """
    entries = journal.read(folder).entries[: max(1, position)]
    original, opened = Blobs(folder), entries[0].event
    assert isinstance(opened, SessionOpened), "a journal begins with it"
    target = target or store.new_folder(opened.problem.name)
    with journal.Journal.create(target) as copy:
        for name in bundle.references(entries):
            with contextlib.suppress(JournalCorrupt):  # what is missing there was missing before
                copy.blobs.put(original.get(name))
        settings = replace(opened.settings, recall=str(folder.absolute())) if recall else opened.settings
        first = replace(opened, settings=settings, forked_from=f"{folder.name} after {entries[-1].seq + 1} events")
        for entry in entries:
            event = first if entry.seq == 0 else entry.event
            copy.append((event,), entry.by, partial(float, entry.at))
    return target
