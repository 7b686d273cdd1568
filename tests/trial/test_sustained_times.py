"""The arithmetic of bursts: settling, ratios free of drift, and kernels that reuse earlier results."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain import stats
from engine.domain.regimes import ClockAndPower
from engine.trial.judge.interleaving import Contestants
from engine.trial.judge.sustained import SustainedTrial
from engine.trial.judge.sustained_workload import SustainedWorkload
from engine.trial.judge.timing import sustained_times as s
from engine.trial.judge.timing.call_times import During, Timing
from engine.trial.judge.timing.conditions import UnderLoad
from engine.trial.judge.timing.pair_times import KERNEL, NULL
from engine.trial.messages import RunKernel

PACE = s.PACES["cuda"]


def burst(call_us: float, calls: int = 100, *, disturbed: bool = False) -> s.Burst:
    return s.Burst(calls, call_us * calls, call_us * calls, 0.0, disturbed)


def turn(call_us: float, fresh_us: float | None = None, reading: UnderLoad | None = None) -> s.ContestantTurn:
    readings = (reading,) if reading is not None else ()
    return s.ContestantTurn(burst(fresh_us or call_us, 8), (burst(call_us), burst(call_us), burst(call_us)), readings=readings)


def pair(kernel_us: float, baseline_us: float, fresh_us: float | None = None) -> s.SustainedPair:
    return s.SustainedPair({KERNEL: [turn(kernel_us, fresh_us)] * 2, "eager": [turn(baseline_us)] * 2}, 10.0, on_gpu=True)


@given(st.floats(1.0, 1e5), st.floats(0.1, 10.0), st.floats(0.9, 1.1))
def test_linear_drift_of_the_clock_cancels_in_a_b_b_a(kernel_us: float, speedup: float, drift: float) -> None:
    eager = kernel_us * speedup
    there = s.SustainedPair(
        {
            KERNEL: [turn(kernel_us), turn(kernel_us * drift**3)],
            "eager": [turn(eager * drift), turn(eager * drift**2)],
        }
    )
    assert s.log_ratios([there], "eager", KERNEL)[0] == pytest.approx(math.log(speedup), abs=1e-9)


@given(st.integers(0, 10_000), st.floats(0.5, 2.0))
def test_the_interval_contains_the_ratio_of_noisy_bursts(seed: int, speedup: float) -> None:
    chance = random.Random(seed)

    def noisy(call_us: float) -> s.ContestantTurn:
        return s.ContestantTurn(burst(call_us, 8), tuple(burst(call_us * chance.gauss(1.0, 1e-4)) for _ in range(4)))

    pairs = [s.SustainedPair({KERNEL: [noisy(100.0)] * 2, "eager": [noisy(100.0 * speedup)] * 2}) for _ in range(3)]
    found = stats.ratio_interval(s.log_ratios(pairs, "eager", KERNEL), 0.005)
    assert found.low <= speedup <= found.high
    assert found.value == pytest.approx(speedup, rel=1e-3)


def test_a_disturbed_burst_does_not_count_while_enough_others_do() -> None:
    quiet, loud = burst(100.0), burst(900.0, disturbed=True)
    assert s.ContestantTurn(quiet, (loud, quiet, loud, quiet, loud)).call_us == 100.0
    assert s.ContestantTurn(quiet, (loud, loud, quiet)).call_us == 900.0


@given(st.lists(st.floats(1.0, 1e6), min_size=0, max_size=5))
def test_nothing_has_settled_before_the_least_number_of_bursts(times: list[float]) -> None:
    assert not s.is_steady(times, PACE)


@given(st.floats(1.0, 1e6), st.integers(6, 20))
def test_constant_times_have_settled_and_a_falling_clock_has_not(call_us: float, bursts: int) -> None:
    assert s.is_steady([call_us] * bursts, PACE)
    assert not s.is_steady([call_us * 1.01**n for n in range(bursts)], PACE)
    assert s.is_steady([call_us * 1.01**n for n in range(bursts)] + [call_us * 2] * 6, PACE)


COOL, CAPPED = UnderLoad(1980, 300.0), UnderLoad(1700, 700.0, ("power cap",))


@pytest.mark.parametrize(
    ("call_us", "readings", "enough"),
    [
        ([100.0, 101.0] * 3, [None] + [COOL] * 5, True),
        ([100.0, 101.0] * 2, [COOL] * 4, False),
        ([100.0, 100.0, 100.0, 110.0, 110.0], [COOL] * 5, False),
        ([100.0] * 5, [COOL] * 4 + [CAPPED], False),
        ([100.0] * 5, [COOL] * 4 + [None], False),
        ([100.0] * 5, [CAPPED] * 3 + [COOL] * 2, True),
    ],
)
def test_calls_that_differ_by_noise_have_settled_only_where_no_clock_is_lowered(
    call_us: list[float], readings: list[UnderLoad | None], enough: bool
) -> None:
    assert s.is_unthrottled(call_us, readings, PACE) == enough
    assert not s.is_unthrottled(call_us, readings, PACE.lowered)
    assert not s.is_unthrottled(call_us, readings, s.PACES["cpu"])


class Bursts:
    """A judge's side of a runner whose calls take ``call_us``, one after the other, on a GPU with these readings."""

    slots = 8
    calibration = SimpleNamespace(judges_perturbed=False)

    def __init__(self, call_us: Callable[[int], float], readings: Callable[[int], UnderLoad]) -> None:
        self.calls: list[int] = []
        self._call_us, self._readings = call_us, readings

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: self

    def of_runner(self, *_: object) -> Bursts:
        return self

    @property
    def overuse(self) -> str:
        return ""

    def under_load(self) -> UnderLoad:
        return self._readings(len(self.calls))

    def call(self, order: RunKernel, hooks: object = (), *, during: During | None = None) -> Timing:
        if during is not None:
            during.act()
        us = order.calls * self._call_us(len(self.calls))
        self.calls.append(order.calls)
        return Timing(us, us, 0.0)

    def turn(self) -> s.ContestantTurn:
        setup = SimpleNamespace(rng=random.Random(1), holds=True, monitor=self, contention=self, probe=lambda: 0.0)
        contest = Contestants({}, {"eager": cast(Any, self)}, {})
        return SustainedTrial(cast(Any, self), contest, cast(Any, setup), PACE)._turn("eager", cast(Any, self), last=False)


def test_the_first_call_of_a_process_does_not_decide_how_many_calls_are_on_fresh_inputs() -> None:
    """KernelBench's mnist2 was quarantined on an H200: loading its extension took 30 ms, so one call had fresh inputs."""
    found = Bursts(lambda n: 30e3 if n == 0 else 100.0, lambda _: COOL).turn()
    assert found.fresh.calls == Bursts.slots


def test_a_host_bound_kernel_needs_few_bursts_and_one_at_the_power_limit_long_ones() -> None:
    noisy = random.Random(2)
    host_bound = Bursts(lambda _: noisy.uniform(99.0, 101.0), lambda _: COOL).turn()
    assert (host_bound.before, host_bound.settled) == (5, True)
    assert all(one.wall_us > 35e3 for one in host_bound.counted)
    capped = Bursts(lambda _: noisy.uniform(99.0, 101.0), lambda _: CAPPED).turn()
    assert capped.settled
    assert all(one.wall_us > 240e3 for one in capped.counted)


@given(st.floats(20e3, 80e3), st.floats(2e3, 8e3), st.floats(1.05, 1.3))
def test_a_clock_that_rises_in_every_pause_is_timed_as_without_pauses(
    settling_us: float, pause_us: float, slowest: float
) -> None:
    """Seen on an H200: 190 µs in bursts of 40 ms, 219 µs in the third second of calls without a pause."""
    heat = 0.0

    def call_us(calls: int) -> float:
        nonlocal heat
        heat *= math.exp(-pause_us / settling_us)
        took, left = 0.0, 100.0 * calls
        while left > 0:
            step = min(1000.0, left)
            heat += (1.0 - heat) * (1.0 - math.exp(-step / settling_us))
            took += step * (1.0 + (slowest - 1.0) * heat)
            left -= step
        return took / calls

    class Hot(Bursts):
        def call(self, order: RunKernel, hooks: object = (), *, during: During | None = None) -> Timing:
            if during is not None:
                during.act()
            self.calls.append(order.calls)
            us = order.calls * call_us(order.calls)
            return Timing(us, us, 0.0)

    found = Hot(lambda _: 0.0, lambda n: CAPPED if n > 3 else COOL).turn()
    assert found.call_us == pytest.approx(100.0 * slowest, rel=0.02)


@pytest.mark.parametrize("seen_us", [600.0, 20e3])
def test_a_kernel_cannot_choose_short_bursts_by_being_slow_on_inputs_that_it_has_seen(seen_us: float) -> None:
    """Then eight times as much of a call's time was subtracted for the order."""

    class SlowOnSeen(Bursts):
        is_new = False

        def refill(self, _: int) -> None:
            self.is_new = True

        def disturbed(self, _: float) -> bool:
            return False

        def call(self, order: RunKernel, hooks: object = (), *, during: During | None = None) -> Timing:
            us, self.is_new = order.calls * (600.0 if self.is_new else seen_us), False
            return Timing(us, us, 0.0)

    device = cast(Any, SlowOnSeen(lambda _: 0.0, lambda _: COOL))
    setup = SimpleNamespace(rng=random.Random(1), holds=False, monitor=device, contention=device)
    trial = SustainedTrial(device, Contestants({}, {"eager": device}, {}), cast(Any, setup), s.PACES["cpu"])
    counted = trial._turn("eager", device, last=False).counted
    assert [one.calls for one in counted] == [8] * 5


def test_a_clock_that_falls_while_bursts_count_has_not_settled() -> None:
    """The power limit acts late: what was counted until then is dropped."""
    late = Bursts(lambda n: 100.0 if n < 9 else 130.0, lambda n: COOL if n < 8 else CAPPED).turn()
    assert late.settled
    assert late.call_us == 130.0
    assert all(reading == CAPPED for reading in late.readings)


@given(st.floats(0.01, 1e7), st.integers(1, 20_000), st.floats(0.0, 1000.0))
def test_a_burst_is_never_longer_than_wanted_by_the_most_that_a_call_takes(wall: float, calls: int, cost: float) -> None:
    last = s.Burst.timed(calls, Timing(wall, wall, 0.0), cost)
    after = PACE.calls(last)
    assert after >= 1
    assert after == 1 or after * last.most_us <= PACE.burst_us + last.most_us


def test_a_call_shorter_than_an_order_and_its_reply_does_not_lead_to_endless_bursts() -> None:
    last = s.Burst.timed(1, Timing(0.5, 250.0, 0.0), 300.0)
    assert last.call_us <= 1.0
    assert PACE.calls(last) < 200


@given(st.floats(1.0, 1e5), st.floats(1.0, 1e5), st.floats(0.0, 1e5))
def test_a_burst_takes_no_less_than_its_runner_claims(claimed: float, wall: float, cost: float) -> None:
    """Seen on an H100: an empty call that had waited for 3 ms made 13 calls of 749 µs look like 13 of 499 µs."""
    found = s.Burst.timed(13, Timing(claimed, wall, 0.0), cost)
    assert found.judged_us >= claimed
    assert found.judged_us >= wall - cost


def test_the_clock_of_a_trusted_runner_counts_with_what_the_device_still_did_after_the_last_event() -> None:
    claims = Timing(9000.0, 10_600.0, 40.0)
    assert s.Burst.timed(10, claims, 200.0, trusted=True).call_us == pytest.approx(904.0)
    assert s.Burst.timed(10, claims, 200.0).call_us == pytest.approx(1040.0)


def test_an_empty_call_does_not_wait_for_the_judges_own_work() -> None:
    done: list[str] = []

    class Bed:
        slots = 2
        draw = release = let_go = lambda self, slot: done.append("work")

        def settle(self) -> None:
            done.append("settled")

    class Null:
        def call(self, order: RunKernel) -> Timing:
            done.append("null")
            raise Ended

    class Ended(Exception):
        pass

    contest = Contestants({}, {}, {NULL: cast(Any, Null())})
    setup = SimpleNamespace(
        rng=None, probe=lambda: done.append("the device is the judge's"), other_work=SimpleNamespace(begin=lambda: None)
    )  # fmt: skip
    trial = SustainedTrial(cast(Any, Bed()), replace(contest, baselines={"eager": cast(Any, Null())}), cast(Any, setup), PACE)
    with pytest.raises(Ended):
        trial.run(0.0)
    assert done == ["work"] * 6 + ["settled", "the device is the judge's", "null"]


class Orders(Bursts):
    """A device whose calls take 100 µs, behind a path that adds to each order."""

    def __init__(self, path_us: float, hidden_us: float = 0.0, idle_us: float = 0.0) -> None:
        super().__init__(lambda _: 100.0, lambda _: COOL)
        self._path_us, self._hidden_us, self._idle_us = path_us, hidden_us, idle_us

    other_work = SimpleNamespace(begin=lambda: None, is_present=lambda: True)

    def call(self, order: RunKernel, hooks: object = (), *, during: During | None = None) -> Timing:
        took = super().call(order, hooks, during=during).wall_us
        return Timing(took - self._hidden_us, took + self._path_us, self._idle_us)

    def pair(self, contract: str, kernel: Orders, null: Orders) -> s.SustainedPair:
        setup = SimpleNamespace(
            rng=random.Random(1), holds=True, monitor=self, contention=self, probe=lambda: 50.0, other_work=self.other_work
        )  # fmt: skip
        contest = Contestants(
            {KERNEL: cast(Any, kernel)}, {"eager": cast(Any, self)}, {NULL: cast(Any, null)}, {KERNEL: contract}
        )  # fmt: skip
        trial = SustainedTrial(cast(Any, self), contest, cast(Any, setup), PACE.shared(8))
        trial._check = lambda *_: None  # type: ignore[method-assign]
        return trial.run(0.0)


@pytest.mark.parametrize(("contract", "kernel_us"), [("plan", 600.0), ("host", 600.0), ("module", 1000.0)])
def test_what_an_order_costs_on_the_way_is_in_no_speedup(contract: str, kernel_us: float) -> None:
    """Seen on an H200: an order cost a plan 0.6 ms, a baseline 1 ms, and in bursts of 10 ms that was a speedup of 4%."""
    eager, null = Orders(1000.0), Orders(400.0)  # its two calls take 200 µs
    pair = eager.pair(contract, Orders(kernel_us), null)
    assert pair.log_us("eager") == pytest.approx(math.log(100.0))
    assert pair.log_us(KERNEL) == pytest.approx(math.log(100.0), abs=1e-9)


@pytest.mark.parametrize("contract", ["host", "module"])
def test_time_that_host_code_leaves_out_of_its_claim_counts(contract: str) -> None:
    path_us = {"host": 600.0, "module": 1000.0}[contract]
    pair = Orders(1000.0).pair(contract, Orders(path_us, hidden_us=3000.0), Orders(400.0))
    assert pair.log_us(KERNEL) == pytest.approx(math.log(100.0), abs=1e-9)


@pytest.mark.parametrize(("calls", "cost_us"), [(8, 680.0), (5, 575.0), (1, 435.0)])
def test_a_burst_of_few_calls_is_not_charged_for_the_outputs_of_many(calls: int, cost_us: float) -> None:
    """A module on a CPU that was slow on inputs it had seen got bursts of one call that count, less what eight cost."""
    eight = s.Burst(8, 8 * 600.0 + 680.0, 8 * 600.0, 0.0, trusted=True)
    few = s.Burst(calls, calls * 600.0 + cost_us, 1.0, 0.0, cost_us=400.0)
    turns = {"eager": [s.ContestantTurn(eight, (eight,) * 3)] * 2, KERNEL: [s.ContestantTurn(few, (few,) * 3)] * 2}
    found = s.SustainedPair(turns).charged(KERNEL, "eager", slots=8)
    assert found.log_us(KERNEL) == pytest.approx(math.log(600.0))
    on_gpu = s.SustainedPair(turns, on_gpu=True).charged(KERNEL, "eager", slots=8)
    assert on_gpu.turns[KERNEL][0].counted[0].cost_us == 680.0


@pytest.mark.parametrize(
    ("wall_us", "share", "resolved"),
    [(10_000.0, 0.0, True), (5_000.0, math.log1p(180 / 4640), True), (560.0, math.log1p(0.9), True), (350.0, 7.5, False)],
)
def test_what_a_kernel_could_save_of_an_orders_cost_widens_the_interval(wall_us: float, share: float, resolved: bool) -> None:
    """Seen on a CPU: calls of 20 µs in bursts of 0.56 ms were 0.71x [0.66, 0.76] of themselves."""
    some = s.Burst(8, wall_us, 0.0, 0.0, cost_us=360.0)
    pairs = [s.SustainedPair({KERNEL: [s.ContestantTurn(some, (some,) * 3)] * 2})] * 3
    workload = SustainedWorkload(cast(Any, None), cast(Any, None), cast(Any, SimpleNamespace(claimable=0.01)), cast(Any, None))
    assert workload.claimable(pairs) == pytest.approx(max(0.01, share), abs=0.01)
    assert bool(s.unresolved(pairs)) == (not resolved)
    trusted = [turn.changed(lambda burst: replace(burst, trusted=True)) for turn in pairs[0].turns[KERNEL]]
    assert s.cost_share([replace(pairs[0], turns={KERNEL: trusted})]) == 0.0


@pytest.mark.parametrize(("slot_bytes", "drawn"), [(1 << 10, 8), (32 << 20, 4), (2 << 30, 1)])
def test_before_an_empty_call_on_a_cpu_inputs_are_drawn_as_for_a_burst(slot_bytes: int, drawn: int) -> None:
    """Without, it took 0.16 ms, and 0.34 ms of the bursts were for the order. Eight slots of 2 GB would take minutes."""
    done: list[str] = []

    class Bed(Bursts):
        operand_bytes = 8 * slot_bytes

        def refill(self, _: int) -> None:
            done.append("drawn")

        def call(self, *_: object, **__: object) -> Timing:
            done.append("called")
            return Timing(100.0, 440.0, 0.0)

    device = cast(Any, Bed(lambda _: 0.0, lambda _: COOL))
    setup = SimpleNamespace(rng=random.Random(1), holds=False, probe=lambda: 0.0)
    trial = SustainedTrial(device, Contestants({}, {}, {NULL: device}), cast(Any, setup), s.PACES["cpu"])
    assert trial._empty_call_us(NULL) == 340.0
    assert done == (["drawn"] * drawn + ["called"]) * 5


def test_a_trusted_clock_that_has_not_moved_is_no_error() -> None:
    still = replace(burst(0.0, 8), trusted=True)
    assert s.SustainedPair({KERNEL: [s.ContestantTurn(still, (still,) * 3)]}).log_us(KERNEL) < 0.0


def test_what_was_subtracted_from_the_judges_clock_is_said() -> None:
    found = s.describe([Orders(1000.0).pair("module", Orders(1000.0), Orders(400.0))])
    assert any(line.startswith("by the judge's clock, less 1000 µs for the order and its reply") for line in found), found
    assert not any("judge's clock" in line for line in s.describe([Orders(1000.0).pair("plan", Orders(600.0), Orders(400.0))]))


@pytest.mark.parametrize(("after_us", "busy"), [(60.0, False), (400.0, False), (30_000.0, True)])
def test_work_left_on_the_device_for_the_baselines_turn_is_a_doubt(after_us: float, busy: bool) -> None:
    left = s.ContestantTurn(burst(9.0), (replace(burst(9.0), after_us=after_us),) * 3)
    pairs = [s.SustainedPair({KERNEL: [left, left]}, on_gpu=True, rest_us=50.0)] * 3
    assert bool(s.still_busy(pairs)) == busy


def test_the_budget_limits_the_bursts_of_a_slow_kernel_but_not_below_two() -> None:
    assert PACE.within(4, 50e3) == 4
    assert PACE.within(4, 5e6) == 2
    assert PACE.shared(4).burst_us == PACE.burst_us / 4


def test_reused_results_are_a_doubt_and_blatant_ones_are_evidence() -> None:
    honest = [pair(500.0, 900.0, 520.0)] * 3
    assert not s.skipped_work(honest)
    reusing = [pair(50.0, 900.0, 500.0)] * 3
    assert "reuse" in s.skipped_work(reusing)
    assert s.skipped_work(reusing, sure=True)
    somewhat = [pair(200.0, 900.0, 420.0)] * 3
    assert s.skipped_work(somewhat)
    assert not s.skipped_work(somewhat, sure=True)


def test_work_skipped_on_known_inputs_shows_at_the_clock_of_the_bursts() -> None:
    def skipping(seen_us: float) -> s.SustainedPair:
        late = s.ContestantTurn(burst(300.0, 8), (burst(seen_us),) * 3, late=burst(300.0, 8))
        return s.SustainedPair({KERNEL: [turn(seen_us, 300.0), late]}, on_gpu=True)

    assert "reuse" in s.skipped_work([skipping(200.0)] * 3)
    assert not s.skipped_work([skipping(295.0)] * 3)
    assert not s.skipped_work([skipping(340.0)] * 3), "the clock had risen"


def test_what_drawing_inputs_costs_every_contestant_is_no_doubt() -> None:
    def drawn(baseline_late_us: float) -> s.SustainedPair:
        late = s.ContestantTurn(burst(900.0, 1), (burst(550.0),) * 3, late=burst(880.0, 1))
        eager = s.ContestantTurn(burst(1500.0, 1), (burst(1070.0),) * 3, late=burst(baseline_late_us, 1))
        return s.SustainedPair({KERNEL: [late, late], "eager": [turn(1070.0, 1500.0), eager]}, on_gpu=True)

    assert "reuse" in s.skipped_work([drawn(1080.0)] * 3)
    assert not s.skipped_work([drawn(1400.0)] * 3), "the baseline's took 330 µs longer too"
    slow = [drawn(90_000.0)] * 3
    assert s._context_us(slow) > 500.0
    fast_kernel = s.ContestantTurn(burst(900.0, 1), (burst(50.0),) * 3, late=burst(880.0, 1))
    assert "reuse" in s.skipped_work([replace(p, turns={**p.turns, KERNEL: [fast_kernel] * 2}) for p in slow])


@pytest.mark.parametrize(
    ("fresh_us", "again_us", "found"),
    [(45.0, 32.0, ""), (376.0, 370.0, "not corroborated"), (376.0, 32.0, "reuse"), (376.0, 200.0, "reuse")],
)
def test_a_machine_whose_first_calls_are_slow_is_no_evidence_of_reuse(fresh_us: float, again_us: float, found: str) -> None:
    """KernelBench's fuse_gelu was quarantined on an H200: after a pause its calls took 376 µs, back to back 32."""
    kernel = [replace(turn(32.0, 32.0), late=burst(fresh_us, 8), again=burst(again_us, 8))] * 2
    eager = [replace(turn(30.0), late=burst(40.0, 8))] * 2
    slow = [s.SustainedPair({KERNEL: kernel, "eager": eager}, 2.0, on_gpu=True)] * 3
    doubt = s.skipped_work(slow)
    assert found in doubt
    assert bool(doubt) == bool(found)
    assert bool(s.skipped_work(slow, sure=True)) == (again_us < 100 < fresh_us)


def test_cold_caches_on_fresh_inputs_are_no_doubt() -> None:
    assert not s.skipped_work([pair(5.0, 9.0, 45.0)] * 3), "moving the operands takes 10 µs"


def test_without_an_undisturbed_fresh_burst_nothing_is_corroborated() -> None:
    loud = s.ContestantTurn(burst(100.0, 8, disturbed=True), (burst(100.0),))
    pairs = [s.SustainedPair({KERNEL: [loud, loud]}, on_gpu=True)] * 3
    assert s.skipped_work(pairs).startswith("not corroborated")
    assert not s.skipped_work(pairs, sure=True)


def test_on_a_cpu_every_burst_is_fresh_and_only_contention_is_a_doubt() -> None:
    """There the burst before the others says nothing: no call that counts is on inputs seen before."""
    quiet, loud = burst(100.0), burst(100.0, disturbed=True)
    calm, noisy = (s.SustainedPair({KERNEL: [s.ContestantTurn(burst(900.0), (one,) * 3)] * 2}) for one in (quiet, loud))
    assert not s.skipped_work([noisy, calm])
    assert s.skipped_work([noisy, noisy]).startswith("not corroborated")
    assert not s.skipped_work([noisy, noisy], sure=True)


def test_a_baseline_that_was_disturbed_all_the_time_corroborates_no_speedup() -> None:
    calm, loud = (
        s.ContestantTurn(burst(9.0), (burst(9.0),) * 3),
        s.ContestantTurn(burst(9.0), (burst(12.0, disturbed=True),) * 3),
    )
    assert s.skipped_work([s.SustainedPair({KERNEL: [calm] * 2, "eager": [calm, loud]})])
    assert not s.skipped_work([s.SustainedPair({KERNEL: [calm] * 2, "eager": [calm] * 2})])


def test_threads_that_wait_for_each_other_are_no_contention_while_nothing_else_uses_the_cores() -> None:
    """Seen on two cores: 58 of 60 bursts of a quiet machine's softmax were marked, and nothing was corroborated."""
    loud = s.SustainedPair({KERNEL: [s.ContestantTurn(burst(9.0), (burst(9.0, disturbed=True),) * 3)] * 2})
    assert s.skipped_work([loud])
    assert not s.skipped_work([loud.without_marks()])


@pytest.mark.parametrize(
    ("shown", "turns"),
    [
        ("not settled in 2 of 4 turns", [s.ContestantTurn(burst(9.0), (burst(9.0),), settled=n % 2 == 0) for n in range(2)]),
        ("1 of 2 bursts disturbed", [s.ContestantTurn(burst(9.0), (burst(9.0, disturbed=n == 0),)) for n in range(2)]),
        (
            "throttled: power cap in 2 of 4 bursts",
            [turn(9.0, reading=UnderLoad(1400, 700.0, c)) for c in ((), ("power cap",))],
        ),
    ],
)
def test_conditions_say_what_happened(shown: str, turns: list[s.ContestantTurn]) -> None:
    count = 1 if "bursts disturbed" in shown else 2
    assert any(line.startswith(shown) for line in s.describe([s.SustainedPair({KERNEL: turns})] * count))


def test_a_host_that_cannot_enqueue_faster_is_said_on_a_gpu_only() -> None:
    slow = s.ContestantTurn(burst(9.0), (s.Burst(100, 900.0, 900.0, 899.0),))
    assert any("host-bound" in line for line in s.describe([s.SustainedPair({KERNEL: [slow]}, on_gpu=True)]))
    assert not s.describe([s.SustainedPair({KERNEL: [slow]})])


def test_clock_and_power_are_medians_of_what_was_read() -> None:
    readings = [UnderLoad(1400, 690.0), UnderLoad(1980, None), UnderLoad(1410, 700.0)]
    pairs = [s.SustainedPair({KERNEL: [turn(9.0, reading=one) for one in readings], "eager": [turn(9.0)]})]
    assert s.clock_and_power(pairs, KERNEL) == ClockAndPower(1410, 695.0)
    assert s.clock_and_power(pairs, "eager") == ClockAndPower()


def test_every_burst_is_stored() -> None:
    stored = json.loads(s.raw({"full": [pair(5.0, 9.0)]}))
    assert stored["regime"] == "sustained"
    assert stored["workloads"]["full"][0]["turns"]["eager"][1]["counted"][0]["calls"] == 100
