"""Loads the screens of a session, and the engine behind them, while home is already drawn."""

from __future__ import annotations

import asyncio

from tui.garbage import without_collections


async def load_session_screens() -> None:
    """Import them on a thread: it takes longer than drawing home does. At once if they are loaded."""
    await asyncio.to_thread(_load)


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
