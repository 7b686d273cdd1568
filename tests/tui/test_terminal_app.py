"""Toasts do not pile up; F12 needs neither a folder of downloads nor a screen without dialogs; NO_COLOR sends no colour."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest
from support import sessions, ui
from support.ui import until
from textual.events import Key
from textual.filter import Monochrome
from textual.screen import Screen
from textual.widgets import OptionList

from tui import terminal_app, theme
from tui.screens.dialogs import Confirm


@pytest.mark.slow
def test_the_latest_three_toasts_stay_and_repeated_words_replace_theirs() -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            for words in ("a", "b", "b", "c", "d", "b"):
                app.notify(words)
            await pilot.pause()
            assert [one.message for one in app._notifications] == ["c", "d", "b"]

    sessions.run(body)


@pytest.mark.slow
@pytest.mark.parametrize("dialog", [False, True])
def test_a_screenshot_needs_no_folder_of_downloads(dialog: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_downloads_path", lambda: tmp_path / "none")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def saved() -> Iterator[Path]:
        return (tmp_path / "here").glob("*.svg")

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            if dialog:
                app.push_screen(Confirm("Delete the session?", "It cannot be undone.", "Delete"))
                await until(pilot, lambda: isinstance(app.screen, Confirm))
            await pilot.press("f12")
            await until(pilot, lambda: any(file.read_text().endswith("</svg>\n") for file in saved()))

    sessions.run(body)
    (file,) = saved()
    assert ("undone" in file.read_text()) is dialog


def test_a_screenshot_goes_where_it_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_downloads_path", lambda: tmp_path)
    assert terminal_app.screenshot_folder() == tmp_path
    monkeypatch.setattr(terminal_app.os, "access", lambda *_: False)
    assert terminal_app.screenshot_folder().is_dir()


@pytest.mark.slow
def test_without_colour_the_cursor_is_inverse_and_no_colour_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    sessions.whole(tmp_path / "s")

    async def body() -> None:
        app = ui.app(None, "replay", tmp_path / "s")
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: ui.shows_tree(app))
            await ui.still(pilot)
            assert app.theme == theme.COLOURLESS
            assert not any(isinstance(one, Monochrome) for one in app.get_line_filters())
            drawn = app.screen._compositor.render_update(full=True)
            text = "".join(segment.style.render(segment.text) for segment in app.console.render(drawn) if segment.style)
            codes = set(re.findall(r"\x1b\[([0-9;]*)m", text))
            assert not any(part in ("38", "48") for code in codes for part in code.split(";"))
            assert any("7" in code.split(";") for code in codes), "the cursor"

    sessions.run(body)


@pytest.mark.slow
def test_a_key_without_a_screen_is_ignored() -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            kept, app._screen_stack[:] = list(app._screen_stack), []
            await app.on_event(Key("a", "a"))
            app._screen_stack[:] = kept

    sessions.run(body)


@pytest.mark.slow
def test_the_loop_turns_between_keys_of_a_burst() -> None:
    """Two keys that take long would keep the screen from being drawn together."""
    turns = 0
    handled: list[int] = []

    class Noting(Screen[None]):
        def on_key(self) -> None:
            handled.append(turns)

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def body() -> None:
        app = ui.app()
        async with app.run_test() as pilot:
            await app.push_screen(Noting())
            counting = asyncio.create_task(count())
            for key in "xyz":
                app.post_message(Key(key, key))
            await until(pilot, lambda: len(handled) == 3)
            counting.cancel()

    sessions.run(body)
    assert handled == sorted(set(handled))


@pytest.mark.slow
def test_a_hidden_screen_has_the_styles_of_the_new_theme_when_it_is_seen_again() -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            home, over = app.screen, Screen[None]()
            await app.push_screen(over)
            await app.push_screen(Confirm("Delete?", "", "Delete"))
            dark = home.styles.background
            app.theme = theme.LIGHT
            await pilot.pause()
            light = over.styles.background
            assert light != dark, "seen through the dialog"
            assert home.styles.background == dark
            await app.pop_screen()
            assert home.styles.background == dark, "still hidden"
            await app.pop_screen()
            styled = [one.styles.background for one in home.walk_children(with_self=True)]
            assert styled[0] == light
            app.stylesheet.update(home)
            assert [one.styles.background for one in home.walk_children(with_self=True)] == styled

    sessions.run(body)


@pytest.mark.parametrize("asked", ["", "full"])
def test_nothing_glides_unless_the_user_asks_for_it(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("textual.constants.TEXTUAL_ANIMATIONS", "full")
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", asked) if asked else monkeypatch.delenv("TEXTUAL_ANIMATIONS", raising=False)
    assert ui.app().animation_level == (asked or "none")


@pytest.mark.slow
def test_without_colours_the_highlighted_choice_is_underlined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            listed = app.screen.query_one("#problems", OptionList)
            await until(pilot, lambda: listed.option_count > 2)
            rows = [listed.render_line(number) for number in range(listed.size.height)]
            marked = {number for number, row in enumerate(rows) for part in row if part.style and part.style.underline}
            assert marked == {(listed.highlighted or 0) - listed.scroll_offset.y}

    asyncio.run(body())
