"""Queries on a state: incumbents, lineage, progress."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import builders as b

from engine.domain import events as e
from engine.domain import queries
from engine.domain.model import Interval
from engine.domain.state import SessionState

BEGUN = (b.opened(), b.prepared(), e.RoundOpened(0, ()), b.proposed("i1"))


def measured(
    kernel: str, value: float, low: float, *, depth: str = "precise", corroborated: bool = True
) -> tuple[e.Event, ...]:
    found = b.measurement(value, depth=depth, corroborated=corroborated)
    found = replace(found, speedup={"eager": Interval(value, low, 2 * value - low)})
    return (*b.measured_kernel(kernel)[:3], e.KernelMeasured(kernel, found, 0.0))


def test_a_lucky_screen_with_a_wide_interval_does_not_lead() -> None:
    state = b.fold(*BEGUN, *measured("k1", 3.0, 0.5), *measured("k2", 1.5, 1.4), *measured("k3", 2.0, 1.4))
    assert [k.id for k in queries.ranked(state)] == ["k3", "k2", "k1"]


def test_precise_measurements_rank_above_screens_with_the_same_lower_end() -> None:
    state = b.fold(*BEGUN, *measured("k1", 9.0, 1.4, depth="screen"), *measured("k2", 1.5, 1.4))
    assert [k.id for k in queries.ranked(state)] == ["k2", "k1"]


def test_equal_kernels_are_ranked_by_age_beyond_k9_too() -> None:
    ways = (event for n in range(1, 12) for event in measured(f"k{n}", 1.5, 1.4))
    assert [k.id for k in queries.ranked(b.fold(*BEGUN, *ways))] == [f"k{n}" for n in range(1, 12)]


def test_the_incumbent_is_precise_and_corroborated() -> None:
    state = b.fold(
        *BEGUN,
        *measured("k1", 9.0, 8.0, depth="screen"),
        *measured("k2", 7.0, 6.0, corroborated=False),
        *measured("k3", 1.2, 1.1),
    )
    best = queries.incumbent(state)
    assert best is not None
    assert best.id == "k3"
    assert queries.incumbent(b.fold(*BEGUN, *measured("k1", 7.0, 6.0, corroborated=False))) is None
    assert queries.incumbent(SessionState()) is None


def test_speedups_are_relative_to_the_sessions_baseline() -> None:
    state = b.fold(b.opened(baseline="compile"), b.prepared(), *b.measured_kernel())
    assert queries.ranking_baseline(state) == "compile"
    assert queries.speedup(state, state.kernels["k1"]) is None


def test_lineage_and_descendants() -> None:
    shape = {"k1": None, "k2": "k1", "k3": "k1", "k4": "k2", "k5": "k4", "k6": None}
    state = b.fold(*BEGUN, *(b.drafted(k, parent=p) for k, p in shape.items()))
    assert [k.id for k in queries.lineage(state, "k5")] == ["k1", "k2", "k4", "k5"]
    assert sorted(queries.descendants(state, "k1")) == ["k1", "k2", "k3", "k4", "k5"]
    assert queries.descendants(state, "k5") == ("k5",)
    assert queries.descendants(state, "k9") == ()
    assert queries.lineage(state, "k9") == ()


@pytest.mark.slow
def test_very_deep_trees_are_handled() -> None:
    chain = [b.drafted(f"k{n}", parent=f"k{n - 1}" if n > 1 else None) for n in range(1, 5001)]
    state = b.fold(*BEGUN, *chain)
    assert len(queries.lineage(state, "k5000")) == 5000
    assert len(queries.descendants(state, "k1")) == 5000


def test_progress_is_the_incumbents_speedup_by_round() -> None:
    events = (
        *BEGUN, *b.measured_kernel("k1", 1.0), e.RoundClosed(0), e.RoundOpened(1, ("k1",)),
        *b.measured_kernel("k2", 2.0, parent="k1", round_number=1), e.RoundClosed(1), e.RoundOpened(2, ("k2",)),
        *b.measured_kernel("k3", 1.5, parent="k2", round_number=2), e.RoundClosed(2), e.RoundOpened(3, ("k2",)),
    )  # fmt: skip
    state = b.fold(*events)
    assert queries.incumbent_by_round(state) == ((0, 1.0), (1, 2.0), (2, 2.0), (3, 2.0))
    assert queries.stalled_rounds(state) == 1
    assert queries.last_round(state) == 3
    current = queries.open_round(state)
    assert current is not None
    assert current.number == 3
    assert [k.id for k in queries.kernels_of(state, 2)] == ["k3"]
    assert queries.incumbent_by_round(SessionState()) == ()


def test_an_incumbent_that_was_added_after_the_last_round_counts_too() -> None:
    added = b.measured_kernel("k2", 2.0, parent="k1", round_number=1)
    assert queries.incumbent_by_round(b.fold(*b.first_round(), *added)) == ((0, 1.0), (1, 2.0))


def test_a_state_keeps_unknown_events() -> None:
    state = b.fold(*BEGUN, e.UnknownEvent("llm.called", {"tokens": 3}), e.UnknownEvent("llm.called", {}))
    assert state.unknown == {"llm.called": 2}


def test_events_about_unknown_subjects_change_nothing_else() -> None:
    """The fold is total: even an inconsistent journal can be displayed."""
    state = b.fold(*BEGUN)
    strange: tuple[e.Event, ...] = (
        b.built("k9"), b.verified("k9"), b.measured("k9"), e.KernelFailed("k9", b.failure()), e.KernelReopened("k9", ""),
        e.AttemptFailed("k9", 0, b.failure()), e.AttemptRevised("k9", 1, ""), e.KernelCancelled("k9", ""), e.IdeaSelected("i9"),
        e.IdeaImplemented("i9", ("k9",)), e.RoundClosed(9), b.proposed(round_number=9), e.KernelUnpinned("k9"),
    )  # fmt: skip
    after = b.fold(*BEGUN, *strange)
    same = {name: value for name, value in b.contents(after).items() if name not in ("seq", "at", "active_seconds")}
    assert same == {name: value for name, value in b.contents(state).items() if name in same}
