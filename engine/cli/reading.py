"""A session's journal as commands read it: a last line that was cut short is left out, and that is said."""

from __future__ import annotations

from pathlib import Path

from engine.cli.output import show
from engine.domain.events import Entry
from engine.domain.state import SessionState, advance
from engine.journal import journal


def entries_of(folder: Path) -> tuple[Entry, ...]:
    """Whole entries of a session. Raises JournalError and its kinds."""
    recording = journal.read(folder)
    if recording.torn:
        show([f"the last line of the journal of {folder.name} was cut short and is left out"], err=True)
    return recording.entries


def state_of(folder: Path) -> SessionState:
    """The state that these entries fold to. Raises JournalError and its kinds."""
    return advance(SessionState(), entries_of(folder))
