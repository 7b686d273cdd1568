"""Races on the screen and in reports: outcome in glyph, word and ink; what is undecided, and how to spend more on it."""

from __future__ import annotations

import pytest
from support import builders as b
from support.sessions import whole as searched

from engine.domain import events as e
from engine.domain import model as m
from engine.domain import queries
from engine.domain.state import SessionState, advance
from engine.domain.work import WorkKey
from engine.report.facts import charts
from engine.report.page import decisions
from engine.report.text import lines, progress, races, tree
from tui.viewmodel import cells, kernels, stages, story, timing, tree_cells, tree_facts
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
    return tree_cells.row_line(view, row, tree_cells.layout(room)).text


@pytest.mark.parametrize("room", [80, 120, 200])
def test_undecided_is_an_outcome_in_glyph_word_and_ink(room: int) -> None:
    assert kernels.outcome(UNDECIDED, UNDECIDED.kernels["k2"]) == kernels.Outcome("≈", "undecided", Ink.UNDECIDED)
    assert "≈ undecided" in row_of(UNDECIDED, "k2", room)
    assert row_of(UNDECIDED, "k1", room).startswith(kernels.INCUMBENT)
    assert cells.width(row_of(UNDECIDED, "k2", room)) == room


def test_the_incumbent_and_one_that_lost_stand_as_measured() -> None:
    lost = after(race(RACED.SLOWER, 0.9))
    for state, kernel in ((UNDECIDED, "k1"), (lost, "k2"), (WON, "k2"), (WON, "k1")):
        assert kernels.outcome(state, state.kernels[kernel]).word == "measured"
    assert "▼ slower than k1" in row_of(lost, "k2")
    assert races.remark(lost, lost.kernels["k2"]) == "▼ slower than k1: 0.90× [0.88, 0.92], 3 process pairs"


def test_a_race_under_way_shows_on_both_kernels() -> None:
    state = after(e.WorkStarted("race:k2:k1:0"))
    assert {k: kernels.outcome(state, state.kernels[k]).word for k in ("k1", "k2")} == {"k1": "racing", "k2": "racing"}
    assert "k2 racing" in plain(stages.strip(state, {}, 120))
    assert "process pair 2" in plain(stages.strip(state, {WorkKey.parse("race:k2:k1:0"): "process pair 2"}, 120))
    drawn = tree_cells.signature(tree_cells.tree_context(state), rows(state)[0])
    idle = after()
    assert drawn != tree_cells.signature(tree_cells.tree_context(idle), rows(idle)[0])


def test_a_row_is_drawn_anew_when_its_race_has_ended() -> None:
    signatures = [tree_cells.signature(tree_cells.tree_context(s), rows(s)[1])[1:] for s in (after(), UNDECIDED, WON)]
    assert len(set(signatures)) == 3


def test_the_page_on_timing_tells_every_race_and_the_key_that_spends_more() -> None:
    said = plain(timing.page(UNDECIDED, UNDECIDED.kernels["k2"], 100))
    assert "races" in said
    assert "≈ undecided  1.01× [0.99, 1.03]" in said
    assert "3 process pairs; r spends more on it" in said
    seen_by_the_other = plain(timing.page(WON, WON.kernels["k1"], 100))
    assert "▼ slower  0.53×" in seen_by_the_other
    assert "spends more" not in seen_by_the_other
    anew = advance(UNDECIDED, b.entries([e.KernelReopened("k1", "")], start=UNDECIDED.seq + 1))
    assert "before one of them was measured anew" in plain(timing.page(anew, anew.kernels["k2"], 120))
    assert "races" not in plain(timing.page(after(), after().kernels["k2"], 100))


def test_a_race_that_was_given_up_says_why() -> None:
    given_up = after(e.KernelRaced("k2", "k1", RACED.UNDECIDED, note="the engine died 2 times while it was to race this"))
    for said in (plain(timing.page(given_up, given_up.kernels["k2"], 160)), races.remark(given_up, given_up.kernels["k2"])):
        assert "the engine died 2 times" in said


def test_what_many_widgets_ask_is_what_the_engine_says() -> None:
    for state in (after(), UNDECIDED, WON, after(e.WorkStarted("race:k2:k1:0"))):
        best = queries.incumbent(state)
        assert tree_facts.tree_facts(state).incumbent is best
    assert tree_facts.tree_facts(UNDECIDED).undecided == {"k2"}
    assert tree_facts.tree_facts(WON).undecided == frozenset()


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (race(RACED.FASTER, 1.9), "k2 raced k1: ▲ faster (1.90× [1.86, 1.94], 3 process pairs, interleaved)"),
        (race(RACED.UNDECIDED, 1.01), "k2 raced k1: ≈ undecided (1.01× [0.99, 1.03], 3 process pairs, interleaved); k1 stays"),
        (e.KernelRaced("k2", "k1", RACED.UNDECIDED, note="it died"), "k2 raced k1: ≈ undecided (it died); k1 stays"),
        (e.RaceAsked("k2", "k1"), "k2 is to race k1"),
    ],
)
def test_the_log_tells_a_race_in_one_line(event: e.Event, words: str) -> None:
    before = after()
    (entry,) = b.entries([event], start=before.seq + 1)
    assert [lines.plain(line) for line in progress.lines(before, entry, advance(before, [entry]))] == [words]


def test_the_story_and_the_log_say_who_leads_when_it_is_won_and_not_when_it_is_measured() -> None:
    log = b.entries([*BEGUN, race(RACED.FASTER, 1.9), e.IncumbentChanged("k2", "k1", m.Succession.RACED)])
    told = [line.text for line in story.tell(story.BEGINNING, log)[1]]
    leads = [place for place, words in enumerate(told) if "leads now" in words]
    assert len(leads) == 2
    assert "k2 raced k1" in told[leads[1] - 1]


def test_the_tree_in_words_tells_what_is_undecided_and_how_the_best_came_to_lead() -> None:
    undecided = dict(tree.evidence(UNDECIDED))
    assert undecided["lead"].text == "k1 had nothing to race against"
    assert undecided["undecided"].text.startswith("k2 ≈ undecided against k1: 1.01× [0.99, 1.03], 3 process pairs")
    won = dict(tree.evidence(WON))
    assert won["lead"].text == "k2 raced for it: ▲ faster than k1, 1.90× [1.86, 1.94], 3 process pairs"
    assert "undecided" not in won
    assert "lead" not in dict(tree.evidence(after()))
    assert any("≈ undecided against k1" in lines.plain(line) for line in tree.tree(UNDECIDED))


def test_the_chart_climbs_over_those_that_led() -> None:
    assert [(step.kernel, step.place, step.speedup) for step in charts.climb(UNDECIDED).incumbents] == [("k1", 1, 1.0)]
    assert charts.climb(WON).by_round == ((0, 1.0), (1, 2.0))


def test_who_asked_for_a_race_is_a_decision() -> None:
    (entry,) = b.entries([e.RaceAsked("k2", "k1")])
    (found,) = decisions.decisions([entry])
    assert (found.what, found.about) == ("asked to race against k1", ("k2",))


def test_a_search_s_report_tells_its_last_race(tmp_path: object) -> None:
    state = searched(tmp_path)  # type: ignore[arg-type]
    assert dict(tree.evidence(state))["lead"].text.startswith("k10 raced for it: ▲ faster than k6, 1.50×")
