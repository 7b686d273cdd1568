"""Loads the screens of a session, and the engine behind them, while home is already drawn."""

from __future__ import annotations

import asyncio

from tui.garbage import without_collections

_loads = 0
"""How many wait for the screens now."""


def is_loading() -> bool:
    """Whether an action waits for the screens."""
    return _loads > 0


async def load_session_screens() -> None:
    """Import them on a thread: it takes longer than drawing home does. At once if they are loaded."""
    global _loads
    _loads += 1
    try:
        await asyncio.to_thread(_load)
    finally:
        _loads -= 1


def _load() -> None:
    with without_collections():
        from tui.screens import (  # noqa: F401
            new_session,
            open_session,
            session,
            side_by_side,
            transport,
            trust_dialog,
        )
        from tui.widgets import preview  # noqa: F401
