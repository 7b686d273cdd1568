"""Races and incumbents: pending races, outcomes, effort, and the commands that request races."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as b

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import model as m
from engine.domain import queries, races, rules
from engine.domain import work as w
from engine.domain.errors import CommandRejected
from engine.domain.folds import advance
from engine.domain.settings import Limits
from engine.domain.state import SessionState, Stage

FASTER, SLOWER, UNDECIDED = m.RaceOutcome.FASTER, m.RaceOutcome.SLOWER, m.RaceOutcome.UNDECIDED
SAME = m.Interval(1.0, 0.99, 1.01)
FIRST = (*b.first_round(1.0, mode="ask"), e.IncumbentChanged("k1", "", m.Succession.FIRST))
ROUND_1 = (*FIRST, e.RoundOpened(1, ("k1",)), b.proposed("i2", round_number=1, parent="k1"), e.IdeaSelected("i2"))


def then(state: SessionState, *events: e.Event) -> SessionState:
    return advance(state, b.entries(events, start=state.seq + 1))


def child(kernel: str, speedup: float) -> tuple[e.Event, ...]:
    return b.measured_kernel(kernel, speedup, idea="i2", parent="k1", round_number=1)


def with_children(*speedups: float) -> SessionState:
    """k1 is the incumbent at 1.0; its children k2, k3 … have these speedups."""
    return b.fold(*ROUND_1, *(event for n, s in enumerate(speedups, 2) for event in child(f"k{n}", s)))


def raced(state: SessionState, work: w.Race, ratio: m.Interval, **others: object) -> SessionState:
    """The state after a race with this ratio and the automatic transitions."""
    state = then(state, *rules.record(state, work, w.Raced(ratio, 3, 18, **others)))  # type: ignore[arg-type]
    while events := rules.automatic(state):
        state = then(state, *events)
    return state


def leads(state: SessionState) -> str:
    best = queries.incumbent(state)
    return best.id if best is not None else ""


# ---------------------------------------------------------------- outcomes


@pytest.mark.parametrize(
    ("ratio", "corroborated", "expected"),
    [
        (m.Interval(1.2, 1.1, 1.3), True, FASTER),
        (m.Interval(1.2, 1.1, 1.3), False, UNDECIDED),
        (m.Interval(0.8, 0.7, 0.9), True, SLOWER),
        (m.Interval(0.8, 0.7, 0.9), False, SLOWER),
        (m.Interval(1.02, 1.0, 1.04), True, UNDECIDED),
        (m.Interval(0.98, 0.96, 1.0), True, UNDECIDED),
        (m.Interval(1.02, 0.9, 1.15), True, UNDECIDED),
    ],
)
def test_only_an_interval_entirely_on_one_side_of_1_decides(
    ratio: m.Interval, corroborated: bool, expected: m.RaceOutcome
) -> None:
    assert races.outcome(ratio, corroborated=corroborated) is expected


@pytest.mark.parametrize(
    ("same", "low"),
    [(SAME, 1.009 / 1.0101), (m.Interval(1.0, 1.0, 1.0), 1.008), (m.Interval(1.03, 1.02, 1.04), 1.009 / 1.04)],
)
def test_no_interval_is_narrower_than_the_baseline_against_itself(same: m.Interval, low: float) -> None:
    found = races.with_noise_floor(m.Interval(1.009, 1.008, 1.010), same)
    assert found.value == 1.009
    assert found.low == pytest.approx(low, rel=1e-4)
    assert found.high >= 1.010
    assert found.low * found.high == pytest.approx(1.009**2, rel=1e-4)
    assert races.with_noise_floor(m.Interval(2.0, 1.5, 2.5), same) == m.Interval(2.0, 1.5, 2.5), "a wide one stays as it is"


@given(st.floats(0.01, 100), st.floats(0, 1), st.floats(0, 0.5))
def test_an_inverted_race_is_the_same_race(value: float, spread: float, noise: float) -> None:
    ratio = m.Interval(value, value * math.exp(-spread), value * math.exp(spread))
    same = m.Interval(1.0, math.exp(-noise), math.exp(noise))
    turned = races.inverted(ratio)
    assert turned.low <= turned.value <= turned.high
    assert races.inverted(turned).low == pytest.approx(ratio.low)
    seen = {FASTER: SLOWER, SLOWER: FASTER, UNDECIDED: UNDECIDED}
    here, there = races.with_noise_floor(ratio, same), races.with_noise_floor(turned, same)
    assert here.low <= min(ratio.low, value * math.exp(-noise) * 1.000001)
    if not any(math.isclose(end, 1.0, rel_tol=1e-9) for end in (here.low, here.high)):
        assert races.outcome(there) is seen[races.outcome(here)]


# ---------------------------------------------------------------- the incumbent


def test_the_first_measured_kernel_is_the_incumbent_without_a_race() -> None:
    state = b.fold(*b.first_round(1.0, mode="ask"), e.RoundOpened(1, ("k1",)))
    assert rules.automatic(state) == (e.IncumbentChanged("k1", "", m.Succession.FIRST),)
    state = then(state, *rules.automatic(state))
    assert (leads(state), rules.automatic(state), races.pending_races(state)) == ("k1", (), ())


def test_a_screened_kernel_never_becomes_the_incumbent() -> None:
    screened = e.KernelMeasured("k1", b.measurement(1.5, depth="screen"), 0.0)
    state = b.fold(
        b.opened(mode="ask"), b.prepared(), e.RoundOpened(0, ()), b.proposed("i1"), *b.measured_kernel()[:3], screened
    )
    assert leads(state) == "k1"
    assert not any(isinstance(event, e.IncumbentChanged) for event in rules.automatic(state))


def test_a_better_measurement_leads_only_after_winning_a_race() -> None:
    state = with_children(2.0)
    assert leads(state) == "k1"
    assert races.pending_races(state) == (w.Race("k2", "k1"),)
    assert w.Race("k2", "k1") in rules.next_work(state)
    result = w.Raced(b.interval(1.9), 3, 18, True, "ab" * 32, 2.5, "cold caches")
    (event,) = rules.record(state, w.Race("k2", "k1"), result)
    assert event == e.KernelRaced("k2", "k1", FASTER, b.interval(1.9), 0, 3, 18, "ab" * 32, "cold caches", 2.5)
    state = then(state, event)
    assert rules.automatic(state)[0] == e.IncumbentChanged("k2", "k1", m.Succession.RACED)
    state = then(state, *rules.automatic(state))
    assert (leads(state), races.pending_races(state), state.reigns) == ("k2", (), ("k1", "k2"))


@pytest.mark.parametrize(
    ("ratio", "outcome"),
    [
        (b.interval(0.5), SLOWER),
        (b.interval(1.0), UNDECIDED),
        (m.Interval(1.005, 1.004, 1.006), UNDECIDED),
        (m.Interval(1.2, 1.0, 1.4), UNDECIDED),
    ],
)
def test_the_incumbent_stays_unless_the_challenger_clearly_wins(ratio: m.Interval, outcome: m.RaceOutcome) -> None:
    """The third is above 1, but within the A/A noise of the baseline."""
    state = raced(with_children(2.0), w.Race("k2", "k1"), ratio)
    assert (leads(state), races.pending_races(state)) == ("k1", ())
    (race,) = state.races
    assert (race.outcome, race.pairs, race.samples) == (outcome, 3, 18)
    assert [r.kernel for r in races.undecided_races(state)] == (["k2"] if outcome is UNDECIDED else [])


def test_a_win_that_is_not_corroborated_does_not_count() -> None:
    state = raced(with_children(2.0), w.Race("k2", "k1"), b.interval(1.9), corroborated=False)
    assert (leads(state), state.races[0].outcome) == ("k1", UNDECIDED)


@pytest.mark.parametrize("speedup", [0.5, 0.97, 1.0])
def test_kernels_ranked_below_the_incumbent_do_not_race(speedup: float) -> None:
    assert races.pending_races(with_children(speedup)) == ()


def test_the_best_challenger_races_first_and_spares_the_others_a_race() -> None:
    state = with_children(1.5, 2.5, 2.0)
    assert races.pending_races(state) == (w.Race("k3", "k1"), w.Race("k4", "k1"), w.Race("k2", "k1"))
    assert races.pending_races(raced(state, w.Race("k3", "k1"), b.interval(2.5))) == ()
    lost = raced(state, w.Race("k3", "k1"), b.interval(0.9))
    assert races.pending_races(lost) == (w.Race("k4", "k1"), w.Race("k2", "k1"))


def test_races_wait_until_all_challengers_are_measured() -> None:
    more = (b.drafted("k3", idea="i2", parent="k1", round_number=1), b.built("k3"))
    state = b.fold(*ROUND_1, *child("k2", 2.0), *more, b.drafted("k4", idea="i2", parent="k1", round_number=1))
    assert [str(work.key) for work in rules.next_work(state)][:3] == ["verify:k3:0", "race:k2:k1:0", "build:k4:0"]


def test_rounds_and_sessions_close_only_after_their_races() -> None:
    state = then(with_children(2.0), e.IdeaImplemented("i2", ("k2",)), e.LimitsChanged(Limits(rounds=1)))
    assert rules.automatic(state) == ()
    state = then(state, *rules.record(state, w.Race("k2", "k1"), w.Raced(b.interval(2.0), 3, 18)))
    state = then(state, *rules.automatic(state))
    assert rules.automatic(state) == (e.RoundClosed(1),)
    late = then(state, e.RoundClosed(1), *child("k3", 3.0))
    assert races.pending_races(late) == (w.Race("k3", "k2"),)
    assert rules.automatic(late) == ()


def test_the_next_round_starts_from_the_incumbent_even_if_another_ranks_above_it() -> None:
    state = then(with_children(2.0), e.IdeaImplemented("i2", ("k2",)))
    state = then(state, *rules.record(state, w.Race("k2", "k1"), w.Raced(b.interval(1.0), 3, 18)), e.RoundClosed(1))
    assert [k.id for k in queries.ranked(state)] == ["k2", "k1"]
    assert rules.automatic(state) == (e.RoundOpened(2, ("k1", "k2")),)


def test_a_screen_is_compared_with_the_best_challenger_until_that_has_lost() -> None:
    state = then(with_children(2.0), b.drafted("k3", idea="i2", parent="k1", round_number=1), b.built("k3"))
    screen = w.Verified(b.verification(), b.measurement(1.2, depth="screen"), 0.5)
    assert len(rules.record(state, w.Verify("k3", 0), screen)) == 2, "far from 2.0: not measured precisely"
    lost = raced(state, w.Race("k2", "k1"), b.interval(0.9))
    assert len(rules.record(lost, w.Verify("k3", 0), screen)) == 1, "it may lead over 1.0"


# ---------------------------------------------------------------- failures and succession


@pytest.mark.parametrize(("at_fault", "leader"), [("k2", "k1"), ("", "k1"), ("k1", "k2")])
def test_a_kernel_that_fails_in_a_race_is_failed(at_fault: str, leader: str) -> None:
    state = then(with_children(2.0), e.WorkStarted("race:k2:k1:0"))
    failure = b.failure(m.FailureKind.CRASHED)
    (event,) = rules.record(state, w.Race("k2", "k1"), w.Failed(failure, 1.5, at_fault))
    assert event == e.KernelFailed(at_fault or "k2", failure, 1.5)
    state = then(state, event)
    assert (leads(state), b.spelled(state.started), races.pending_races(state)) == (leader, {}, ())


def test_failed_work_is_owed_again_after_a_resume() -> None:
    state = then(with_children(2.0), e.WorkStarted("race:k2:k1:0"))
    broken = then(state, *rules.record(state, w.Race("k2", "k1"), w.Impossible("device lost")))
    assert (b.spelled(broken.broken), rules.automatic(broken)) == ({"race:k2:k1:0": "device lost"}, ())
    assert w.Race("k2", "k1") not in rules.next_work(broken)
    assert w.Race("k2", "k1") in rules.next_work(then(broken, e.SessionResumed(())))


def test_a_race_that_crashed_two_processes_is_undecided() -> None:
    state = then(with_children(2.0), *(e.WorkStarted("race:k2:k1:0") for _ in range(2)))
    resumed, given_up = rules.resume_events(state, "")
    assert isinstance(resumed, e.SessionResumed)
    assert isinstance(given_up, e.KernelRaced)
    assert (given_up.outcome, given_up.ratio, "crashed 2 times" in given_up.note) == (UNDECIDED, None, True)
    state = then(state, resumed, given_up)
    assert (leads(state), b.spelled(state.started), races.pending_races(state)) == ("k1", {}, ())
    once = then(with_children(2.0), e.WorkStarted("race:k2:k1:0"))
    assert len(rules.resume_events(once, "")) == 1


def test_an_obsolete_result_causes_no_events() -> None:
    result = w.Raced(b.interval(2.0), 3, 18)
    state = with_children(2.0)
    for gone in (
        then(state, e.KernelReopened("k2", "")),
        then(state, e.KernelReopened("k1", "")),
        then(state, e.KernelFailed("k2", b.failure())),
        raced(state, w.Race("k2", "k1"), b.interval(1.0)),
    ):
        assert rules.record(gone, w.Race("k2", "k1"), result) == ()
    with pytest.raises(TypeError, match="is not a result of race:k2:k1:0"):
        rules.record(state, w.Race("k2", "k1"), w.Repaired(""))


def led_by_k2() -> SessionState:
    return raced(with_children(2.0, 1.5), w.Race("k2", "k1"), b.interval(2.0))


@pytest.mark.parametrize("end", [e.KernelFailed("k2", b.failure()), e.KernelQuarantined("k2", ("heap overflow",))])
def test_a_former_incumbent_replaces_an_ineligible_one_and_the_others_race_it(end: e.Event) -> None:
    state = then(led_by_k2(), end)
    assert leads(state) == "k1"
    assert e.IncumbentChanged("k1", "k2", m.Succession.SUCCEEDED) in rules.automatic(state)
    state = then(state, *rules.automatic(state))
    assert races.pending_races(state) == (w.Race("k3", "k1"),)


def test_a_remeasured_incumbent_stays_and_no_race_runs_meanwhile() -> None:
    state = then(led_by_k2(), e.KernelReopened("k2", "remeasured on request"))
    assert (leads(state), state.incumbent, races.pending_races(state)) == ("k1", "k2", ())
    assert not any(isinstance(event, e.IncumbentChanged) for event in rules.automatic(state))
    state = then(state, b.built("k2"), b.verified("k2", 2.0), b.measured("k2", 2.0))
    assert (leads(state), races.pending_races(state)) == ("k2", ())
    worse = then(state, e.KernelReopened("k2", ""), b.built("k2"), b.verified("k2", 1.2), b.measured("k2", 1.2))
    assert races.pending_races(worse) == (w.Race("k3", "k2"),)


def test_a_race_counts_only_for_its_measurements() -> None:
    state = raced(with_children(2.0), w.Race("k2", "k1"), b.interval(1.0))
    assert races.latest_race(state, "k1", "k2") is state.races[0]
    again = then(state, e.KernelReopened("k2", ""), b.built("k2"), b.verified("k2", 2.0), b.measured("k2", 2.0))
    assert races.latest_race(again, "k1", "k2") is None
    assert races.pending_races(again) == (w.Race("k2", "k1"),)


def test_after_a_move_the_incumbent_is_rebuilt_and_the_others_race_it() -> None:
    state = then(led_by_k2(), e.RaceAsked("k3", "k2"), e.WorkStarted("race:k3:k2:0"))
    events = rules.record(state, w.Prepare(), w.Prepared(b.device("another machine"), b.preparation()))
    state = then(state, *events)
    assert e.KernelReopened("k2", "the session moved to another device") in events
    assert (leads(state), state.incumbent, races.pending_races(state), state.asked, b.spelled(state.started)) == (
        "",
        "k2",
        (),
        (),
        {},
    )
    assert not any(races.is_current(state, race) for race in state.races)
    state = then(state, *(event for k in ("k1", "k2") for event in (b.built(k), b.verified(k, 2.0), b.measured(k, 2.0))))
    assert (leads(state), races.pending_races(state)) == ("k2", (w.Race("k1", "k2"),)), "equals rank by age"


def test_three_kernels_that_beat_each_other_in_a_cycle_keep_the_incumbent() -> None:
    state = led_by_k2()
    state = raced(then(state, e.RaceAsked("k3", "k2")), w.Race("k3", "k2"), b.interval(1.2))
    assert leads(state) == "k3"
    state = raced(then(state, e.RaceAsked("k1", "k3")), w.Race("k1", "k3"), b.interval(1.2))
    assert leads(state) == "k1"
    assert (races.pending_races(state), races.winner(state)) == ((), None)


# ---------------------------------------------------------------- requested races


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        (c.RaceKernel("k3"), [("k3", "k2")]),
        (c.RaceKernel("k3", "k1"), [("k3", "k1")]),
        (c.RaceKernel("k2", "k1"), [("k1", "k2")]),
        (c.RaceKernel("k1", "k2"), [("k1", "k2")]),
        (c.RaceLeaders(), [("k3", "k2"), ("k1", "k2")]),
        (c.RaceLeaders(1), [("k3", "k2")]),
    ],
)
def test_requested_races_run_with_the_incumbent_second(command: c.Command, asked: list[tuple[str, str]]) -> None:
    state = led_by_k2()
    events = rules.decide(state, command)
    assert events == tuple(e.RaceAsked(*pair) for pair in asked)
    state = then(state, *events)
    assert races.pending_races(state) == tuple(w.Race(*pair) for pair in asked)
    assert rules.decide(state, command) == (), "it is asked for already"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (c.RaceKernel("k9"), "unknown kernel 'k9'"),
        (c.RaceKernel("k3", "k9"), "unknown kernel 'k9'"),
        (c.RaceKernel("k2"), "k2 is the incumbent"),
        (c.RaceKernel("k3", "k3"), "k3 cannot race itself"),
        (c.RaceKernel("k4"), "k4 has no precise measurement"),
        (c.RaceKernel("k3", "k4"), "k4 has no precise measurement"),
        (c.RaceLeaders(0), "must be at least 1"),
        (c.RaceUndecided(), "no race against the incumbent is undecided"),
    ],
)
def test_invalid_races_are_rejected(command: c.Command, words: str) -> None:
    screened = e.KernelMeasured("k4", b.measurement(3.0, depth="screen"), 0.0)
    state = then(led_by_k2(), *child("k4", 3.0)[:3], screened)
    with pytest.raises(CommandRejected, match=words):
        rules.decide(state, command)


def test_without_an_incumbent_there_is_no_default_race() -> None:
    empty = b.fold(b.opened(), b.prepared())
    for command in (c.RaceLeaders(), c.RaceUndecided()):
        with pytest.raises(CommandRejected):
            rules.decide(empty, command)
    alone = b.fold(*FIRST)
    with pytest.raises(CommandRejected, match="only k1 has a precise measurement"):
        rules.decide(alone, c.RaceLeaders())


def test_each_undecided_race_raises_the_effort_up_to_a_limit() -> None:
    state = raced(with_children(2.0), w.Race("k2", "k1"), b.interval(1.0))
    for effort in (1, 2, races.MAX_EFFORT, races.MAX_EFFORT):
        state = then(state, *rules.decide(state, c.RaceUndecided()))
        assert races.pending_races(state) == (w.Race("k2", "k1", effort),)
        assert races.pending_races(state)[0] == w.Race("k2", "k1", effort)
        state = raced(state, w.Race("k2", "k1", effort), b.interval(1.0))
        assert races.pending_races(state) == ()
    state = then(state, *rules.decide(state, c.RaceKernel("k2")))
    state = raced(state, w.Race("k2", "k1", races.MAX_EFFORT), b.interval(1.5))
    assert (leads(state), races.undecided_races(state)) == ("k2", ())
    again = then(state, *rules.decide(state, c.RaceKernel("k1")))
    assert races.pending_races(again) == (w.Race("k1", "k2", 0),), "the decided race starts again"


def test_a_requested_race_can_change_the_incumbent_only_if_it_involves_the_incumbent() -> None:
    state = then(led_by_k2(), e.RaceAsked("k1", "k2"))
    assert leads(raced(state, w.Race("k1", "k2"), b.interval(1.2))) == "k1"
    assert leads(raced(state, w.Race("k1", "k2"), b.interval(0.8))) == "k2"
    others = then(led_by_k2(), e.RaceAsked("k3", "k1"))
    assert leads(raced(others, w.Race("k3", "k1"), b.interval(9.0))) == "k2"


def test_an_ineligible_kernel_can_race_but_not_become_the_incumbent() -> None:
    doubtful = replace(b.measurement(3.0), corroborated=False)
    state = then(with_children(), *child("k2", 3.0)[:3], e.KernelMeasured("k2", doubtful, 1.0))
    assert races.pending_races(state) == ()
    state = then(state, *rules.decide(state, c.RaceKernel("k2")))
    state = raced(state, w.Race("k2", "k1"), b.interval(3.0))
    assert (leads(state), state.incumbent) == ("k1", "k1")


def test_the_latest_eligible_former_incumbent_succeeds() -> None:
    state = raced(then(led_by_k2(), e.RaceAsked("k3", "k2")), w.Race("k3", "k2"), b.interval(1.2))
    state = then(state, e.KernelFailed("k3", b.failure()))
    assert leads(state) == "k2"
    assert leads(then(state, e.KernelFailed("k2", b.failure()))) == "k1"


def test_a_closed_session_reopens_for_a_race_and_closes_after_it() -> None:
    state = then(led_by_k2(), e.IdeaImplemented("i2", ("k2", "k3")), e.RoundClosed(1), e.SessionClosed("enough"))
    assert rules.next_work(state) == ()
    assert rules.decide(state, c.RaceKernel("k3")) == (e.SessionReopened(), e.RaceAsked("k3", "k2"))


def test_a_requested_race_is_dropped_when_a_kernel_is_lost() -> None:
    state = then(led_by_k2(), e.RaceAsked("k3", "k2"), e.WorkStarted("race:k3:k2:0"))
    for gone in (e.KernelReopened("k3", ""), e.KernelFailed("k3", b.failure()), e.KernelReopened("k2", "")):
        after = then(state, gone)
        assert (after.asked, b.spelled(after.started), races.pending_races(after)) == ((), {}, ())


def test_races_of_a_lost_incumbent_are_dropped_except_requested_ones() -> None:
    state = then(with_children(2.0, 1.5), e.RaceAsked("k3", "k1"), *(e.WorkStarted(f"race:{k}:k1:0") for k in ("k2", "k3")))
    state = raced(then(state, e.WorkStarted("race:k2:k1:0")), w.Race("k2", "k1"), b.interval(2.0))
    assert leads(state) == "k2"
    assert b.spelled(state.started) == {"race:k3:k1:0": 1}
    other = then(with_children(2.0, 1.5), *(e.WorkStarted(f"race:{k}:k1:0") for k in ("k2", "k3")))
    assert dict(raced(other, w.Race("k2", "k1"), b.interval(2.0)).started) == {}
    assert races.pending_races(state) == (w.Race("k3", "k1"),)


# ---------------------------------------------------------------- journals from before races


def test_a_journal_from_before_races_has_its_best_measured_kernel_as_incumbent() -> None:
    state = b.fold(
        *b.first_round(1.0, mode="ask"), e.RoundOpened(1, ("k1",)), b.proposed("i2", round_number=1), *child("k2", 2.0)
    )
    assert (leads(state), races.pending_races(state)) == ("k2", ())
    resumed = then(state, *rules.resume_events(state, ""))
    assert rules.automatic(resumed) == (e.IncumbentChanged("k2", "", m.Succession.FIRST),)
    state = then(resumed, *rules.automatic(resumed), *child("k3", 3.0))
    assert (leads(state), races.pending_races(state)) == ("k2", (w.Race("k3", "k2"),))
    assert state.kernels["k3"].stage is Stage.MEASURED
