"""Bell, desktop notice and terminal title: what is sent, when, and to which terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support import sessions, ui
from support.ui import until

from engine.domain.folds import advance
from engine.domain.state import SessionState
from engine.journal import store
from tui.notices import LOOKING_SECONDS, Notices
from tui.preferences import Desktop, Preferences, ThemeChoice, read_preferences, write_preferences
from tui.screens.gate import GateScreen
from tui.screens.settings_form import SettingsForm
from tui.session_watch import SessionWatch
from tui.viewmodel.notices import NoticeFacts, notice, notice_facts, title


class Terminal:
    """Collects what is written to it; its clock is moved by hand."""

    def __init__(self, preferences: Preferences | None = None, **environment: str) -> None:
        self.written: list[str] = []
        self.now = 0.0
        self.notices = Notices(
            self.written.append, {"TERM": "xterm-256color", **environment}, lambda: self.now, preferences or Preferences()
        )
        self.now = 100.0


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "\x1b]9;Espalier: s: text\x1b\\"),
        ({"TERM": "foot"}, "\x1b]777;notify;Espalier: s;text\x1b\\"),
        ({"VTE_VERSION": "7600"}, "\x1b]777;notify;Espalier: s;text\x1b\\"),
        ({"TMUX": "/tmp/tmux,1,0"}, "\x1bPtmux;\x1b\x1b]9;Espalier: s: text\x1b\x1b\\\x1b\\"),
        ({"TERM": "linux"}, None),
    ],
)
def test_the_notice_suits_the_terminal(environment: Mapping[str, str], expected: str | None) -> None:
    terminal = Terminal(**environment)
    terminal.notices.send("s", "text")
    assert terminal.written == ["\a", *([expected] if expected else [])]


@pytest.mark.parametrize(
    ("preferences", "expected"),
    [
        (Preferences(bell=False), ["\x1b]9;Espalier: s: text\x1b\\"]),
        (Preferences(desktop=Desktop.OFF), ["\a"]),
        (Preferences(desktop=Desktop.OSC777, bell=False), ["\x1b]777;notify;Espalier: s;text\x1b\\"]),
        (Preferences(bell=False, desktop=Desktop.OFF), []),
    ],
)
def test_each_can_be_turned_off(preferences: Preferences, expected: list[str]) -> None:
    terminal = Terminal(preferences)
    terminal.notices.send("s", "text")
    assert terminal.written == expected
    assert Terminal(replace(preferences, title=False)).notices.set_title("text") is None


def test_a_terminal_that_is_looked_at_is_left_alone() -> None:
    terminal = Terminal(Preferences(bell=False))
    terminal.notices.set_focus(True)
    terminal.now += 1e6
    terminal.notices.send("s", "focused")
    terminal.notices.set_focus(False)
    terminal.notices.key_pressed()
    terminal.notices.send("s", "away")
    assert [text for text in terminal.written if "focused" in text] == []
    assert len(terminal.written) == 1


def test_without_reports_of_focus_a_key_counts_for_a_while() -> None:
    terminal = Terminal()
    terminal.notices.key_pressed()
    terminal.notices.send("s", "text")
    assert terminal.written == []
    terminal.now += LOOKING_SECONDS
    terminal.notices.send("s", "text")
    assert terminal.written[0] == "\a"


def test_the_title_is_written_when_it_changes_and_given_back() -> None:
    terminal = Terminal()
    for text in ("one", "one", "two"):
        terminal.notices.set_title(text)
    terminal.notices.restore_title()
    terminal.notices.restore_title()
    assert terminal.written == ["\x1b[22;2t\x1b]2;one\x1b\\", "\x1b]2;two\x1b\\", "\x1b]2;\x1b\\\x1b[23;2t"]


@pytest.mark.parametrize("hostile", ["a\x1b[2Jb", "a\x07b", "a\x9cb", "a\nb"])
def test_nothing_that_a_terminal_obeys_gets_into_a_sequence(hostile: str) -> None:
    terminal = Terminal(Preferences(bell=False))
    terminal.notices.send(hostile, hostile)
    terminal.notices.set_title(hostile)
    for text in terminal.written:
        inner = text.removeprefix("\x1b[22;2t").removeprefix("\x1b]").removesuffix("\x1b\\")
        assert inner.isprintable()


def test_what_is_worth_a_notice(tmp_path: Path) -> None:
    begun = notice_facts(SessionState(), {})
    waits, better = replace(begun, waiting="2 ideas await approval"), replace(begun, incumbent="k7", best="1.5× eager")
    assert notice(begun, begun) == ""
    assert notice(begun, waits) == "2 ideas await approval"
    assert notice(waits, begun) == ""
    assert notice(begun, better) == "", "the first incumbent is the naive port"
    assert "k9" in notice(better, replace(better, incumbent="k9"))
    assert title("s", replace(better, waiting="")) == "s · preparing · ★ 1.5× eager"
    sessions.whole(tmp_path / "s")
    ended = ui.recorded(tmp_path / "s")
    assert notice_facts(advance(SessionState(), ended), {}).waiting.startswith("ended: ")


def test_following_a_session_that_waits_is_no_news(tmp_path: Path) -> None:
    sessions.whole(tmp_path / "s")
    state = store.state_of(tmp_path / "s")
    terminal = Terminal(Preferences(bell=False))
    SessionWatch("s", terminal.notices, is_new=False).update(state, {})
    assert [text for text in terminal.written if "]9;" in text] == []
    assert any("ended" in text for text in terminal.written), "the title says so"


@pytest.mark.slow
def test_the_app_tells_that_ideas_await_approval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("TMUX", "VTE_VERSION"):
        monkeypatch.delenv(name, raising=False)
    sent: list[str] = []

    async def body() -> None:
        app = ui.app(None, "new", ui.new(tmp_path / "s"), keymap=tmp_path / "keys.toml")
        async with app.run_test(size=(80, 24)) as pilot:
            assert app._driver is not None
            monkeypatch.setattr(app._driver, "write", sent.append)
            app.notices.set_focus(False)
            await until(pilot, lambda: isinstance(app.screen, GateScreen))
            await until(pilot, lambda: any("await approval" in text and "]9;" in text for text in sent))
            await until(pilot, lambda: any("]2;" in text and "await approval" in text for text in sent))
            await pilot.press("f3")
            await until(pilot, lambda: isinstance(app.screen, SettingsForm))
            app.screen.query_one("#bell").toggle()  # type: ignore[attr-defined]
            app.screen.query_one("#theme").value = ThemeChoice.CONTRAST  # type: ignore[attr-defined]
            await pilot.press("ctrl+s")
            await until(pilot, lambda: isinstance(app.screen, GateScreen) and (tmp_path / "screen.toml").exists())
            assert app.theme == "espalier-contrast"
            await app._leave()

    sessions.run(body)
    assert "\a" in sent
    kept, wrong = read_preferences(tmp_path / "screen.toml")
    assert (kept, wrong) == (Preferences(bell=False, theme=ThemeChoice.CONTRAST), ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('bell = "no"', "bell must be true or false"),
        ('theme = "pink"', "theme must be auto or dark or light or contrast"),
        ("colour = true", "unknown setting 'colour'"),
        ("bell", "cannot be read"),
    ],
)
def test_a_wrong_setting_is_told_and_the_default_applies(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "screen.toml"
    file.write_text(text)
    found, (wrong,) = read_preferences(file)
    assert words in wrong
    assert found == Preferences()


def test_settings_are_read_as_they_were_written(tmp_path: Path) -> None:
    chosen = Preferences(ThemeChoice.LIGHT, False, Desktop.OSC777, False)
    write_preferences(tmp_path / "config" / "screen.toml", chosen)
    assert read_preferences(tmp_path / "config" / "screen.toml") == (chosen, ())
    assert NoticeFacts().waiting == ""
