"""Words of models and strangers stay words: no markup, no control character, and every row as wide as the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from support import builders, sessions, showcase, ui
from support.scripted import ScriptedProposer
from textual.pilot import Pilot

from engine.domain import events as e
from engine.domain import model as m
from engine.domain.folds import advance
from tui.app import EspalierApp
from tui.screens.dialogs import AskLine, Choice, Choose, Confirm, Dialog
from tui.screens.gate import GateScreen
from tui.screens.idea_form import IdeaForm
from tui.viewmodel import code, diff, event_log, heading, pages, tabs
from tui.viewmodel.cells import Line

HOSTILE = "[/] [b]x[/b] \x1b[2J\x1b]0;t\x07\t漢字 👩‍👩‍👧‍👦 \u202eabc\r é\u0301 👍🏽 ❤️ 1️⃣ हिन्दी 🇩🇪 ☰"
_GIVEN = sessions.proposal("wide", "k1")
IDEA = replace(_GIVEN, text=replace(_GIVEN.text, title=HOSTILE, category=HOSTILE, rationale=f"{HOSTILE}\n{HOSTILE}"))


MEGABYTES = "error: no matching function for call to \u2018f\u2019\n" * 100_000
LONG_LINE = "x" * 5_000_000


def assert_shows_words(app: EspalierApp, columns: int) -> None:
    for strip in app.screen._compositor.render_strips():
        assert strip.text.isprintable(), ascii(strip.text)
        assert sum(cell_len(segment.text) for segment in strip) == columns, ascii(strip.text)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["", "e", "r", "W", "m", "w", "p"])
def test_an_idea_is_shown_and_edited_as_words(tmp_path: Path, key: str) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: ui.Watch) -> None:
        await ui.until(pilot, lambda: isinstance(app.screen, GateScreen))
        watch.pass_grace()
        if key:
            await pilot.press(key)
            await ui.until(pilot, lambda: not isinstance(app.screen, GateScreen) or app._notifications)
        assert key != "e" or isinstance(app.screen, IdeaForm)
        await ui.still(pilot)
        assert_shows_words(app, app.size.width)

    ideas = ScriptedProposer(rounds={**sessions.TREE.rounds, 1: (IDEA,)}, drafts=sessions.TREE.drafts)
    ui.run_steered(tmp_path / "session", act, opener=ui.FakeOpener(ideas=ideas))


@pytest.mark.slow
@pytest.mark.parametrize(
    "dialog",
    [
        Confirm(HOSTILE, HOSTILE, "Yes"),
        AskLine(HOSTILE, HOSTILE),
        Choose(HOSTILE, [Choice("a", HOSTILE, HOSTILE), Choice("b", "  k1", "one")]),
    ],
    ids=lambda dialog: type(dialog).__name__,
)
def test_a_dialog_shows_words(dialog: Dialog[object]) -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(100, 40)) as pilot:
            app.push_screen(dialog)
            await ui.until(pilot, lambda: app.screen is dialog)
            await ui.still(pilot)
            assert_shows_words(app, 100)

    asyncio.run(body())


@pytest.mark.slow
@pytest.mark.parametrize("words", [MEGABYTES, LONG_LINE], ids=["lines", "line"])
def test_of_texts_of_megabytes_a_bounded_part_is_laid_out(words: str) -> None:
    failed = e.KernelFailed("k20", m.Failure(m.FailureKind.BUILD_FAILED, words, "0" * 64), 0.3)
    state, log = showcase.session()
    more = builders.entries([failed, e.SessionPaused(words), e.NoteAdded("k20", words)], start=state.seq + 1)
    state = advance(state, more)
    subject = tabs.PageSubject(state, state.kernels["k20"], "", lambda blob: words)
    drawn: list[Sequence[Line]] = [
        *(tabs.page(tab, subject, 100) for tab in tabs.Tab if tab is not tabs.Tab.CODE),
        pages.notes(state, 100),
    ]
    drawn += [event_log.append(event_log.EMPTY, [*log, *more])[1], heading.lines(state, heading.SessionStatus(), 100)]
    text = [line.text for lines in drawn for line in lines]
    assert sum(map(len, text)) < 2_000_000
    assert any("more characters" in line or "lines are not shown" in line for line in text)


@pytest.mark.slow
def test_the_end_of_very_long_code_is_shown_without_colours_and_compared() -> None:
    before, after = ("\n".join(f"float x{n} = a[{n % by}];" if n % 3 else "}" for n in range(9_000)) for by in (7, 11))
    lines = code.highlight(before, m.Dialect.CPP)
    assert [line.text for line in lines] == before.split("\n")
    assert len(lines[1].cells) > len(lines[-2].cells) == 1
    found = diff.difference(before, after, m.Dialect.CPP)
    assert found.added == found.removed > 4_000
