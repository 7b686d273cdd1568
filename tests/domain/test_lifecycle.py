"""Automatic transitions: rounds open and close, the policy approves, limits close a session, a process opens one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import builders as b

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import model as m
from engine.domain import preparation as p
from engine.domain import queries, rules, stopping
from engine.domain import work as w
from engine.domain.errors import CommandRejected
from engine.domain.folds import advance
from engine.domain.settings import Limits, Pauses
from engine.domain.state import IdeaStatus, SessionState, Stage


def then(state: SessionState, *events: e.Event, seconds: float = 0.0) -> SessionState:
    return advance(state, b.entries(events, start=state.seq + 1, at=b.START + seconds))


def moves(state: SessionState) -> tuple[e.Event, ...]:
    """Automatic transitions without changes of the incumbent, which ``test_races`` covers."""
    return tuple(event for event in rules.automatic(state) if not isinstance(event, e.IncumbentChanged))


BEGUN = (b.opened(mode="ask"), b.prepared())
ROUND_1 = (*b.first_round(mode="ask"), e.RoundOpened(1, ("k1",)), b.proposed("i2", "i3", round_number=1, parent="k1", branch=1))


def test_nothing_happens_before_a_session_is_prepared() -> None:
    assert moves(SessionState()) == ()
    assert moves(b.fold(b.opened())) == ()


def test_round_0_opens_first_and_its_idea_needs_no_approval() -> None:
    state = b.fold(*BEGUN)
    assert rules.automatic(state) == (e.RoundOpened(0, ()),)
    state = then(state, e.RoundOpened(0, ()))
    assert moves(state) == ()
    state = then(state, b.proposed("i1"))
    assert rules.automatic(state) == (e.IdeaSelected("i1"),)
    state = then(state, e.IdeaSelected("i1"))
    assert moves(state) == ()


def test_an_idea_of_the_engineer_awaits_approval_in_round_0_too() -> None:
    state = b.fold(*BEGUN)
    state = then(state, *rules.decide(state, c.WriteIdea(b.idea_text(5))))
    assert moves(state) == ()
    assert [idea.id for idea in queries.pending_ideas(state)] == ["i1"]


def test_in_ask_mode_a_round_waits_for_its_decisions() -> None:
    state = b.fold(*ROUND_1)
    assert moves(state) == ()
    assert rules.next_work(state) == ()
    assert [idea.id for idea in queries.pending_ideas(state)] == ["i2", "i3"]
    state = then(state, e.IdeaRejected("i2", ""), e.IdeaParked("i3"))
    assert rules.automatic(state) == (e.RoundClosed(1),)


@pytest.mark.parametrize("mode", ["ask", "ask:30"])
def test_only_autopilot_approves_automatically(mode: str) -> None:
    assert moves(then(b.fold(*ROUND_1), e.ModeChanged(mode))) == ()
    assert rules.automatic(then(b.fold(*ROUND_1), e.ModeChanged("autopilot"))) == (e.IdeaSelected("i2"), e.IdeaSelected("i3"))


def test_a_round_closes_when_all_its_kernels_have_settled() -> None:
    state = then(b.fold(*ROUND_1), e.IdeaSelected("i2"), e.IdeaRejected("i3", ""))
    assert moves(state) == ()
    state = then(state, b.drafted("k2", idea="i2", parent="k1", round_number=1), e.IdeaImplemented("i2", ("k2",)))
    for event in (b.built("k2"), b.verified("k2"), b.measured("k2", 2.0)):
        assert moves(state) == ()
        state = then(state, event)
    assert rules.automatic(state) == (e.RoundClosed(1),)
    state = then(state, e.RoundClosed(1))
    assert rules.automatic(state) == (e.RoundOpened(2, ("k2", "k1")),)


def test_a_round_without_an_answer_stays_open() -> None:
    assert moves(b.fold(*b.first_round(mode="ask"), e.RoundOpened(1, ("k1",)))) == ()


def test_no_round_opens_before_the_earlier_ones_are_done() -> None:
    closed = b.fold(*b.first_round(mode="ask"))
    assert rules.automatic(closed) == (e.RoundOpened(1, ("k1",)),)
    assert moves(then(closed, e.KernelReopened("k1", ""))) == ()
    assert moves(then(closed, b.proposed("i2", round_number=1, from_source=False))) == ()


# ---------------------------------------------------------------- parents


def grown(*speedups: float, **settings: object) -> tuple[e.Event, ...]:
    """Round 1 with a child of k1 for each speedup."""
    ways = (
        event
        for n, speedup in enumerate(speedups, 2)
        for event in (*b.measured_kernel(f"k{n}", speedup, idea="i2", parent="k1", round_number=1),)
    )
    return (
        *b.first_round(mode="ask", **settings), e.RoundOpened(1, ("k1",)), b.proposed("i2", round_number=1, parent="k1"),
        e.IdeaSelected("i2"), *ways, e.IdeaImplemented("i2", ()), e.RoundClosed(1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "more", "parents"),
    [
        ({}, (), ("k3", "k4")),
        ({"beam": 1}, (), ("k3",)),
        ({"beam": 9}, (), ("k3", "k4", "k1", "k2")),
        ({}, (e.KernelPinned("k2"),), ("k3", "k4", "k2")),
        ({}, (e.KernelPinned("k3"),), ("k3", "k4")),
        ({}, (e.BranchPruned("k3", ""),), ("k4", "k1")),
        ({}, (e.KernelPinned("k3"), e.BranchPruned("k3", "")), ("k4", "k1")),
        ({}, (e.KernelPinned("k2"), e.KernelFailed("k2", b.failure())), ("k3", "k4")),
        ({}, (e.KernelPinned("k2"), e.KernelQuarantined("k2", ("too fast",))), ("k3", "k4")),
        ({"strategy": "sequential"}, (), ("k4",)),
        ({"strategy": "sequential"}, (e.BranchPruned("k4", ""),), ("k3",)),
    ],
)
def test_the_best_and_pinned_kernels_are_parents_of_the_next_round(
    settings: dict[str, object], more: tuple[e.Event, ...], parents: tuple[str, ...]
) -> None:
    state = b.fold(*grown(0.8, 3.0, 2.0, **settings), *more)
    assert rules.automatic(state) == (e.RoundOpened(2, parents),)


# ---------------------------------------------------------------- limits and the end


def looked_at(state: SessionState) -> SessionState:
    """The state after the sanitizers ran on the finalist without findings."""
    best = queries.finalist(state)
    return state if best is None else then(state, e.KernelSanitized(best.id, best.attempt, ("address",)))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(rounds=1), "1 of 1 rounds done"),
        (Limits(rounds=None, kernels=3), "limit of 3 kernels reached"),
        (Limits(rounds=None, light=0.3), "35% of SOL reached"),
        (Limits(rounds=None, plateau=1), "no new incumbent in 1 rounds"),
        (Limits(rounds=2), None),
        (Limits(rounds=None, kernels=4), None),
        (Limits(rounds=None, light=0.5), None),
        (Limits(rounds=None, plateau=2), None),
        (Limits(rounds=None, plateau=0), None),
        (Limits(None, None, None, None, None, None, None), None),
    ],
)
def test_limits_end_a_session_between_rounds(limits: Limits, reason: str | None) -> None:
    state = looked_at(b.fold(*grown(0.8, 0.9, limits=limits), replace(b.measured("k1", 1.0, light=0.35), kernel="k1")))
    assert rules.automatic(state) == ((e.SessionClosed(reason),) if reason else (e.RoundOpened(2, ("k1", "k3")),))


@pytest.mark.parametrize(("fraction", "reason"), [(0.96, "96% of SOL reached"), (1.1, "110% of SOL reached"), (16.4, None)])
def test_a_fraction_far_above_sol_ends_no_session(fraction: float, reason: str | None) -> None:
    """Operands that stay in a core's cache move faster than the device copies: the floor is no bound there."""
    measured = replace(b.measured("k1", 1.0, light=fraction), kernel="k1")
    state = looked_at(b.fold(*grown(0.8, 0.9, limits=Limits(rounds=None)), measured))
    assert stopping.stop_reason(state) == reason


def test_the_naive_port_does_not_count_as_a_round() -> None:
    state = b.fold(*b.first_round(limits=Limits(rounds=1, plateau=1)))
    assert rules.automatic(state) == (e.RoundOpened(1, ("k1",)),)


def test_a_session_without_a_verified_kernel_has_nothing_to_build_on() -> None:
    state = b.fold(*b.first_round()[:-4], e.KernelFailed("k1", b.failure()), e.RoundClosed(0))
    assert rules.automatic(state) == (e.SessionClosed("no verified kernel to build on"),)


def test_a_proposer_without_further_ideas_ends_the_session() -> None:
    state = looked_at(b.fold(*b.first_round(), e.RoundOpened(1, ("k1",)), b.proposed(round_number=1), e.RoundClosed(1)))
    assert rules.automatic(state) == (e.SessionClosed("no further ideas"),)
    state = b.fold(*b.first_round(), e.RoundOpened(1, ("k1",)), b.proposed("i2", round_number=1), e.IdeaRejected("i2", ""))
    assert rules.automatic(then(state, e.RoundClosed(1))) == (e.RoundOpened(2, ("k1",)),)


def test_an_unverifiable_problem_is_not_searched_unless_accepted() -> None:
    fooled = b.prepared(fooled_by="zeros")
    (closed,) = rules.automatic(b.fold(b.opened(), fooled))
    assert closed == e.SessionClosed("not verifiable: a trivial model passes the correctness check (zeros)")
    assert rules.automatic(b.fold(b.opened(accept_unverifiable=True), fooled)) == (e.RoundOpened(0, ()),)


def test_a_refusal_says_that_rounding_decides_the_output() -> None:
    found = replace(b.gate(fooled_by="zeros"), classes={"fp32": p.ClassErrors(1.4, 2.0)})
    assert found.fooled == (
        "a trivial model passes the correctness check (zeros); its own fp32 arithmetic errs by 140% of an output's "
        "spread: let it return what rounding does not decide"
    )


@pytest.mark.parametrize(("fp32", "advice"), [(1e-4, ", or judge fp32 arithmetic with --tolerance class:fp32"), (0.02, "")])
def test_a_refusal_names_a_class_whose_arithmetic_decides_the_output(fp32: float, advice: str) -> None:
    """A U-Net in TF32, which is eager's own, errs by 45%; in fp32 it can be judged."""
    classes = {"fp32": p.ClassErrors(fp32, 1e-3), "tf32": p.ClassErrors(0.45, 2.0)}
    found = replace(b.gate(fooled_by="zeros"), allowed=m.PrecisionClass.TF32, classes=classes)
    assert found.fooled.endswith(f"its own tf32 arithmetic errs by 45% of an output's spread: {_REMEDY}{advice}")


_REMEDY = "let it return what rounding does not decide"


def test_nothing_happens_in_a_closed_session() -> None:
    assert moves(b.fold(*BEGUN, e.SessionClosed("enough"))) == ()


def test_after_the_time_limit_waiting_work_is_dropped_and_running_work_finishes() -> None:
    limits = Limits(seconds=100.0)
    events = (
        *b.first_round(mode="ask", limits=limits), e.RoundOpened(1, ("k1",)),
        b.proposed("i2", "i3", "i4", round_number=1, parent="k1"), e.IdeaSelected("i2"), e.IdeaSelected("i3"),
        b.drafted("k2", idea="i2", parent="k1", round_number=1), b.drafted("k3", idea="i2", parent="k1", round_number=1),
        e.WorkStarted("build:k2:0"), e.WorkStarted("implement:i3"),
    )  # fmt: skip
    state = b.fold(*events)
    assert moves(state) == ()
    state = then(state, e.NoteAdded("", "time passes"), seconds=200)
    why = "time limit of 100 s reached"
    assert rules.automatic(state) == (e.KernelCancelled("k3", why), e.IdeaParked("i2"), e.IdeaParked("i4"))
    state = then(state, *rules.automatic(state), seconds=200)
    assert moves(state) == ()
    state = then(state, b.built("k2"), e.IdeaImplemented("i3", ()), seconds=200)
    assert rules.automatic(state) == (e.KernelCancelled("k2", why),)
    state = then(state, *rules.automatic(state), seconds=200)
    assert rules.automatic(state) == (e.RoundClosed(1),)
    state = looked_at(then(state, e.RoundClosed(1), seconds=200))
    assert rules.automatic(state) == (e.SessionClosed(why),)


def test_only_time_with_running_work_counts() -> None:
    state = b.fold(b.opened(), e.WorkStarted("prepare"), b.prepared())
    assert state.active_seconds == 1.0
    assert then(state, e.NoteAdded("", "after a night's sleep"), seconds=86_400).active_seconds == 1.0


def test_time_in_which_no_process_ran_is_not_counted() -> None:
    killed = b.fold(b.opened(), e.WorkStarted("prepare"))
    assert killed.active_seconds == 0.0
    state = then(killed, e.SessionResumed(("prepare",)), e.WorkStarted("prepare"), b.prepared(), seconds=86_400)
    assert state.active_seconds == 2.0


def test_a_clock_set_back_does_not_reduce_active_time() -> None:
    state = b.fold(b.opened(), e.WorkStarted("prepare"), e.NoteAdded("", "a second later"))
    assert then(state, b.prepared(), seconds=-5000).active_seconds == state.active_seconds == 1.0


def test_an_unreachable_proposer_leaves_the_round_open_until_a_resume() -> None:
    broken = then(b.fold(*b.first_round(), e.RoundOpened(1, ("k1",))), e.WorkFailed("propose:1", "no answer"))
    assert (moves(broken), rules.next_work(broken)) == ((), ())
    assert rules.next_work(then(broken, e.SessionResumed(()))) == (w.Propose(1, ("k1",), 3),)


# ---------------------------------------------------------------- resuming


def test_resuming_lists_unfinished_work() -> None:
    state = b.fold(*BEGUN, e.WorkStarted("propose:0"), e.WorkStarted("build:k9:0"))
    assert rules.resume_events(state, "repaired") == (e.SessionResumed(("propose:0", "build:k9:0"), "repaired"),)
    assert rules.resume_events(b.fold(*BEGUN), "") == (e.SessionResumed((), ""),)


@pytest.mark.parametrize("stage", ["build", "verify", "measure", "repair"])
def test_work_that_crashed_two_processes_fails_as_crashed(stage: str) -> None:
    started = e.WorkStarted(f"{stage}:k1:0")
    way = {"build": 0, "verify": 1, "measure": 2, "repair": 0}[stage]
    events = (*BEGUN, b.proposed("i1"), *b.measured_kernel()[: 1 + way])
    events = (*events, e.AttemptFailed("k1", 0, b.failure())) if stage == "repair" else events
    once = b.fold(*events, started)
    assert rules.resume_events(once, "") == (e.SessionResumed((started.work,)),)
    twice = then(once, *rules.resume_events(once, ""), started)
    _, failed = rules.resume_events(twice, "")
    assert failed == e.KernelFailed(
        "k1", m.Failure(m.FailureKind.CRASHED, f"the engine crashed 2 times during this {stage} step")
    )
    state = then(twice, *rules.resume_events(twice, ""))
    assert state.kernels["k1"].stage is Stage.FAILED
    assert not state.started
    assert not any(getattr(work, "kernel", "") == "k1" for work in rules.next_work(state))


def test_an_idea_whose_implementation_crashed_two_processes_has_no_kernel() -> None:
    started = e.WorkStarted("implement:i1")
    state = b.fold(*BEGUN, e.RoundOpened(0, ()), b.proposed("i1"), e.IdeaSelected("i1"), started, e.SessionResumed(()), started)
    state = then(state, *rules.resume_events(state, ""))
    assert state.ideas["i1"].implemented
    assert "crashed 2 times" in state.ideas["i1"].note
    assert rules.next_work(state) == ()


@pytest.mark.parametrize("key", ["prepare", "propose:0"])
def test_preparations_and_proposals_that_crashed_two_processes_wait_for_the_engineer(key: str) -> None:
    events = BEGUN[:1] if key == "prepare" else (*BEGUN, e.RoundOpened(0, ()))
    state = b.fold(*events, e.WorkStarted(key), e.SessionResumed(()), e.WorkStarted(key))
    state = then(state, *rules.resume_events(state, ""))
    assert b.spelled(state.broken) == {key: f"the engine crashed 2 times during this {key.partition(':')[0]} step"}
    assert rules.next_work(state) == ()
    state = then(state, *rules.resume_events(state, ""))
    assert [str(work.key) for work in rules.next_work(state)] == [key]


def test_finished_work_never_counts_as_a_crash() -> None:
    """Two clean exits between finished work are not crashes."""
    walk = b.Walk()
    walk.write((b.opened(),))
    for _ in range(200):
        walk.write(rules.resume_events(walk.state, ""))
        walk.settle()
        owed = rules.next_work(walk.state)
        if not owed:
            break
        walk.start(owed[0])
        walk.finish(owed[0], b.FakeBench(reliable=True).perform(walk.state, owed[0]))
    assert {k.stage for k in walk.state.kernels.values()} == {Stage.MEASURED}
    assert all(idea.status is IdeaStatus.SELECTED for idea in walk.state.ideas.values())


# ---------------------------------------------------------------- another device


def moved(*events: e.Event, **settings: object) -> SessionState:
    state = b.fold(*grown(0.8, 3.0, 2.0, 1.5, **settings), *events)
    result = w.Prepared(b.device("another machine"), b.preparation())
    return then(state, *rules.record(state, w.Prepare(), result))


def test_on_another_device_the_best_and_pinned_kernels_are_remeasured() -> None:
    state = moved(e.KernelPinned("k2"), beam=1)
    assert state.device == b.device("another machine")
    assert state.epoch == 2
    again = [k.id for k in state.kernels.values() if k.again]
    assert again == ["k2", "k3", "k4"]
    assert [str(work.key) for work in rules.next_work(state)] == ["build:k2:0", "build:k3:0", "build:k4:0"]


def test_after_fresh_baselines_the_best_kernels_are_measured_again() -> None:
    state = b.fold(*grown(0.8, 3.0, 2.0, 1.5, beam=1))
    events = rules.record(state, w.Prepare(), w.Prepared(b.device(), b.preparation()))
    assert e.KernelReopened("k3", "the baselines were measured again") in events
    assert then(state, *events).epoch == 2


def test_kernels_measured_on_another_device_are_not_eligible() -> None:
    state = moved()
    assert queries.ranked(state) == queries.frontier(state) == ()
    assert queries.verified(state)  # they stay right
    assert queries.incumbent(state) is None
    assert all(queries.speedup(state, kernel) is None for kernel in state.kernels.values())


@pytest.mark.parametrize("way", [2, 3])
def test_an_unfinished_kernel_restarts_on_a_new_device(way: int) -> None:
    state = moved(*b.measured_kernel("k6", 9.0, idea="i2", parent="k1", round_number=1)[:way])
    assert state.kernels["k6"].stage is Stage.BUILD
    assert state.kernels["k6"].verification is None


def test_the_first_preparation_reopens_nothing() -> None:
    state = b.fold(b.opened())
    assert rules.record(state, w.Prepare(), w.Prepared(b.device(), b.preparation())) == (b.prepared(),)


ENDED = b.fold(*grown(1.5, 2.0, limits=Limits(rounds=1)))


def test_a_session_closes_only_after_its_incumbent_was_sanitized() -> None:
    assert moves(ENDED) == ()
    assert rules.next_work(ENDED) == (w.Sanitize("k3", 0),)
    seen = then(ENDED, *rules.record(ENDED, w.Sanitize("k3", 0), w.Sanitized(("address",))))
    assert rules.automatic(seen) == (e.SessionClosed("1 of 1 rounds done"),)


def test_sanitizers_that_fail_to_run_are_recorded_and_block_nothing() -> None:
    events = rules.record(ENDED, w.Sanitize("k3", 0), w.Impossible("no sanitizer here"))
    state = then(ENDED, *events)
    sanitizing = state.kernels["k3"].sanitizing
    assert sanitizing is not None
    assert sanitizing.note == "no sanitizer here"
    assert rules.automatic(state) == (e.SessionClosed("1 of 1 rounds done"),)


def test_an_incumbent_with_findings_is_quarantined_and_the_next_one_is_sanitized() -> None:
    found = rules.record(ENDED, w.Sanitize("k3", 0), w.Sanitized(("address",), ("heap-buffer-overflow",)))
    state = then(ENDED, *found)
    assert state.kernels["k3"].stage is Stage.QUARANTINED
    assert rules.next_work(state) == (w.Sanitize("k2", 0),)
    accepted = then(state, *rules.decide(state, c.AcceptKernel("k3", "the tool is wrong here")))
    assert queries.incumbent(accepted) is accepted.kernels["k3"]
    assert rules.automatic(accepted) == (e.SessionClosed("1 of 1 rounds done"),)


def test_a_quarantined_kernel_is_not_eligible_until_accepted() -> None:
    state = b.fold(*grown(1.5), b.drafted("k9", idea="i2", parent="k1", round_number=1), b.built("k9"))
    suspected = w.Suspected(("faster than light",), b.verification(), b.measurement(9.0), 0.5)
    state = then(state, *rules.record(state, w.Verify("k9", 0), suspected))
    assert state.kernels["k9"].stage is Stage.QUARANTINED
    assert state.kernels["k9"].stage.settled
    assert state.kernels["k9"] not in queries.ranked(state)
    believed = then(state, *rules.decide(state, c.AcceptKernel("k9", "read the code")))
    assert queries.incumbent(believed) is believed.kernels["k9"]
    (failed,) = rules.decide(state, c.DiscardKernel("k9"))
    assert failed == e.KernelFailed("k9", m.Failure(m.FailureKind.REJECTED, "faster than light"))
    with pytest.raises(CommandRejected, match="needs a note"):
        rules.decide(state, c.AcceptKernel("k9", " "))


class TestPauses:
    """Pause conditions: reported once, and no proposer is asked until the engineer resumes."""

    def test_before_a_round(self) -> None:
        state = b.fold(*b.first_round(pauses=Pauses(round=1)))
        assert rules.automatic(state) == (e.SessionPaused("before round 1"),)
        state = then(state, *rules.automatic(state))
        assert moves(state) == ()
        state = then(state, *rules.decide(state, c.ResumeSearch()))
        assert rules.automatic(state) == (e.RoundOpened(1, ("k1",)),)

    def test_pausing_above_a_cost(self) -> None:
        state = b.fold(*b.first_round(pauses=Pauses(usd=5.0)), e.RoundOpened(1, ("k1",)), *spent(4.0, "c1"))
        assert moves(state) == ()
        state = then(state, *spent(2.0, "c2"))
        assert rules.automatic(state) == (e.SessionPaused("$6.00 spent, above $5"),)
        state = then(state, *rules.automatic(state))
        assert rules.next_work(state) == ()
        assert rules.wanted_work(state) == (w.Propose(1, ("k1",), 3),)
        state = then(state, *rules.decide(state, c.ResumeSearch()))
        assert rules.next_work(state) == (w.Propose(1, ("k1",), 3),)

    def test_pausing_by_hand(self) -> None:
        state = b.fold(*b.first_round(), e.RoundOpened(1, ("k1",)))
        state = then(state, *rules.decide(state, c.PauseSearch()))
        assert state.paused == "by hand", "screens say paused: by hand"
        with pytest.raises(CommandRejected, match="already paused"):
            rules.decide(state, c.PauseSearch())


def spent(usd: float, call: str) -> tuple[e.Event, ...]:
    started = e.CallStarted(call, "propose:1", m.CallRole.IDEAS, "openai:gpt-test", b.digest("prompt"), 1000)
    return (started, e.CallAnswered(call, b.digest("reply"), m.Usage(100, 0, 50), usd))


def test_after_a_hard_cap_no_model_is_asked_and_the_session_closes() -> None:
    state = b.fold(
        *b.first_round(mode="ask"), e.RoundOpened(1, ("k1",)), b.proposed("i2", "i3", round_number=1, parent="k1"),
        e.IdeaSelected("i2"), e.WorkStarted("implement:i2"),
    )  # fmt: skip
    refused = rules.record(state, w.Implement("i2"), w.Unaffordable("the next call could pass 1,000 tokens"))
    assert refused == (e.BudgetReached("implement:i2", "the next call could pass 1,000 tokens"),)
    state = then(state, *refused)
    assert [str(work.key) for work in rules.next_work(state)] == ["sanitize:k1:0"]
    assert moves(state) == ()
    state = then(looked_at(state), e.SessionClosed("the next call could pass 1,000 tokens"))
    assert not state.rounds[1].closed


def test_a_raised_cap_goes_on_where_the_session_stopped() -> None:
    state = b.fold(
        *b.first_round(mode="ask"), e.RoundOpened(1, ("k1",)), b.proposed("i2", "i3", round_number=1, parent="k1"),
        e.IdeaSelected("i2"), e.BudgetReached("implement:i2", "no"),
    )  # fmt: skip
    state = looked_at(state)
    assert moves(state) == (e.SessionClosed("no"),)
    state = then(state, *moves(state))
    state = then(state, *rules.decide(state, c.SetLimits(Limits(tokens=10_000))))
    assert (state.closed, state.capped) == (None, None)
    assert [str(work.key) for work in rules.next_work(state)] == ["implement:i2"]
    assert [idea.id for idea in queries.pending_ideas(state)] == ["i3"]


def test_a_cap_waits_for_what_runs_and_for_kernels_that_need_no_model() -> None:
    capped = e.BudgetReached("implement:i3", "no")
    state = b.fold(
        *b.first_round(), e.RoundOpened(1, ("k1",)), b.proposed("i2", "i3", round_number=1, parent="k1"),
        e.IdeaSelected("i2"), e.IdeaSelected("i3"), e.WorkStarted("implement:i2"), capped,
    )  # fmt: skip
    assert moves(state) == ()
    assert [str(work.key) for work in rules.next_work(state)] == ["implement:i2"], "a later process finishes what was paid for"
    state = then(state, b.drafted("k2", idea="i2", parent="k1", round_number=1), e.IdeaImplemented("i2", ("k2",)))
    assert moves(state) == ()
    assert [str(work.key) for work in rules.next_work(state)] == ["build:k2:0"]
    state = then(state, b.built("k2"), b.verified("k2", 0.5), b.measured("k2", 0.5))
    assert moves(looked_at(state)) == (e.SessionClosed("no"),)


def test_a_kernel_that_awaits_a_repair_keeps_it_until_the_cap_is_raised() -> None:
    failure = m.Failure(m.FailureKind.MISMATCH, "wrong")
    state = b.fold(
        *b.first_round(), e.RoundOpened(1, ("k1",)), b.proposed("i2", round_number=1, parent="k1"), e.IdeaSelected("i2"),
        b.drafted("k2", idea="i2", parent="k1", round_number=1), e.IdeaImplemented("i2", ("k2",)),
        e.AttemptFailed("k2", 0, failure),
        e.BudgetReached("repair:k2:0", "no"),
    )  # fmt: skip
    state = then(looked_at(state), e.SessionClosed("no"))
    state = then(state, *rules.decide(state, c.SetLimits(Limits(tokens=10_000))))
    assert [str(work.key) for work in rules.next_work(state)] == ["repair:k2:0"]


class TestQuestionCalledOff:
    """The round's proposal was cancelled: the round waits for the engineer's ideas, or for a retry."""

    asked = e.CallStarted("c1", "propose:1", m.CallRole.IDEAS, "openai:gpt-test", b.digest("prompt"), 1000)
    state = b.fold(
        *b.first_round(mode="ask"), e.RoundOpened(1, ("k1",)), e.WorkStarted("propose:1"), asked,
        e.CallFailed("c1", "cancelled by hand", cancelled=True),
    )  # fmt: skip
    off = then(state, *rules.record(state, w.Propose(1, ("k1",), 3), w.Impossible("c1 was cancelled by hand", called_off=True)))

    def test_a_cancelled_proposal_is_not_repeated_and_the_round_waits(self) -> None:
        assert b.spelled(self.off.called_off) == {"propose:1": "c1 was cancelled by hand"}
        assert rules.next_work(self.off) == ()
        assert moves(self.off) == ()

    def test_a_round_can_consist_of_the_engineers_ideas(self) -> None:
        state = then(self.off, *rules.decide(self.off, c.WriteIdea(b.idea_text(7), select=True)))
        assert [str(work.key) for work in rules.next_work(state)] == ["implement:i2"]
        assert moves(state) == ()
        state = then(state, e.IdeaImplemented("i2", ()))
        assert moves(state) == (e.RoundClosed(1),)
        state = then(state, e.RoundClosed(1))
        assert (dict(state.broken), b.spelled(state.called_off)) == ({}, {})
        assert moves(state) == (e.RoundOpened(2, ("k1",)),)

    def test_an_engine_failure_does_not_close_the_round(self) -> None:
        state = then(self.state, e.WorkFailed("propose:1", "no connection"))
        state = then(state, *rules.decide(state, c.WriteIdea(b.idea_text(7), select=True)), e.IdeaImplemented("i2", ()))
        assert moves(state) == ()

    def test_a_retried_proposal_is_requested_again(self) -> None:
        assert self.state.calls["c1"].cancelled
        state = then(self.off, *rules.resume_events(self.off, ""))
        assert [str(work.key) for work in rules.next_work(state)] == ["propose:1"]
        assert not state.calls["c1"].cancelled

    def test_an_interruption_in_between_changes_nothing(self) -> None:
        state = then(self.state, e.WorkFailed("propose:1", "interrupted"))
        assert then(state, *rules.resume_events(state, "")).calls["c1"].cancelled


def test_the_instruction_mix_is_kept_for_the_same_artefact() -> None:
    once = replace(b.built(), instructions={"fma": 8, "total": 90})
    again = (e.KernelReopened("k1", "remeasured on request"), b.built())
    state = b.fold(*b.first_round(), e.KernelReopened("k1", "remeasured on request"), once)
    assert dict(then(state, *again).kernels["k1"].instructions) == {"fma": 8, "total": 90}
    other = (again[0], replace(again[1], artefact=b.digest("of another machine")))
    assert dict(then(state, *other).kernels["k1"].instructions) == {}
