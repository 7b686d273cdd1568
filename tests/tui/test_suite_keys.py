"""Keys that act on suites: they tune a kernel and add a dispatch; elsewhere they are not offered."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import sessions, ui
from support.scripted import ScriptedProposer
from textual.pilot import Pilot

from engine.domain import events as e
from engine.domain.model import Contract, Dialect, Draft
from tui.app import EspalierApp
from tui.screens.session import SessionScreen
from tui.widgets.kernel_tree import KernelTree

TUNABLE = f"// @tune LANES = 2, 4\n{sessions.source('tunable').replace('{}', '{ /* LANES */ }')}"
SCRIPT = ScriptedProposer(
    rounds={0: (sessions.proposal("root", None),), 1: (sessions.proposal("lanes", "k1"),)},
    drafts={
        "root": (sessions.draft("plain", "time_us = 900"),),
        "lanes": (Draft(TUNABLE, Dialect.CPP, Contract.HOST, "lanes.cpp", {"LANES": 2}),),
    },
)


@pytest.mark.slow
def test_a_kernel_of_a_suite_is_tuned_and_a_dispatch_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "session"

    async def act(app: EspalierApp, pilot: Pilot[None], watch: ui.Watch) -> None:
        await pilot.press("A")
        await ui.until(pilot, lambda: ui.ended(folder) and ui.shows_tree(app))
        app.screen.query_one(KernelTree).reveal("k1")
        await pilot.press("T")
        await ui.until(pilot, lambda: any("k1 declares no tunables" in note.message for note in app._notifications))
        app.screen.query_one(KernelTree).reveal("k2")
        await pilot.press("T")
        await ui.until(pilot, lambda: any(isinstance(one, e.TuningAsked) for one in ui.engineer_events(folder)))
        await pilot.press("D")
        await ui.until(pilot, lambda: any("kernel is faster than" in note.message for note in app._notifications))

    ui.run_steered(folder, act, opener=ui.FakeOpener(ideas=SCRIPT, workloads=("full", "small")))


@pytest.mark.slow
@pytest.mark.parametrize("workloads", [(), ("full", "small")])
def test_they_are_offered_on_suites_alone(tmp_path: Path, workloads: tuple[str, ...]) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: ui.Watch) -> None:
        await ui.until(pilot, lambda: ui.shows_tree(app))
        assert isinstance(app.screen, SessionScreen)
        for verb in ("tune", "dispatch"):
            assert app.screen.check_action(verb, ()) is bool(workloads)

    ui.run_steered(tmp_path / "session", act, mode="autopilot", opener=ui.FakeOpener(workloads=workloads))
