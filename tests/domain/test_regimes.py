"""Regimes: which decides, where they disagree, and when the incumbent is measured in both."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as b

from engine.domain import events as e
from engine.domain import model as m
from engine.domain import races, regimes, rules, suite
from engine.domain import work as w
from engine.domain.folds import advance
from engine.domain.model import FailureKind, Interval
from engine.domain.regimes import ClockAndPower, Regime
from engine.domain.state import SessionState, Stage

LED = e.IncumbentChanged("k1", "", m.Succession.FIRST)


def session(regime: str, *events: e.Event) -> SessionState:
    first, *others = b.first_round(1.0, mode="ask")
    assert isinstance(first, e.SessionOpened)
    opened = replace(first, settings=replace(first.settings, regime=regime))
    return b.fold(opened, *others, LED, *events)


def then(state: SessionState, *events: e.Event) -> SessionState:
    return advance(state, b.entries(events, start=state.seq + 1))


@pytest.mark.parametrize(
    ("setting", "bound", "kind", "decides"),
    [
        ("auto", "operations (fp16)", "cuda", Regime.SUSTAINED),
        ("auto", "operations (vector)", "cuda", Regime.SUSTAINED),
        ("auto", "operations (fp32)", "cpu", Regime.SINGLE),
        ("auto", "bytes", "cuda", Regime.SINGLE),
        ("auto", suite.MIXED, "cuda", Regime.SINGLE),
        ("single", "operations (fp16)", "cuda", Regime.SINGLE),
        ("sustained", "bytes", "cpu", Regime.SUSTAINED),
        ("", "operations (fp16)", "cuda", Regime.SINGLE),
    ],
)
def test_auto_decides_by_sustained_calls_where_operations_bind_on_a_gpu(
    setting: str, bound: str, kind: str, decides: Regime
) -> None:
    assert regimes.deciding(setting, bound, kind) is decides


@pytest.mark.parametrize(
    ("single", "sustained", "expected"),
    [
        (Interval(1.2, 1.1, 1.3), Interval(1.25, 1.2, 1.3), False),
        (Interval(1.2, 1.19, 1.21), Interval(1.1, 1.09, 1.11), True),
        (Interval(1.002, 0.99, 1.02), Interval(0.998, 0.98, 1.01), False),
        (Interval(1.0, 0.99, 1.01), Interval(1.005, 0.995, 1.02), False),
    ],
)
def test_regimes_disagree_where_intervals_are_disjoint(single: Interval, sustained: Interval, expected: bool) -> None:
    assert regimes.disagree(single, sustained) is expected


intervals = st.tuples(st.floats(0.1, 10), st.floats(0, 0.5)).map(lambda p: Interval(p[0], p[0] * (1 - p[1]), p[0] * (1 + p[1])))


@given(intervals, intervals)
def test_disagreement_is_mutual_and_never_with_itself(one: Interval, other: Interval) -> None:
    assert regimes.disagree(one, other) is regimes.disagree(other, one)
    assert not regimes.disagree(one, one)


@pytest.mark.parametrize(
    ("setting", "kind", "wanted"),
    [("auto", "cuda", True), ("single", "cuda", True), ("sustained", "cuda", True), ("", "cuda", False),
     ("auto", "cpu", False), ("single", "cpu", False), ("sustained", "cpu", True), ("", "cpu", False)],
)  # fmt: skip
def test_a_cpu_is_timed_back_to_back_only_where_that_decides(setting: str, kind: str, wanted: bool) -> None:
    assert regimes.wants_sustained(setting, kind) is wanted


def test_the_incumbent_is_owed_a_sustained_measurement() -> None:
    state = session("sustained")
    assert w.Sustain("k1", 0) in rules.next_work(state)
    times = b.sustained(1.1)
    (event,) = rules.record(state, w.Sustain("k1", 0), w.BackToBack(times, 4.0))
    after = then(state, event)
    measured = after.kernels["k1"].measurement
    assert measured is not None
    assert measured.sustained == times
    assert races.to_sustain(after) is None
    assert after.kernels["k1"].seconds == state.kernels["k1"].seconds + 4.0


def on_gpu(state: SessionState) -> SessionState:
    assert state.device is not None
    return replace(state, device=replace(state.device, kind="cuda"))


@pytest.mark.parametrize(("speedup", "owed"), [(0.02, False), (0.4, False), (0.9, True), (1.5, True)])
def test_an_incumbent_far_slower_than_the_baseline_is_not_measured_back_to_back(speedup: float, owed: bool) -> None:
    reopened = (e.KernelReopened("k1", "asked"), b.built("k1"), b.verified("k1", speedup), b.measured("k1", speedup))
    assert (races.to_sustain(on_gpu(session("auto", *reopened))) is not None) is owed
    assert races.to_sustain(session("sustained", *reopened)) is not None, "asked for"


def test_sustained_calls_wait_until_no_kernel_can_replace_the_incumbent() -> None:
    state = session("sustained")
    drafted = then(state, b.drafted("k2", parent="k1"))
    assert races.to_sustain(drafted) is None
    assert races.to_sustain(then(drafted, e.KernelFailed("k2", b.failure()))) is not None


def test_a_session_of_an_older_version_owes_none_nor_does_one_on_a_cpu_that_single_calls_decide() -> None:
    assert races.to_sustain(session("")) is None
    assert races.to_sustain(session("auto")) is None


def test_without_times_the_reason_is_kept_and_nothing_more_is_owed() -> None:
    for result in (w.BackToBack(None, note="no two calls are alike"), w.Impossible("no two calls are alike")):
        state = session("sustained")
        after = then(state, *rules.record(state, w.Sustain("k1", 0), result))
        assert after.kernels["k1"].unsustained == "no two calls are alike"
        assert races.to_sustain(after) is None


def test_a_kernel_that_fails_back_to_back_has_failed() -> None:
    state = session("sustained")
    after = then(state, *rules.record(state, w.Sustain("k1", 0), w.Failed(b.failure(FailureKind.MISMATCH))))
    assert after.kernels["k1"].stage is Stage.FAILED


def test_evidence_quarantines_and_keeps_the_times() -> None:
    state = session("sustained")
    after = then(state, *rules.record(state, w.Sustain("k1", 0), w.BackToBack(b.sustained(9.0), evidence=("reuses results",))))
    kernel = after.kernels["k1"]
    assert kernel.stage is Stage.QUARANTINED
    assert kernel.measurement is not None
    assert kernel.measurement.sustained is not None


def test_a_remeasured_kernel_is_measured_in_both_regimes_again() -> None:
    state = session("sustained", e.KernelSustained("k1", 0, b.sustained(1.1)), e.KernelReopened("k1", "asked"))
    again = then(state, b.built("k1"), b.verified("k1", 1.0), b.measured("k1", 1.0))
    assert races.to_sustain(again) is again.kernels["k1"]


def test_a_late_result_for_a_reopened_kernel_is_dropped() -> None:
    state = session("sustained", e.KernelReopened("k1", "asked"))
    assert rules.record(state, w.Sustain("k1", 0), w.BackToBack(b.sustained(1.1))) == ()


def test_a_race_is_run_and_recorded_in_the_deciding_regime() -> None:
    assert races.deciding_regime(session("sustained")) is Regime.SUSTAINED
    assert races.deciding_regime(session("auto")) is Regime.SINGLE, "the builders' problem is bound by bytes"


def test_over_a_suite_times_are_geometric_means_and_clocks_are_averaged() -> None:
    one = b.sustained(1.0, kernel=ClockAndPower(1400.0, 700.0), doubts=("slow",), corroborated=False)
    other = b.sustained(4.0, kernel=ClockAndPower(1600.0, None))
    whole = suite.sustained({"a": one, "b": other}, {"eager": Interval(2.0, 1.9, 2.1)})
    assert whole.time_us.value == pytest.approx((one.time_us.value * other.time_us.value) ** 0.5)
    assert whole.kernel == ClockAndPower(1500.0, 700.0)
    assert [part.workload for part in whole.by_workload] == ["a", "b"]
    assert whole.doubts == ("a: slow",)
    assert not whole.corroborated
    assert suite.sustained({"a": one}, {}) is one


def with_rivals(regime: str, *speedups: float) -> SessionState:
    """k1 leads at 1; the other kernels are measured at these speedups."""
    rivals = [b.measured_kernel(f"k{number}", speedup, parent="k1") for number, speedup in enumerate(speedups, 2)]
    return session(regime, e.KernelSustained("k1", 0, b.sustained(1.0)), *(event for one in rivals for event in one))


def test_kernels_closely_below_the_incumbent_race_it_back_to_back() -> None:
    state = with_rivals("sustained", 0.97, 0.9)
    assert races.pending_races(state) == (w.Race("k2", "k1", 0),)
    assert races.kernel_to_beat(state) is state.kernels["k1"]
    raced = then(state, *rules.record(state, w.Race("k2", "k1"), w.Raced(b.interval(0.98), 3, 18)))
    assert races.pending_races(raced) == ()
    assert races.pending_races(with_rivals("single", 0.97)) == ()


def test_a_kernel_above_the_incumbent_races_before_those_closely_below() -> None:
    state = with_rivals("sustained", 0.97, 1.2)
    assert races.pending_races(state) == (w.Race("k3", "k1", 0), w.Race("k2", "k1", 0))
    assert races.kernel_to_beat(state) is state.kernels["k3"]


def test_an_incumbent_races_few_of_many_kernels_closely_below() -> None:
    state = with_rivals("sustained", *[0.99] * (races.MAX_CLOSE + 2))
    assert len(races.pending_races(state)) == races.MAX_CLOSE
