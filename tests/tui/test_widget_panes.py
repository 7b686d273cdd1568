"""Tabs, ideas, strip, header, transport, events, notes and charts with keys and mouse."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from support import builders as b
from support import showcase
from support.hosts import LOG, STATE, Host, Make
from support.ui import until
from textual.pilot import Pilot
from textual.widget import Widget

from engine.domain import events as e
from engine.domain.folds import advance
from engine.domain.model import ENGINEER, RaceOutcome
from engine.domain.work import WorkKey
from tui.widgets.bars import SessionHeader, StageStrip, TransportBar
from tui.widgets.charts import Charts, HeatMap, PlotView, RooflineChart, SpeedupChart
from tui.widgets.detail_tabs import DetailTabs, Tab
from tui.widgets.idea_list import IdeaList
from tui.widgets.lines import LinesView
from tui.widgets.panes import LogView, NoteList

Act = Callable[[Host, Pilot[None]], Awaitable[None]]


def details() -> DetailTabs:
    made = DetailTabs(showcase.read_blob)
    made.kernel = "k12"
    return made


def play(act: Act, *made: Make, size: tuple[int, int] = (100, 30)) -> None:
    async def run() -> None:
        host = Host(*made)
        async with host.run_test(size=size, message_hook=host.keep) as pilot:
            await pilot.pause()
            await act(host, pilot)

    asyncio.run(run())


def shown(widget: Widget) -> str:
    return "\n".join(widget.render_line(y).text for y in range(widget.size.height))


@pytest.mark.slow
@pytest.mark.parametrize(("key", "tab"), [(str(n), tab) for n, tab in enumerate(Tab, 1)])
def test_number_keys_show_the_pages(key: str, tab: Tab) -> None:
    async def act(host: Host, pilot: Pilot[None]) -> None:
        tabs = host.query_one(DetailTabs)
        tabs.query_one(LinesView).focus()
        await pilot.press(key)
        assert tabs.tab is tab
        assert shown(tabs.query_one(LinesView)).strip()

    play(act, details)


@pytest.mark.slow
def test_a_click_on_a_tab_shows_its_page() -> None:
    async def act(host: Host, pilot: Pilot[None]) -> None:
        tabs = host.query_one(DetailTabs)
        bar = tabs.query_one("_TabBar")
        await pilot.click("_TabBar", offset=(shown(bar).index("timing"), 0))
        assert tabs.tab is Tab.TIMING

    play(act, details)


@pytest.mark.slow
def test_another_kernel_scrolls_to_the_top_and_a_new_state_keeps_the_position() -> None:
    async def act(host: Host, pilot: Pilot[None]) -> None:
        tabs = host.query_one(DetailTabs)
        view = tabs.query_one(LinesView)
        tabs.show(Tab.CODE)
        await pilot.pause()
        view.scroll_to(y=5, animate=False)
        await pilot.pause()
        tabs.state = replace(STATE, at=STATE.at + 1)
        await pilot.pause()
        assert view.scroll_offset.y == 5
        tabs.kernel = "k1"
        await pilot.pause()
        assert view.scroll_offset.y == 0

    play(act, details, size=(80, 14))


def test_the_diff_compares_with_the_marked_kernel() -> None:
    async def act(host: Host, pilot: Pilot[None]) -> None:
        tabs = host.query_one(DetailTabs)
        tabs.show(Tab.DIFF)
        tabs.other = "k1"
        await pilot.pause()
        assert "k1 (marked) → k12" in shown(tabs.query_one(LinesView))

    play(act, details)


def test_a_missing_blob_is_shown_as_missing() -> None:
    def absent(blob: str) -> str:
        raise KeyError(blob)

    async def act(host: Host, pilot: Pilot[None]) -> None:
        tabs = host.query_one(DetailTabs)
        tabs.kernel = "k12"
        for tab in Tab:
            tabs.show(tab)
            await pilot.pause()
        tabs.show(Tab.CODE)
        assert "missing from the session folder" in shown(tabs.query_one(LinesView))

    play(act, lambda: DetailTabs(absent))


def test_keys_move_through_ideas_and_the_highlight_stays_on_its_idea() -> None:
    async def act(host: Host, pilot: Pilot[None]) -> None:
        ideas = host.query_one(IdeaList)
        ideas.focus()
        assert ideas.highlighted == "i12"
        await pilot.press("down")
        assert ideas.highlighted == "i10"
        ideas.order = ("i11", "i12", "i10")
        assert ideas.highlighted == "i10"
        assert list(ideas.ideas) == ["i11", "i12", "i10"]
        await pilot.press("enter")
        await pilot.pause()
        assert [m.idea for m in host.of(IdeaList.Chosen) if isinstance(m, IdeaList.Chosen)] == ["i10"]
        assert [m.idea for m in host.of(IdeaList.Highlighted) if isinstance(m, IdeaList.Highlighted)] == ["i12", "i10"]

    play(act, IdeaList)


def test_a_click_highlights_an_idea() -> None:
    async def act(host: Host, pilot: Pilot[None]) -> None:
        row = next(y for y, line in enumerate(shown(host.query_one(IdeaList)).splitlines()) if "i11" in line)
        await pilot.click(IdeaList, offset=(10, row + 1))
        assert host.query_one(IdeaList).highlighted == "i11"

    play(act, IdeaList)


@pytest.mark.slow
def test_the_transport_bar_only_posts_messages() -> None:
    async def act(host: Host, pilot: Pilot[None]) -> None:
        bar = host.query_one(TransportBar)
        bar.length, bar.position = 100, 50
        await pilot.pause()
        await pilot.click(TransportBar, offset=(shown(bar).index("●"), 0))
        await pilot.click(TransportBar, offset=(1, 0))
        await pilot.click(TransportBar, offset=(5, 0))
        await pilot.pause()
        seeks = [m.position for m in host.of(TransportBar.SeekRequested) if isinstance(m, TransportBar.SeekRequested)]
        assert len(seeks) == 1
        assert abs(seeks[0] - 50) <= 1
        assert len(host.of(TransportBar.PlayToggled)) == 1
        assert [m.speed for m in host.of(TransportBar.SpeedChanged) if isinstance(m, TransportBar.SpeedChanged)] == [2]
        assert (bar.position, bar.playing, bar.speed) == (50, False, 1.0)

    play(act, TransportBar)


@pytest.mark.slow
def test_the_event_log_follows_its_end_until_scrolled_away() -> None:
    async def act(host: Host, pilot: Pilot[None]) -> None:
        log = host.query_one(LogView)
        log.show(LOG[:60])
        await pilot.pause()
        assert log.scroll_offset.y == log.max_scroll_y > 0
        log.push(LOG[60:])
        await pilot.pause()
        assert log.scroll_offset.y == log.max_scroll_y
        assert "k19 built" in shown(log)
        log.scroll_to(y=0, animate=False)
        await pilot.pause()
        note = e.Entry(LOG[-1].seq + 1, LOG[-1].at + 1, ENGINEER, e.NoteAdded("", "[b]later[/b]"))
        log.push((note,))
        await pilot.pause()
        assert log.scroll_offset.y == 0
        assert "[b]later[/b]" in log.lines[-1].text
        log.show(LOG[:3])
        await pilot.pause()
        assert len(log.lines) < 6

    play(act, LogView, size=(100, 20))


@pytest.mark.slow
def test_a_hidden_event_log_is_filled_when_it_is_shown() -> None:
    async def act(host: Host, pilot: Pilot[None]) -> None:
        log = host.query_one(LogView)
        log.display = False
        await until(pilot, lambda: not log.size.height)
        log.show(LOG)
        assert not log.lines
        log.display = True
        await until(pilot, lambda: "k19 built" in shown(log))

    play(act, LogView)


@pytest.mark.slow
def test_charts_are_drawn_with_the_selected_kernel() -> None:
    async def act(host: Host, pilot: Pilot[None]) -> None:
        charts = host.query_one(Charts)
        charts.selected = "k12"
        await pilot.pause()
        for chart in (host.query_one(SpeedupChart), host.query_one(RooflineChart)):
            assert "◆" in drawn(chart)
        assert not host.query_one(HeatMap).size, "only suites have a heat map"

    play(act, Charts, size=(140, 30))


def drawn(chart: PlotView) -> str:
    return "\n".join(chart.render_line(y).text for y in range(chart.size.height))


def test_a_focused_chart_zooms_moves_and_shows_the_whole_again() -> None:
    async def act(host: Host, pilot: Pilot[None]) -> None:
        chart = host.query_one(SpeedupChart)
        chart.focus()
        whole = drawn(chart)
        await pilot.press("plus", "plus")
        zoomed = drawn(chart)
        assert zoomed != whole
        assert "0: whole" in str(chart.border_title)
        await pilot.press("right", "up")
        assert drawn(chart) not in (whole, zoomed)
        await pilot.press("0")
        assert drawn(chart) == whole

    play(act, Charts, size=(140, 30))


def test_without_room_for_both_the_charts_take_turns() -> None:
    async def act(host: Host, pilot: Pilot[None]) -> None:
        charts = host.query_one(Charts)
        assert (bool(host.query_one(SpeedupChart).size), bool(host.query_one(RooflineChart).size)) == (True, False)
        assert charts.show_next()
        await pilot.pause()
        assert (bool(host.query_one(SpeedupChart).size), bool(host.query_one(RooflineChart).size)) == (False, True)
        assert not charts.show_next()

    play(act, Charts, size=(80, 10))


def test_charts_of_an_empty_session_are_drawn_without_an_error() -> None:
    async def act(host: Host, pilot: Pilot[None]) -> None:
        host.query_one(Charts).state = b.fold(b.opened())
        await pilot.pause()
        host.query_one(Charts).state = advance(b.fold(b.opened()), b.entries([b.prepared()], start=1))
        await pilot.pause()

    play(act, Charts)


def test_header_strip_and_notes_show_a_new_state() -> None:
    async def act(host: Host, pilot: Pilot[None]) -> None:
        host.query_one(StageStrip).progress = {WorkKey.parse("build:k20:0"): "half way [0]"}
        host.query_one(SessionHeader).stopped = True
        await pilot.pause()
        assert "half way [0]" in shown(host.query_one(StageStrip))
        assert "stopped" in shown(host.query_one(SessionHeader))
        assert "branch predictor" in shown(host.query_one(NoteList))

    play(act, SessionHeader, NoteList, StageStrip)


@pytest.mark.slow
def test_text_on_a_page_can_be_selected_and_copied() -> None:
    async def act(host: Host, pilot: Pilot[None]) -> None:
        tabs = host.query_one(DetailTabs)
        tabs.show(Tab.CODE)
        await pilot.pause()
        view = tabs.query_one(LinesView)
        await pilot.mouse_down(view, offset=(0, 0))
        await pilot.hover(view, offset=(30, 2))
        await pilot.mouse_up(view, offset=(30, 2))
        assert '#include "problem.h"' in (host.screen.get_selected_text() or "")
        assert "#include" in shown(view)

    play(act, details)


@pytest.mark.slow
def test_the_header_of_a_narrow_screen_keeps_the_incumbent_and_its_speedup() -> None:
    async def act(host: Host, pilot: Pilot[None]) -> None:
        await pilot.pause()
        assert "k14 2.83×" in shown(host.query_one(SessionHeader))

    for width in (28, 36, 40):
        play(act, SessionHeader, size=(width, 12))


@pytest.mark.parametrize("steered", [True, False])
def test_the_race_key_is_shown_only_where_it_works(steered: bool) -> None:
    raced = e.KernelRaced("k12", "k14", RaceOutcome.UNDECIDED)
    state = advance(STATE, b.entries([raced], start=STATE.seq + 1))

    async def act(host: Host, pilot: Pilot[None]) -> None:
        tabs = host.query_one(DetailTabs)
        tabs.state, tabs.kernel = state, "k12"
        tabs.show(Tab.TIMING)
        await pilot.pause()
        output = "\n".join(line.text for line in tabs.query_one(LinesView).lines)
        assert "undecided" in output
        assert ("r: race again" in output) is steered

    play(act, lambda: DetailTabs(showcase.read_blob, steered=steered))
