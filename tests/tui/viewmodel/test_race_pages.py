"""Races on the screen and in reports: outcome as glyph, word and ink; undecided races and how to repeat them."""

from __future__ import annotations

import pytest
from domain.test_suite import suite_session
from support import builders as b
from support.sessions import whole as searched

from engine.domain import events as e
from engine.domain import model as m
from engine.domain import queries
from engine.domain.folds import advance
from engine.domain.state import SessionState
from engine.domain.work import WorkKey
from engine.report.facts import charts
from engine.report.page import decisions
from engine.report.text import lines, progress, races, tree
from tui.screens import compare
from tui.viewmodel import banner, cells, event_log, kernels, stages, timing, tree_cells, tree_columns, tree_facts
from tui.viewmodel.cells import Ink
from tui.viewmodel.tree_rows import rows

RACED = m.RaceOutcome
BEGUN = (
    *b.first_round(1.0, mode="ask"), e.IncumbentChanged("k1", "", m.Succession.FIRST), e.RoundOpened(1, ("k1",)),
    b.proposed("i2", round_number=1, parent="k1"), e.IdeaSelected("i2"),
    *b.measured_kernel("k2", 2.0, idea="i2", parent="k1", round_number=1),
)  # fmt: skip


def after(*events: e.Event) -> SessionState:
    return b.fold(*BEGUN, *events)


def race(outcome: m.RaceOutcome, value: float, kernel: str = "k2", against: str = "k1", **others: object) -> e.KernelRaced:
    return e.KernelRaced(kernel, against, outcome, b.interval(value), 0, 3, 18, **others)  # type: ignore[arg-type]


UNDECIDED = after(race(RACED.UNDECIDED, 1.01))
WON = after(race(RACED.FASTER, 1.9), e.IncumbentChanged("k2", "k1", m.Succession.RACED))


def plain(lines: object) -> str:
    return "\n".join(one.text for one in lines)  # type: ignore[attr-defined]


def row_of(state: SessionState, kernel: str, room: int = 200) -> str:
    view = tree_cells.tree_context(state)
    row = next(row for row in rows(state) if row.kernel == kernel)
    return tree_cells.row_line(view, row, tree_columns.layout(room)).text


def test_a_race_that_the_end_of_the_session_left_unfinished_does_not_run() -> None:
    begun = after(e.WorkStarted("race:k2:k1:0"))
    assert kernels.outcome(begun, begun.kernels["k2"]).word == "racing"
    assert stages.strip(begun, {}, 80)[1].text.startswith(" k2 racing")
    ended = advance(begun, b.entries((e.SessionClosed("enough"),), start=begun.seq + 1))
    assert kernels.outcome(ended, ended.kernels["k2"]).word == "measured"
    assert stages.strip(ended, {}, 80)[1].text == " ended: enough"


def test_kernels_of_different_preparations_have_no_common_figure() -> None:
    again = after(b.prepared(), *b.measured_kernel("k3", 4.0, idea="i2", parent="k1", round_number=1))
    rows_of = {row[0]: row[1:] for row in compare.rows(again, again.kernels["k2"], again.kernels["k3"])}
    assert rows_of["outcome"] == ("measured, not compared", "measured", "")
    assert rows_of["time"][2] == ""
    both = {row[0]: row[1:] for row in compare.rows(UNDECIDED, UNDECIDED.kernels["k1"], UNDECIDED.kernels["k2"])}
    assert both["outcome"] == ("measured", "measured", "")
    assert both["time"][2] == "2.00× as fast"


@pytest.mark.parametrize("room", [80, 120, 200])
def test_undecided_has_a_glyph_a_word_and_an_ink(room: int) -> None:
    assert kernels.outcome(UNDECIDED, UNDECIDED.kernels["k2"]) == kernels.Outcome("≈", "undecided", Ink.UNDECIDED)
    assert "≈ undecided" in row_of(UNDECIDED, "k2", room)
    assert row_of(UNDECIDED, "k1", room).startswith(kernels.INCUMBENT)
    assert cells.width(row_of(UNDECIDED, "k2", room)) == room


def test_the_incumbent_and_a_slower_kernel_are_shown_as_measured() -> None:
    lost = after(race(RACED.SLOWER, 0.9))
    for state, kernel in ((UNDECIDED, "k1"), (lost, "k2"), (WON, "k2"), (WON, "k1")):
        assert kernels.outcome(state, state.kernels[kernel]).word == "measured"
    assert "▼ slower than k1" in row_of(lost, "k2")
    assert races.remark(lost, lost.kernels["k2"]) == "▼ slower than k1: 0.90× [0.88, 0.92], 3 process pairs"


def test_a_running_race_is_shown_on_both_kernels() -> None:
    state = after(e.WorkStarted("race:k2:k1:0"))
    assert {k: kernels.outcome(state, state.kernels[k]).word for k in ("k1", "k2")} == {"k1": "racing", "k2": "racing"}
    assert "k2 racing" in plain(stages.strip(state, {}, 120))
    assert "process pair 2" in plain(stages.strip(state, {WorkKey.parse("race:k2:k1:0"): "process pair 2"}, 120))
    drawn = tree_cells.signature(tree_cells.tree_context(state), rows(state)[0])
    idle = after()
    assert drawn != tree_cells.signature(tree_cells.tree_context(idle), rows(idle)[0])


def test_a_row_is_redrawn_when_its_race_ends() -> None:
    signatures = [tree_cells.signature(tree_cells.tree_context(s), rows(s)[1])[1:] for s in (after(), UNDECIDED, WON)]
    assert len(set(signatures)) == 3


def test_the_timing_page_lists_every_race_and_the_key_to_race_again() -> None:
    output = plain(timing.page(UNDECIDED, UNDECIDED.kernels["k2"], 100, race_key="r"))
    assert "races" in output
    assert "≈ undecided  1.01× [0.99, 1.03]" in output
    assert "3 process pairs; r: race again" in output
    seen_by_the_other = plain(timing.page(WON, WON.kernels["k1"], 100, race_key="r"))
    assert "▼ slower  0.53×" in seen_by_the_other
    assert "race again" not in seen_by_the_other
    remeasured = advance(UNDECIDED, b.entries([e.KernelReopened("k1", "")], start=UNDECIDED.seq + 1))
    assert "before a remeasurement" in plain(timing.page(remeasured, remeasured.kernels["k2"], 120))
    assert "races" not in plain(timing.page(after(), after().kernels["k2"], 100))


def test_an_abandoned_race_shows_the_reason() -> None:
    abandoned = after(e.KernelRaced("k2", "k1", RACED.UNDECIDED, note="the engine crashed 2 times"))
    for output in (
        plain(timing.page(abandoned, abandoned.kernels["k2"], 160)),
        races.remark(abandoned, abandoned.kernels["k2"]),
    ):
        assert "the engine crashed 2 times" in output


def test_cached_facts_match_the_engine() -> None:
    for state in (after(), UNDECIDED, WON, after(e.WorkStarted("race:k2:k1:0"))):
        best = queries.incumbent(state)
        assert tree_facts.tree_facts(state).incumbent is best
    assert tree_facts.tree_facts(UNDECIDED).undecided == {"k2"}
    assert tree_facts.tree_facts(WON).undecided == frozenset()


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (race(RACED.FASTER, 1.9), "k2 raced k1: ▲ faster (1.90× [1.86, 1.94], 3 process pairs, interleaved)"),
        (
            race(RACED.UNDECIDED, 1.01),
            "k2 raced k1: ≈ undecided (1.01× [0.99, 1.03], 3 process pairs, interleaved); the incumbent stays",
        ),
        (e.KernelRaced("k2", "k1", RACED.UNDECIDED, note="it died"), "k2 raced k1: ≈ undecided (it died); the incumbent stays"),
        (e.RaceAsked("k2", "k1"), "k2 will race k1"),
    ],
)
def test_a_race_is_one_line_of_the_log(event: e.Event, words: str) -> None:
    before = after()
    (entry,) = b.entries([event], start=before.seq + 1)
    assert [lines.plain(line) for line in progress.lines(before, entry, advance(before, [entry]))] == [words]


def test_the_incumbent_changes_when_a_race_is_won_not_when_a_kernel_is_measured() -> None:
    log = b.entries([*BEGUN, race(RACED.FASTER, 1.9), e.IncumbentChanged("k2", "k1", m.Succession.RACED)])
    output = [line.text for line in event_log.append(event_log.EMPTY, log)[1]]
    places = [place for place, words in enumerate(output) if "is the incumbent" in words]
    assert len(places) == 2
    assert "k2 raced k1" in output[places[1] - 1]


def test_the_text_report_shows_undecided_races_and_how_the_incumbent_won() -> None:
    undecided = dict(tree.evidence(UNDECIDED))
    assert undecided["race"].text == "k1 leads without a race"
    assert undecided["undecided"].text.startswith("k2 against k1: 1.01× [0.99, 1.03], 3 process pairs")
    won = dict(tree.evidence(WON))
    assert won["race"].text == "k2 ▲ faster than k1: 1.90× [1.86, 1.94], 3 process pairs"
    assert "undecided" not in won
    assert "race" not in dict(tree.evidence(after()))
    assert any("≈ undecided against k1" in lines.plain(line) for line in tree.tree(UNDECIDED))


@pytest.mark.parametrize(
    ("raced", "words"),
    [
        (race(RACED.UNDECIDED, 1.01), "≈ k2 undecided against k1"),
        (
            race(RACED.UNDECIDED, 1.9, doubts=("the judge's clock says 1.0×",)),
            "≈ k2 undecided against k1: k2 measured faster, but not corroborated",
        ),
        (race(RACED.UNDECIDED, 0.5, "k1", "k2"), "≈ k2 undecided against k1: k2 measured faster, but not corroborated"),
        (e.KernelRaced("k2", "k1", RACED.UNDECIDED, note="it died"), "≈ k2 undecided against k1"),
    ],
)
def test_the_banner_says_that_a_faster_kernel_is_not_corroborated(raced: e.KernelRaced, words: str) -> None:
    shown = banner.banner(after(raced), banner.Source())
    assert shown is not None
    assert shown.words == words


def test_the_banner_does_not_ask_for_a_race_that_runs() -> None:
    running = after(race(RACED.UNDECIDED, 1.01), e.WorkStarted("race:k2:k1:1"))
    assert banner.banner(running, banner.Source()) is None


def test_the_chart_follows_past_incumbents() -> None:
    assert [(step.kernel, step.place, step.speedup) for step in charts.climb(UNDECIDED).incumbents] == [("k1", 1, 1.0)]
    assert charts.climb(WON).by_round == ((0, 1.0), (1, 2.0))


def test_a_requested_race_is_a_decision() -> None:
    (entry,) = b.entries([e.RaceAsked("k2", "k1")])
    (found,) = decisions.decisions([entry])
    assert (found.what, found.about) == ("requested a race against k1 for", ("k2",))


def test_the_report_of_a_search_shows_its_last_race(tmp_path: object) -> None:
    state = searched(tmp_path)  # type: ignore[arg-type]
    assert dict(tree.evidence(state))["race"].text.startswith("k10 ▲ faster than k6: 1.50×")


@pytest.mark.parametrize(("room", "intervals"), [(50, False), (100, True)])
def test_a_workloads_speedup_is_never_cut(room: int, intervals: bool) -> None:
    """In a pane of 57 columns it read `0.0577× [0.0557, 0.05…SOL 2%`."""
    state = suite_session(("k1", {"full": 0.0577, "small": 3.0}), ("k2", {"full": 1.15, "small": 0.0123}))
    shown = plain(timing.page(state, state.kernels["k1"], room))
    (line,) = (one for one in shown.splitlines() if one.strip().startswith("full"))
    assert "0.0577×" in line
    assert "…" not in line
    assert ("[" in line) == intervals
    assert "k2 1.15×" in line
