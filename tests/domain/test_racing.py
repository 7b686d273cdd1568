"""Races as decisions of the adaptive strategy: what they tell about kernels, and when one is worth more than a kernel."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support import builders as b

from engine.domain import events as e
from engine.domain import model as m
from engine.domain import races, rules
from engine.domain import work as w
from engine.domain.folds import advance
from engine.domain.rules import adaptive
from engine.domain.settings import Limits
from engine.domain.state import RaceRecord, SessionState
from engine.domain.strategy.belief import Constants, believed
from engine.domain.strategy.evidence import evidence
from engine.domain.strategy.racing import RaceWorth, race_worth
from engine.domain.strategy.reasons import of_race
from engine.journal import codec

WIDE = 1.25
ENDLESS = Limits(rounds=None, kernels=None, plateau=None, light=None)


def child(kernel: str, speedup: float, wide: float) -> tuple[e.Event, ...]:
    ratio = m.Interval(speedup, speedup / wide, speedup * wide)
    *before, last = b.measured_kernel(kernel, speedup, idea="i2", parent="k1", round_number=1)
    assert isinstance(last, e.KernelMeasured)
    return (*before, replace(last, measurement=replace(last.measurement, speedup={"eager": ratio})))


def session(*speedups: float, wide: float = WIDE, **settings: object) -> SessionState:
    """k1 at 1.0× leads; its children k2, k3 … are measured at these speedups, with intervals as wide as ``wide``."""
    first = (
        *b.first_round(1.0, strategy="adaptive", limits=ENDLESS, **settings),
        e.IncumbentChanged("k1", "", m.Succession.FIRST),
    )
    opened = (e.RoundOpened(1, ("k1",)), b.proposed("i2", round_number=1, parent="k1"), e.IdeaSelected("i2"))
    made = (event for n, s in enumerate(speedups, 2) for event in child(f"k{n}", s, wide))
    implemented = e.IdeaImplemented("i2", tuple(f"k{n}" for n in range(2, 2 + len(speedups))))
    closed = e.RoundClosed(1)
    return b.fold(*first, *opened, *made, implemented, closed)


def then(state: SessionState, *events: e.Event) -> SessionState:
    return advance(state, b.entries(events, start=state.seq + 1))


def raced(state: SessionState, kernel: str, ratio: m.Interval, effort: int = 0) -> SessionState:
    record = RaceRecord(kernel, "k1", races.outcome(ratio), ratio, effort, 3, 18, "", "", b.START, state.epoch, (0, 0))
    return replace(state, races=(*state.races, record))


def worth(state: SessionState) -> RaceWorth | None:
    return race_worth(state, believed(evidence(state), Constants()))


def test_a_race_moves_the_kernels_towards_its_ratio() -> None:
    state = session(0.95)
    before = evidence(state).kernels
    after = evidence(raced(state, "k2", m.Interval(1.1, 1.09, 1.11))).kernels
    assert before["k2"].value == pytest.approx(math.log(0.95))
    assert after["k2"].value - after["k1"].value == pytest.approx(math.log(1.1), abs=0.01)
    assert after["k2"].variance < before["k2"].variance


def test_a_race_that_no_longer_counts_moves_nothing() -> None:
    state = session(0.95)
    stale = raced(state, "k2", m.Interval(1.1, 1.09, 1.11))
    stale = replace(stale, races=tuple(replace(race, epoch=race.epoch + 1) for race in stale.races))
    assert evidence(stale).kernels == evidence(state).kernels


def test_a_kernel_that_may_well_be_faster_is_worth_a_race() -> None:
    found = worth(session(0.97, 0.6))
    assert found is not None
    assert (found.kernel, found.against) == ("k2", "k1")
    assert worth(session(0.97, wide=1.001)) is None
    assert "A race is expected to add 1.0" in of_race(found, 0.01)
    assert of_race(found, 0.01).endswith("; the next kernel, at twice the cost, 1.010×")
    assert of_race(found, None).endswith("; no kernel follows")


@pytest.mark.parametrize(("effort", "again"), [(0, True), (races.MAX_EFFORT, False)])
def test_undecided_kernels_race_again_until_the_full_effort(effort: int, again: bool) -> None:
    state = raced(session(0.97), "k2", m.Interval(1.03, 0.97, 1.09), effort)
    assert (worth(state) is not None) is again


def test_a_race_that_could_not_tell_the_difference_is_worth_nothing() -> None:
    """A first search on two cores ended with three races of up to 40 process pairs, each expected to add 1.5%."""
    wide = raced(session(0.97), "k2", m.Interval(0.97, 0.86, 1.1))
    assert worth(session(0.97)) is not None
    assert worth(wide) is None


def test_a_kernel_that_lost_its_race_does_not_race_again() -> None:
    assert worth(raced(session(0.97), "k2", m.Interval(0.8, 0.66, 0.97))) is None


def test_the_strategy_requests_a_race_with_its_reason_before_the_session_ends() -> None:
    state = then(session(0.97), e.LimitsChanged(Limits(rounds=None, kernels=2, plateau=None, light=None)))
    asked = rules.automatic(state)
    assert [type(event) for event in asked] == [e.RaceAsked]
    assert "over k1, the incumbent" in asked[0].advice
    due = then(state, *asked)
    assert [work for work in rules.next_work(due) if isinstance(work, w.Race)] == [w.Race("k2", "k1", 0)]
    decided = raced(replace(due, asked=()), "k2", m.Interval(0.8, 0.66, 0.97))
    assert not any(isinstance(event, e.RaceAsked) for event in rules.automatic(decided))


@pytest.mark.parametrize(("wide", "requested"), [(1.25, False), (4.0, True)])
def test_a_race_that_is_worth_less_than_half_of_the_next_kernel_waits(wide: float, requested: bool) -> None:
    state = session(0.97, wide=wide)
    assert worth(state) is not None
    assert bool(adaptive.race_due(state)) is requested


def test_no_race_is_requested_after_the_time_limit_or_in_a_pause() -> None:
    limits = Limits(rounds=None, kernels=2, plateau=None, light=None, seconds=0.5)
    state = replace(then(session(0.97), e.LimitsChanged(limits)), active_seconds=1.0)
    assert adaptive.race_due(state) == ()
    assert adaptive.race_due(replace(session(0.97), paused="for lunch")) == ()
    assert adaptive.race_due(SessionState(opened=session().opened)) == ()


@pytest.mark.parametrize(("seconds", "requested"), [(0.0, True), (2.0, True), (3.0, False)])
def test_races_take_no_more_than_half_of_the_time_of_other_work(seconds: float, requested: bool) -> None:
    """A first search on two cores spent 97 s on its 28 kernels and 484 s on 60 races, most of them undecided."""
    state = session(0.97, wide=4.0)
    raced_before = replace(raced(state, "k2", m.Interval(1.0, 0.8, 1.25)).races[0], seconds=seconds, epoch=state.epoch + 1)
    spent = {name: replace(kernel, seconds=2.5 + seconds / 2) for name, kernel in state.kernels.items()}
    assert bool(adaptive.race_due(replace(state, races=(raced_before,), kernels=spent))) is requested


def test_the_engineers_requests_keep_their_bytes_in_the_journal() -> None:
    assert b"advice" not in codec.encode(e.Entry(1, b.START, m.ENGINEER, e.RaceAsked("k2", "k1")))
    entry = e.Entry(1, b.START, m.ENGINE, e.RaceAsked("k2", "k1", "why"))
    assert codec.decode(codec.encode(entry)) == entry
