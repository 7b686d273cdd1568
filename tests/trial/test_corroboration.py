"""Whether the judge's clock corroborates a runner's claims, on synthetic timings."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.trial.judge.timing import contention
from engine.trial.judge.timing.call_times import Timing
from engine.trial.judge.timing.contention import ContentionMonitor, ProcessorReading, find_local_pid, lost_us
from engine.trial.judge.timing.pair_times import (
    KERNEL,
    NULL,
    CallCost,
    PairTimes,
    cost_share,
    explained,
    hidden_us,
    pair_times,
    with_counted_times,
)

PATH_US = 150.0
"""Cost of a call besides the kernel."""


def pair(
    claim: Callable[[int], float], hidden: Callable[[int], float], jitter: float, samples: int = 30, seed: int = 1
) -> PairTimes:
    chance = random.Random(seed)

    def around() -> float:
        return PATH_US + chance.expovariate(1 / jitter)

    kernel = [Timing(claim(i), claim(i) + hidden(i) + around(), 0.0) for i in range(samples)]
    null = [Timing(1.0, 1.0 + around(), 0.0) for _ in range(samples)]
    return PairTimes({KERNEL: kernel, NULL: null})


@pytest.mark.parametrize("claimed", [5.0, 100.0, 5000.0])
@pytest.mark.parametrize("jitter", [5.0, 40.0, 300.0])
def test_an_honest_clock_is_corroborated(claimed: float, jitter: float) -> None:
    for seed in range(20):
        assert hidden_us([pair(lambda _: claimed, lambda _: 0.0, jitter, seed=seed)]) <= 0


@pytest.mark.parametrize(
    ("claimed", "hidden"),
    [(1.0, 1000.0), (1.0, 300.0), (500.0, 500.0), (5000.0, 2000.0), (100_000.0, 30_000.0)],
)
def test_hidden_time_is_detected(claimed: float, hidden: float) -> None:
    for seed in range(20):
        assert hidden_us([pair(lambda _: claimed, lambda _: hidden, 30.0, seed=seed)]) > 0


def test_a_screen_of_three_calls_is_doubted_only_if_all_of_those_that_count_hide_time() -> None:
    """A screen in a suite has three calls on a workload: one late reply of an honest kernel is no evidence."""
    for late in range(2):
        assert hidden_us([pair(lambda _: 10.0, lambda i, late=late: 2000.0 * (i == late), 20.0, samples=3)]) <= 0
    assert hidden_us([pair(lambda _: 10.0, lambda _: 2000.0, 20.0, samples=3)]) > 0
    three = [pair(lambda _: 10.0, lambda i: 2000.0 * (i > 0), 20.0, samples=3, seed=seed) for seed in range(3)]
    assert hidden_us(three) > 0, "of three processes the median counts"
    slow = [pair(lambda _: 10.0, lambda i: 2000.0 * (i > 0), 20.0, samples=2, seed=seed) for seed in range(3)]
    slow[0] = pair(lambda _: 10.0, lambda _: 2000.0, 20.0, samples=2)
    assert hidden_us(slow) > 0, "also of a slow kernel's two calls each"


def test_three_calls_say_little_of_what_calls_vary_by() -> None:
    """Measured on an H200, on one workload of a suite: the null kernel's three calls happened to be alike."""

    def beside(*costs: float) -> list[Timing]:
        return [Timing(6.0, 6.0 + cost, 0.0) for cost in costs]

    null = beside(365.0, 369.0, 372.0)
    assert hidden_us([PairTimes({KERNEL: beside(424.0, 430.0, 436.0), NULL: null})]) <= 0
    assert hidden_us([PairTimes({KERNEL: beside(624.0, 630.0, 636.0), NULL: null})]) > 0


def test_time_hidden_in_most_calls_is_detected_and_a_rare_stall_is_not() -> None:
    assert hidden_us([pair(lambda _: 10.0, lambda i: 2000.0 * (i % 10 < 6), 20.0)]) > 0
    assert hidden_us([pair(lambda _: 10.0, lambda i: 2000.0 * (i % 10 == 0), 20.0)]) <= 0


def test_one_honest_process_does_not_hide_two_others() -> None:
    honest = pair(lambda _: 1000.0, lambda _: 0.0, 20.0, seed=1)
    forged = [pair(lambda _: 10.0, lambda _: 990.0, 20.0, seed=s) for s in (2, 3)]
    assert hidden_us([honest, *forged]) > 0


def rows(null: list[tuple[float, bool]]) -> list[dict[str, Timing]]:
    """Undisturbed samples of a kernel that hides 4 ms, with null calls of this cost."""
    kernel = Timing(30.0, 4600.0, 0.0)
    return [{KERNEL: kernel, NULL: Timing(1.0, wall, 0.0, disturbed)} for wall, disturbed in null]


def test_disturbed_null_calls_leave_no_room_for_hidden_time() -> None:
    """Under contention: most null calls took as long as the hidden time."""
    found = pair_times(rows([(12000.0, True)] * 5 + [(330.0, False)] * 3), 6)
    assert found.calm
    assert hidden_us([found]) > 0


def test_hidden_time_is_detected_under_contention() -> None:
    found = pair_times(rows([(12000.0, True)] * 5 + [(330.0, False)] * 2 + [(450.0, True)]), 6)
    assert not found.calm
    assert hidden_us([found]) > 0


def test_an_occasionally_disturbed_kernel_is_corroborated() -> None:
    cost = (330.0, 7000.0, 6500.0, 340.0, 8000.0, 6000.0, 350.0, 7100.0)
    pairs_of = [
        {KERNEL: Timing(2000.0, 2000.0 + mine, 0.0, mine > 400), NULL: Timing(1.0, 1.0 + other, 0.0, other > 400)}
        for mine, other in zip(reversed(cost), cost, strict=True)
    ]
    found = pair_times(pairs_of, 20)
    assert hidden_us([replace(found, calm=False)]) <= 0


class Counters:
    """Stand-in for Linux's counters: microseconds lost so far, in steps."""

    def __init__(self, *readings: float) -> None:
        self.readings = list(readings)

    def __call__(self, process: int | None) -> ProcessorReading:
        return ProcessorReading(others_us=self.readings.pop(0))


def test_more_processor_time_than_the_cores_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's threads may move to cores that other workers measure on: no filter sees where."""
    monitor = ContentionMonitor("cpu")
    used = {"ns": 0}
    monkeypatch.setattr(contention, "processor_ns", lambda _: used["ns"])

    def elsewhere(cores_busy: float) -> str:
        monitor.for_process(1).before()
        began = time.perf_counter_ns()
        while (passed := time.perf_counter_ns() - began) < 5_000_000:
            pass
        used["ns"] += int(cores_busy * passed)
        monitor.after()
        return monitor.overuse

    cores = len(os.sched_getaffinity(0))
    assert elsewhere(0.9 * cores) == ""
    assert f"of the {cores} cores that it was given" in elsewhere(3.0 * cores)
    assert monitor.for_process(None).overuse == ""


def test_processor_time_of_a_process_is_that_of_all_its_threads() -> None:
    began = contention.processor_ns(os.getpid())
    thread = threading.Thread(target=lambda: sum(range(3_000_000)))
    thread.start()
    thread.join()
    assert contention.processor_ns(os.getpid()) - began > 5_000_000
    assert contention.processor_ns(None) < 0
    assert contention.processor_ns(2**21 - 1) < 0


def test_processor_time_of_a_stopped_process_changes_no_more() -> None:
    """A thread is seen as stopped before it has left its core: without the wait, what it used was counted later at times."""
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        later = [_used_after_a_stop(spinning.pid) for _ in range(300)]
    finally:
        spinning.kill()
        spinning.wait()
    assert later == [0] * len(later)


def _used_after_a_stop(process: int) -> int:
    os.kill(process, signal.SIGCONT)
    time.sleep(0.0005)
    os.kill(process, signal.SIGSTOP)
    while Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
        pass
    contention.await_off_core(process)
    used = contention.processor_ns(process)
    time.sleep(0.0005)
    return contention.processor_ns(process) - used


def test_nobody_waits_for_a_process_that_is_not_there() -> None:
    contention.await_off_core(None)
    contention.await_off_core(2**21 - 1)


@pytest.mark.parametrize(
    ("lost", "wall", "disturbed"),
    [(0.0, 1000.0, False), (69.0, 1000.0, False), (71.0, 1000.0, True), (30.0, 10.0, False), (2900.0, 1e5, False)],
)
def test_a_call_that_loses_more_than_a_small_share_is_disturbed(
    monkeypatch: pytest.MonkeyPatch, lost: float, wall: float, disturbed: bool
) -> None:
    monkeypatch.setattr(contention, "_read", Counters(7.0, 100.0, 100.0 + lost))
    watching = ContentionMonitor("cpu").for_process(None)
    watching.before()
    watching.after()
    assert watching.disturbed(wall) is disturbed


def test_nothing_is_marked_on_a_gpu_or_without_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "_read", Counters(0.0, 1e9))
    on_gpu = ContentionMonitor("cuda:0").for_process(None)
    on_gpu.before()
    on_gpu.after()
    assert not on_gpu.disturbed(1.0)
    monkeypatch.setattr(contention, "_read", lambda process: None)
    blind = ContentionMonitor("cpu").for_process(None)
    blind.before()
    blind.after()
    assert not blind.disturbed(1.0)


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        ({"main": (0.0, 5.0)}, {"main": (500.0, 105.0)}, 100.0),
        ({"main": (0.0, 0.0), "team": (0.0, 0.0)}, {"main": (500.0, 20.0), "team": (450.0, 80.0)}, 100.0),
        # Resumed with the others and asleep again: its waits do not count.
        ({"main": (0.0, 0.0), "idle": (9.0, 7.0)}, {"main": (500.0, 0.0), "idle": (22.0, 500.0)}, 0.0),
        ({"main": (0.0, 0.0)}, {"main": (500.0, 0.0), "new": (300.0, 90.0)}, 90.0),
        ({"main": (0.0, 0.0), "gone": (900.0, 900.0)}, {"main": (500.0, 0.0)}, 0.0),
    ],
)
def test_only_waits_of_working_threads_count(
    before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]], lost: float
) -> None:
    assert lost_us(ProcessorReading(before, 1000.0), ProcessorReading(after, 1000.0)) == lost
    assert lost_us(ProcessorReading(before, 1000.0), ProcessorReading(after, 1030.0)) == lost + 30


def test_thread_counters_are_preferred() -> None:
    mine = contention._read(os.getpid())
    assert mine is not None
    assert str(os.getpid()) in mine.threads
    nobody = contention._read(2**22 + 1)
    assert nobody is None or not nobody.threads
    assert find_local_pid(os.getpid(), os.getppid()) is None, "it has no PID namespace of its own"


def timings(claimed: float, wall: float, count: int = 9) -> list[Timing]:
    return [Timing(claimed, wall + i % 3, 0.0) for i in range(count)]


@pytest.mark.parametrize("contract", ["host", "module"])
@pytest.mark.parametrize("claim", [1.0, 100.0, 900.0, 1000.0])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_claim_does_not_change_the_time_that_counts(contract: str, claim: float, on_gpu: bool) -> None:
    """A call of 1000 us by the judge's clock on a path of 150 us, whatever the runner says."""
    null_claim = 0.0 if on_gpu else 400.0
    times = {KERNEL: timings(claim, 1150.0), "eager": timings(2000.0, 2150.0), NULL: timings(null_claim, 150.0 + null_claim)}
    found = with_counted_times(PairTimes(times, on_gpu=on_gpu), {KERNEL: contract}, ("eager",))
    assert {t.counted_us for t in found.kernel} == {999.0, 1000.0, 1001.0}
    assert statistics.median(t.counted_us for t in found.times["eager"]) == 2000.0
    assert found.cost == CallCost(151.0, 1.0)


@pytest.mark.parametrize(
    ("contract", "on_gpu", "eager"), [("module", False, 2100.0), ("module", True, 2100.0), ("host", False, 2000.0)]
)
def test_a_module_and_the_baselines_are_timed_by_the_same_clock(contract: str, on_gpu: bool, eager: float) -> None:
    """A module was 0.6 times itself on a CPU: buffers are reset within the call, which an empty one does not do."""
    times = {KERNEL: timings(2000.0, 2251.0), "eager": timings(2000.0, 2251.0), NULL: timings(0.0, 150.0)}
    found = with_counted_times(PairTimes(times, on_gpu=on_gpu), {KERNEL: contract}, ("eager",))
    assert statistics.median(t.counted_us for t in found.kernel) == 2101.0
    assert statistics.median(t.counted_us for t in found.times["eager"]) == pytest.approx(eager, abs=1.5)


@pytest.mark.parametrize(("late", "eager"), [((), 369.0), (("eager",), 124.0), (("eager", KERNEL), 369.0), ((KERNEL,), 369.0)])
def test_a_late_baseline_is_not_charged_what_the_judges_clock_adds(late: tuple[str, ...], eager: float) -> None:
    """An ``x.max().item()`` of 124 us took 367 us by the judge's clock: three times a kernel's that does not wait."""
    times = {KERNEL: timings(124.0, 758.0), "eager": timings(124.0, 758.0), NULL: timings(1.0, 389.0)}
    times |= {name: [replace(timing, late=True) for timing in times[name]] for name in late}
    found = with_counted_times(PairTimes(times, on_gpu=True), {KERNEL: "module"}, ("eager",))
    assert statistics.median(t.counted_us for t in found.times["eager"]) == eager
    assert statistics.median(t.counted_us for t in found.kernel) == 369.0
    noted = any(line.startswith("not enqueued whole") for line in explained([found]))
    assert noted is (KERNEL in late)


def copied(wall: float, release: Sequence[float]) -> list[Timing]:
    """Calls that take ``wall`` beside the release of their inputs."""
    return [Timing(0.0, wall + one, 0.0, release_us=one) for one in release]


def test_what_copies_of_inputs_vary_by_is_left_out() -> None:
    """On an H200 copies of 6 GiB varied by 1%, and with them the ratio of two calls of 3 ms by 1.7%."""
    usual = (2990.0, 3000.0, 3010.0, 3000.0)
    times = {
        KERNEL: copied(3300.0, (3025.0, 2975.0, 3030.0, 3000.0)), "eager": copied(3400.0, (3000.0, 3020.0, 2970.0, 2990.0)),
        NULL: copied(300.0, usual),
    }  # fmt: skip
    found = with_counted_times(PairTimes(times, on_gpu=True), {KERNEL: "module"}, ("eager",))
    assert {round(t.counted_us, 6) for t in found.kernel} == {3000.0}
    assert {round(t.counted_us, 6) for t in found.times["eager"]} == {3100.0}
    assert found.cost == CallCost(3300.0, 0.0, 3000.0)


@given(st.lists(st.floats(0, 500), min_size=3, max_size=9), st.floats(100, 5000), st.floats(500, 5000))
def test_a_kernel_that_works_while_its_inputs_are_copied_gains_a_hundredth_of_that_time_or_two_microseconds(
    ahead: list[float], usual: float, true: float
) -> None:
    """Its work makes the copies longer, in all calls or in some, and the whole call takes as long as before."""
    cheating = [Timing(0.0, usual + 300.0 + true, 0.0, release_us=usual + one) for one in ahead]
    times = {KERNEL: cheating, "eager": copied(400.0, [usual] * 3), NULL: copied(300.0, [0.9 * usual] * 3)}
    found = with_counted_times(PairTimes(times, on_gpu=True), {KERNEL: "host"}, ("eager",))
    assert statistics.median(t.counted_us for t in found.kernel) >= true - max(0.01 * usual, 2.0) - 1e-6


def test_a_release_beside_much_waiting_work_is_not_charged_to_a_kernel_alone() -> None:
    """An EfficientNet of 1.1 ms was 3% slower than itself on an H200."""
    module, eager = (copied(1400.0, [one] * 3) for one in (83.0, 80.0))
    times = {KERNEL: module, "eager": eager, NULL: copied(300.0, [50.0] * 3)}
    found = with_counted_times(PairTimes(times, on_gpu=True), {KERNEL: "module"}, ("eager",))
    medians = [statistics.median(t.counted_us for t in found.times[name]) for name in (KERNEL, "eager")]
    assert medians == pytest.approx([1101.0, 1100.0])


def test_what_medians_of_short_releases_vary_by_is_not_charged() -> None:
    """Of a module of 10 µs two microseconds were 13%, and only the judged kernel's release counted."""
    times = {KERNEL: copied(310.0, [72.0] * 3), "eager": copied(310.0, [70.0] * 3), NULL: copied(300.0, [70.0] * 3)}
    found = with_counted_times(PairTimes(times, on_gpu=True), {KERNEL: "module"}, ("eager",))
    assert {round(t.counted_us, 6) for t in found.kernel} == {10.0}


def test_two_kernels_in_a_race_are_timed_by_the_same_clock() -> None:
    times = {
        KERNEL: timings(1.0, 1100.0),
        "other": timings(900.0, 1250.0),
        NULL: timings(0.0, 100.0),
        "null:native": timings(0.0, 250.0),
    }
    found = with_counted_times(PairTimes(times), {KERNEL: "module", "other": "plan"}, ())
    assert {t.counted_us for t in found.kernel} == {t.counted_us for t in found.times["other"]} == {999.0, 1000.0, 1001.0}


def test_a_plan_counts_by_its_launcher_s_clock() -> None:
    pair = PairTimes({KERNEL: timings(500.0, 900.0), NULL: timings(5.0, 100.0)})
    found = with_counted_times(pair, {KERNEL: "plan"}, ())
    assert {t.counted_us for t in found.kernel} == {500.0}
    assert cost_share([found]) == 0.0


@pytest.mark.parametrize(("wall", "share"), [(250.0, 0.385), (1150.0, 0.0385), (10_150.0, 0.0)])
def test_the_cost_of_a_call_widens_the_interval_of_a_short_kernel(wall: float, share: float) -> None:
    pair = PairTimes({KERNEL: timings(wall - 150.0, wall), NULL: timings(400.0, 550.0)})
    assert cost_share([with_counted_times(pair, {KERNEL: "host"}, ())]) == pytest.approx(share, rel=0.05)


def test_the_judge_s_clock_is_compared_with_unheld_calls() -> None:
    honest = PairTimes(
        {KERNEL: [Timing(5.0, 5000.0, 0.0)] * 5, NULL: [Timing(5.0, 100.0, 0.0)] * 5},
        audits={KERNEL: [Timing(500.0, 600.0, 0.0)] * 5, NULL: [Timing(5.0, 100.0, 0.0)] * 5},
    )
    assert hidden_us([honest]) <= 0
    lying = replace(honest, audits={**honest.audits, KERNEL: [Timing(5.0, 900.0, 0.0)] * 5})
    assert hidden_us([lying]) > 0
