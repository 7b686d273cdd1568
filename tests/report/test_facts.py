"""Facts are computed once: screen, page and text show the same incumbents, roofline and totals."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support import builders as b
from support import showcase

from engine.domain import events as e
from engine.domain import model as m
from engine.domain import queries
from engine.domain.folds import advance
from engine.domain.state import SessionState
from engine.journal import journal, store
from engine.journal.blobs import Blobs
from engine.report.facts import charts, forks, usage
from engine.report.page import content, render
from engine.report.text.lines import digits
from tui.viewmodel import charts as screen
from tui.viewmodel.plot import PlotWindow

SESSIONS = Path(__file__).parents[2] / "sessions"
LAYERNORM = SESSIONS / "layernorm"
STATE, LOG = showcase.session()


@pytest.fixture(scope="module")
def recorded() -> SessionState:
    return store.state_of(LAYERNORM)


@pytest.fixture(scope="module")
def page() -> content.Page:
    return content.page("layernorm", journal.read(LAYERNORM).entries, Blobs(LAYERNORM).text)


def section(markdown: str, title: str) -> str:
    return markdown.split(f"## {title}\n")[1].split("\n## ")[0]


def test_screen_page_and_text_show_the_same_incumbents(recorded: SessionState, page: content.Page) -> None:
    line = charts.climb(recorded)
    led = [queries.speedup(recorded, recorded.kernels[name]) for name in recorded.reigns]
    assert [(step.kernel, step.speedup) for step in line.incumbents] == [
        (name, ratio.value) for name, ratio in zip(recorded.reigns, led, strict=True) if ratio is not None
    ]
    assert page.climb == line
    text = section(render.markdown(page), "Progress")
    assert re.findall(r"^ *(k\d+)  █+ (.+)×$", text, re.MULTILINE) == [
        (step.kernel, digits(step.speedup)) for step in line.incumbents
    ]
    shown = list(screen._incumbent_steps(line, screen._climb_dots(line)))
    assert [speedup for _, speedup in shown] == [step.speedup for step in line.incumbents]
    best = queries.incumbent(recorded)
    assert best is not None
    assert line.incumbents[-1].kernel == best.id == "k31"
    assert store.summary(LAYERNORM).best_so_far[-1] == line.incumbents[-1].speedup


def test_a_dot_may_lie_above_the_line(recorded: SessionState) -> None:
    line = charts.climb(recorded)
    best_measured = max(line.dots, key=lambda dot: dot.speedup or 0.0)
    assert best_measured.kernel == "k35"
    assert (best_measured.speedup or 0.0) > line.incumbents[-1].speedup


def test_the_line_falls_if_a_kernel_with_a_lower_speedup_wins_the_race() -> None:
    won = (
        *b.first_round(2.0), e.IncumbentChanged("k1", "", m.Succession.FIRST), e.RoundOpened(1, ("k1",)),
        b.proposed("i2", round_number=1, parent="k1"), e.IdeaSelected("i2"),
        *b.measured_kernel("k2", 1.9, idea="i2", parent="k1", round_number=1),
        e.IncumbentChanged("k2", "k1", m.Succession.RACED),
    )  # fmt: skip
    assert [step.speedup for step in charts.climb(b.fold(*won)).incumbents] == [2.0, 1.9]


def test_without_recorded_incumbents_the_line_follows_the_ranking() -> None:
    events = [entry for entry in LOG if not isinstance(entry.event, e.IncumbentChanged)]
    state = advance(SessionState(), events)
    led = [step.kernel for step in charts.climb(state).incumbents]
    best = queries.incumbent(state)
    assert best is not None
    assert led[-1] == best.id
    assert len(set(led)) == len(led) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layernorm"])
def test_a_roofline_is_shown_without_counted_operations(name: str) -> None:
    state = store.state_of(SESSIONS / name)
    found = charts.roofline(state)
    assert found is not None
    assert not found.counted
    made = content.page(name, journal.read(SESSIONS / name).entries, Blobs(SESSIONS / name).text)
    assert made.roofline == found
    assert '<section id="roofline">' in render.html(made)
    assert "one operation per output" in section(render.markdown(made), "Roofline")
    shown = screen.roofline_chart(state, "", PlotWindow(), 80, 24)
    assert "one operation per output" in shown.title
    drawn = "".join(row.text for row in shown.lines)
    assert "●" in drawn


def test_every_grouping_of_the_calls_has_the_same_total() -> None:
    calls = STATE.calls.values()
    whole = usage.totals(calls)
    assert (whole.usd, whole.unpriced) == pytest.approx(queries.total_usd(STATE))
    assert whole.usage == queries.total_usage(STATE)
    for rows in (usage.by_round(STATE), usage.grouped(calls, lambda call: call.model)):
        assert sum(row.calls for row in rows.values()) == whole.calls
        assert sum((row.usage for row in rows.values()), m.Usage()) == whole.usage


def test_what_a_fork_leaves_behind() -> None:
    whole = forks.left_behind(LOG, len(LOG))
    assert (whole.events, whole.rounds, whole.ideas, whole.kernels, whole.lost) == (0, 0, 0, (), None)
    early = forks.left_behind(LOG, 3)
    assert early.kept is None
    assert early.kernels == tuple(STATE.kernels)
    assert early.lost is not None
    assert early.lost[0] == "k14"


@pytest.mark.parametrize("time", [float("inf"), 0.0, float("nan")])
def test_a_roofline_leaves_out_a_kernel_without_a_finite_time(time: float) -> None:
    """A damaged journal gives a page, not a fault."""
    entries = list(journal.read(LAYERNORM).entries)
    place = next(n for n, one in enumerate(entries) if isinstance(one.event, e.KernelMeasured))
    event = entries[place].event
    assert isinstance(event, e.KernelMeasured)
    spoiled = replace(event.measurement, time_us=m.Interval(time, time, time))
    entries[place] = replace(entries[place], event=replace(event, measurement=spoiled))
    found = charts.roofline(advance(SessionState(), entries))
    assert found is not None
    assert event.kernel not in [dot.kernel for dot in found.dots]
    assert '<section id="roofline">' in render.html(content.page("layernorm", entries, Blobs(LAYERNORM).text))
