"""Dialogs at the smallest size: what is asked, what is typed and how to answer are in sight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import sessions, ui
from textual.events import Key
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Button, Input, OptionList, Static

from engine.domain.settings import Limits, ModelSettings
from tui.app import EspalierApp
from tui.bridge import Bridge
from tui.preferences import Preferences
from tui.screens.dialogs import AskLine, Choice, Choose, Confirm, Dialog, DismissOnceScreen
from tui.screens.gate import GateScreen
from tui.screens.limits_form import LimitsForm
from tui.screens.models_form import ModelsForm
from tui.screens.open_session import OpenSessionDialog
from tui.screens.settings_form import SettingsForm

LONG = "words that do not fit on one line of a small terminal, and go on for several of them, to the very end of the dialog"
DIALOGS: list[tuple[Dialog[object], type[Widget]]] = [
    (Confirm("End?", LONG, "End"), Button),
    (AskLine("Reason", LONG), Input),
    (Choose("Fork from", [Choice(str(n), f"round {n}, before its ideas", LONG) for n in range(9)]), OptionList),
]


@pytest.mark.slow
@pytest.mark.parametrize(("dialog", "wanted"), DIALOGS, ids=["confirm", "line", "choice"])
def test_a_dialog_shows_how_to_answer_at_the_smallest_size(dialog: Dialog[object], wanted: type[Widget]) -> None:
    async def act() -> None:
        app = ui.app()
        async with app.run_test(size=(40, 12)) as pilot:
            app.push_screen(dialog)
            await ui.until(pilot, lambda: app.screen is dialog)
            await ui.still(pilot)
            last = dialog.query(wanted).last()
            assert dialog.query_one(".dialog").content_region.contains_region(last.region)

    asyncio.run(act())


@pytest.mark.slow
def test_choices_that_are_cut_have_a_line_each_and_use_the_height_there_is() -> None:
    async def act() -> None:
        app = ui.app()
        dialog = Choose("Parent", [Choice(str(n), f"k{n}", LONG) for n in range(30)], cuts=True)
        async with app.run_test(size=(40, 12)) as pilot:
            app.push_screen(dialog)
            await ui.until(pilot, lambda: app.screen is dialog)
            await ui.still(pilot)
            shown = ui.screen_text(app).splitlines()
            assert [line.split()[1] for line in shown[1:-1]] == [f"k{n}" for n in range(10)]
            assert all("…" in line for line in shown[1:-1])

    asyncio.run(act())


@pytest.mark.slow
@pytest.mark.parametrize("size", [(40, 12), (80, 24), (120, 40)])
def test_every_form_says_how_to_save_and_to_leave(size: tuple[int, int]) -> None:
    async def act() -> None:
        app = ui.app()
        async with app.run_test(size=size) as pilot:
            models = ModelsForm(ModelSettings(), lambda _: None)
            forms: list[Dialog[Any]] = [SettingsForm(Preferences(), "screen.toml"), LimitsForm(Limits()), models]
            for form in forms:
                app.push_screen(form)
                await ui.until(pilot, lambda form=form: app.screen is form)  # type: ignore[misc]
                await ui.still(pilot)
                assert "Ctrl-S: save · Esc: cancel" in ui.screen_text(app)

    asyncio.run(act())


def test_limits_of_millions_are_saved_as_they_are_shown() -> None:
    limits = Limits(rounds=9, tokens=2_500_001, usd=1234567.89, light=0.95)

    async def act() -> None:
        app, form, answers = ui.app(), LimitsForm(limits), list[Limits | None]()
        async with app.run_test(size=(80, 24)) as pilot:
            app.push_screen(form, answers.append)
            await ui.until(pilot, lambda: form.is_active)
            assert form.query_one("#tokens", Input).value == "2500001"
            await pilot.press("ctrl+s")
            await ui.until(pilot, lambda: answers == [limits])

    asyncio.run(act())


@pytest.mark.parametrize(
    ("name", "typed", "words"),
    [
        ("light", "95", "SOL: invalid value 95; enter a positive number up to 10 or leave it empty."),
        ("rounds", "2.5", "Rounds: invalid value 2.5; enter a positive whole number up to 10000 or leave it empty."),
        ("usd", "-1", "Cost limit: invalid value -1; enter a positive number or leave it empty."),
        ("seconds", "0", "Time limit: invalid value 0; enter 90s, 15m or 2h, or leave it empty."),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_with_what_may_be_typed(name: str, typed: str, words: str) -> None:
    """95 for 95% was taken: no kernel reaches 95 times the speed of light, so the search did not stop there."""

    async def act() -> None:
        app, form, answers = ui.app(), LimitsForm(Limits()), list[Limits | None]()
        async with app.run_test(size=(120, 40)) as pilot:
            app.push_screen(form, answers.append)
            await ui.until(pilot, lambda: form.is_active)
            form.query_one(f"#{name}", Input).value = typed
            await pilot.press("ctrl+s")
            assert str(form.query_one("#message").render()) == words
            assert not answers

    asyncio.run(act())


@pytest.mark.slow
@pytest.mark.parametrize("size", [(40, 12), (80, 24)])
def test_a_limit_with_a_value_says_what_it_means(size: tuple[int, int]) -> None:
    async def act() -> None:
        app, form = ui.app(), LimitsForm(Limits(seconds=900, plateau=3, light=0.95))
        async with app.run_test(size=size) as pilot:
            app.push_screen(form)
            await ui.until(pilot, lambda: form.is_active)
            assert form.query_one("#seconds", Input).value == "15m"
            for name, words in (("plateau", "Plateau: rounds in a row"), ("light", "SOL: share of the speed of light")):
                form.query_one(f"#{name}").focus()
                await ui.still(pilot)
                assert str(form.query_one("#meaning").render()).startswith(words)
            form.query_one("#done").focus()
            await ui.still(pilot)
            assert str(form.query_one("#meaning").render()) == ""
            form.query_one("#seconds", Input).value = "soon"
            await pilot.press("ctrl+s")
            assert "Time limit: invalid value soon; enter 90s, 15m or 2h," in str(form.query_one("#message").render())
            form.query_one("#seconds", Input).value = "2h"
            await pilot.press("ctrl+s")
            await ui.until(pilot, lambda: app.screen is not form)
        assert form._result == Limits(seconds=7200.0, plateau=3, light=0.95)

    asyncio.run(act())


@pytest.mark.slow
def test_a_key_that_arrives_before_a_form_is_drawn_does_nothing() -> None:
    async def act() -> None:
        app, form = ui.app(), SettingsForm(Preferences(), "screen.toml")
        async with app.run_test(size=(80, 24)) as pilot:
            app.push_screen(form)
            key = Key("ctrl+s", None)
            key._set_forwarded()  # the screen below was asked first, and passed it on
            await app.on_event(key)
            await ui.until(pilot, lambda: form.is_active)
            await pilot.press("ctrl+s")
            await ui.until(pilot, lambda: app.screen is not form)

    asyncio.run(act())


@pytest.mark.slow
def test_keys_that_are_faster_than_a_dialog_open_one(tmp_path: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: ui.Watch) -> None:
        gate = app.screen
        assert isinstance(gate, GateScreen)
        for opens in (gate.action_idea, gate.action_limits, gate.action_seed, gate.action_limits):
            opens()
        await ui.until(pilot, lambda: isinstance(app.screen, Dialog))
        await ui.still(pilot)
        assert len([one for one in app.screen_stack if isinstance(one, Dialog)]) == 1
        await pilot.press("escape")
        await ui.until(pilot, lambda: app.screen is gate)
        gate.action_limits()
        await ui.until(pilot, lambda: isinstance(app.screen, LimitsForm))

    ui.run_steered(tmp_path / "session", act)


@pytest.mark.slow
def test_a_reason_is_asked_for_in_sight_at_the_smallest_size() -> None:
    async def act() -> None:
        app, dialog = (
            ui.app(),
            AskLine("Reject i2: Vectorise exp", "Reason (optional). It goes into the next prompt.", empty=True),
        )
        async with app.run_test(size=(40, 12)) as pilot:
            app.push_screen(dialog)
            await ui.until(pilot, lambda: app.screen is dialog)
            await ui.still(pilot)
            box = dialog.query_one(".dialog")
            for widget in (dialog.query_one(Static), dialog.query_one(Input)):
                assert box.content_region.contains_region(widget.region)

    asyncio.run(act())


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "stacked"), [(120, False), (80, True)])
def test_choices_have_their_words_all_beside_or_all_below(columns: int, *, stacked: bool) -> None:
    async def act() -> None:
        choices = [Choice("a", "now", "everything"), Choice("b", "round 5, before its 3 ideas are approved", "x" * 44)]
        app, dialog = ui.app(), Choose("Fork from", choices)
        async with app.run_test(size=(columns, 24)) as pilot:
            app.push_screen(dialog)
            await ui.until(pilot, lambda: app.screen is dialog)
            await ui.still(pilot)
            listed = dialog.query_one(OptionList)
            assert listed.virtual_size.height == (4 if stacked else 2)

    asyncio.run(act())


@pytest.mark.slow
def test_the_steps_of_an_opening_are_shown_whole() -> None:
    async def never(say: Callable[[str], None]) -> Bridge:
        say("measuring the baselines eager and compile on cuda:0")
        await asyncio.Event().wait()
        raise AssertionError

    async def act() -> None:
        app, dialog = ui.app(), OpenSessionDialog("Opening s", never)
        async with app.run_test(size=(80, 24)) as pilot:
            app.push_screen(dialog)
            shown = "measuring the baselines eager and compile on cuda:0 "
            await ui.until(pilot, lambda: dialog.is_mounted and shown in str(dialog.query_one("#steps", Static).content))

    asyncio.run(act())


@pytest.mark.slow
@pytest.mark.parametrize("key", ["backslash", "question_mark", "ctrl+p"])
def test_keys_help_and_palette_over_home_give_way_to_a_session_that_opens(tmp_path: Path, key: str) -> None:
    async def act() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press(key)
            await ui.until(pilot, lambda: isinstance(app.screen, DismissOnceScreen) and app.screen.gives_way)
            await app._show(await app.opener.begin(ui.new(tmp_path / "session"), print))
            await ui.until(pilot, lambda: isinstance(app.screen, GateScreen))
            assert not any(isinstance(one, DismissOnceScreen) and one.gives_way for one in app.screen_stack)
            await app._leave()

    sessions.run(act)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(40, 12), (80, 24)])
def test_the_form_for_columns_says_how_to_leave_it(size: tuple[int, int], tmp_path: Path) -> None:
    sessions.whole(tmp_path / "s")

    async def act() -> None:
        app = ui.app(None, "replay", tmp_path / "s")
        async with app.run_test(size=size) as pilot:
            await ui.until(pilot, lambda: ui.shows_tree(app))
            await pilot.press("vertical_line")
            await ui.until(pilot, lambda: "Esc: close" in ui.screen_text(app))

    sessions.run(act)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(40, 12), (80, 24), (120, 40)])
def test_help_lists_its_keys_in_a_terminal_of_every_size(size: tuple[int, int]) -> None:
    async def act() -> None:
        app = ui.app()
        async with app.run_test(size=size) as pilot:
            await ui.until(pilot, lambda: app.screen.is_mounted)
            await pilot.press("question_mark")
            await ui.until(pilot, lambda: "Quit" in ui.screen_text(app))
            page, keys = app.screen.query_one("#page"), app.screen.query_one("#keys")
            await ui.until(pilot, lambda: keys.size.height > 10)
            assert page.virtual_size.height > keys.size.height

    asyncio.run(act())


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_a_notice_is_shown_whole(columns: int) -> None:
    words = "Another process runs this session: you steer it from here."

    async def act() -> None:
        app = ui.app()
        async with app.run_test(size=(columns, 18), notifications=True) as pilot:
            app.notify(words, markup=False)
            await ui.until(pilot, lambda: app.screen.query("Toast"))
            await ui.still(pilot)
            region = app.screen.query_one("Toast").content_region
            assert app.screen.region.contains_region(region)
            shown = ui.screen_text(app).splitlines()[region.y : region.bottom]
            assert " ".join(line[region.x : region.right].strip() for line in shown).split() == words.split()

    asyncio.run(act())
