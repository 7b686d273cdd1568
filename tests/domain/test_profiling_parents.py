"""When the hardware counters of a round's parents are read: before a model is asked, once, where they can be read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import builders as b

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import rules
from engine.domain import work as w
from engine.domain.folds import advance
from engine.domain.model import AGENT
from engine.domain.profile import Profile
from engine.domain.state import SessionState

MODEL = "openai:test-model"
READ = Profile(0, "perf", "Test CPU", 1, {"cycles": 1e6})
UNREADABLE = Profile(0, note="perf is not installed")


def in_round(*more: e.Event, **settings: object) -> SessionState:
    """Round 1 is open, with k1 and k2 as parents."""
    return b.fold(
        b.opened(**{"source": MODEL, **settings}), b.prepared(), *b.measured_kernel("k1", 1.0),
        *b.measured_kernel("k2", 2.0), e.RoundOpened(1, ("k1", "k2")), *more,
    )  # fmt: skip


ASK = w.Propose(1, ("k1", "k2"), 3)
BOTH = (w.ReadCounters("k1", 0), w.ReadCounters("k2", 0))


def asked(state: SessionState) -> tuple[w.Work, ...]:
    return tuple(work for work in rules.next_work(state) if isinstance(work, w.ReadCounters | w.Propose))


def test_the_parents_counters_are_read_before_a_model_is_asked() -> None:
    state = in_round()
    assert asked(state) == BOTH
    state = then(state, *rules.record(state, BOTH[0], w.Profiled(READ)))
    assert asked(state) == BOTH[1:]
    state = then(state, *rules.record(state, BOTH[1], w.Profiled(READ)))
    assert asked(state) == (ASK,)
    assert state.kernels["k2"].profile == READ


@pytest.mark.parametrize("result", [w.Profiled(UNREADABLE), w.Impossible("the judge died")])
def test_one_failure_to_read_is_recorded_and_no_further_parent_is_tried(result: w.Result) -> None:
    state = in_round()
    state = then(state, e.WorkStarted("profile:k1:0"), *rules.record(state, BOTH[0], result))
    assert asked(state) == (ASK,)
    assert not state.started
    assert not state.broken
    found = state.kernels["k1"].profile
    assert found is not None
    assert found.note in ("perf is not installed", "the judge died")


def test_where_counters_were_read_one_failure_stops_nothing() -> None:
    state = in_round(e.KernelProfiled("k1", READ))
    assert asked(state) == BOTH[1:]
    state = then(state, *rules.record(state, BOTH[1], w.Profiled(Profile(0, note="ncu stopped after 300 s"))))
    assert asked(state) == (ASK,)


@pytest.mark.parametrize("source", ["playbook", AGENT])
def test_nothing_is_read_where_no_model_proposes(source: str) -> None:
    assert not any(isinstance(work, w.ReadCounters) for work in rules.next_work(in_round(source=source)))


def test_it_can_be_switched_off_during_the_session() -> None:
    state = in_round()
    state = then(state, *rules.decide(state, c.SetModels(replace(state.models, profiling=False))))
    assert asked(state) == (ASK,)


def test_a_proposal_that_began_does_not_wait_for_counters() -> None:
    assert asked(in_round(e.WorkStarted("propose:1"))) == (ASK,)


def test_a_reading_that_killed_two_processes_is_given_up() -> None:
    started = e.WorkStarted("profile:k1:0")
    state = in_round(started, e.SessionResumed(("profile:k1:0",)), started)
    state = then(state, *rules.resume_events(state, ""))
    assert asked(state) == (ASK,)
    assert "crashed 2 times" in (state.kernels["k1"].profile or READ).note


def then(state: SessionState, *events: e.Event) -> SessionState:
    return advance(state, b.entries(events, start=state.seq + 1))
