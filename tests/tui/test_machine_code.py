"""The listing of a sampled kernel: read from the session, with shares, the hottest lines first on a key."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from support import builders, sessions, ui
from support.ui import until
from textual.pilot import Pilot

from engine.domain.commands import Command, RecordProfile
from engine.domain.errors import EspalierError
from engine.domain.model import Dialect
from engine.domain.profile import Profile
from engine.session.steer import Steering, steer
from tui import kernel_tools
from tui.screens.machine_code import MachineCodeScreen
from tui.viewmodel import machine_code
from tui.viewmodel.cells import width
from tui.widgets.lines import LinesView

CODE = "// first\nextern second\n"
FOUND = msgspec.to_builtins(builders.machine_listing())
SIZES = [(40, 12), (80, 24), (120, 40), (200, 60)]


@pytest.mark.parametrize("room", [30, 60, 100, 180])
def test_each_instruction_has_its_share_and_the_source_line_above_it(room: int) -> None:
    lines = [line.text for line in machine_code.listing(FOUND, CODE, Dialect.CPP, room)]
    assert "1,000 samples" in " ".join(lines)
    assert ("static" in " ".join(lines[:3])) is (room >= 64), "below that the legend stands at the end"
    assert "static" in " ".join(lines)
    fused = next(n for n, text in enumerate(lines) if "vfmadd132ps" in text)
    assert lines[fused].split()[0] == "70%"
    assert "2 │ extern second" in lines[fused - 1]
    assert "█" in lines[fused] if room >= 64 else "█" not in lines[fused]
    assert next(text for text in lines if "mov %rdi" in text).split()[0] == "5.0%"


def test_the_hottest_line_comes_first_with_its_instructions() -> None:
    lines = [line.text for line in machine_code.hottest(FOUND, CODE, Dialect.CPP, 100)]
    assert [text.split()[0] for text in lines if "│" in text] == ["80%", "5.0%"]
    where = {word: next(n for n, text in enumerate(lines) if word in text) for word in ("second", "vfmadd", "jne", "first")}
    assert sorted(where, key=lambda word: where[word]) == ["second", "vfmadd", "jne", "first"]


def test_loops_are_marked_and_the_deepest_lead_where_nothing_was_sampled() -> None:
    found = {**FOUND, "samples": 0, "instructions": [{**row, "samples": 0} for row in FOUND["instructions"]]}
    lines = [line.text for line in machine_code.listing(found, CODE, Dialect.CPP, 100)]
    loop = next(n for n, text in enumerate(lines) if "loop depth 1 (static)" in text)
    assert "extern second" in lines[loop + 1]
    assert ["┃" in text for text in lines[loop + 2 :]] == [True, True]
    assert machine_code.has_heat(found)
    first = next(text for text in (line.text for line in machine_code.hottest(found, CODE, Dialect.CPP, 100)) if "│" in text)
    assert first.split() == ["depth", "1", "2", "│", "extern", "second"]


@pytest.mark.parametrize("payload", ["{", "[]"])
def test_a_damaged_listing_is_an_error(payload: str) -> None:
    with pytest.raises(EspalierError, match=r"the listing of k1 is damaged .*: profile the kernel again"):
        machine_code.recorded(payload, "k1")


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_a_replay_lists_a_sampled_kernel_without_a_process(
    size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "session"
    sessions.whole(folder)

    def record(view: Steering) -> list[Command]:
        hot = builders.hot_code(view.store_blob(msgspec.json.encode(builders.machine_listing())))
        return [RecordProfile(one.id, Profile(one.attempt, note="no counters", hot=hot)) for one in view.state.kernels.values()]

    steer(folder, record)
    monkeypatch.setattr(kernel_tools, "_PROGRAM", ("/nowhere",))
    shown: list[list[str]] = []

    async def body() -> None:
        app = ui.app(None, "replay", folder)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: ui.shows_tree(app))
            await pilot.press("8")
            await until(pilot, lambda: isinstance(app.screen, MachineCodeScreen))
            shown.append(await page(pilot))
            await pilot.press("h")
            shown.append(await page(pilot))
            await pilot.press("q")
            await until(pilot, lambda: ui.shows_tree(app))

    sessions.run(body)
    listing, hottest = shown
    assert any("launch" in text for text in listing)
    assert next(text for text in hottest if "│" in text).split()[0] == "80%"


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_what_it_waits_for_stands_in_one_line(size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> Mapping[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("tui.screens.machine_code.machine_code", never)
    sessions.whole(tmp_path / "session")

    async def body() -> None:
        app = ui.app(None, "replay", tmp_path / "session")
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: ui.shows_tree(app))
            await pilot.press("8")
            await until(pilot, lambda: isinstance(app.screen, MachineCodeScreen))
            await until(pilot, lambda: "compiling with line tables …" in ui.screen_text(app))

    sessions.run(body)


async def page(pilot: Pilot[None]) -> list[str]:
    """The lines of the listing once it is drawn."""
    view = pilot.app.screen.query_one(LinesView)
    await until(pilot, lambda: len(view.lines) > 4)
    await pilot.pause()
    assert all(width(line.text) < 500 for line in view.lines)
    return [line.text for line in view.lines]
