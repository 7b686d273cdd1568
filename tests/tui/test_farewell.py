"""The line in the shell after the terminal UI."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import ui
from support.ui import Watch, until
from textual.pilot import Pilot

from engine.domain.state import SessionState
from tui.app import EspalierApp
from tui.viewmodel.farewell import farewell


@pytest.mark.slow
def test_leaving_names_what_waits_and_how_to_resume(tmp_path: Path) -> None:
    left: list[EspalierApp] = []

    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        left.append(app)

    ui.run_steered(tmp_path / "session", act)
    (app,) = left
    assert "2 ideas await approval" in app.farewell
    assert f"resume: espalier open {tmp_path / 'session'}" in app.farewell
    assert "\n" not in app.farewell


@pytest.mark.slow
def test_leaving_an_ended_session_names_the_incumbent_and_the_replay(tmp_path: Path) -> None:
    left: list[EspalierApp] = []

    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await until(pilot, lambda: ui.ended(tmp_path / "session"))
        left.append(app)

    ui.run_steered(tmp_path / "session", act, mode="autopilot")
    (app,) = left
    assert "incumbent k10" in app.farewell
    assert "ended: " in app.farewell
    assert f"replay: espalier replay {tmp_path / 'session'}" in app.farewell


def test_a_session_without_a_kernel_has_a_line() -> None:
    assert farewell(SessionState(), "s") == "s: no verified kernel yet · resume: espalier open s"
