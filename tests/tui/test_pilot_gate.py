"""Every action of the gate by key, asserted on the journal."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import ui
from support.sessions import source
from support.ui import Watch, engineer_events, recorded, until
from textual.pilot import Pilot
from textual.widgets import Input, Select, Static, TextArea

from engine.domain import events as e
from engine.domain.state import IdeaStatus
from engine.journal import store
from engine.journal.blobs import Blobs
from tui.app import EspalierApp
from tui.screens.code_form import CodeForm
from tui.screens.dialogs import AskLine, Choose
from tui.screens.gate import GateScreen
from tui.screens.idea_form import IdeaForm
from tui.screens.session import SessionScreen
from tui.widgets.idea_list import IdeaList


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "session"


async def answered(app: EspalierApp, pilot: Pilot[None], words: str) -> None:
    """Type a line into the open dialog."""
    await until(pilot, lambda: isinstance(app.screen, AskLine))
    app.screen.query_one(Input).value = words
    await pilot.press("enter")


@pytest.mark.slow
def test_enter_approves_the_highlighted_idea(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: engineer_events(folder))

    ui.run_steered(folder, act)
    assert engineer_events(folder)[0] == e.IdeaSelected("i2")


@pytest.mark.slow
def test_that_ideas_wait_is_said_once(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await until(pilot, lambda: "Ideas of round 1" in ui.screen_text(app))
        shown = ui.screen_text(app)
        assert shown.count("2 ideas wait for you") == 1
        assert "approval" not in shown
        assert shown.count("to approve") == 2, "one for each idea"

    ui.run_steered(folder, act)


def test_the_heading_names_the_round_as_soon_as_its_ideas_are_shown(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await until(pilot, lambda: "Ideas of round 1" in ui.screen_text(app))
        assert isinstance(app.screen, GateScreen)
        app.screen.action_previous_round()
        assert app.screen.query_one(IdeaList).round == 0
        assert "Ideas of round 0" in str(app.screen.query_one("#question", Static).content)

    ui.run_steered(folder, act)


def test_the_card_of_an_idea_keeps_room_for_its_scroll_bar(folder: Path) -> None:
    """Its words were wrapped for the width before the bar appeared, and wrapped again by the screen."""

    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await until(pilot, lambda: isinstance(app.screen, GateScreen) and app.screen.query_one("#card").show_vertical_scrollbar)
        with_bar = app.screen.query_one("#words").size.width
        await pilot.resize_terminal(100, 80)
        await until(pilot, lambda: not app.screen.query_one("#card").show_vertical_scrollbar)
        assert app.screen.query_one("#words").size.width == with_bar

    ui.run_steered(folder, act, size=(100, 20))


@pytest.mark.slow
def test_the_header_fills_a_terminal_that_grew_after_the_gate_was_left(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        wide = ui.screen_text(app).splitlines()[0]
        await pilot.resize_terminal(80, 24)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, SessionScreen))
        await pilot.resize_terminal(120, 40)
        await pilot.pause(0.2)
        assert ui.screen_text(app).splitlines()[0] == wide

    ui.run_steered(folder, act)


@pytest.mark.slow
def test_the_highlighted_idea_is_in_sight_after_the_terminal_shrinks(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        listed = app.screen.query_one(IdeaList)
        await pilot.press("end")
        await pilot.resize_terminal(70, 14)
        await until(pilot, lambda: listed.size.height < 8)
        await pilot.pause()
        top, height = listed._places[listed.highlighted]
        assert (
            listed.scroll_offset.y
            <= top
            <= top + min(height, listed.size.height)
            <= listed.scroll_offset.y + listed.size.height
        )

    ui.run_steered(folder, act)


@pytest.mark.slow
def test_a_stray_enter_approves_nothing(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, SessionScreen))
        await pilot.press("i")
        await until(pilot, lambda: isinstance(app.screen, GateScreen))
        await pilot.press("enter", "a", "A")
        await pilot.pause(0.2)

    ui.run_steered(folder, act)
    assert engineer_events(folder) == []


@pytest.mark.slow
def test_approving_all_approves_all_and_leaves_the_gate(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("A")
        await until(pilot, lambda: len(engineer_events(folder)) == 2)

    ui.run_steered(folder, act)
    assert engineer_events(folder) == [e.IdeaSelected("i2"), e.IdeaSelected("i3")]


@pytest.mark.slow
def test_rejecting_records_the_reason(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("r")
        await answered(app, pilot, "tried last [week]")
        await until(pilot, lambda: engineer_events(folder))

    ui.run_steered(folder, act)
    assert engineer_events(folder) == [e.IdeaRejected("i2", "tried last [week]")]


@pytest.mark.slow
def test_after_a_decision_the_next_idea_is_highlighted_and_a_bouncing_key_approves_one_idea(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("a", "a")
        await until(pilot, lambda: engineer_events(folder) and app.screen.idea == "i3")  # type: ignore[attr-defined]
        assert engineer_events(folder) == [e.IdeaSelected("i2")]
        watch.pass_grace()
        await pilot.press("a")
        await until(pilot, lambda: len(engineer_events(folder)) == 2)

    ui.run_steered(folder, act)
    assert engineer_events(folder) == [e.IdeaSelected("i2"), e.IdeaSelected("i3")]


@pytest.mark.slow
def test_editing_changes_text_and_number_of_kernels(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, IdeaForm))
        app.screen.query_one("#title", Input).value = "Another [b]title"
        app.screen.query_one("#branch", Input).value = "1"
        app.screen.query_one(TextArea).text = "Another rationale."
        await pilot.press("ctrl+s")
        await until(pilot, lambda: engineer_events(folder))

    ui.run_steered(folder, act)
    edited = engineer_events(folder)[0]
    assert isinstance(edited, e.IdeaEdited)
    assert (edited.idea, edited.text.title, edited.text.rationale, edited.branch) == (
        "i2", "Another [b]title", "Another rationale.", 1,
    )  # fmt: skip
    assert edited.parent == "k1"


@pytest.mark.slow
def test_an_unknown_parent_is_an_error_in_the_form_and_records_nothing(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, IdeaForm))
        app.screen.query_one("#parent", Input).value = "k99"
        await pilot.press("ctrl+s")
        await pilot.pause()
        assert "Unknown kernel k99" in str(app.screen.query_one("#message").render())
        assert app.focused is app.screen.query_one("#parent"), "the wrong field has the focus"
        await pilot.press("backspace")
        await pilot.pause()
        assert not str(app.screen.query_one("#message").render()), "it may be right now"
        await pilot.press("escape", "escape")

    ui.run_steered(folder, act)
    assert engineer_events(folder) == []


@pytest.mark.slow
def test_an_idea_that_is_edited_gets_a_writer_from_a_list(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, IdeaForm))
        writers = app.screen.query_one("#writer", Select)
        assert [str(value) for _, value in writers._options] == ["", "playbook", "paste"]
        assert app.screen.query_one("#predicted", Input).value.endswith("×")
        writers.value = "paste"
        await pilot.press("ctrl+s")
        await until(pilot, lambda: engineer_events(folder))

    ui.run_steered(folder, act)
    edited = engineer_events(folder)[0]
    assert isinstance(edited, e.IdeaEdited)
    assert edited.writer == "paste"


@pytest.mark.slow
def test_more_and_fewer_kernels(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("plus")
        await until(pilot, lambda: len(engineer_events(folder)) == 1)
        await pilot.press("minus", "minus")
        await until(pilot, lambda: len(engineer_events(folder)) == 3)

    ui.run_steered(folder, act)
    assert [event.branch for event in engineer_events(folder) if isinstance(event, e.IdeaEdited)] == [3, 2, 1]


@pytest.mark.slow
def test_parking(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("d")
        await until(pilot, lambda: engineer_events(folder))

    ui.run_steered(folder, act)
    assert engineer_events(folder) == [e.IdeaParked("i2")]


@pytest.mark.slow
def test_writing_an_idea(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("i")
        await until(pilot, lambda: isinstance(app.screen, IdeaForm))
        title = app.screen.query_one("#title", Input)
        title.value = "a paste of many words " * 100
        await pilot.press("ctrl+s")
        await until(pilot, lambda: str(app.screen.query_one("#message").render()).startswith("Title: 2,199 characters"))
        title.value = "Mine"
        app.screen.query_one("#predicted", Input).value = "1.4"
        await pilot.press("ctrl+s")
        await until(pilot, lambda: engineer_events(folder))

    ui.run_steered(folder, act)
    event = engineer_events(folder)[0]
    assert isinstance(event, e.IdeasProposed)
    assert [(i.text.title, i.parent, i.text.predicted, i.author.name) for i in event.ideas] == [("Mine", "k1", 1.4, "engineer")]


@pytest.mark.slow
def test_writing_the_kernel_of_an_idea(folder: Path) -> None:
    text = source("mine", "time_us = 123")

    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("w")
        await until(pilot, lambda: isinstance(app.screen, CodeForm))
        assert "extern" in app.screen.query_one(TextArea).text, "the form must start with the parent's code"
        app.screen.query_one(TextArea).text = "no kernel at all"
        await pilot.press("ctrl+s")
        await pilot.pause()
        assert "launch" in str(app.screen.query_one("#message").render()), "the form must show the error"
        app.screen.query_one(TextArea).text = text
        await pilot.press("ctrl+s")
        await until(pilot, lambda: any(isinstance(entry.event, e.KernelMeasured) and entry.event.kernel == "k2"
                                       for entry in recorded(folder)))  # fmt: skip

    ui.run_steered(folder, act)
    drafted = next(event for event in engineer_events(folder) if isinstance(event, e.KernelDrafted))
    assert (drafted.idea, drafted.parent, drafted.seed, drafted.author.name) == ("i2", "k1", True, "engineer")
    assert Blobs(folder).text(drafted.source) == text
    assert store.state_of(folder).kernels["k2"].measurement is not None


@pytest.mark.slow
def test_changing_the_mode(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("o")
        await until(pilot, lambda: isinstance(app.screen, Choose))
        await pilot.press("down", "down", "down", "enter")
        await until(pilot, lambda: ui.ended(folder))

    ui.run_steered(folder, act)
    assert engineer_events(folder) == [e.ModeChanged("autopilot")]


@pytest.mark.slow
def test_auto_approval_after_a_chosen_time(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("o")
        await until(pilot, lambda: isinstance(app.screen, Choose))
        await pilot.press("end", "enter")
        await answered(app, pilot, "45")
        await until(pilot, lambda: engineer_events(folder))

    ui.run_steered(folder, act)
    assert engineer_events(folder) == [e.ModeChanged("ask:45")]


@pytest.mark.slow
def test_the_gate_opens_for_the_ideas_of_the_next_round(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("A")
        await until(pilot, lambda: "i4" in store.state_of(folder).ideas and isinstance(app.screen, GateScreen))
        await pilot.press("A")
        await pilot.pause(0.2)
        assert len(engineer_events(folder)) == 2, "new ideas must not be approved within the grace time"

    ui.run_steered(folder, act)


@pytest.mark.slow
def test_u_takes_the_latest_decision_back(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("d")
        await until(pilot, lambda: engineer_events(folder))
        await pilot.press("u")
        await until(pilot, lambda: len(engineer_events(folder)) == 2)

    ui.run_steered(folder, act)
    parked, undone = engineer_events(folder)
    assert parked == e.IdeaParked("i2")
    assert isinstance(undone, e.DecisionUndone)
    assert (undone.what, undone.ideas) == ("parking of i2", ("i2",))
    assert store.state_of(folder).ideas["i2"].status is IdeaStatus.PROPOSED
