"""Quarantine, pauses, prompts by hand, order of ideas, attached kernels, combining, forking: by key, checked in the journal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support import sessions, ui
from support.ui import BY_HAND, FakeOpener, Watch, engineer_events, until
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, TextArea

from engine.domain import events as e
from engine.domain.model import FailureKind
from engine.domain.settings import Pauses
from engine.domain.state import CallStatus, SessionState, Stage
from engine.journal import store
from engine.journal.blobs import Blobs
from engine.session.live import LiveSession
from engine.session.telemetry import LoadMonitor, LoadReading
from tui.app import EspalierApp
from tui.bridge import Bridge, NewSession, Say, seed_from_text
from tui.screens.dialogs import AskLine, Choose, Confirm
from tui.screens.gate import GateScreen
from tui.screens.idea_form import IdeaForm
from tui.screens.limits_form import PausesForm
from tui.screens.prompt_form import PromptForm
from tui.screens.session import SessionScreen
from tui.widgets.bars import SessionHeader
from tui.widgets.idea_list import IdeaList
from tui.widgets.kernel_tree import KernelTree

On = Callable[[EspalierApp, Pilot[None]], Awaitable[None]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "session"


def at_the_tree(
    folder: Path, on: On, *, mode: str = "ask", opener: FakeOpener | None = None, shows: str = "k1"
) -> SessionState:
    """Run the scripted session until a kernel is shown, then ``on`` on its tree; return the journal's last state."""

    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        if isinstance(app.screen, GateScreen):
            await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, SessionScreen) and shows in _tree(app).visible_kernels)
        await on(app, pilot)

    ui.run_steered(folder, act, mode=mode, opener=opener)
    return store.state_of(folder)


def _tree(app: EspalierApp) -> KernelTree:
    return app.screen.query_one(KernelTree)


async def asked(app: EspalierApp, pilot: Pilot[None], words: str) -> None:
    """Type a line into the open dialog."""
    await until(pilot, lambda: isinstance(app.screen, AskLine))
    app.screen.query_one(Input).value = words
    await pilot.press("enter")


async def suspicious(app: EspalierApp, pilot: Pilot[None]) -> None:
    """Seed a kernel that is quarantined, and select it."""
    screen = app.screen
    assert isinstance(screen, SessionScreen)
    await screen.bridge.plant(seed_from_text(sessions.source("odd", "suspicious"), "odd.cpp"))
    await until(pilot, lambda: any(k.stage is Stage.QUARANTINED for k in screen.bridge.state.kernels.values()))
    odd = next(k.id for k in screen.bridge.state.kernels.values() if k.stage is Stage.QUARANTINED)
    await until(pilot, lambda: odd in _tree(app).visible_kernels)
    _tree(app).reveal(odd)


@pytest.mark.slow
def test_accepting_a_quarantined_kernel_records_the_reason(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await suspicious(app, pilot)
        await until(pilot, lambda: "Quarantined: " in str(app.screen.query_one("#banner").render()))
        await pilot.press("a")
        await asked(app, pilot, "the counters [agree]")
        await until(pilot, lambda: any(isinstance(event, e.KernelAccepted) for event in engineer_events(folder)))

    state = at_the_tree(folder, on)
    (kernel,) = (k for k in state.kernels.values() if k.accepted)
    assert (kernel.stage, kernel.accepted) == (Stage.MEASURED, "the counters [agree]")


@pytest.mark.slow
def test_a_race_without_an_incumbent_says_which_keys_name_the_other_kernel(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("tui.screens.kernel_actions.queries.incumbent", lambda state: None)
            await pilot.press("r")
            words = "No incumbent yet: press m on a kernel, then r on the other."
            await until(pilot, lambda: any(one.message == words for one in app._notifications))

    at_the_tree(folder, on)


@pytest.mark.slow
def test_discarding_a_quarantined_kernel(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await suspicious(app, pilot)
        await pilot.press("d")
        await asked(app, pilot, "it reads the clock")
        await until(pilot, lambda: any(isinstance(event, e.KernelFailed) for event in engineer_events(folder)))

    state = at_the_tree(folder, on)
    (failed,) = (k.failure for k in state.kernels.values() if k.failure is not None)
    assert (failed.kind, failed.reason) == (FailureKind.REJECTED, "it reads the clock")


@pytest.mark.slow
def test_only_a_quarantined_kernel_can_be_accepted(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("a", "d")
        await pilot.pause(0.1)
        assert isinstance(app.screen, SessionScreen)

    at_the_tree(folder, on)
    assert engineer_events(folder) == []


@pytest.mark.slow
def test_a_kernel_that_is_not_corroborated_is_remeasured_not_accepted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("tui.screens.kernel_actions.corroboration.is_doubted", lambda kernel: True)
            await pilot.press("a")
            words = "k1 is not quarantined: its time is not corroborated. M remeasures it."
            await until(pilot, lambda: any(one.message == words for one in app._notifications))

    at_the_tree(folder, on)


@pytest.mark.slow
def test_pausing_and_resuming(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("P")
        await asked(app, pilot, "lunch")
        await until(pilot, lambda: "Paused: lunch" in str(app.screen.query_one("#banner").render()))
        await pilot.press("P")
        await until(pilot, lambda: len(engineer_events(folder)) == 2)

    at_the_tree(folder, on)
    assert engineer_events(folder) == [e.SessionPaused("lunch"), e.SessionContinued(Pauses())]


@pytest.mark.slow
def test_pause_conditions(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("C")
        await until(pilot, lambda: isinstance(app.screen, PausesForm))
        app.screen.query_one("#usd", Input).value = "-1"
        await pilot.press("ctrl+s")
        assert "invalid value -1" in str(app.screen.query_one("#message").render())
        app.screen.query_one("#usd", Input).value = "2.5"
        app.screen.query_one("#round", Input).value = "2"
        await pilot.press("ctrl+s")
        await until(pilot, lambda: engineer_events(folder))

    at_the_tree(folder, on)
    assert engineer_events(folder) == [e.PausesChanged(Pauses(usd=2.5, round=2))]


@pytest.mark.slow
def test_answering_a_prompt_by_hand(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "prompt" in str(app.screen.query_one("#banner").render()))
        await pilot.press("Q")
        await until(pilot, lambda: isinstance(app.screen, PromptForm))
        await pilot.press("ctrl+s")
        assert "No reply: " in str(app.screen.query_one("#message").render())
        await pilot.press("ctrl+y")
        assert app.clipboard.endswith("[now].")
        app.screen.query_one("#reply", TextArea).text = "time_us = 77"
        await pilot.press("ctrl+s", "ctrl+s")  # the fake bench's mark is no code
        await until(pilot, lambda: any(isinstance(event, e.CallAnswered) for event in engineer_events(folder)))
        await until(pilot, lambda: "k2" in store.state_of(folder).kernels)

    state = at_the_tree(folder, on, mode="autopilot", opener=FakeOpener(ideas=BY_HAND))
    answered = next(call for call in state.calls.values() if call.status is CallStatus.ANSWERED)
    assert Blobs(folder).text(answered.reply) == "time_us = 77"


@pytest.mark.slow
def test_answering_a_prompt_from_a_file(folder: Path, tmp_path: Path) -> None:
    reply = tmp_path / "reply.txt"
    reply.write_text("time_us = 66\n")

    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "prompt" in str(app.screen.query_one("#banner").render()))
        await pilot.press("Q")
        await until(pilot, lambda: isinstance(app.screen, PromptForm))
        app.screen.query_one("#file", Input).value = str(tmp_path / "none.txt")
        await pilot.press("ctrl+s")
        assert "cannot be read" in str(app.screen.query_one("#message").render())
        app.screen.query_one("#file", Input).value = str(reply)
        await pilot.press("ctrl+s", "ctrl+s")
        await until(pilot, lambda: any(isinstance(event, e.CallAnswered) for event in engineer_events(folder)))

    state = at_the_tree(folder, on, mode="autopilot", opener=FakeOpener(ideas=BY_HAND))
    assert Blobs(folder).text(next(c.reply for c in state.calls.values() if c.reply)) == "time_us = 66\n"


def at_the_gate(folder: Path, on: On) -> SessionState:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await on(app, pilot)

    ui.run_steered(folder, act)
    return store.state_of(folder)


@pytest.mark.slow
def test_reordering_ideas_keeps_the_highlight_on_the_idea(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        listed = app.screen.query_one(IdeaList)
        assert list(listed.ideas) == ["i2", "i3"]
        await pilot.press("greater_than_sign")
        await until(pilot, lambda: list(listed.ideas) == ["i3", "i2"])
        assert listed.highlighted == "i2"
        await pilot.press("shift+up")
        await until(pilot, lambda: list(listed.ideas) == ["i2", "i3"])

    at_the_gate(folder, on)
    assert engineer_events(folder) == [e.IdeasReordered(("i3", "i2")), e.IdeasReordered(("i2", "i3"))]


@pytest.mark.slow
def test_the_writer_of_an_idea(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("W")
        await until(pilot, lambda: isinstance(app.screen, Choose))
        await pilot.press("G", "enter")
        await asked(app, pilot, "nobody")
        await until(pilot, lambda: "unknown proposer 'nobody'" in str(app.screen.query_one("#message").render()))
        assert app.screen.query_one(Input).value == "nobody", "what was typed stays"
        assert not engineer_events(folder)
        await asked(app, pilot, "openai:other")
        await until(pilot, lambda: engineer_events(folder))

    assert at_the_gate(folder, on).ideas["i2"].writer == "openai:other"


@pytest.mark.slow
def test_a_writer_is_chosen_from_a_list(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("W")
        await until(pilot, lambda: isinstance(app.screen, Choose))
        await pilot.press("j", "enter")
        await until(pilot, lambda: engineer_events(folder))

    assert at_the_gate(folder, on).ideas["i2"].writer == "playbook"


@pytest.mark.slow
def test_attaching_a_kernel_to_an_idea_and_detaching_it(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        for done in (1, 2):
            await pilot.press("m")
            await until(pilot, lambda: isinstance(app.screen, Choose))
            await pilot.press("enter")
            await until(pilot, lambda count=done: len(engineer_events(folder)) == count)  # type: ignore[misc]

    at_the_gate(folder, on)
    assert engineer_events(folder) == [e.KernelAttached("i2", "k1"), e.KernelDetached("i2", "k1")]


@pytest.mark.slow
def test_the_parent_is_chosen_from_a_list(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        screen = app.screen
        assert isinstance(screen, GateScreen)
        await screen.bridge.plant(seed_from_text(sessions.source("seed", "time_us = 50"), "seed.cpp"))
        await until(pilot, lambda: store.state_of(folder).kernels["k2"].stage is Stage.MEASURED)
        await pilot.press("p")
        await until(pilot, lambda: isinstance(app.screen, Choose))
        app.screen.query_one(OptionList).highlighted = 0
        await pilot.press("enter")
        await until(pilot, lambda: any(isinstance(event, e.IdeaEdited) for event in engineer_events(folder)))

    assert at_the_gate(folder, on).ideas["i2"].parent == "k2"


@pytest.mark.slow
def test_approving_a_parked_idea(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        screen = app.screen
        assert isinstance(screen, GateScreen)
        await pilot.press("d")
        await until(pilot, lambda: engineer_events(folder))
        screen.query_one(IdeaList).highlighted = "i2"
        screen.clock.pass_grace()  # type: ignore[attr-defined]
        await pilot.press("a")
        await until(pilot, lambda: len(engineer_events(folder)) == 2)

    at_the_gate(folder, on)
    assert engineer_events(folder) == [e.IdeaParked("i2"), e.IdeaSelected("i2")]


@pytest.mark.slow
def test_combining_two_kernels_in_one_idea(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        _tree(app).reveal("k2")
        await pilot.press("m")
        _tree(app).reveal("k6")
        await pilot.press("X")
        await until(pilot, lambda: isinstance(app.screen, IdeaForm))
        assert app.screen.query_one("#title", Input).value == "Combine k2 with k6"
        await pilot.press("ctrl+s")
        await until(pilot, lambda: any(isinstance(event, e.KernelAttached) for event in engineer_events(folder)))

    state = at_the_tree(folder, on, mode="autopilot", shows="k10")
    crossed = next(idea for idea in state.ideas.values() if idea.text.title == "Combine k2 with k6")
    assert (crossed.parent, crossed.materials, crossed.author.name) == ("k2", ("k6",), "engineer")


@pytest.mark.slow
def test_attaching_a_kernel_from_the_tree(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("A")
        await until(pilot, lambda: isinstance(app.screen, Choose))
        await pilot.press("enter")
        await until(pilot, lambda: engineer_events(folder))

    at_the_tree(folder, on)
    assert engineer_events(folder) == [e.KernelAttached("i2", "k1")]


@pytest.mark.slow
def test_forking_a_running_session_from_an_earlier_round(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path / "home"))

    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: ui.ended(folder))
        await pilot.press("F")
        await until(pilot, lambda: isinstance(app.screen, Choose))
        options = app.screen.query_one(OptionList)
        words = [str(options.get_option_at_index(n).prompt) for n in range(options.option_count)]
        assert "without" not in words[0]
        options.highlighted = next(n for n, text in enumerate(words) if "before round 2" in text)
        assert "5 kernels" in words[options.highlighted]
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        assert "Faster, but not in the fork: k10" in str(app.screen.query("Static").first().render())
        await pilot.press("y")
        await until(pilot, lambda: (tmp_path / "home" / "sessions").is_dir() and isinstance(app.screen, SessionScreen)
                    and app.screen.bridge.folder != folder)  # fmt: skip

    before = at_the_tree(folder, on, mode="autopilot", shows="k10")
    (fork,) = (tmp_path / "home" / "sessions").iterdir()
    opened = ui.recorded(fork)[0].event
    assert isinstance(opened, e.SessionOpened)
    assert opened.forked_from.startswith("session after")
    assert store.state_of(folder).seq == before.seq


@pytest.mark.slow
def test_clicks_select_a_kernel_a_page_and_an_idea(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        tree = _tree(app)
        await until(pilot, lambda: app.screen.bridge.state.closed is not None)  # type: ignore[attr-defined]
        await ui.still(pilot)
        await pilot.click(KernelTree, offset=(12, 2))
        await until(pilot, lambda: tree.selected == tree.visible_kernels[1])
        bar = app.screen.query_one("_TabBar")
        place = bar.render_line(0).text.index(" 5 ")  # type: ignore[attr-defined]
        await pilot.click("_TabBar", offset=(place + 1, 0))
        assert app.screen.query_one("DetailTabs").tab == "timing"  # type: ignore[attr-defined]
        await pilot.press("i")
        await until(pilot, lambda: isinstance(app.screen, GateScreen))
        listed = app.screen.query_one(IdeaList)
        first = listed.highlighted
        row = next(n for n, (idea, _) in enumerate(listed._lines) if idea and idea != first)
        await pilot.click(IdeaList, offset=(8, row))
        assert listed.highlighted != first

    at_the_tree(folder, on, mode="autopilot", shows="k10")


class MonitoredOpener(FakeOpener):
    async def begin(self, request: NewSession, say: Say) -> Bridge:
        assert request.folder is not None
        live = LiveSession.create(request.folder, sessions.opened(mode=request.mode), self.ports(request.folder))
        return Bridge(live, live.folder, live=live, monitor=LoadMonitor(lambda: lambda: LoadReading(83, 61, "heat")))


@pytest.mark.slow
def test_the_header_shows_the_load_of_the_device(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("escape")
        words = "GPU 83% 61 °C ▼ throttled: heat"
        await until(pilot, lambda: any(words in head.render_line(0).text for head in app.screen.query(SessionHeader)))

    ui.run_steered(folder, act, opener=MonitoredOpener(), size=(160, 40))
