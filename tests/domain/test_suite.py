"""Verdicts over a suite: geometric means and their intervals, the worst errors, who is best on which workload."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as b

from engine.domain import columns, queries, suite
from engine.domain import events as e
from engine.domain.model import Interval, PrecisionClass, Problem, SpeedOfLight, Workload, WorkloadRatio, WorkloadTime
from engine.domain.state import SessionState

RATIOS = st.floats(0.01, 100.0)
SPREADS = st.floats(1.0, 3.0)


def around(value: float, factor: float) -> Interval:
    return Interval(value, value / factor, value * factor)


@given(st.lists(st.tuples(RATIOS, SPREADS), min_size=1, max_size=16))
def test_the_mean_is_geometric_and_its_interval_contains_it(given: list[tuple[float, float]]) -> None:
    mean = suite.geometric_mean([around(value, factor) for value, factor in given])
    assert mean.value == pytest.approx(math.exp(sum(math.log(value) for value, _ in given) / len(given)), rel=1e-9)
    assert mean.low <= mean.value * (1 + 1e-12)
    assert mean.value <= mean.high * (1 + 1e-12)
    assert mean.high / mean.low <= max(factor for _, factor in given) ** 2 * (1 + 1e-9), "never wider than the widest"


def test_independent_errors_average_out() -> None:
    mean = suite.geometric_mean([around(2.0, 1.1)] * 16)
    assert math.log(mean.high / mean.value) == pytest.approx(math.log(1.1) / 4)


@pytest.mark.parametrize(
    "broken", [Interval(math.inf, math.inf, math.inf), Interval(0.0, 0.0, 1.0), Interval(1.0, 0.0, math.inf)]
)
def test_absurd_times_do_not_crash_the_mean(broken: Interval) -> None:
    mean = suite.geometric_mean([broken, around(2.0, 1.1)])
    assert not math.isnan(mean.value)
    assert mean.low <= mean.value <= mean.high


def test_a_suite_of_one_is_its_workload() -> None:
    measured, checked, prepared = b.measurement(1.5), b.verification(), b.preparation()
    assert suite.measurement({"a": measured}) is measured
    assert suite.verification({"a": checked}) is checked
    assert suite.preparation({"a": prepared}) is prepared


def test_a_measurement_over_a_suite() -> None:
    light = SpeedOfLight("bytes", 100.0, 0.5)
    one, two = (replace(b.measurement(ratio), light=light) for ratio in (4.0, 1.0))
    doubted = replace(two, corroborated=False, doubts=("it hides time",), conditions=("cold caches", "hot"))
    found = suite.measurement({"a": one, "b": doubted})
    assert found.speedup["eager"].value == pytest.approx(2.0)
    assert found.time_us.value == pytest.approx(1500.0)
    assert [(w.workload, w.speedup["eager"].value) for w in found.by_workload] == [("a", 4.0), ("b", 1.0)]
    assert (found.corroborated, found.doubts, found.conditions) == (False, ("b: it hides time",), ("cold caches",))
    assert found.samples == one.samples + two.samples
    assert (worst := suite.worst(found, "eager")) is not None
    assert worst.workload == "b"
    assert suite.spread(found, "eager") == (1.0, 4.0)


def test_the_judges_own_mean_replaces_the_one_of_the_intervals() -> None:
    own = Interval(2.0, 1.9, 2.1)
    assert suite.measurement({"a": b.measurement(4.0), "b": b.measurement(1.0)}, {"eager": own}).speedup["eager"] == own


def test_what_binds_a_suite_is_mixed_where_it_differs() -> None:
    one, two = (replace(b.measurement(), light=SpeedOfLight(bound, 4.0, 0.25)) for bound in ("bytes", "operations (fp32)"))
    assert suite.measurement({"a": one, "b": two}).light == SpeedOfLight(suite.MIXED, 4.0, 0.25)
    assert suite.measurement({"a": one, "b": b.measurement()}).light is None


def test_a_kernel_is_as_precise_as_on_its_worst_workload() -> None:
    one = replace(b.verification(), rel_fro=1e-7, rel_fro_limit=1e-6, caveats=("same",), holdouts="3/3")
    two = replace(one, rel_fro=9e-8, rel_fro_limit=1e-7, precision_class=PrecisionClass.HALF, holdouts="none")
    found = suite.verification({"a": one, "b": two})
    assert (found.rel_fro, found.rel_fro_limit) == (9e-8, 1e-7)
    assert found.precision_class is PrecisionClass.HALF
    assert (found.trials, found.caveats, found.holdouts) == (16, ("same",), "3/3")
    assert [w.workload for w in found.by_workload] == ["a", "b"]


def test_a_suite_is_verifiable_only_if_each_workload_is() -> None:
    good, bad = b.preparation(), b.preparation(fooled_by="zeros")
    assert suite.preparation({"a": good, "b": good}).gate.verifiable
    assert not suite.preparation({"a": good, "b": bad}).gate.verifiable


def test_losing_names_only_what_is_surely_slower() -> None:
    ratios = [WorkloadRatio(name, around(value, 1.1)) for name, value in (("a", 0.95), ("b", 0.8), ("c", 1.3), ("d", 0.5))]
    assert [one.workload for one in suite.losing(ratios)] == ["d", "b"]


def test_only_the_settings_in_which_workloads_differ_tell_them_apart() -> None:
    found = suite.distinct([Workload("a", {"rows": 1, "dim": 8}), Workload("b", {"rows": 2, "dim": 8})])
    assert found == {"a": {"rows": 1}, "b": {"rows": 2}}
    assert suite.distinct([Workload("a", {"rows": 1})]) == {"a": {"rows": 1}}


def suite_session(*kernels: tuple[str, dict[str, float]]) -> SessionState:
    """A session on the suite ``both``, with kernels measured on its workloads."""
    known: Problem = replace(b.problem(), suites={"both": ("full", "small")})
    opened = replace(b.opened(workload="full", suite="both"), problem=known)
    events: list[e.Event] = [opened, b.prepared(), e.RoundOpened(0, ())]
    for name, speedups in kernels:
        parts = {workload: b.measurement(value) for workload, value in speedups.items()}
        events += [b.drafted(name), b.built(name), b.verified(name), e.KernelMeasured(name, suite.measurement(parts), 0.1)]
    return b.fold(*events)


def test_each_workload_has_its_own_best_kernel() -> None:
    state = suite_session(("k1", {"full": 2.0, "small": 1.0}), ("k2", {"full": 1.0, "small": 3.0}))
    assert [one.name for one in columns.workloads(state)] == ["full", "small"]
    assert {workload: kernel.id for workload, kernel in columns.leaders(state).items()} == {"full": "k1", "small": "k2"}
    (behind,) = columns.behind(state, state.kernels["k1"])
    assert (behind.workload, behind.own.value, behind.best.id, behind.theirs.value) == ("small", 1.0, "k2", 3.0)
    assert queries.problem_and_workload(state) == ("softmax", "suite both")


def test_a_session_on_one_workload_has_one_column() -> None:
    state = b.fold(b.opened(), b.prepared())
    assert [one.name for one in columns.workloads(state)] == ["small"]
    assert columns.leaders(state) == {}


def test_a_workload_time_keeps_its_speedups() -> None:
    found = suite.measurement({"a": b.measurement(2.0), "b": b.measurement(2.0)})
    assert found.by_workload[0] == WorkloadTime("a", b.measurement(2.0).time_us, {"eager": b.interval(2.0)})


@pytest.mark.parametrize(
    ("kernels", "found"),
    [
        ((("k1", {"full": 2.0, "small": 2.0}), ("k2", {"full": 1.0, "small": 3.0})), {"full": "k1", "small": "k2"}),
        ((("k1", {"full": 2.0, "small": 2.0}), ("k2", {"full": 1.0, "small": 2.001})), {}),
        ((("k1", {"full": 2.0, "small": 2.0}),), {}),
        ((), {}),
    ],
)
def test_a_dispatch_takes_another_kernel_only_where_it_is_faster(
    kernels: tuple[tuple[str, dict[str, float]], ...], found: dict[str, str]
) -> None:
    state = suite_session(*kernels)
    assert {one.name: kernel.id for one, kernel in columns.dispatched(state)} == found
