"""A screen on which nothing happens draws nothing: over SSH every redraw costs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support import sessions, ui
from support.ui import until

from tui.screens.session import SessionScreen


@pytest.mark.parametrize("size", [(120, 40), pytest.param((200, 60), marks=pytest.mark.slow)])
@pytest.mark.parametrize("keys", [("comma", "comma"), ("left_square_bracket", "t")])
def test_a_paused_replay_draws_nothing(
    keys: tuple[str, ...], size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "session"
    sessions.whole(folder)
    drawn: list[object] = []

    async def act() -> None:
        app = ui.app(action="replay", subject=folder)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: isinstance(app.screen, SessionScreen) and ui.shows_tree(app))
            await pilot.press(*keys)
            await ui.still(pilot)
            await pilot.pause(0.5)
            display = app._display

            def counted(screen: Any, renderable: Any) -> None:
                drawn.append(renderable)
                display(screen, renderable)

            monkeypatch.setattr(app, "_display", counted)
            drains = 0
            drain = app.screen.drain  # type: ignore[attr-defined]
            while drains < 10:
                drain()
                drains += 1
                await asyncio.sleep(0.02)

    asyncio.run(act())
    assert drawn == []
