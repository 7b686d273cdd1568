"""How often optimisations of each category won in the recorded sessions that ship: read once a process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from engine.domain.errors import JournalError
from engine.domain.state import SessionState
from engine.ideas.prompts.menu import WinRates, count_wins
from engine.journal import store
from engine.journal.shipped import shipped_folder


@cache
def shipped_rates() -> WinRates:
    """The same in every process of a version, so that recorded replies still match their prompts."""
    root = shipped_folder("sessions")
    folders = sorted(root.iterdir()) if root.is_dir() else []
    return count_wins(state for folder in folders if store.is_session(folder) and (state := _state(folder)) is not None)


def _state(folder: Path) -> SessionState | None:
    try:
        return store.state_of(folder)
    except JournalError:
        return None
