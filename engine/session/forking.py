"""A session's first entries as a session of its own: what was decided after them is left behind, and nothing is lost.

The fork keeps every payload that its entries name and says where it comes from. It may be given a recorded session to recall
replies from, so that prompts which were answered there are not paid for again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from engine.domain import queries
from engine.domain.errors import CommandRejected, JournalCorrupt
from engine.domain.events import Entry, RoundClosed, SessionOpened
from engine.domain.state import SessionState, advance
from engine.journal import bundle, journal, store
from engine.journal.blobs import Blobs


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What a fork does not take along."""

    events: int
    rounds: int
    ideas: int
    kernels: int
    best: str
    """The incumbent, where it is among the kernels that stay behind."""


def left_behind(entries: Sequence[Entry], position: int) -> LeftBehind:
    """What lies after the first ``position`` entries."""
    kept = advance(SessionState(), entries[:position])
    whole = advance(kept, entries[position:])
    best = queries.incumbent(whole)
    return LeftBehind(
        len(entries) - position,
        len(whole.rounds) - len(kept.rounds),
        len(whole.ideas) - len(kept.ideas),
        len(whole.kernels) - len(kept.kernels),
        best.id if best is not None and best.id not in kept.kernels else "",
    )


def after_round(entries: Sequence[Entry], number: int) -> int:
    """How many entries there are up to the end of a round. Raises CommandRejected where it has not ended."""
    for place, entry in enumerate(entries):
        if isinstance(entry.event, RoundClosed) and entry.event.round == number:
            return place + 1
    raise CommandRejected(f"round {number} has not ended in this session")


def fork(folder: Path, position: int, target: Path | None = None, *, recall: bool = False) -> Path:
    """The first ``position`` entries of the session in ``folder`` as a session in ``target``, or in a new folder of its own.

    ``recall``: prompts that the whole of the old session has answered are answered from it. Raises JournalError and its kinds.
    """
    entries = journal.read(folder).entries[: max(1, position)]
    theirs, opened = Blobs(folder), entries[0].event
    assert isinstance(opened, SessionOpened), "a journal begins with it"
    target = target or store.new_folder(opened.problem.name)
    with journal.Journal.create(target) as mine:
        for name in bundle.references(entries):
            with contextlib.suppress(JournalCorrupt):  # what is missing there was missing before
                mine.blobs.put(theirs.get(name))
        settings = replace(opened.settings, recall=str(folder.absolute())) if recall else opened.settings
        origin = replace(opened, settings=settings, forked_from=f"{folder.name} after {entries[-1].seq + 1} events")
        for entry in entries:
            event = origin if entry.seq == 0 else entry.event
            mine.append((event,), entry.by, partial(float, entry.at))
    return target
