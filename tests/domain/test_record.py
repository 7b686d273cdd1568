"""The events of every result, obsolete results, and the order of owed work."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import builders as b

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import model as m
from engine.domain import queries, rules
from engine.domain import work as w
from engine.domain.folds import advance
from engine.domain.queries import SURPLUS
from engine.domain.settings import Limits
from engine.domain.state import SessionState, Stage

BEGUN = (b.opened(mode="ask"), b.prepared(), e.RoundOpened(0, ()))


def then(state: SessionState, *events: e.Event) -> SessionState:
    return advance(state, b.entries(events, start=state.seq + 1))


def at_stage(stage: str, *, author: m.Author = b.PLAYBOOK, attempt: int = 0) -> SessionState:
    """A kernel k2 in this stage of this attempt; its parent k1 has speedup 2.0."""
    events: list[e.Event] = [*b.first_round(2.0, mode="ask"), e.RoundOpened(1, ("k1",)), b.proposed("i2", round_number=1)]
    events += [e.IdeaSelected("i2"), b.drafted("k2", idea="i2", parent="k1", round_number=1, author=author)]
    for number in range(attempt):
        revised = e.AttemptRevised("k2", number + 1, b.digest(f"revision {number}"))
        events += [e.AttemptFailed("k2", number, b.failure()), revised]
    way: dict[str, list[e.Event]] = {
        "build": [],
        "verify": [b.built("k2")],
        "measure": [b.built("k2"), b.verified("k2")],
        "repair": [e.AttemptFailed("k2", attempt, b.failure())],
    }
    return b.fold(*events, *way[stage])


WORKS = {"build": w.Build, "verify": w.Verify, "measure": w.Measure, "repair": w.Repair}
RESULTS: dict[str, w.Result] = {
    "build": w.Built("key", 0.5, (m.Resources("f", 8, 0, 0),), b.digest("log")),
    "verify": w.Verified(b.verification(), b.measurement(1.9, depth="screen"), 0.5),
    "measure": w.Measured(b.measurement(1.9), 0.5),
    "repair": w.Repaired(b.digest("better")),
}


@pytest.mark.parametrize(
    ("stage", "event", "after"),
    [
        ("build", e.KernelBuilt("k2", "key", 0.5, (m.Resources("f", 8, 0, 0),), b.digest("log")), Stage.VERIFY),
        ("verify", e.KernelVerified("k2", b.verification(), b.measurement(1.9, depth="screen"), 0.5), Stage.MEASURE),
        ("measure", e.KernelMeasured("k2", b.measurement(1.9), 0.5), Stage.MEASURED),
        ("repair", e.AttemptRevised("k2", 1, b.digest("better")), Stage.BUILD),
    ],
)
def test_success_moves_a_kernel_to_its_next_stage(stage: str, event: e.Event, after: Stage) -> None:
    state = at_stage(stage)
    assert rules.record(state, WORKS[stage]("k2", 0), RESULTS[stage]) == (event,)
    assert then(state, event).kernels["k2"].stage is after


@pytest.mark.parametrize("stage", ["build", "verify", "measure"])
@pytest.mark.parametrize("kind", list(m.FailureKind))
def test_an_unrepairable_failure_ends_a_kernel(stage: str, kind: m.FailureKind) -> None:
    failed = w.Failed(b.failure(kind), 0.3)
    events = rules.record(at_stage(stage), WORKS[stage]("k2", 0), failed)
    assert events == (e.KernelFailed("k2", failed.failure, 0.3),)


@pytest.mark.parametrize(
    ("kind", "repairable"),
    [
        (m.FailureKind.BUILD_FAILED, True),
        (m.FailureKind.MISMATCH, True),
        (m.FailureKind.CRASHED, True),
        (m.FailureKind.TIMED_OUT, False),
        (m.FailureKind.REJECTED, False),
        (m.FailureKind.UNSTABLE, False),
    ],
)
def test_models_repair_repairable_failures(kind: m.FailureKind, repairable: bool) -> None:
    failed = w.Failed(b.failure(kind), 0.3)
    (event,) = rules.record(at_stage("build", author=b.MODEL), w.Build("k2", 0), failed)
    assert isinstance(event, e.AttemptFailed if repairable else e.KernelFailed)


@pytest.mark.parametrize("author", ["engineer", "engine", "playbook"])
def test_the_engineer_and_the_playbook_are_not_asked_to_repair(author: str) -> None:
    (event,) = rules.record(at_stage("build", author=m.Author(author)), w.Build("k2", 0), w.Failed(b.failure()))
    assert isinstance(event, e.KernelFailed)


def test_repairs_are_bounded() -> None:
    """By default two repairs are allowed: the third attempt is the last."""
    for attempt, kind in enumerate((e.AttemptFailed, e.AttemptFailed, e.KernelFailed)):
        state = at_stage("build", author=b.MODEL, attempt=attempt)
        (event,) = rules.record(state, w.Build("k2", attempt), w.Failed(b.failure()))
        assert isinstance(event, kind)


def test_a_failed_repair_keeps_the_original_failure() -> None:
    state = at_stage("repair", author=b.MODEL)
    answer = w.Failed(m.Failure(m.FailureKind.TIMED_OUT, "the model does not answer"), 2.0)
    assert rules.record(state, w.Repair("k2", 0), answer) == (e.KernelFailed("k2", b.failure(), 2.0),)


def test_a_repaired_kernel_keeps_its_earlier_code() -> None:
    kernel = at_stage("build", author=b.MODEL, attempt=2).kernels["k2"]
    assert kernel.source == b.digest("revision 1")
    assert kernel.earlier == (b.digest("source of k2"), b.digest("revision 0"))


@pytest.mark.parametrize("stage", list(WORKS))
def test_engine_failures_are_not_verdicts_on_kernels(stage: str) -> None:
    state = at_stage(stage)
    work = WORKS[stage]("k2", 0)
    events = rules.record(state, work, w.Impossible("device lost"))
    assert events == (e.WorkFailed(str(work.key), "device lost"),)
    waiting = then(state, *events)
    assert waiting.kernels["k2"] == state.kernels["k2"]
    assert work not in rules.next_work(waiting)
    assert work in rules.next_work(then(waiting, e.SessionResumed(())))


# ---------------------------------------------------------------- late results


@pytest.mark.parametrize("stage", list(WORKS))
@pytest.mark.parametrize("failed", [False, True])
def test_a_result_of_a_kernel_that_was_cancelled_meanwhile_is_dropped(stage: str, failed: bool) -> None:
    state = then(at_stage(stage), e.KernelCancelled("k2", "by hand"))
    assert rules.record(state, WORKS[stage]("k2", 0), w.Failed(b.failure()) if failed else RESULTS[stage]) == ()


@pytest.mark.parametrize("stage", list(WORKS))
def test_a_result_of_an_earlier_attempt_is_dropped(stage: str) -> None:
    state = at_stage("build", author=b.MODEL, attempt=1)
    assert rules.record(state, WORKS[stage]("k2", 0), RESULTS[stage]) == ()


@pytest.mark.parametrize("stage", ["verify", "measure", "repair"])
def test_a_result_from_before_a_kernel_was_reopened_is_dropped(stage: str) -> None:
    """Cancelled during work, then remeasured: the old result would skip the build or the verification."""
    state = at_stage(stage)
    for command in (c.CancelKernel("k2"), c.Remeasure("k2")):
        state = then(state, *rules.decide(state, command))
    assert rules.record(state, WORKS[stage]("k2", 0), RESULTS[stage]) == ()


def test_a_result_of_an_unknown_kernel_is_dropped() -> None:
    assert rules.record(b.fold(*BEGUN), w.Build("k9", 0), RESULTS["build"]) == ()


@pytest.mark.parametrize(
    ("work", "result"),
    [
        (w.Prepare(), RESULTS["build"]),
        (w.Propose(0, (), 1), w.Drafts(())),
        (w.Implement("i2"), w.Proposals(())),
        (w.Build("k2", 0), w.Repaired("")),
        (w.Repair("k2", 0), RESULTS["build"]),
    ],
)
def test_a_result_of_the_wrong_type_is_a_bug(work: w.Work, result: w.Result) -> None:
    with pytest.raises(TypeError, match=f"is not a result of {work.key}"):
        rules.record(at_stage("build"), work, result)


# ---------------------------------------------------------------- screens


@pytest.mark.parametrize(("speedup", "precise"), [(2.5, True), (2.0, True), (1.7, True), (1.6, False), (0.5, False)])
def test_only_contenders_are_measured_precisely(speedup: float, precise: bool) -> None:
    """The incumbent has speedup 2.0; a screen qualifies if its upper end reaches 85 % of that."""
    screen = b.measurement(speedup, depth="screen")
    events = rules.record(at_stage("verify"), w.Verify("k2", 0), w.Verified(b.verification(), screen, 0.5))
    settled = e.KernelMeasured("k2", screen, 0.0)
    assert events == (e.KernelVerified("k2", b.verification(), screen, 0.5), *(() if precise else (settled,)))


def test_roots_seeds_pinned_and_reopened_kernels_are_always_measured_precisely() -> None:
    slow = w.Verified(b.verification(), b.measurement(0.1, depth="screen"), 0.5)
    seed = replace(b.drafted("k3", idea="i2", parent="k1"), seed=True)
    state = then(at_stage("verify"), seed, b.built("k3"), b.drafted("k4", idea="i2"), b.built("k4"))
    assert len(rules.record(state, w.Verify("k2", 0), slow)) == 2
    assert len(rules.record(state, w.Verify("k3", 0), slow)) == 1
    assert len(rules.record(state, w.Verify("k4", 0), slow)) == 1
    assert len(rules.record(then(state, e.KernelPinned("k2")), w.Verify("k2", 0), slow)) == 1
    again = then(state, e.KernelReopened("k2", ""), b.built("k2"))
    assert len(rules.record(again, w.Verify("k2", 0), slow)) == 1
    unrated = replace(slow, screen=replace(slow.screen, speedup={}))
    assert len(rules.record(state, w.Verify("k2", 0), unrated)) == 1


# ---------------------------------------------------------------- proposals and drafts


def proposals(*numbers: int, parent: str | None = "k1") -> w.Proposals:
    return w.Proposals(tuple(w.Proposal(b.idea_text(n), parent, b.PLAYBOOK) for n in numbers))


ROUND_1 = (*b.first_round(mode="ask"), e.RoundOpened(1, ("k1",)))


def test_proposals_become_ideas_of_the_round() -> None:
    state = b.fold(*ROUND_1)
    (event,) = rules.record(state, w.Propose(1, ("k1",), 3), proposals(4, 5))
    assert event == e.IdeasProposed(
        1, tuple(e.ProposedIdea(f"i{n - 2}", b.idea_text(n), "k1", b.PLAYBOOK, 3) for n in (4, 5)), True
    )
    answered = then(state, event)
    assert answered.rounds[1].answered
    assert rules.next_work(answered) == ()


def test_repeated_ideas_are_dropped_by_title_and_surplus_ones_parked() -> None:
    state = b.fold(*ROUND_1, b.proposed("i2", round_number=1, parent="k1", from_source=False), e.IdeaRejected("i2", ""))
    event, parked = rules.record(state, w.Propose(1, ("k1",), 2), proposals(2, 4, 4, 5, 6))
    assert isinstance(event, e.IdeasProposed)
    assert [idea.text for idea in event.ideas] == [b.idea_text(4), b.idea_text(5), b.idea_text(6)]
    assert event.dropped == tuple(b.idea_text(n).title for n in (2, 4))
    assert parked == e.IdeaParked("i5", SURPLUS)


def test_surplus_gives_way_to_requested_ideas_fills_their_places_and_may_be_proposed_again() -> None:
    def offer(number: int, surplus: bool) -> w.Proposal:
        return w.Proposal(b.idea_text(number), "k1", b.PLAYBOOK, surplus)

    state = b.fold(*ROUND_1)
    event, parked = rules.record(
        state, w.Propose(1, ("k1",), 2), w.Proposals((offer(4, True), offer(5, False), offer(6, True)))
    )  # fmt: skip
    assert isinstance(event, e.IdeasProposed)
    assert [idea.text for idea in event.ideas] == [b.idea_text(n) for n in (5, 4, 6)]
    assert parked == e.IdeaParked("i4", SURPLUS)
    later = then(state, event, parked)
    (again,) = rules.record(later, w.Propose(1, ("k1",), 2), w.Proposals((offer(6, False), offer(5, False))))
    assert isinstance(again, e.IdeasProposed)
    assert [idea.text for idea in again.ideas] == [b.idea_text(6)]


def test_the_same_entry_on_another_parent_is_another_idea() -> None:
    state = b.fold(*ROUND_1, b.proposed("i2", round_number=1, parent="k1", from_source=False))
    texts = tuple(
        w.Proposal(replace(b.idea_text(2), title=f"Words {n}"), parent, b.PLAYBOOK) for n, parent in ((1, "k1"), (2, None))
    )
    (event,) = rules.record(state, w.Propose(1, ("k1",), 2), w.Proposals(texts))
    assert isinstance(event, e.IdeasProposed)
    assert [idea.parent for idea in event.ideas] == [None]


def test_an_idea_with_an_unknown_parent_has_none() -> None:
    (event,) = rules.record(b.fold(*ROUND_1), w.Propose(1, ("k1",), 2), proposals(4, parent="k77"))
    assert isinstance(event, e.IdeasProposed)
    assert event.ideas[0].parent is None


@pytest.mark.parametrize(("settings", "number", "branch"), [
    ({}, 1, 3), ({}, 0, 1), ({"branch": 5}, 1, 5), ({"strategy": "sequential"}, 1, 1),
])  # fmt: skip
def test_the_number_of_implementations_of_an_idea(settings: dict[str, object], number: int, branch: int) -> None:
    state = b.fold(*b.first_round(**settings), e.RoundOpened(1, ("k1",)))
    (event,) = rules.record(state, w.Propose(number, (), 3), proposals(4))
    assert isinstance(event, e.IdeasProposed)
    assert event.ideas[0].branch == branch


def test_no_ideas_are_a_valid_answer() -> None:
    assert rules.record(b.fold(*ROUND_1), w.Propose(1, ("k1",), 3), w.Proposals(())) == (e.IdeasProposed(1, (), True),)


def drafts(*sources: str, tunables: dict[str, int] | None = None, note: str = "") -> w.Drafts:
    made = (w.StoredDraft(f"{s}.cpp", m.Dialect.CPP, m.Contract.HOST, b.digest(s), b.MODEL, tunables or {}) for s in sources)
    return w.Drafts(tuple(made), note)


SELECTED = (*ROUND_1, b.proposed("i2", round_number=1, parent="k1", branch=3), e.IdeaSelected("i2"))


def test_drafts_become_kernels_below_the_idea_s_parent() -> None:
    state = b.fold(*SELECTED)
    events = rules.record(state, w.Implement("i2"), drafts("a", "b", tunables={"BLOCK": 4}))
    assert [event.KIND for event in events] == ["kernel.drafted", "kernel.drafted", "idea.implemented"]
    grown = then(state, *events)
    for kernel, source in (("k2", "a"), ("k3", "b")):
        found = grown.kernels[kernel]
        assert (found.parent, found.round, found.source, found.author) == ("k1", 1, b.digest(source), b.MODEL)
        assert (found.tunables, found.seed, found.stage) == ({"BLOCK": 4}, False, Stage.BUILD)
    assert (grown.ideas["i2"].implemented, grown.ideas["i2"].kernels, grown.ideas["i2"].note) == (True, ("k2", "k3"), "")


def test_code_already_in_the_tree_is_dropped_and_counted() -> None:
    state = b.fold(*SELECTED)
    events = rules.record(state, w.Implement("i2"), drafts("source of k1", "a", "a", "b", note="asked for 4"))
    assert events[-1] == e.IdeaImplemented("i2", ("k2", "k3"), "asked for 4; 2 already in the tree")
    tuned = rules.record(state, w.Implement("i2"), drafts("source of k1", tunables={"BLOCK": 4}))
    assert len(tuned) == 2, "other tunables make another kernel"
    cancelled = then(state, e.KernelCancelled("k1", ""))
    assert len(rules.record(cancelled, w.Implement("i2"), drafts("source of k1"))) == 2


def test_code_that_was_repaired_later_counts_as_tried() -> None:
    state = then(at_stage("build", author=b.MODEL, attempt=1), e.SessionResumed(()))
    events = rules.record(state, w.Implement("i2"), drafts("source of k2"))
    assert events == (e.IdeaImplemented("i2", (), "1 already in the tree"),)


def test_the_limit_of_kernels_holds_within_a_round() -> None:
    for limit, kept in ((1, 0), (2, 1), (3, 2), (0, 0)):
        state = b.fold(*SELECTED, e.LimitsChanged(Limits(kernels=limit)))
        events = rules.record(state, w.Implement("i2"), drafts("a", "b"))
        assert len(events) == kept + 1


def test_drafts_for_an_idea_that_somebody_implemented_meanwhile_are_dropped() -> None:
    state = b.fold(*SELECTED)
    seed = c.SeedKernel("mine.cpp", m.Dialect.CPP, m.Contract.HOST, b.digest("mine"), idea="i2")
    state = then(state, *rules.decide(state, seed))
    assert rules.record(state, w.Implement("i2"), drafts("a", "b")) == ()


# ---------------------------------------------------------------- owed work


def test_before_all_else_a_session_is_prepared() -> None:
    assert rules.next_work(SessionState()) == ()
    assert rules.next_work(b.fold(b.opened())) == (w.Prepare(),)
    assert rules.next_work(b.fold(b.opened(), b.drafted())) == (w.Prepare(),)
    assert rules.next_work(b.fold(b.opened(), e.WorkFailed("prepare", "no device"))) == ()


def test_later_stages_come_first_then_implementations_then_proposals() -> None:
    events = (
        *b.first_round(mode="ask"), e.RoundOpened(1, ("k1",)), b.proposed("i2", "i3", round_number=1, from_source=False),
        e.IdeaSelected("i2"), e.IdeaSelected("i3"),
        b.drafted("k2"), e.AttemptFailed("k2", 0, b.failure()),
        b.drafted("k3"),
        b.drafted("k4"), b.built("k4"),
        b.drafted("k5"), b.built("k5"), b.verified("k5"),
        b.drafted("k6"), b.built("k6"), b.verified("k6"),
    )  # fmt: skip
    assert [str(work.key) for work in rules.next_work(b.fold(*events))] == [
        "measure:k5:0", "measure:k6:0", "verify:k4:0", "build:k3:0", "repair:k2:0", "implement:i2", "implement:i3", "propose:1",
    ]  # fmt: skip


def test_work_is_owed_until_its_result_is_recorded_and_never_in_a_closed_session() -> None:
    state = b.fold(*SELECTED)
    assert rules.next_work(state) == rules.next_work(then(state, e.WorkStarted("implement:i2"))) == (w.Implement("i2"),)
    assert rules.next_work(then(state, e.SessionClosed("enough"))) == ()


@pytest.mark.parametrize(("settings", "count"), [({}, 3), ({"ideas": 7}, 7), ({"strategy": "sequential", "ideas": 7}, 1)])
def test_the_number_of_requested_ideas(settings: dict[str, object], count: int) -> None:
    state = b.fold(*b.first_round(**settings), e.RoundOpened(1, ("k1",)))
    assert rules.next_work(state) == (w.Propose(1, ("k1",), count),)


def test_started_work_is_counted_per_process_until_its_result() -> None:
    state = b.fold(*SELECTED, e.WorkStarted("implement:i2"), e.SessionResumed(("implement:i2",)), e.WorkStarted("implement:i2"))
    assert b.spelled(state.started) == {"implement:i2": 2}
    assert then(state, e.IdeaImplemented("i2", ())).started == {}
    assert then(state, e.WorkFailed("implement:i2", "no answer")).started == {}
    works = ("build:k1:0", "verify:k1:0", "measure:k1:0")
    busy = b.fold(*BEGUN, b.drafted(), *(e.WorkStarted(key) for key in works), e.WorkStarted("build:k2:0"))
    for end in (e.KernelCancelled("k1", ""), e.KernelFailed("k1", b.failure()), b.measured(), b.built()):
        assert b.spelled(then(busy, end).started) == {"build:k2:0": 1}


def test_the_incumbent_while_only_screens_are_known() -> None:
    screened = e.KernelMeasured("k1", b.measurement(1.5, depth="screen"), 0.0)
    state = b.fold(*BEGUN, b.proposed("i1"), *b.measured_kernel()[:3], screened)
    best = queries.incumbent(state)
    assert best is not None
    assert not queries.is_precise(best)
