"""What a fork at a given journal entry leaves behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.domain import queries
from engine.domain.events import Entry
from engine.domain.folds import advance
from engine.domain.model import Blob, Interval
from engine.domain.state import SessionState
from engine.journal.blobs import FOLDER as BLOBS


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What a fork does not include, and the incumbents with and without it."""

    events: int
    rounds: int
    ideas: int
    kernels: tuple[str, ...]
    kept: tuple[str, Interval | None] | None
    """The fork's incumbent, with its speedup."""
    lost: tuple[str, Interval | None] | None
    """The session's incumbent, if the fork does not include it."""


def lost_words(missing: Sequence[Blob], original: Path) -> str:
    """What the fork lacks because its original does, and what to do; empty if nothing."""
    if not missing:
        return ""
    count = "1 payload" if len(missing) == 1 else f"{len(missing)} payloads"
    named = ", ".join(f"{name[:12]}…" for name in missing[:_NAMED]) + (" and others" if len(missing) > _NAMED else "")
    return (
        f"{count} (code, logs or replies) missing or damaged in {original.name}, and not in the fork: {named}; "
        f"copy {'it' if len(missing) == 1 else 'them'} to {BLOBS}/ from where {original.name} came from"
    )


_NAMED = 3


def left_behind(entries: Sequence[Entry], position: int) -> LeftBehind:
    """What a fork after the first ``position`` entries leaves behind."""
    kept = advance(SessionState(), entries[:position])
    whole = advance(kept, entries[position:])
    before, after = _incumbent(kept), _incumbent(whole)
    return LeftBehind(
        len(entries) - position,
        len(whole.rounds) - len(kept.rounds),
        len(whole.ideas) - len(kept.ideas),
        tuple(name for name in whole.kernels if name not in kept.kernels),
        before,
        after if after is not None and after[0] not in kept.kernels else None,
    )


def _incumbent(state: SessionState) -> tuple[str, Interval | None] | None:
    best = queries.incumbent(state)
    return (best.id, queries.speedup(state, best)) if best is not None else None
