"""Quarantine, sanitizers, the budget, going back: what the pages say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import builders as b
from support import showcase

from engine.domain import events as e
from engine.domain import model as m
from engine.domain.settings import Pauses
from engine.domain.state import SessionState, advance
from engine.domain.work import WorkKey
from engine.report.facts import usage
from engine.report.facts.forks import left_behind
from tui.viewmodel import budget, cells, detail, fmt, forking, heading, kernels, stages, story, tree_cells
from tui.viewmodel.cells import Line
from tui.viewmodel.tree_rows import rows

STATE, LOG = showcase.session()


def text(lines: tuple[Line, ...] | list[Line]) -> str:
    return "\n".join(line.text for line in lines)


def after(*events: e.Event, state: SessionState = STATE) -> SessionState:
    return advance(state, b.entries(list(events), start=state.seq + 1))


def test_a_quarantined_kernel_has_a_glyph_a_word_and_an_ink_and_no_speedup() -> None:
    kernel = STATE.kernels["k22"]
    assert kernels.outcome(STATE, kernel) == kernels.QUARANTINED
    view = tree_cells.tree_context(STATE)
    row = next(row for row in rows(STATE) if row.kernel == "k22")
    said = tree_cells.row_line(view, row, tree_cells.layout(160)).text
    assert "◬ quarantined" in said
    assert "faster than the speed of light" in said
    assert "7.9" not in said
    assert view.top < 4, "what is not believed stretches no bar"


def test_the_evidence_is_in_the_details_as_it_is() -> None:
    said = text(detail.verification(STATE, STATE.kernels["k22"], 100))
    assert "in quarantine: not believed" in said
    assert "number of rows [b]at all[/b]" in said
    believed = after(e.KernelAccepted("k22", "seen [with] own eyes"))
    said = text(detail.verification(believed, believed.kernels["k22"], 100))
    assert "was in quarantine" in said
    assert "believed by hand: seen [with] own eyes" in said


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (e.KernelSanitized("k14", 0, ("memcheck", "racecheck"), (), "", "", 3.1), "✓ nothing found  memcheck, racecheck"),
        (
            e.KernelSanitized("k14", 0, ("memcheck",), ("write of 4 bytes [out] of bounds",), "", "", 1.0),
            "✗ 1 finding  memcheck",
        ),
        (e.KernelSanitized("k14", 0, (), (), "compute-sanitizer is missing", "", 0.0), "did not run"),
    ],
)
def test_what_the_sanitizers_said(event: e.KernelSanitized, words: str) -> None:
    state = after(event)
    said = text(detail.verification(state, state.kernels["k14"], 100))
    assert words in said
    assert all(finding in said for finding in event.findings)
    assert event.note in said


def test_the_budget_by_round_role_and_model() -> None:
    said = text(budget.page(STATE, 110))
    total = usage.totals(STATE.calls.values())
    assert f"{total.usage.input:,}" in said
    assert "round 3" in said
    assert "mystery" in said
    (mystery,) = (row for row in said.splitlines() if "mystery" in row and "price" not in row and "●" not in row)
    assert "unknown" in mystery, "a model without a known price costs something that is not nothing"
    assert "the price of 1 call is unknown" in said
    assert total.unpriced == 1


def test_caps_and_pauses_are_beside_what_is_spent() -> None:
    limits = replace(STATE.limits, usd=0.2, tokens=100_000)
    state = after(e.LimitsChanged(limits), e.PausesChanged(Pauses(usd=0.1)), e.SessionPaused("$0.15 spent: above $0.1"))
    said = text(budget.page(state, 110))
    assert "of 100,000" in said
    assert "pauses  above $0.10" in said
    assert "paused: $0.15 spent" in said
    assert "‖ paused" in text(heading.lines(state, heading.SessionStatus(), 120))
    assert "/$0.20" in text(heading.lines(state, heading.SessionStatus(), 200))


def test_a_session_that_asked_no_model_says_so() -> None:
    said = text(budget.page(b.fold(b.opened()), 80))
    assert "no model was asked" in said
    assert "nowhere by itself" in said


def test_a_recalled_reply_costs_nothing() -> None:
    call = e.CallStarted("c900", "propose:9", m.CallRole.IDEAS, "openai:x", "0" * 64)
    answered = e.CallAnswered("c900", "0" * 64, m.Usage(5000, 0, 100), None, recalled=True)
    before, now = usage.totals(STATE.calls.values()), usage.totals(after(call, answered).calls.values())
    assert (now.usage, now.usd, now.unpriced) == (before.usage, before.usd, before.unpriced)
    assert now.calls == before.calls + 1


def test_of_streamed_words_the_end_is_shown() -> None:
    state = after(e.WorkStarted("implement:i12"))
    words = "I begin with the parent's second pass and then " * 8 + "write the loop"
    said = stages.strip(state, {WorkKey.parse("implement:i12"): words}, 120)[1].text
    assert said.rstrip().endswith("write the loop")
    assert "…" in said


@pytest.mark.parametrize(("room", "shown"), [(20, "the end of words"), (8, "…f words"), (4, "…rds"), (1, "")])
def test_the_tail_of_a_text(room: int, shown: str) -> None:
    assert cells.tail("the end of words", room) == shown


@pytest.mark.parametrize(("count", "words"), [(0, "0"), (999, "999"), (12_340, "12.3k"), (1_240_000, "1.24M")])
def test_counts_of_tokens(count: int, words: str) -> None:
    assert fmt.tokens(count) == words


def test_points_to_go_on_from_and_what_they_leave_behind() -> None:
    found = forking.points(LOG)
    assert found[0].position == len(LOG)
    assert [point.words for point in found[1:3]] == ["round 5, its 3 ideas undecided", "before round 5"]
    assert forking.left_words(left_behind(LOG, found[0].position)) == "Nothing is left behind."
    left = left_behind(LOG, found[2].position)
    assert forking.left_counts(left) == "1 round, 3 ideas and 5 kernels"
    assert "k18, k19, k20, k21, k22" in forking.left_words(left)
    assert left.lost is None
    assert "Better, and left behind: k14" in forking.left_words(left_behind(LOG, found[-1].position))


def test_the_story_tells_every_new_kind_of_event() -> None:
    events: list[e.Event] = [
        e.KernelQuarantined("k20", ("odd [times]",)),
        e.KernelAccepted("k22", "fine"),
        e.SessionPaused("lunch"),
        e.SessionContinued(Pauses()),
        e.CallStarted("c901", "implement:i12", m.CallRole.CODE, "paste", "0" * 64),
        e.CallFailed("c901", "it was no kernel"),
        e.BudgetReached("propose:6", "a call could cost more than is left"),
        e.IdeasReordered(("i12",)),
        e.KernelAttached("i12", "k3"),
    ]
    _, lines = story.tell(story.Story(STATE, "k14"), b.entries(events, start=STATE.seq + 1))
    said = text(lines)
    for words in ("in quarantine: odd [times]", "believed by hand", "paused: lunch", "goes on", "answered by hand", "no kernel",
                  "not asked", "in this order", "lies beside"):  # fmt: skip
        assert words in said, words
