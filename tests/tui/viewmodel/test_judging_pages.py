"""Pages on quarantine, sanitizers, usage and forking."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import builders as b
from support import showcase

from engine.domain import events as e
from engine.domain import model as m
from engine.domain.folds import advance
from engine.domain.settings import Pauses
from engine.domain.state import SessionState
from engine.domain.work import WorkKey
from engine.report.facts import usage
from engine.report.facts.forks import left_behind
from tui.viewmodel import (
    cells,
    detail,
    event_log,
    fmt,
    forking,
    heading,
    kernels,
    preview,
    stages,
    timing,
    tree_cells,
    tree_columns,
)
from tui.viewmodel import usage as usage_page
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
    output = tree_cells.row_line(view, row, tree_columns.layout(160)).text
    assert "◬ quarantined" in output
    assert "faster than the speed of light" in output
    assert "7.9" not in output
    assert view.top < 4, "a quarantined kernel must not stretch the bars"


def test_the_evidence_is_shown_literally() -> None:
    output = text(detail.checks(STATE, STATE.kernels["k22"], 100))
    assert "quarantined " in output
    assert "number of rows [b]at all[/b]" in output
    accepted = after(e.KernelAccepted("k22", "seen [with] own eyes"))
    output = text(detail.checks(accepted, accepted.kernels["k22"], 100))
    assert "was quarantined" in output
    assert "accepted by the engineer: seen [with] own eyes" in output


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (e.KernelSanitized("k14", 0, ("memcheck", "racecheck"), (), "", "", 3.1), "✓ clean  memcheck and racecheck"),
        (
            e.KernelSanitized("k14", 0, ("memcheck",), ("write of 4 bytes [out] of bounds",), "", "", 1.0),
            "✗ 1 finding  memcheck",
        ),
        (e.KernelSanitized("k14", 0, (), (), "compute-sanitizer is missing", "", 0.0), "did not run"),
    ],
)
def test_sanitizer_findings(event: e.KernelSanitized, words: str) -> None:
    state = after(event)
    output = text(detail.checks(state, state.kernels["k14"], 100))
    assert words in output
    assert all(finding in output for finding in event.findings)
    assert event.note in output


def test_a_failure_in_a_suite_says_which_workloads_passed() -> None:
    kernel = STATE.kernels["k14"]
    failure = m.Failure(m.FailureKind.MISMATCH, "on workload tall: call 1: wrong")
    for where, words in (
        (
            m.FailedWorkload("tall", ("flat", "wide"), ("deep",)),
            ("failed on  tall", "passed     flat, wide", "not tried  deep"),
        ),
        (m.FailedWorkload("tall"), ("failed on  tall", "passed     none")),
    ):
        failed = replace(kernel, failure=replace(failure, failed_on=where))
        output = text(detail.checks(STATE, failed, 100))
        assert all(one in output for one in words), output
        assert "not tried" in words[-1] or "not tried" not in output


def test_usage_by_round_role_and_model() -> None:
    output = text(usage_page.page(STATE, 110))
    total = usage.totals(STATE.calls.values())
    assert f"{total.usage.input:,}" in output
    assert "round 3" in output
    assert "mystery" in output
    (mystery,) = (row for row in output.splitlines() if "mystery" in row and "price" not in row and "●" not in row)
    assert "unknown" in mystery, "an unknown price must not count as zero"
    assert "price unknown for 1 call" in output
    assert total.unpriced == 1


@pytest.mark.parametrize("room", [37, 57, 80, 110])
def test_no_figure_of_the_usage_is_cut(room: int) -> None:
    lines = usage_page.page(STATE, room)
    assert max(line.width for line in lines) <= room
    by_round = next(line.text.split() for line in lines if line.text.startswith("  round 1 "))
    assert by_round[-1].startswith("$")


def test_limits_and_pause_conditions_are_shown_with_the_usage() -> None:
    limits = replace(STATE.limits, usd=0.2, tokens=100_000)
    state = after(e.LimitsChanged(limits), e.PausesChanged(Pauses(usd=0.1)), e.SessionPaused("$0.15 spent, above $0.1"))
    output = text(usage_page.page(state, 110))
    assert "of 100,000" in output
    assert "pause at  above $0.10" in output
    assert "paused: $0.15 spent" in output
    assert "‖ paused" in text(heading.lines(state, heading.SessionStatus(), 120))
    assert "/$0.20" in text(heading.lines(state, heading.SessionStatus(), 200))


def test_usage_without_model_calls() -> None:
    output = text(usage_page.page(b.fold(b.opened()), 80))
    assert "no model calls" in output
    assert "no condition set" in output


def test_a_recalled_reply_costs_nothing() -> None:
    call = e.CallStarted("c900", "propose:9", m.CallRole.IDEAS, "openai:x", "0" * 64)
    answered = e.CallAnswered("c900", "0" * 64, m.Usage(5000, 0, 100), None, recalled=True)
    before, now = usage.totals(STATE.calls.values()), usage.totals(after(call, answered).calls.values())
    assert (now.usage, now.usd, now.unpriced) == (before.usage, before.usd, before.unpriced)
    assert now.calls == before.calls + 1


def test_the_end_of_streamed_text_is_shown() -> None:
    state = after(e.WorkStarted("implement:i12"))
    words = "I begin with the parent's second pass and then " * 8 + "write the loop"
    output = stages.strip(state, {WorkKey.parse("implement:i12"): words}, 120)[1].text
    assert output.rstrip().endswith("write the loop")
    assert "…" in output


@pytest.mark.parametrize(("room", "shown"), [(20, "the end of words"), (8, "…f words"), (4, "…rds"), (1, "")])
def test_the_tail_of_a_text(room: int, shown: str) -> None:
    assert cells.tail("the end of words", room) == shown


@pytest.mark.parametrize(("count", "words"), [(0, "0"), (999, "999"), (12_340, "12.3k"), (1_240_000, "1.24M")])
def test_counts_of_tokens(count: int, words: str) -> None:
    assert fmt.tokens(count) == words


def test_fork_points_and_what_a_fork_does_not_contain() -> None:
    found = forking.points(LOG)
    assert found[0].position == len(LOG)
    assert [point.words for point in found[1:3]] == ["round 5, before its 3 ideas are approved", "before round 5"]
    assert "round 4, before its 1 idea is approved" in [point.words for point in found]
    assert forking.left_words(left_behind(LOG, found[0].position)) == "The fork contains everything."
    left = left_behind(LOG, found[2].position)
    assert forking.left_counts(left) == "1 round, 3 ideas and 5 kernels"
    assert "k18, k19, k20, k21, k22" in forking.left_words(left)
    assert left.lost is None
    assert "Faster, but not in the fork: k14" in forking.left_words(left_behind(LOG, found[-1].position))


def test_the_event_log_has_a_line_for_each_kind_of_event() -> None:
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
    _, lines = event_log.append(event_log.EventLog(STATE, "k14"), b.entries(events, start=STATE.seq + 1))
    output = text(lines)
    for words in ("quarantined: odd [times]", "accepted by the engineer", "paused: lunch", "resumed", "awaits your answer",
                  "no kernel", "call skipped", "ideas reordered", "attached to"):  # fmt: skip
        assert words in output, words


DOUBT = "not corroborated: every process pair was disturbed [by] CPU contention"
UNSURE = replace(b.measurement(9.0), corroborated=False, doubts=(DOUBT,))
DOUBTED = after(e.KernelMeasured("k14", UNSURE, 1.0))


def test_a_doubted_kernel_has_a_mark_of_its_own_and_stretches_no_bar() -> None:
    kernel = DOUBTED.kernels["k14"]
    assert kernels.outcome(DOUBTED, kernel) == kernels.NOT_CORROBORATED
    view = tree_cells.tree_context(DOUBTED)
    row = next(row for row in rows(DOUBTED) if row.kernel == "k14")
    output = tree_cells.row_line(view, row, tree_columns.layout(200)).text
    assert "? not corrob. " in output
    assert "? 9.00×" in output
    assert "not corroborated" in output
    assert "▲ 9.00×" not in output
    assert view.top < 4
    assert view.incumbent != "k14"


def test_the_pages_of_a_doubted_kernel_give_every_doubt() -> None:
    kernel = DOUBTED.kernels["k14"]
    proof = text(detail.checks(DOUBTED, kernel, 120))
    assert "not corroborated " in proof
    assert f"? {DOUBT}" in proof
    assert "cannot become the incumbent" in proof
    times = text(timing.page(DOUBTED, kernel, 120))
    assert "✗ not corroborated" in times
    assert DOUBT in times
    assert DOUBT not in text(timing.page(STATE, STATE.kernels["k14"], 120))


def test_the_counts_tell_doubted_kernels_from_measured_ones() -> None:
    before, found = stages.counts(STATE), stages.counts(DOUBTED)
    assert (found.measured, found.doubted) == (before.measured - 1, before.doubted + 1)
    assert "1 not corroborated" in text(stages.strip(DOUBTED, {}, 200))


def test_a_session_of_doubted_kernels_says_so_in_its_heading() -> None:
    state = b.fold(*b.first_round()[:-2], e.KernelMeasured("k1", UNSURE, 1.0))
    assert "no kernel whose time is corroborated" in text(heading.lines(state, heading.SessionStatus(), 120))
    assert "no kernel whose time is corroborated" in text(preview.session_facts("s", (), state).lines)


def test_a_race_that_is_not_corroborated_says_why() -> None:
    raced = e.KernelRaced("k14", "k12", m.RaceOutcome.UNDECIDED, b.interval(1.5), 0, 3, 18, doubts=(DOUBT,))
    state = after(raced)
    assert DOUBT in text(timing.page(state, state.kernels["k14"], 200))
