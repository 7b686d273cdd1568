"""Cancelling one open model call by key, asserted on the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import sessions, ui
from support.fake_models import FakeModel, ideas_reply
from support.ui import FakeOpener, engineer_events, until
from textual.pilot import Pilot
from textual.widgets import OptionList, TextArea

from engine.domain import events as e
from engine.domain.settings import Settings
from engine.domain.state import CallStatus, SessionState
from engine.ideas.factory import open_ideas
from engine.ideas.models.model import OnText, Prompt, Reply
from engine.journal import store
from tui.app import EspalierApp
from tui.screens.dialogs import Choose
from tui.screens.prompt_form import PromptForm
from tui.screens.session import SessionScreen
from tui.viewmodel.stages import calls_by_hand, open_calls

On = Callable[[EspalierApp, Pilot[None], SessionScreen], Awaitable[None]]


class Thinking(FakeModel):
    """Proposes two ideas if ``proposes``; answers no other prompt."""

    def __init__(self, *, proposes: bool) -> None:
        super().__init__([ideas_reply("Tile the [rows]", "Prefetch far ahead")])
        self.proposes = proposes

    async def ask(self, prompt: Prompt, on_text: OnText) -> Reply:
        if prompt.schema is not None and self.proposes:
            return await super().ask(prompt, on_text)
        self.asked.append(prompt)
        await asyncio.Event().wait()
        raise AssertionError("it never answers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "session"


def while_calls_are_open(folder: Path, model: Thinking | None, calls: int, on: On) -> SessionState:
    """Run a session on autopilot until this many calls are open, then ``on``; return the journal's last state.

    Without a model the prompts are answered by hand.
    """
    settings = Settings(source=model.name if model is not None else "paste")
    source = open_ideas(settings, playbook=sessions.TREE, open_model=lambda *_: model, tariff_of=lambda _: None, recall=None)

    async def body() -> None:
        new = replace(ui.new(folder, "autopilot"), settings=settings)
        app = ui.app(FakeOpener(ideas=source), "new", new)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: store.is_session(folder) and len(open_calls(store.state_of(folder))) == calls)
            await until(pilot, lambda: ui.shows_tree(app) and len(open_calls(_session(app).bridge.state)) == calls)
            await on(app, pilot, _session(app))
            await app._leave()

    sessions.run(body)
    return store.state_of(folder)


def _session(app: EspalierApp) -> SessionScreen:
    assert isinstance(app.screen, SessionScreen)
    return app.screen


async def offered(app: EspalierApp, pilot: Pilot[None]) -> list[str]:
    """The calls offered for cancelling, as displayed."""
    await pilot.press("K")
    await until(pilot, lambda: isinstance(app.screen, Choose))
    return [str(option.prompt) for option in app.screen.query_one(OptionList).options]


def cancelled(state: SessionState, call: str) -> e.Event:
    """The event of a cancellation: the call is charged what it could have cost."""
    return e.CallFailed(call, "cancelled by hand", state.calls[call].highest, cancelled=True, estimated=True)


@pytest.mark.slow
def test_cancelling_one_of_two_calls_leaves_the_other_open(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None], screen: SessionScreen) -> None:
        await pilot.press("dollar_sign")
        shown = await offered(app, pilot)
        assert "c2  code for i2" in shown[0]
        assert "fake: Tile the [rows]" in shown[0]
        await pilot.press("down", "enter")
        await until(pilot, lambda: screen.bridge.state.ideas["i3"].implemented)
        assert [call.id for call in open_calls(screen.bridge.state)] == ["c2"]
        assert len(await offered(app, pilot)) == 1
        await pilot.press("escape")

    state = while_calls_are_open(folder, Thinking(proposes=True), 2, on)
    assert engineer_events(folder) == [cancelled(state, "c3")]
    assert (state.ideas["i3"].kernels, state.ideas["i3"].note) == ((), "implementation 1: c3 was cancelled by hand")
    assert not state.ideas["i2"].implemented


@pytest.mark.slow
def test_a_cancelled_round_names_the_next_steps_and_is_retried_on_request(folder: Path) -> None:
    model = Thinking(proposes=False)

    async def on(app: EspalierApp, pilot: Pilot[None], screen: SessionScreen) -> None:
        def banner() -> str:
            return str(screen.query_one("#banner").render())

        assert "c1  ideas for round 1" in (await offered(app, pilot))[0]
        await pilot.press("enter")
        await until(pilot, lambda: "c1 was cancelled by hand" in banner())
        assert "N: add an idea" in banner()
        assert "stopped" not in banner()
        assert len(model.asked) == 1
        await pilot.press("R")
        await until(pilot, lambda: len(model.asked) == 2 and "cancelled" not in banner())

    state = while_calls_are_open(folder, model, 1, on)
    assert engineer_events(folder) == [cancelled(state, "c1"), e.WorkRetried(("propose:1",))]
    assert state.calls["c1"].status is CallStatus.FAILED
    assert list(state.calls) == ["c1", "c2"]


@pytest.mark.slow
def test_a_reply_that_answers_nothing_is_told_in_the_form_and_its_retry_says_that_it_is_one(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None], screen: SessionScreen) -> None:
        def said(place: str) -> str:
            return str(app.screen.query_one(place).render())

        await pilot.press("Q")
        await until(pilot, lambda: isinstance(app.screen, PromptForm))
        assert said("#which").startswith("c1: ideas for round 1 · ")
        app.screen.query_one("#reply", TextArea).text = "I would tile the rows."
        await pilot.press("ctrl+s")
        await until(pilot, lambda: said("#message").startswith("Not usable: the reply "))
        assert app.screen.query_one("#reply", TextArea).text == "I would tile the rows."
        assert engineer_events(folder) == []
        await pilot.press("ctrl+s")
        await until(pilot, lambda: [call.id for call in calls_by_hand(screen.bridge.state)] == ["c2"])
        assert "c2  ideas for round 1, retry of c1" in (await offered(app, pilot))[0]
        await pilot.press("escape", "Q")
        await until(pilot, lambda: isinstance(app.screen, PromptForm))
        assert said("#which").startswith("c2: ideas for round 1, retry of c1 · ")
        assert "\nc1 was refused: the reply " in said("#which")
        await pilot.press("escape")

    while_calls_are_open(folder, None, 1, on)


@pytest.mark.slow
def test_without_an_open_call_there_is_nothing_to_cancel(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: ui.Watch) -> None:
        await pilot.press("K")
        await until(pilot, lambda: any("No open model call" in note.message for note in app._notifications))

    ui.run_steered(folder, act)
    assert engineer_events(folder) == []
