"""What arrives in one burst acts in order: a text that follows the key of a dialog goes into the dialog."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar

import pytest
from support import sessions, ui
from support.program import ROOT
from support.ui import Watch, engineer_events, until
from textual import events, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static, TextArea

from engine.domain import events as e
from tui import key_queue
from tui.app import EspalierApp
from tui.screens.dialogs import AskLine
from tui.screens.home import HomeScreen
from tui.screens.new_session import NewSessionForm

NAMED = {
    "\r": ("enter", "\r"),
    "\x1b": ("escape", None),
    "\x11": ("ctrl+q", None),
    "\x03": ("ctrl+c", None),
    "\\": ("backslash", "\\"),
    "\t": ("tab", "\t"),
}


def burst(app: EspalierApp, *sent: str | events.Event) -> None:
    """Post the keys of these texts, and these events, without a pause, as a driver does."""
    for one in sent:
        if isinstance(one, str):
            for character in one:
                app.post_message(events.Key(*NAMED.get(character, (character, character))))
        else:
            app.post_message(one)


class Taker(Static, can_focus=True):
    """Stops ``x``; removes itself at ``z``."""

    async def on_key(self, event: events.Key) -> None:
        screen = self.screen
        assert isinstance(screen, Behind)
        if event.key == "x":
            await asyncio.sleep(0.01)
            screen.seen.append("taken")
            event.stop()
        elif event.key == "z":
            event.stop()
            self.remove()


class Behind(Screen[None]):
    """Notes its keys, and asks in several ways."""

    BINDINGS: ClassVar[list[BindingType]] = [("n", "now", ""), ("s", "soon", ""), ("t", "twice", "")]
    AUTO_FOCUS = "Taker"

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.answers: list[str | None] = []
        self.read = asyncio.Event()

    def compose(self) -> ComposeResult:
        yield Taker("here")
        yield OptionList("one")

    def on_key(self, event: events.Key) -> None:
        self.seen.append(event.key)

    def action_now(self) -> None:
        self.app.push_screen(AskLine("Now", "", empty=True), self.answers.append)

    @work
    async def action_soon(self) -> None:
        await self.read.wait()
        self.answers.append(await self.app.push_screen_wait(AskLine("Soon", "", empty=True)))

    @work
    async def action_twice(self) -> None:
        for title in ("First", "Second"):
            await asyncio.sleep(0.01)
            self.answers.append(await self.app.push_screen_wait(AskLine(title, "", empty=True)))

    def on_option_list_option_selected(self) -> None:
        self.action_now()


Act = Callable[[EspalierApp, Pilot[None], Behind], Awaitable[None]]


def run(act: Act) -> None:
    async def body() -> None:
        app, screen = ui.app(), Behind()
        async with app.run_test(size=(80, 24)) as pilot:
            await app.push_screen(screen)
            await until(pilot, lambda: app.focused is not None)
            await act(app, pilot, screen)

    sessions.run(body)


@pytest.mark.parametrize("opens", ["n", "s"])
def test_a_text_after_the_key_of_a_dialog_goes_into_it_and_the_next_key_to_the_screen(opens: str) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], screen: Behind) -> None:
        asyncio.get_running_loop().call_later(0.05, screen.read.set)
        burst(app, f"{opens}/tmp/snx\rq{opens}second\ra")
        await until(pilot, lambda: len(screen.answers) == 2 and screen.seen[-1:] == ["a"])
        assert screen.answers == ["/tmp/snx", "second"]
        assert screen.seen == [opens, "q", opens, "a"]

    run(act)


def test_a_worker_that_asks_twice_gets_both_texts() -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], screen: Behind) -> None:
        burst(app, "tone\rtwo\ra")
        await until(pilot, lambda: screen.seen[-1:] == ["a"])
        assert (screen.answers, screen.seen) == (["one", "two"], ["t", "a"])

    run(act)


def test_a_widget_may_ask_by_a_message() -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], screen: Behind) -> None:
        screen.query_one(OptionList).focus()
        await until(pilot, lambda: isinstance(app.focused, OptionList))
        burst(app, "\rtext\ra")
        await until(pilot, lambda: screen.seen[-1:] == ["a"])
        assert (screen.answers, screen.seen) == (["text"], ["enter", "a"])

    run(act)


def test_keys_go_on_when_a_worker_is_slow_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_queue, "MOST_SECONDS", 0.05)

    async def act(app: EspalierApp, pilot: Pilot[None], screen: Behind) -> None:
        burst(app, "sabcd")
        await until(pilot, lambda: screen.seen == [*"sabcd"])
        screen.read.set()
        await until(pilot, lambda: isinstance(app.screen, AskLine))
        burst(app, "late\rf")
        await until(pilot, lambda: screen.seen[-1] == "f")
        assert (screen.answers, screen.seen) == (["late"], [*"sabcdf"])

    run(act)


def test_a_key_that_a_widget_stops_does_not_hold_back_the_next() -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], screen: Behind) -> None:
        burst(app, "axbxc")
        await until(pilot, lambda: screen.seen[-1:] == ["c"])
        assert screen.seen == ["a", "taken", "b", "taken", "c"]

    run(act)


def test_a_widget_that_goes_with_its_key_does_not_hold_back_the_next() -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], screen: Behind) -> None:
        burst(app, "azbzzc")
        await until(pilot, lambda: screen.seen[-1:] == ["c"])
        assert screen.seen == ["a", "b", "z", "z", "c"]
        assert not screen.query(Taker)

    run(act)


def test_a_paste_and_a_click_keep_their_place_among_the_keys() -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], screen: Behind) -> None:
        screen.read.set()
        where = screen.query_one(OptionList).region
        mouse = (where.x + 3, where.y + 1, 0, 0, 1, False, False, False)
        click = [event(None, *mouse) for event in (events.MouseDown, events.MouseUp)]
        burst(app, "sone ", events.Paste("two\nthree"), "!\r", *click, "four\ra")
        await until(pilot, lambda: screen.seen[-1:] == ["a"])
        assert (screen.answers, screen.seen) == (["one two three!", "four"], ["s", "a"])

    run(act)


def test_what_is_typed_into_a_field_waits_for_nothing() -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], screen: Behind) -> None:
        burst(app, "n")
        await until(pilot, lambda: isinstance(app.focused, Input) and app._keys._follower is None)
        for event in (events.Key("a", "a"), events.Key("space", " "), events.Paste("b")):
            assert not app._keys.keeps(event)
            assert app._keys._follower is None
        assert not app._keys.keeps(events.Key("enter", "\r"))
        assert app._keys.keeps(events.Key("a", "a"))

    run(act)


def test_a_text_that_can_only_be_read_takes_no_key() -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], screen: Behind) -> None:
        await screen.mount(text := TextArea(read_only=True))
        text.focus()
        await until(pilot, lambda: app.focused is text)
        burst(app, "nwords\r")
        await until(pilot, lambda: screen.answers == ["words"])

    run(act)


def test_keys_wait_longer_while_modules_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_queue, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(key_queue, "is_loading", lambda: True)

    async def act(app: EspalierApp, pilot: Pilot[None], screen: Behind) -> None:
        asyncio.get_running_loop().call_later(0.2, screen.read.set)
        burst(app, "swords\r")
        await until(pilot, lambda: screen.answers == ["words"])

    run(act)


def test_moves_of_the_mouse_that_wait_become_one() -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], screen: Behind) -> None:
        moves = [events.MouseMove(None, x, 0, 1, 0, 0, False, False, False) for x in range(5)]
        assert not app._keys.keeps(events.Key("a", "a"))
        assert all(app._keys.keeps(move) for move in moves)
        assert list(app._keys._waiting) == moves[-1:]

    run(act)


@pytest.mark.parametrize("sent", ["\x11", "aj\x11", "x\x11", "z\x11", "n\x11", "\x03\x11", "nwords\x11y"])
def test_the_program_can_be_quit_in_a_burst(sent: str) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], screen: Behind) -> None:
        burst(app, sent)
        await until(pilot, lambda: app._exit)

    run(act)


def test_the_program_can_be_quit_while_a_worker_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_queue, "MOST_SECONDS", 0.05)

    async def act(app: EspalierApp, pilot: Pilot[None], screen: Behind) -> None:
        burst(app, "sab\x11cd")
        await until(pilot, lambda: app._exit)

    run(act)


def test_a_burst_ends_with_the_screen_that_it_was_for() -> None:
    """What was typed after the key that quits is dropped."""

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, HomeScreen) and app.screen.check_action("start", ()))
            burst(app, "\x11" + "njkq" * 20)
            await until(pilot, lambda: app._exit)

    sessions.run(body)


@pytest.mark.parametrize("pasted", [False, True])
def test_a_text_that_follows_the_key_of_a_new_session_replaces_its_problem(
    pasted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The button Start had the focus: the text was lost, and Enter after it started a search of the highlighted problem."""
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    path = "/tmp/some other/path.py"

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(120, 36)) as pilot:
            await until(pilot, lambda: app.screen.query_one("#problems", OptionList).option_count > 2)
            burst(app, "n", events.Paste(path) if pasted else path)
            await until(pilot, lambda: isinstance(app.screen, NewSessionForm) and isinstance(app.focused, Input))
            await until(
                pilot, lambda: isinstance(app.focused, Input) and app.focused.id == "problem" and app.focused.value == path
            )

    sessions.run(body)


@pytest.mark.parametrize("opens", ["n", "\r"])
def test_a_path_typed_with_the_key_of_a_new_session_is_its_problem(
    opens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(120, 36)) as pilot:
            await until(pilot, lambda: app.screen.query_one("#problems", OptionList).option_count > 2)
            burst(app, f"{opens}\t/tmp/some/path")
            await until(pilot, lambda: isinstance(app.screen, NewSessionForm) and isinstance(app.focused, Input))
            await until(pilot, lambda: isinstance(app.focused, Input) and app.focused.value.endswith("/tmp/some/path"))

    sessions.run(body)


def test_a_reason_typed_with_its_key_is_recorded(tmp_path: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        burst(app, "rwait for jq\r")
        await until(pilot, lambda: engineer_events(tmp_path / "s"))

    ui.run_steered(tmp_path / "s", act)
    assert engineer_events(tmp_path / "s") == [e.IdeaRejected("i2", "wait for jq")]


def test_keys_that_press_another_key_act_before_those_that_follow(tmp_path: Path) -> None:
    """``j`` presses the arrow, and the panel the key that was chosen in it."""

    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        burst(app, "j\\kjd")
        await until(pilot, lambda: engineer_events(tmp_path / "s"))

    ui.run_steered(tmp_path / "s", act)
    assert engineer_events(tmp_path / "s") == [e.IdeaParked("i3")]


def test_a_key_that_is_held_is_not_held_back(tmp_path: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        assert not any(app._keys.keeps(events.Key("j", "j")) for _ in range(9))
        assert [app._keys.keeps(events.Key(key, key)) for key in "dj"] == [True, True]
        await until(pilot, lambda: engineer_events(tmp_path / "s"))
        await until(pilot, lambda: app._keys._follower is None)
        assert [app._keys.keeps(events.Key("d", "d")) for _ in range(2)] == [False, True], "it decides"

    ui.run_steered(tmp_path / "s", act)


def test_every_worker_that_shows_a_screen_is_waited_for() -> None:
    groups = {}
    for file in sorted((ROOT / "tui").rglob("*.py")):
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(function, ast.AsyncFunctionDef) and "push_screen" in ast.unparse(function):
                for decorator in function.decorator_list:
                    if (text := ast.unparse(decorator)).startswith("work"):
                        groups[f"{file.stem}.{function.name}"] = (re.findall(r"group='(.*?)'", text) or ["default"])[0]
    assert len(groups) > 20
    assert set(groups.values()) <= key_queue.ASKING_GROUPS
