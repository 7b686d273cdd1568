"""What ideas of each category gained in the recorded sessions that ship: read once a process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from engine.domain.errors import JournalError
from engine.domain.round_plan import CategoryRate
from engine.domain.state import SessionState
from engine.domain.strategy.rates import rates
from engine.journal import store
from engine.journal.shipped import shipped_folder


@cache
def shipped_rates(kind: str) -> tuple[CategoryRate, ...]:
    """The rates on devices of this kind; the same in every process of a version, so that recorded replies still match their
    prompts."""
    root = shipped_folder("sessions")
    folders = sorted(root.iterdir()) if root.is_dir() else []
    states = [state for folder in folders if store.is_session(folder) and (state := _state(folder)) is not None]
    return rates(state for state in states if state.device is not None and state.device.kind == kind)


def _state(folder: Path) -> SessionState | None:
    try:
        return store.state_of(folder)
    except JournalError:
        return None
