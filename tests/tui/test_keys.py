"""Keys that people have in their fingers: j and k, G, q, / with n and N, and the presets of the key file."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console
from support import stored_showcase, ui
from support.ui import Watch, engineer_events, until
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import Input

from engine.domain import events as e
from tui import actions
from tui.app import EspalierApp
from tui.screens.dialogs import AskLine
from tui.screens.gate import GateScreen
from tui.screens.home import HomeScreen
from tui.screens.key_panel import KeyPanel
from tui.screens.session import SessionScreen
from tui.widgets.find_bar import FindBar
from tui.widgets.idea_list import IdeaList
from tui.widgets.kernel_tree import KernelTree
from tui.widgets.key_footer import KeyFooter
from tui.widgets.lines import LinesView


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "session"


@pytest.mark.slow
def test_j_and_k_move_at_the_gate_and_decide_nothing(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        listed = app.screen.query_one(IdeaList)
        await pilot.press("j")
        await until(pilot, lambda: listed.highlighted == "i3")
        await pilot.press("k")
        await until(pilot, lambda: listed.highlighted == "i2")
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, SessionScreen))
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, HomeScreen))

    ui.run_steered(folder, act)
    assert not engineer_events(folder)


@pytest.mark.slow
def test_the_filter_works_while_typing_and_escape_clears_it(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await until(pilot, lambda: isinstance(app.screen, SessionScreen) and ui.ended(folder) and len(tree().rows) == 10)
        await pilot.press("slash", "k", "1", "0")
        await until(pilot, lambda: tree().pattern == "k10" and 0 < len(tree().visible_kernels) < 10)
        await until(pilot, lambda: footer() == ["F1 Help", "Enter Done", "Esc Clear"])
        await pilot.press("enter")
        await until(pilot, lambda: app.focused is tree() and footer()[0] == "? Help")
        assert "Esc: clear" in ui.screen_text(app)
        assert app.screen.query_one(FindBar).display, "the filter stays in sight"
        await pilot.press("escape")
        await until(pilot, lambda: len(tree().visible_kernels) == 10 and not app.screen.query_one(FindBar).display)
        assert isinstance(app.screen, SessionScreen)

        await pilot.press("G")
        await until(pilot, lambda: tree().selected == tree().rows[-1].kernel)
        await pilot.press("g")
        await until(pilot, lambda: tree().selected == tree().rows[0].kernel)
        await pilot.press("ctrl+d")
        await until(pilot, lambda: tree().selected == tree().rows[-1].kernel)
        await pilot.press("ctrl+u")
        await until(pilot, lambda: tree().selected == tree().rows[0].kernel)

    def tree() -> KernelTree:
        return app_of[0].screen.query_one(KernelTree)

    def footer() -> list[str]:
        return [f"{key} {words}" for key, words, _ in app_of[0].screen.query_one(KeyFooter)._shown()]

    app_of: list[EspalierApp] = []

    async def kept(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        app_of.append(app)
        await act(app, pilot, watch)

    ui.run_steered(folder, kept, mode="autopilot")


@pytest.mark.slow
def test_a_filter_typed_in_one_go_is_filtered_by(folder: Path) -> None:
    """A slow line sends several keys at once: they go to the field that the first one opens."""

    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await until(pilot, lambda: isinstance(app.screen, SessionScreen) and ui.ended(folder) and ui.shows_tree(app))
        for key, character in (("slash", "/"), ("k", "k"), ("1", "1"), ("0", "0")):
            app.post_message(Key(key, character))
        await until(pilot, lambda: app.screen.query_one(KernelTree).pattern == "k10")
        assert app.screen.query_one(KernelTree).selected == "k10"

    ui.run_steered(folder, act, mode="autopilot")


@pytest.mark.slow
def test_a_page_is_searched_and_n_goes_on(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await until(pilot, lambda: ui.ended(folder) and ui.shows_tree(app))
        await pilot.press("2")
        page = app.screen.query_one("#kernel LinesView", LinesView)
        await until(pilot, lambda: len(page.lines) > 2)
        page.focus()
        await pilot.press("slash", "a")
        await until(pilot, lambda: "of" in page.search_result)
        places = page._found
        assert len(places) > 1
        assert all("a" in page.lines[place].text.casefold() for place in places)
        await pilot.press("enter")
        await until(pilot, lambda: app.focused is page)
        for step, key in ((1, "n"), (-1, "N")):
            before = page._here
            await pilot.press(key)
            await until(pilot, lambda was=before, by=step: page._here == (was + by) % len(places))  # type: ignore[misc]
        await pilot.press("escape")
        await until(pilot, lambda: not page.search_result and isinstance(app.screen, SessionScreen))
        await pilot.press("slash", "z", "z", "z")
        await until(pilot, lambda: page.search_result == "not found")
        assert app.screen.query_one(FindBar).query_one(Input).value == "zzz"

    ui.run_steered(folder, act, mode="autopilot")


@pytest.mark.slow
def test_a_page_is_searched_again_for_something_else(folder: Path) -> None:
    """The bar lost the focus to the page that it had searched, and letters acted as keys of the screen."""

    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await until(pilot, lambda: ui.ended(folder) and ui.shows_tree(app))
        await pilot.press("2")
        page = app.screen.query_one("#kernel LinesView", LinesView)
        await until(pilot, lambda: len(page.lines) > 2)
        tree, bar = app.screen.query_one(KernelTree), app.screen.query_one(FindBar)
        await pilot.press("slash", "k", "1", "0", "enter")
        await until(pilot, lambda: app.focused is tree and tree.pattern == "k10")
        page.focus()
        await pilot.press("slash", "a", "enter")
        await until(pilot, lambda: app.focused is page and "of" in page.search_result)
        assert not tree.pattern, "one bar shows one text"
        await pilot.press("slash")
        await ui.still(pilot)
        assert bar.is_typing
        await pilot.press("z", "z", "z")
        await until(pilot, lambda: page.search_result == "not found")
        assert bar.text == "zzz"
        await pilot.press("enter")
        await until(pilot, lambda: app.focused is page)
        tree.focus()
        await pilot.press("slash", "k", "1")
        await until(pilot, lambda: tree.pattern == "k1")
        assert not page.search_result

    ui.run_steered(folder, act, mode="autopilot")


def test_a_preset_gives_keys_and_lines_of_the_file_win(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('preset = "vim"\n"session.gate" = "f7"\n')
    keys, errors = actions.read_keymap(file)
    assert not errors
    assert keys == {**actions.PRESETS["vim"], "session.gate": "f7"}


def test_an_unknown_preset_is_an_error_and_other_lines_apply(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('preset = "emacs"\n"session.gate" = "f7"\n')
    keys, errors = actions.read_keymap(file)
    assert keys == {"session.gate": "f7"}
    assert errors == (f"{file}: unknown preset 'emacs': use default or vim",)


@pytest.mark.parametrize("place", list(actions.Place))
@pytest.mark.parametrize("preset", list(actions.PRESETS))
def test_presets_name_actions_and_give_no_key_twice(preset: str, place: actions.Place) -> None:
    keys = actions.PRESETS[preset]
    assert set(keys) <= {action.id for action in actions.ACTIONS}
    here = [a for a in actions.ACTIONS if place in a.places or actions.Place.ANYWHERE in a.places]
    for needs in (actions.Needs.SUBMIT, actions.Needs.SEEK):
        given = [key for a in here if a.needs in (needs, actions.Needs.NOTHING) for key in keys.get(a.id, a.key).split(",")]
        assert sorted(given) == sorted(set(given))


@pytest.mark.slow
def test_the_key_panel_names_the_keys_and_the_next_key_acts(folder: Path) -> None:
    shown: list[str] = []

    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("backslash")
        await until(pilot, lambda: isinstance(app.screen, KeyPanel))
        assert isinstance(app.screen, KeyPanel)
        page = io.StringIO()
        Console(width=100, file=page).print(app.screen._keys())
        shown.append(page.getvalue())
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, GateScreen))
        assert not engineer_events(folder)
        await pilot.press("backslash")
        await until(pilot, lambda: isinstance(app.screen, KeyPanel))
        await pilot.press("d")
        await until(pilot, lambda: engineer_events(folder))

    ui.run_steered(folder, act)
    assert engineer_events(folder) == [e.IdeaParked("i2")]
    assert "d Park" in shown[0]
    assert "u Undo" in shown[0]


@pytest.mark.parametrize("width", [1, 22, 23, 60])
def test_the_key_panel_has_a_column_at_every_width(width: int) -> None:
    panel = KeyPanel(actions.Place.HOME, actions.ACTIONS, {})
    page = io.StringIO()
    Console(width=width, file=page).print(panel._keys())
    assert page.getvalue().strip()


@pytest.mark.slow
def test_the_footer_shows_the_users_keys_and_a_click_presses_them(folder: Path, tmp_path: Path) -> None:
    keymap = tmp_path / "keys.toml"
    keymap.write_text('"gate.approve" = "y"\n')

    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        app.keymap_file = keymap
        app.apply_settings()
        footer = app.screen.query_one(KeyFooter)
        footer.refresh()
        await until(pilot, lambda: footer.render().plain.startswith(" ? Help  y Approve "))
        at = footer.render().plain.index("Reject")
        await pilot.click(KeyFooter, offset=(at, 0))
        await until(pilot, lambda: isinstance(app.screen, AskLine))

    ui.run_steered(folder, act)


def test_keys_are_named_as_they_are_printed_on_a_keyboard() -> None:
    assert actions.key_names("backslash,f4,ctrl+home,ctrl+p,G") == "\\, F4, Ctrl-Home, Ctrl-P, G"


@pytest.mark.slow
def test_a_steering_key_in_a_replay_says_why_it_does_nothing(tmp_path: Path) -> None:
    folder = stored_showcase.store(tmp_path / "softmax-1")
    said: list[str] = []

    async def act() -> None:
        app = ui.app(action="replay", subject=folder)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: ui.shows_tree(app))
            await pilot.press("o", "p", "L", "s")
            await ui.still(pilot)
            said.extend(str(one.message) for one in app._notifications)
            app.clear_notifications()
            await pilot.press("comma", "j", "t", "z")
            await ui.still(pilot)
            assert not list(app._notifications)

    asyncio.run(act())
    assert said == ["A replay cannot be steered. F in the tree forks it."]
