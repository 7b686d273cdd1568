"""Every action on a kernel by key, asserted on the journal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import sessions, ui
from support.ui import Watch, engineer_events, recorded, until
from textual.pilot import Pilot
from textual.widgets import ContentSwitcher, Input, OptionList, Static, TextArea

from engine.domain import events as e
from engine.domain import model as m
from engine.domain import races
from engine.domain.settings import CallOptions, ModelServer
from engine.domain.state import SessionState
from engine.journal import store
from engine.journal.bank import BankEntry
from engine.journal.blobs import Blobs
from tui.app import EspalierApp
from tui.bridge import seed_from_text
from tui.screens.code_form import CodeForm
from tui.screens.compare import CompareScreen
from tui.screens.dialogs import AskLine, Confirm
from tui.screens.limits_form import LimitsForm
from tui.screens.models_form import ModelsForm
from tui.screens.seed_form import SeedForm
from tui.screens.session import SessionScreen
from tui.widgets.kernel_tree import KernelTree

On = Callable[[EspalierApp, Pilot[None]], Awaitable[None]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "session"


def after_the_search(folder: Path, on: On) -> SessionState:
    """Run the scripted session to its end on autopilot, then ``on``; return the journal's last state."""

    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await until(pilot, lambda: isinstance(app.screen, SessionScreen) and len(_tree(app).visible_kernels) == 10)
        await on(app, pilot)

    ui.run_steered(folder, act, mode="autopilot")
    return store.state_of(folder)


def _tree(app: EspalierApp) -> KernelTree:
    return app.screen.query_one(KernelTree)


def _revealed(app: EspalierApp, kernel: str) -> bool:
    """Whether the tree has come to select the kernel: it is asked to once more where it has not shown it yet."""
    if _tree(app).selected != kernel:
        _tree(app).reveal(kernel)
        return False
    return True


async def line(app: EspalierApp, pilot: Pilot[None], words: str) -> None:
    await until(pilot, lambda: isinstance(app.screen, AskLine))
    app.screen.query_one(Input).value = words
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(app.screen, SessionScreen))


@pytest.mark.slow
def test_the_cursor_starts_on_the_incumbent(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("up", "b")
        await pilot.pause()
        assert _tree(app).selected == "k10"

    after_the_search(folder, on)


@pytest.mark.slow
def test_pin_and_unpin(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        _tree(app).reveal("k2")
        await pilot.press("p")
        await until(pilot, lambda: len(engineer_events(folder)) == 1)
        await pilot.press("p")
        await until(pilot, lambda: len(engineer_events(folder)) == 2)

    after_the_search(folder, on)
    assert engineer_events(folder) == [e.KernelPinned("k2"), e.KernelUnpinned("k2")]


@pytest.mark.slow
def test_prune_with_a_reason_and_reopen(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        _tree(app).reveal("k6")
        await pilot.press("x")
        await line(app, pilot, "a dead end [/]")
        await until(pilot, lambda: len(engineer_events(folder)) == 1)
        await pilot.press("x")
        await until(pilot, lambda: len(engineer_events(folder)) == 2)

    after_the_search(folder, on)
    assert engineer_events(folder) == [e.BranchPruned("k6", "a dead end [/]"), e.BranchReopened("k6")]


@pytest.mark.slow
def test_a_rejected_command_shows_the_reason_and_records_nothing(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        _tree(app).reveal("k2")
        await pilot.press("c")
        await until(pilot, lambda: any("already settled" in n.message for n in app._notifications))

    after_the_search(folder, on)
    assert engineer_events(folder) == []


@pytest.mark.slow
def test_cancelling_an_unfinished_kernel(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("A")
        await until(pilot, lambda: "k2" in app.screen.bridge.state.kernels)  # type: ignore[attr-defined]
        await until(pilot, lambda: isinstance(app.screen, SessionScreen))
        await until(pilot, lambda: _revealed(app, "k2"))
        await pilot.press("c")
        await until(pilot, lambda: any(isinstance(event, e.KernelCancelled) for event in engineer_events(folder)))

    ui.run_steered(folder, act, opener=ui.FakeOpener(pause=0.6))
    assert store.state_of(folder).kernels["k2"].stage == "cancelled"


@pytest.mark.slow
def test_remeasuring_reopens_an_ended_session(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        _tree(app).reveal("k2")
        await pilot.press("M")
        await until(pilot, lambda: sum(isinstance(entry.event, e.KernelMeasured) and entry.event.kernel == "k2"
                                       for entry in recorded(folder)) >= 2)  # fmt: skip

    after_the_search(folder, on)
    assert engineer_events(folder) == [e.SessionReopened(), e.KernelReopened("k2", "remeasured on request")]


@pytest.mark.slow
def test_remeasuring_the_incumbent_asks_first(folder: Path) -> None:
    """One key discarded the verdict of the kernel that leads."""

    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("b", "M")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, SessionScreen))
        await pilot.press("M")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        assert not engineer_events(folder)
        await pilot.press("y")
        await until(pilot, lambda: len(engineer_events(folder)) == 2)

    state = after_the_search(folder, on)
    assert engineer_events(folder)[-1] == e.KernelReopened(state.reigns[-1], "remeasured on request")


@pytest.mark.slow
def test_a_note_on_the_kernel(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        _tree(app).reveal("k5")
        await pilot.press("n")
        await line(app, pilot, "look at [red]this[/red] later")
        await until(pilot, lambda: engineer_events(folder))

    after_the_search(folder, on)
    assert engineer_events(folder) == [e.NoteAdded("k5", "look at [red]this[/red] later")]


@pytest.mark.slow
def test_comparing_a_marked_kernel_with_another(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        _tree(app).reveal("k2")
        await pilot.press("m")
        _tree(app).reveal("k6")
        await pilot.press("v")
        await until(pilot, lambda: isinstance(app.screen, CompareScreen))
        title = str(app.screen.query_one("#title").render())
        assert "k2" in title
        assert "k6" in title
        await pilot.press("x", "escape")
        await until(pilot, lambda: isinstance(app.screen, SessionScreen))

    after_the_search(folder, on)
    assert engineer_events(folder) == []


@pytest.mark.slow
def test_seeding_a_file_below_a_kernel(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.cpp"
    file.write_text(sessions.source("mine", "time_us = 90"))

    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        _tree(app).reveal("k2")
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, SeedForm))
        app.screen.query_one("#kernel", Input).value = str(tmp_path / "nothing.cpp")
        await pilot.press("ctrl+s")
        await pilot.pause()
        assert "no kernel file" in str(app.screen.query_one("#message").render())
        app.screen.query_one("#kernel", Input).value = f" '{file}' "
        app.screen.query_one("#title", Input).value = "By hand"
        await pilot.press("ctrl+s")
        await until(pilot, lambda: any(isinstance(entry.event, e.KernelMeasured) and entry.event.kernel == "k11"
                                       for entry in recorded(folder)))  # fmt: skip

    state = after_the_search(folder, on)
    kernel = state.kernels["k11"]
    assert (kernel.parent, kernel.seed, state.ideas[kernel.idea].text.title) == ("k2", True, "By hand")


@pytest.mark.slow
def test_seeding_pasted_code(folder: Path) -> None:
    text = sessions.source("pasted", "time_us = 80")

    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, SeedForm))
        await pilot.press("ctrl+n")
        await until(pilot, lambda: isinstance(app.screen, CodeForm))
        app.screen.query_one(TextArea).text = text
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "k11" in store.state_of(folder).kernels)

    state = after_the_search(folder, on)
    assert Blobs(folder).text(state.kernels["k11"].source) == text


@pytest.mark.slow
def test_the_bank_lists_what_the_session_can_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = BankEntry(
        "softmax", "full", m.Dialect.CUDA, m.Contract.PLAN, "an H200", "eager", m.Interval(2.0, 1.9, 2.1), "A cluster per row",
        "row.cu", "0" * 64, Path("row.cu"), {}, Path("other"), "k9",
    )  # fmt: skip
    monkeypatch.setattr(
        "engine.journal.bank.banked_kernels", lambda: [entry, replace(entry, dialect=m.Dialect.CPP, kernel="k3")]
    )

    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, SeedForm) and app.screen.query_one(OptionList).option_count)
        listed = app.screen.query_one(OptionList)
        assert listed.option_count == 1
        assert "1 for other devices" in str(listed.border_subtitle)
        listed.focus()
        await pilot.press("enter")
        await until(pilot, lambda: app.screen.query_one("#kernel", Input).value == "other:k3")

    after_the_search(folder, on)


@pytest.mark.slow
def test_seeding_from_the_bank(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    other = tmp_path / "sessions" / "other"
    sessions.whole(other)

    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, SeedForm) and app.screen.query_one(OptionList).option_count > 1)
        app.screen.query_one(OptionList).focus()
        await pilot.press("down", "enter")
        assert app.screen.query_one("#kernel", Input).value.startswith(str(other))
        await pilot.press("enter")
        await until(pilot, lambda: "k11" in store.state_of(folder).kernels)

    state = after_the_search(folder, on)
    assert state.kernels["k11"].seed


@pytest.mark.slow
def test_more_rounds_reopen_an_ended_session(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("L")
        await until(pilot, lambda: isinstance(app.screen, LimitsForm))
        app.screen.query_one("#rounds", Input).value = "4"
        app.screen.query_one("#plateau", Input).value = ""
        await pilot.press("ctrl+s")
        await until(pilot, lambda: 4 in store.state_of(folder).rounds)

    state = after_the_search(folder, on)
    assert (state.limits.rounds, state.limits.plateau) == (4, None)


@pytest.mark.slow
def test_models_and_their_options_change(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("O")
        await until(pilot, lambda: isinstance(app.screen, ModelsForm))
        form = app.screen
        form.query_one("#effort", Input).value = "high code=huge"
        await pilot.press("ctrl+s")
        message = form.query_one("#message", Static)
        assert str(message.render()).startswith("effort: unknown value 'huge': use none, minimal")
        form.query_one("#effort", Input).value = "high code=max"
        form.query_one("#servers", Input).value = "nobody=http://gpu1:8000/v1"
        await pilot.press("ctrl+s")
        assert "unknown proposer 'nobody' of a server" in str(message.render())
        form.query_one("#servers", Input).value = "vllm=http://gpu1:8000/v1,key=GPU1_KEY"
        form.query_one("#patience", Input).value = "2h"
        await pilot.press("ctrl+s")
        await until(pilot, lambda: engineer_events(folder))

    models = after_the_search(folder, on).models
    assert models.servers == (ModelServer("vllm", "http://gpu1:8000/v1", "GPU1_KEY"),)
    assert models.options == {"all": CallOptions("high"), "code": CallOptions("max")}
    assert models.patience == 7200.0


@pytest.mark.slow
def test_instructions(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("I")
        await line(app, pilot, "no inline assembly")
        await until(pilot, lambda: engineer_events(folder))

    after_the_search(folder, on)
    assert engineer_events(folder) == [e.InstructionsChanged("no inline assembly")]


@pytest.mark.slow
def test_ending_a_session_asks_first(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, SessionScreen))
        await pilot.press("ctrl+e")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, SessionScreen))
        assert engineer_events(folder) == [], "the harmless answer has the focus"
        await pilot.press("ctrl+e")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: engineer_events(folder))

    ui.run_steered(folder, act)
    assert engineer_events(folder) == [e.SessionClosed("ended by hand")]


@pytest.mark.slow
def test_copying_the_code_to_the_clipboard(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        _tree(app).reveal("k10")
        await pilot.press("y")
        await pilot.pause()
        assert app.clipboard == sessions.source("last_a", "time_us = 200")

    after_the_search(folder, on)


@pytest.mark.slow
def test_racing_against_the_incumbent_the_marked_kernel_and_racing_the_fastest(folder: Path) -> None:
    def raced() -> list[tuple[str, str]]:
        return [(event.kernel, event.against) for event in engineer_events(folder) if isinstance(event, e.RaceAsked)]

    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        _tree(app).reveal("k2")
        await pilot.press("r")
        await until(pilot, lambda: raced() == [("k2", "k10")])
        _tree(app).reveal("k1")
        await pilot.press("m")
        _tree(app).reveal("k2")
        await pilot.press("r")
        await until(pilot, lambda: raced()[1:] == [("k2", "k1")])
        await until(pilot, lambda: len(store.state_of(folder).races) == 5)
        await pilot.press("B")
        await until(pilot, lambda: len(raced()) > 2)
        await until(pilot, lambda: not store.state_of(folder).asked)

    state = after_the_search(folder, on)
    assert {against for _, against in raced()[2:]} == {"k10"}
    assert state.incumbent == "k10"


@pytest.mark.slow
def test_racing_an_undecided_kernel_again_takes_more_pairs(folder: Path) -> None:
    """A seed 0.6 % faster than the incumbent is undecided, then decided with twice the effort."""

    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        screen = app.screen
        assert isinstance(screen, SessionScreen)
        await screen.bridge.plant(seed_from_text(sessions.source("close", "time_us = 198.8"), "close.cpp"))
        await until(pilot, lambda: bool(races.undecided_races(screen.bridge.state)))
        await until(pilot, lambda: "k11 undecided against k10" in str(app.screen.query_one("#banner").render()))
        _tree(app).reveal("k11")
        await pilot.press("r")
        await until(pilot, lambda: screen.bridge.state.incumbent == "k11")

    state = after_the_search(folder, on)
    assert [(r.kernel, r.against, r.effort, r.outcome.value) for r in state.races[-2:]] == [
        ("k11", "k10", 0, "undecided"), ("k11", "k10", 1, "faster"),
    ]  # fmt: skip
    assert [event for event in engineer_events(folder) if isinstance(event, e.RaceAsked)] == [e.RaceAsked("k11", "k10")]


@pytest.mark.slow
def test_racing_on_the_incumbent_repeats_all_undecided_races(folder: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("b", "r")
        await until(pilot, lambda: any("no race against the incumbent is undecided" in n.message for n in app._notifications))

    after_the_search(folder, on)
    assert not any(isinstance(event, e.RaceAsked) for event in engineer_events(folder))


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("t", "charts"),
        pytest.param("3", "kernel", marks=pytest.mark.slow),
        pytest.param("dollar_sign", "usage", marks=pytest.mark.slow),
        ("enter", "kernel"),
    ],
)
def test_showing_a_pane_ends_the_zoom_of_the_tree(folder: Path, key: str, shown: str) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        tree, panes = _tree(app), app.screen.query_one(ContentSwitcher)
        tree.focus()
        await pilot.press("z")
        await until(pilot, lambda: tree.region.width == app.size.width)
        await pilot.press(key)
        await until(pilot, lambda: panes.region.width == app.size.width)
        assert panes.current == shown
        if shown == "kernel":
            await until(pilot, lambda: app.focused is not None and panes in app.focused.ancestors)
        await pilot.press("z")
        await until(pilot, lambda: bool(tree.region) and bool(panes.region))

    after_the_search(folder, on)


@pytest.mark.slow
def test_the_focus_follows_the_panes(folder: Path) -> None:
    """Without focus arrow keys would do nothing; a pane that takes no keys leaves the focus to the tree."""

    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        panes = app.screen.query_one(ContentSwitcher)
        await pilot.press("enter")
        await until(pilot, lambda: app.focused is not None and panes in app.focused.ancestors)
        for pane in ("charts", "events", "notes", "usage", "kernel"):
            await pilot.press("t")
            await until(pilot, lambda pane=pane: panes.current == pane and app.focused is not None)
            await until(pilot, lambda: app.focused is not None and bool(app.focused.region))

    after_the_search(folder, on)
