"""Home: start, open, replay, follow, delete; quitting and resuming; user-defined keys, palette, help."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support import sessions, ui
from support.held import held
from support.ui import until
from textual.command import CommandList, CommandPalette
from textual.widgets import DataTable, Input, OptionList, Select

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import queries
from engine.domain.model import Problem
from engine.domain.state import IdeaStatus
from engine.journal import store
from engine.journal.journal import read
from engine.problem import catalog
from tui import theme
from tui.bridge import SavedSession
from tui.screens.dialogs import Confirm
from tui.screens.gate import GateScreen
from tui.screens.help import HelpScreen
from tui.screens.home import HomeScreen
from tui.screens.new_session import NewSessionForm
from tui.screens.palette import Palette
from tui.screens.session import SessionScreen
from tui.screens.settings_form import SettingsForm
from tui.screens.side_by_side import SideBySideScreen
from tui.widgets.kernel_tree import KernelTree
from tui.widgets.lines import LinesView
from tui.widgets.session_table import SessionTable


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    return tmp_path / "sessions"


@pytest.mark.slow
def test_pressing_enter_twice_starts_the_first_session(home: Path) -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, HomeScreen))
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, NewSessionForm))
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, GateScreen))
            await app._leave()

    sessions.run(body)
    (folder,) = home.iterdir()
    opened = ui.recorded(folder)[0].event
    assert isinstance(opened, e.SessionOpened)
    assert opened.mode == "ask"
    assert opened.problem.name == "softmax"


@pytest.mark.slow
def test_the_way_back_leads_to_the_session(home: Path) -> None:
    for name in ("a", "b"):
        sessions.whole(home / name)

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(app.focused, SessionTable) and len(app.focused.sessions) > 1)
            await pilot.press("n")
            await until(pilot, lambda: isinstance(app.screen, NewSessionForm))
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, GateScreen))
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, SessionScreen))
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, HomeScreen) and isinstance(app.focused, SessionTable))
            found = app.screen.query_one(SessionTable).highlighted
            assert found is not None
            assert found.folder.name not in ("a", "b")
            await app._leave()

    sessions.run(body)


@pytest.mark.slow
def test_a_new_session_asks_before_it_closes_the_running_one(home: Path) -> None:
    """It would otherwise wait for the device that the other search holds, and then close it unasked."""

    async def body() -> None:
        opener = ui.FakeOpener(pause=5.0)
        app = ui.app(opener)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, HomeScreen))
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, NewSessionForm))
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, SessionScreen) and app.screen.bridge.in_hand)
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, HomeScreen))
            await pilot.press("n")
            await until(pilot, lambda: isinstance(app.screen, NewSessionForm))
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            assert "Close the running session?" in ui.screen_text(app)
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, NewSessionForm) and not app.screen.has_class("-starting"))
            assert len(opener.asked) == 1, "no: the first goes on, the form stays"
            assert "Starting" not in ui.screen_text(app)
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            await pilot.press("y")
            await until(pilot, lambda: isinstance(app.screen, SessionScreen))
            assert len(opener.asked) == 2
            await app._leave()

    sessions.run(body)
    assert len(list(home.iterdir())) == 2


@pytest.mark.slow
@pytest.mark.parametrize("opened", ["a", "b"])
def test_the_way_back_from_a_session_of_the_command_line_leads_to_it(home: Path, opened: str) -> None:
    for name in ("a", "b"):
        sessions.whole(home / name)

    async def body() -> None:
        app = ui.app(None, "replay", home / opened)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: ui.shows_tree(app))
            home_screen = app.screen_stack[-2]
            assert isinstance(home_screen, HomeScreen)
            home_screen.action_refresh()  # as behind the dialog that opens a session
            await until(pilot, lambda: home_screen.query_one(SessionTable).sessions)
            home_screen.query_one("#problems").focus()
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, HomeScreen) and isinstance(app.focused, SessionTable))
            found = app.screen.query_one(SessionTable).highlighted
            assert found is not None
            assert found.folder.name == opened

    sessions.run(body)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "titles"), [(80, True), (100, False), (160, True)])
def test_problems_have_titles_where_there_is_room_for_words(home: Path, width: int, titles: bool) -> None:
    sessions.whole(home / "a")

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(120, 40)) as pilot:
            listed = app.screen.query_one("#problems", OptionList)
            await until(pilot, lambda: listed.option_count)
            await pilot.resize_terminal(width, 40)
            await until(pilot, lambda: ("Scaled dot" in str(listed.get_option_at_index(0).prompt)) is titles)
            assert "gqa_decode_bf16" in ui.screen_text(app)

    sessions.run(body)


@pytest.mark.slow
def test_enter_before_the_problems_are_read_starts_the_default_one(home: Path) -> None:
    read, wanted = ui.FakeOpener(), threading.Event()
    listed = read.problems

    def late() -> tuple[Problem, ...]:
        wanted.wait(10)
        return listed()

    read.problems = late  # type: ignore[method-assign]

    async def body() -> None:
        app = ui.app(read)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, HomeScreen))
            assert not app.screen.query_one("#problems", OptionList).option_count
            await pilot.press("enter")
            wanted.set()
            await until(pilot, lambda: isinstance(app.screen, NewSessionForm))
            assert app.screen.query_one("#problem", Input).value == "softmax"

    sessions.run(body)


@pytest.mark.slow
def test_starting_a_session_with_models_and_a_cost_limit(home: Path) -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("n")
            await until(pilot, lambda: isinstance(app.screen, NewSessionForm))
            form = app.screen
            form.query_one("#source", Input).value = "openai:some-model=2,playbook=1"
            form.query_one("#usd", Input).value = "plenty"
            await pilot.press("ctrl+s")
            assert "plenty is not an amount in dollars" in str(form.query_one("#message").render())
            form.query_one("#usd", Input).value = "$2.50"
            await pilot.press("ctrl+s")
            await until(pilot, lambda: isinstance(app.screen, GateScreen))
            await app._leave()

    sessions.run(body)
    (folder,) = home.iterdir()
    opened = ui.recorded(folder)[0].event
    assert isinstance(opened, e.SessionOpened)
    assert (opened.settings.source, opened.settings.limits.usd) == ("openai:some-model=2,playbook=1", 2.5)


@pytest.mark.slow
def test_the_form_offers_the_strategy_and_its_prior(home: Path) -> None:
    opener = ui.FakeOpener(trouble="enough")

    async def body() -> None:
        app = ui.app(opener)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("n")
            await until(pilot, lambda: isinstance(app.screen, NewSessionForm))
            form = app.screen
            await pilot.press("ctrl+s")
            await until(pilot, lambda: "enough" in str(form.query_one("#message").render()))
            form.query_one("#strategy", Select).value = "sequential"
            form.query_one("#prior", Select).value = "none"
            await pilot.press("ctrl+s")
            await until(pilot, lambda: len(opener.asked) == 2)
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, HomeScreen))

    sessions.run(body)
    chosen = [(request.settings.strategy, request.prior) for request in opener.asked]
    assert chosen == [("adaptive", True), ("sequential", False)]


@pytest.mark.slow
def test_the_form_offers_the_workloads_and_suites_of_the_problem(home: Path, tmp_path: Path) -> None:
    opener = ui.FakeOpener(trouble="enough")
    own = tmp_path / "own.py"
    own.write_text(catalog.find("softmax").reference)

    async def body() -> None:
        app = ui.app(opener)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("n")
            await until(pilot, lambda: isinstance(app.screen, NewSessionForm))
            form, shape = app.screen, app.screen.query_one("#workload", Select)
            await until(pilot, lambda: "suite models" in dict(form._choices).values())  # type: ignore[attr-defined]
            shape.value = "suite models"
            await pilot.press("ctrl+s")
            await until(pilot, lambda: len(opener.asked) == 1)
            form.query_one("#problem", Input).focus()
            form.query_one("#problem", Input).value = str(own)
            await pilot.press("tab")
            await until(pilot, lambda: shape.value == "full")
            await pilot.press("ctrl+s")
            await until(pilot, lambda: len(opener.asked) == 2)

    sessions.run(body)
    assert [(one.settings.suite, one.settings.workload) for one in opener.asked] == [("models", "small"), ("", "full")]


@pytest.mark.slow
@pytest.mark.parametrize(("origin", "expected"), [("own.py", ("own.py", "full")), ("own\x1b[31m.py", ("softmax", "small"))])
def test_the_form_starts_with_the_path_of_a_session_s_own_problem(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: str, expected: tuple[str, str]
) -> None:
    """It started with the problem's name, which only shipped problems are found by."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / origin).write_text(catalog.find("softmax").reference)
    monkeypatch.setattr(sessions, "OPENED", replace(sessions.OPENED, problem=catalog.find(origin)))
    sessions.whole(home / "mine")

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            table, problems = app.screen.query_one("#sessions", DataTable), app.screen.query_one("#problems", OptionList)
            await until(pilot, lambda: table.row_count == 1 and problems.option_count > 0)
            table.focus()
            await pilot.press("n")
            await until(pilot, lambda: isinstance(app.screen, NewSessionForm))
            form = app.screen
            shown = lambda: (form.query_one("#problem", Input).value, form.query_one("#workload", Select).value)  # noqa: E731
            await until(pilot, lambda: shown() == expected)
            await app._leave()

    sessions.run(body)


@pytest.mark.slow
def test_errors_are_shown_in_the_form_which_keeps_its_content(home: Path) -> None:
    async def body() -> None:
        app = ui.app(ui.FakeOpener(trouble="no compiler [here]: install g++"))
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("n")
            await until(pilot, lambda: isinstance(app.screen, NewSessionForm))
            form = app.screen
            form.query_one("#rounds", Input).value = "0"
            await pilot.press("enter")
            message, field = form.query_one("#message"), form.query_one("#rounds", Input)
            assert "Rounds: enter a number from 1 to" in str(message.render())
            await until(pilot, lambda: app.focused is field and message.region.y == field.region.bottom)
            form.query_one("#rounds", Input).value = "7"
            proposer = form.query_one("#source", Input)
            proposer.value = "nobody"
            await pilot.press("ctrl+s")
            await until(pilot, lambda: app.focused is proposer and message.region.y == proposer.region.bottom)
            assert "unknown proposer 'nobody'" in str(message.render())
            proposer.value = "playbook"
            await pilot.press("ctrl+s")
            await until(pilot, lambda: "no compiler [here]" in str(form.query_one("#message").render()))
            assert form.query_one("#rounds", Input).value == "7"
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, HomeScreen))

    sessions.run(body)
    assert not home.exists()


@pytest.mark.parametrize(
    "size", [pytest.param((80, 24), marks=pytest.mark.slow), pytest.param((40, 12), marks=pytest.mark.slow), (20, 5)]
)
def test_a_long_name_is_clipped_and_its_session_can_be_opened(home: Path, size: tuple[int, int]) -> None:
    sessions.whole(home / ("long-" * 18))

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.screen.query_one(DataTable).row_count == 1 and app.focused is not None)
            table = app.screen.query_one(DataTable)
            await until(pilot, lambda: table.get_row_at(0)[0].plain.startswith("long"))
            assert table.get_row_at(0)[0].plain.endswith("…")
            await pilot.resize_terminal(20, 5)
            await pilot.pause(0.1)
            assert table.row_count == len(table.columns) == 1
            await pilot.press("r")
            await until(pilot, lambda: isinstance(app.screen, SessionScreen))

    sessions.run(body)


@pytest.mark.slow
def test_a_long_name_leaves_room_for_the_incumbent(home: Path) -> None:
    sessions.whole(home / ("long-" * 18))

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: app.screen.query_one(DataTable).row_count == 1)
            assert {"session", "incumbent"} <= {str(key.value) for key in app.screen.query_one(DataTable).columns}

    sessions.run(body)


@pytest.mark.slow
def test_deleting_asks_first(home: Path) -> None:
    sessions.whole(home / "old")

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: app.screen.query_one(DataTable).row_count == 1 and app.focused is not None)
            await pilot.press("delete")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, HomeScreen))
            assert store.is_session(home / "old")
            await pilot.press("delete")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            await pilot.press("y")
            await until(pilot, lambda: not store.is_session(home / "old"))

    sessions.run(body)


@pytest.mark.slow
def test_replay_starts_at_the_end_and_takes_no_commands(home: Path) -> None:
    sessions.whole(home / "old")
    before = (home / "old" / "journal.jsonl").read_bytes()

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: app.screen.query_one(DataTable).row_count == 1)
            await pilot.press("r")
            await until(pilot, lambda: ui.shows_tree(app))
            await pilot.press("p", "x", "N", "s", "M")
            await pilot.pause(0.1)
            assert isinstance(app.screen, SessionScreen), "an unavailable action must not open a dialog"
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, HomeScreen))

    sessions.run(body)
    assert (home / "old" / "journal.jsonl").read_bytes() == before


@pytest.mark.slow
def test_the_transport(home: Path) -> None:
    sessions.whole(home / "old")

    async def body() -> None:
        app = ui.app(None, "replay", home / "old")
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: ui.shows_tree(app))
            screen = app.screen
            assert isinstance(screen, SessionScreen)
            transport = screen.bridge.transport
            assert transport is not None
            end = transport.position
            await pilot.press("comma")
            assert transport.position == end - 1
            await pilot.press("full_stop")
            assert transport.position == end
            await pilot.press("left_square_bracket")
            assert isinstance(transport.entries[transport.position - 1].event, e.RoundOpened)
            await pilot.press("left_parenthesis")
            await until(pilot, lambda: screen.state is transport.state)
            assert len(screen.query_one(KernelTree).visible_kernels) < 10, "the tree must show the earlier state"
            await pilot.press("plus", "plus")
            assert transport.speed == 4.0
            await pilot.press(*["minus"] * 8)
            await pilot.press("space")
            assert transport.playing
            await pilot.press("space")
            assert not transport.playing

    sessions.run(body)


@pytest.mark.slow
def test_forking_from_a_point_of_a_replay(home: Path) -> None:
    sessions.whole(home / "old")
    before = (home / "old" / "journal.jsonl").read_bytes()

    async def body() -> None:
        app = ui.app(None, "replay", home / "old")
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: ui.shows_tree(app))
            await pilot.press("left_square_bracket", "left_square_bracket")
            await pilot.press("F")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            assert "Not in the fork: 1 round" in str(app.screen.query("Static").first().render())
            await pilot.press("y")
            await until(pilot, lambda: any(ui.ended(one) for one in home.iterdir() if one.name != "old"))
            await app._leave()

    sessions.run(body)
    (fork,) = (one for one in home.iterdir() if one.name != "old")
    first = ui.recorded(fork)[0].event
    assert isinstance(first, e.SessionOpened)
    assert first.forked_from.startswith("old after ")
    assert sessions.tree(store.state_of(fork))["kernels"] == sessions.tree(store.state_of(home / "old"))["kernels"]
    assert (home / "old" / "journal.jsonl").read_bytes() == before


@pytest.mark.slow
def test_opening_a_session_that_another_process_runs_steers_it_there(home: Path) -> None:
    """Its ideas open the gate here, and the decision is answered by the process that runs it."""

    async def body() -> None:
        app = ui.app(None, "open", SavedSession(home / "held", mode="autopilot", fresh=True))
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, GateScreen))
            told = [str(one.message) for one in app._notifications]
            assert any(words.endswith("from here; --mode and --fresh-baselines have no effect") for words in told), told
            bridge = app.screen.bridge
            assert not bridge.runs_here
            await pilot.pause(1.0)  # a key that was pressed before the gate opened approves nothing
            await pilot.press("A")
            await until(pilot, lambda: bridge.state.ideas["i2"].status is IdeaStatus.SELECTED)
            await app._leave()

    with held(home / "held"):
        sessions.run(body)
    answers = [entry for entry in read(home / "held").entries if isinstance(entry.event, e.CommandAnswered)]
    assert answers
    assert all(entry.by.name == "engineer" and entry.event.accepted for entry in answers)


@pytest.mark.slow
def test_following_reads_only(home: Path) -> None:
    sessions.whole(home / "old")

    async def body() -> None:
        app = ui.app(None, "follow", home / "old")
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: ui.shows_tree(app))
            assert not app.screen.check_action("pin", ())
            await pilot.press("p")
            await app._leave()

    before = len(ui.recorded(home / "old"))
    sessions.run(body)
    assert len(ui.recorded(home / "old")) == before


@pytest.mark.slow
def test_quitting_names_running_work_and_the_session_resumes(home: Path) -> None:
    opener = ui.FakeOpener(pause=5.0)

    async def leave() -> None:
        app = ui.app(opener, "new", ui.new(home / "s"))
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, SessionScreen) and app.screen.bridge.in_hand)
            await pilot.press("ctrl+q")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            assert "preparing the session" in str(app.screen.query("Static").first().render())
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, SessionScreen))
            await pilot.press("ctrl+q")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            await pilot.press("y")
            await asyncio.sleep(0.2)
        assert app.return_code == 0

    async def come_back() -> None:
        app = ui.app(None, "open", SavedSession(home / "s"))
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, GateScreen))
            await app._leave()

    sessions.run(leave)
    assert store.state_of(home / "s").closed is None
    sessions.run(come_back)
    assert len(store.state_of(home / "s").ideas) == 3


@pytest.mark.slow
def test_the_search_continues_while_home_is_shown(home: Path) -> None:
    async def body() -> None:
        app = ui.app(ui.FakeOpener(pause=0.05), "new", ui.new(home / "s", "autopilot"))
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, SessionScreen))
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, HomeScreen))
            await until(pilot, lambda: ui.ended(home / "s"))
            await app._leave()

    sessions.run(body)
    assert len(store.state_of(home / "s").kernels) == 10


def test_home_lists_the_session_that_is_searched_in_a_folder_of_its_own(home: Path, tmp_path: Path) -> None:
    async def body() -> None:
        app = ui.app(ui.FakeOpener(), "new", ui.new(tmp_path / "elsewhere", "ask"))
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, GateScreen))
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, SessionScreen))
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, HomeScreen) and isinstance(app.focused, SessionTable))
            assert "● 2 to approve" in ui.screen_text(app)
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, SessionScreen | GateScreen))
            await app._leave()

    sessions.run(body)


def test_home_follows_the_session_that_is_searched(home: Path) -> None:
    async def body() -> None:
        app = ui.app(ui.FakeOpener(pause=0.5), "new", ui.new(home / "s", "ask"))
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, GateScreen))
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, SessionScreen))
            await pilot.press("escape")
            await until(pilot, lambda: "2 ideas await approval" in ui.screen_text(app))
            assert app._search is not None
            waiting = tuple(idea.id for idea in queries.pending_ideas(app._search.state))
            await app._search.submit(c.SelectIdeas(waiting))
            await until(pilot, lambda: "● running" in ui.screen_text(app))
            assert "running in this terminal · " in ui.screen_text(app)
            await app._search.submit(c.EndSession("enough"))
            await until(pilot, lambda: "enough · " in ui.screen_text(app))
            assert "● running" not in ui.screen_text(app)
            await app._leave()

    sessions.run(body)


@pytest.mark.slow
def test_user_defined_keys(home: Path, tmp_path: Path) -> None:
    sessions.whole(home / "old")
    keymap = tmp_path / "keymap.toml"
    keymap.write_text('"home.replay" = "f7"\n"session.again" = "f8"\n[app]\nhelp = "f9"\n')

    async def body() -> None:
        app = ui.app(keymap=keymap)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: app.screen.query_one(DataTable).row_count == 1)
            unknown = f"{keymap}: unknown action 'session.again': did you mean 'session.remeasure'?"
            assert any(n.message == unknown for n in app._notifications)
            await pilot.press("f9")
            await until(pilot, lambda: isinstance(app.screen, HelpScreen))
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, HomeScreen))
            await pilot.press("f7")
            await until(pilot, lambda: isinstance(app.screen, SessionScreen))

    sessions.run(body)


@pytest.mark.slow
def test_the_palette_finds_actions_and_kernels(home: Path) -> None:
    sessions.whole(home / "old")

    async def body() -> None:
        app = ui.app(None, "replay", home / "old")
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: ui.shows_tree(app))
            await pilot.press("ctrl+p")
            await until(pilot, lambda: isinstance(app.screen, CommandPalette))
            await pilot.press("k", "3", "space", "I")
            await until(pilot, lambda: app.screen.query_one(OptionList).option_count > 0)
            await pilot.press("down", "enter")
            await until(pilot, lambda: ui.shows_tree(app) and app.screen.query_one(KernelTree).selected == "k3")

    sessions.run(body)


@pytest.mark.slow
def test_a_search_that_begins_after_the_palette_closed_ends_nothing(home: Path) -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, HomeScreen))
            await pilot.press("ctrl+p")
            await until(pilot, lambda: app.screen.query(CommandList))
            palette = app.screen
            assert isinstance(palette, Palette)
            await palette.query_one(CommandList).remove()  # as closing it does
            await palette._gather_commands("x").wait()
            palette._start_no_matches_countdown("x")
            timer = palette._no_matches_timer
            assert timer is not None
            assert timer._callback is not None
            timer._callback()
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, HomeScreen))

    sessions.run(body)


@pytest.mark.slow
def test_a_bouncing_enter_in_the_palette_acts_once(home: Path) -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, HomeScreen))
            await pilot.press("ctrl+p", *"settings")
            await until(pilot, lambda: app.screen.query_one(CommandList).option_count == 1)
            await pilot.press("down")
            listed = app.screen.query_one(CommandList)
            for _ in range(3):
                listed.post_message(OptionList.OptionSelected(listed, listed.get_option_at_index(0), 0))
            await until(pilot, lambda: isinstance(app.screen, SettingsForm))
            await pilot.pause()
            assert len(app.screen_stack) == 3

    sessions.run(body)


@pytest.mark.slow
def test_the_palette_opens_again_while_it_closes(home: Path) -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, HomeScreen))
            for _ in range(3):
                app.action_command_palette()
                await until(pilot, lambda: app.screen.query(CommandList))
                app.screen.dismiss()
                app.action_command_palette()
            await until(pilot, lambda: isinstance(app.screen, Palette))

    sessions.run(body)


@pytest.mark.slow
def test_help_is_available_on_every_screen(home: Path) -> None:
    async def body() -> None:
        app = ui.app(None, "new", ui.new(home / "s"))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, GateScreen))
            for back in (GateScreen, SessionScreen, HomeScreen):
                await until(pilot, lambda back=back: isinstance(app.screen, back))
                await pilot.press("question_mark")
                await until(pilot, lambda: isinstance(app.screen, HelpScreen))
                await pilot.press("escape")
                await until(pilot, lambda back=back: isinstance(app.screen, back))
                await pilot.press("escape")
            await app._leave()

    sessions.run(body)


@pytest.mark.slow
def test_f2_goes_through_the_themes(home: Path) -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            seen = [app.theme]
            for _ in range(3):
                await pilot.press("f2")
                seen.append(app.theme)
            assert seen == [theme.DARK, theme.LIGHT, theme.CONTRAST, theme.DARK]

    sessions.run(body)


@pytest.mark.slow
def test_a_session_is_shown_beside_the_others_of_its_problem(home: Path) -> None:
    sessions.whole(home / "mine")
    sessions.whole(home / "other")
    sessions.whole(home / "elsewhere", workload="large")

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: app.screen.query_one("#sessions", DataTable).row_count == 3)
            table = app.screen.query_one("#sessions", DataTable)
            names = [key.value.rpartition("/")[2] for key in table.rows]
            table.move_cursor(row=names.index("mine"))
            await pilot.press("v")
            await until(pilot, lambda: isinstance(app.screen, SideBySideScreen))
            text = "\n".join(line.text for line in app.screen.query_one(LinesView).lines)
            assert "best so far by verdicts" in text
            assert "ideas that won in other" in text
            assert "elsewhere" not in text, "another workload"
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, HomeScreen))
            table.move_cursor(row=names.index("elsewhere"))
            await pilot.press("v")
            await until(pilot, lambda: any("no other session" in note.message for note in app._notifications))
            await app._leave()

    sessions.run(body)


@pytest.mark.slow
def test_the_highlighted_problem_is_in_sight_beside_its_preview(home: Path) -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            listed = app.screen.query_one("#problems", OptionList)
            await until(pilot, lambda: listed.option_count and app.screen.query("Preview"))
            await until(pilot, lambda: listed.scroll_y > 0)
            line = listed.highlighted - listed.scroll_y
            assert 0 <= line < listed.scrollable_content_region.height

    sessions.run(body)


def test_sessions_that_cannot_be_listed_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path / "file"))

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            await until(
                pilot, lambda: any("cannot be read (Not a directory)" in str(one.message) for one in app._notifications)
            )

    sessions.run(body)
