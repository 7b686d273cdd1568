"""What a measurement says about itself: doubts apart from conditions, and shares of all samples taken."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from engine.domain.model import Device, Interval, Operand, Role, Signature
from engine.domain.preparation import Peaks
from engine.trial.judge import interleaving
from engine.trial.judge.inputs.perturbations import OWN
from engine.trial.judge.interleaving import Contestants, PairSetup
from engine.trial.judge.judged_calls import CheckTally
from engine.trial.judge.timing.call_times import Timing
from engine.trial.judge.timing.measurement import NO_CALM_PAIR, UNLIKE_PAIRS, MeasurementReport, doubted_if_unlike
from engine.trial.judge.timing.pair_times import KERNEL, NULL, PairTimes, pair_times, shared_samples
from engine.trial.judge.workload_trial import WorkloadTrial
from engine.trial.messages import RunKernel

OPERANDS = (Operand("x", Role.INPUT, (1 << 10,), "float32"), Operand("out", Role.OUTPUT, (1 << 10,), "float32"))
REPORT = MeasurementReport(
    Signature(OPERANDS, {}), Device("cpu", 0, "some processor", "x86_64", 2, 1 << 25, 1 << 33, "torch 2"),
    lambda: Peaks(1e10, {"fp32": 1e12}), lambda: None, cold=True, confined=True,
)  # fmt: skip
RATIOS = {"eager": Interval(2.0, 1.9, 2.1)}


def pair(disturbed: int, undisturbed: int, *, wall_us: float = 500.0) -> PairTimes:
    """A pair of an honest kernel of 400 µs with this many disturbed and undisturbed samples."""

    def row(marked: bool) -> dict[str, Timing]:
        return {KERNEL: Timing(400.0, wall_us, 0.0, marked), NULL: Timing(1.0, 101.0, 0.0, marked)}

    return pair_times([*[row(True)] * disturbed, *[row(False)] * undisturbed], 6)


def test_without_a_calm_pair_a_time_is_not_corroborated() -> None:
    found = REPORT.of_kernel("precise", [pair(16, 2), pair(18, 0)], RATIOS, ())
    assert not found.corroborated
    assert found.doubts == (NO_CALM_PAIR,)
    assert NO_CALM_PAIR not in found.conditions
    assert REPORT.evidence([pair(16, 2)]) == (), "contention is no evidence against a kernel"


def test_one_calm_pair_is_enough() -> None:
    found = REPORT.of_kernel("precise", [pair(16, 2), pair(2, 6)], RATIOS, ())
    assert (found.corroborated, found.doubts) == (True, ())


def test_pairs_that_differ_too_much_to_tell_a_speedup_are_a_doubt() -> None:
    found = REPORT.of_kernel("precise", [pair(16, 2), pair(2, 6)], RATIOS, ())
    wild = doubted_if_unlike(found, [8.65, -0.28, -1.9, 1.5, -0.17, -0.18])
    assert (wild.corroborated, wild.doubts) == (False, (UNLIKE_PAIRS,))
    for logs in ([0.1, 0.3, -0.2], [8.65, 8.6, 8.7], [1.0]):
        assert doubted_if_unlike(found, logs) is found, "noisy, far from 1, or a single pair"


def test_a_doubt_is_no_condition() -> None:
    found = REPORT.of_kernel("precise", [pair(0, 6, wall_us=9000.0)], RATIOS, ("eager cached",))
    assert not found.corroborated
    assert found.doubts == ("not corroborated: the judge's clock measured more time than the kernel's process reports",)
    assert found.conditions == ("cold caches", "eager cached")


def test_disturbed_samples_are_a_share_of_all_samples_taken() -> None:
    """Whether the disturbed samples were replaced by others or, for lack of others, counted."""
    assert "4 of 10 samples disturbed by CPU contention" in REPORT.of_kernel("precise", [pair(4, 6)], RATIOS, ()).conditions
    few = REPORT.of_kernel("precise", [pair(16, 2)], RATIOS, ())
    assert (few.samples, "16 of 18 samples disturbed by CPU contention" in few.conditions) == (18, True)
    both = REPORT.of_kernel("precise", [pair(4, 6), pair(16, 2)], RATIOS, ())
    assert "20 of 28 samples disturbed by CPU contention" in both.conditions


def test_a_repeated_screen_counts_all_its_samples() -> None:
    first, again = pair(16, 2), pair(3, 6)
    kept = replace(again, disturbed=first.disturbed + again.disturbed, taken=first.taken + again.taken)
    assert "19 of 27 samples disturbed by CPU contention" in REPORT.of_kernel("screen", [kept], RATIOS, ()).conditions


@pytest.mark.parametrize(
    ("workloads", "found", "asked"),
    [
        (1, pair(0, 6), [6]),
        (1, pair(16, 2), [6, 6, 6]),
        (16, pair(0, 6), [3]),
        (16, pair(16, 2), [3]),  # disturbed: it quarantines nobody, and a measurement decides
        (16, pair(0, 6, wall_us=9000.0), [3, 3, 3]),  # hidden time: it would quarantine
    ],
)
def test_in_a_suite_a_screen_is_repeated_only_for_what_would_quarantine(
    workloads: int, found: PairTimes, asked: list[int]
) -> None:
    samples = []

    def run_pair(bed: object, contest: object, wanted: int, tally: object) -> PairTimes:
        samples.append(wanted)
        return found

    trial = WorkloadTrial.__new__(WorkloadTrial)
    trial._tools, trial.report, trial.run_pair = SimpleNamespace(workloads=workloads), REPORT, run_pair
    trial._screen(None, None, None)
    assert samples == asked


@pytest.mark.parametrize(("samples", "workloads", "shared"), [(14, 1, 14), (30, 2, 30), (14, 8, 5), (30, 16, 5), (14, 16, 3)])
def test_a_suite_takes_no_more_calls_than_three_single_workloads(samples: int, workloads: int, shared: int) -> None:
    assert shared_samples(samples, workloads) == shared


def test_a_process_that_was_called_before_needs_fewer_warm_ups() -> None:
    def warm_up(*called: bool) -> int:
        return Contestants({str(n): SimpleNamespace(has_run=one) for n, one in enumerate(called)}, {}, {}).warm_up

    assert warm_up(True, True) < warm_up(True, False) == warm_up(False)


@pytest.mark.parametrize("judged", [True, False])
def test_baselines_are_called_in_samples_and_not_in_audits(judged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge's clock is compared on the kernel and the null kernel alone, and not at all where no kernel is judged."""
    called: list[tuple[set[str], bool]] = []

    def sample(_: object, contest: Contestants, order: RunKernel, *__: object) -> tuple[dict[str, Timing], list[object]]:
        called.append((set(contest.everyone()), order.hold_us > 0))
        return {name: Timing(8.0, 13.0, 0.0, enqueue_us=5.0) for name in contest.everyone()}, []

    monkeypatch.setattr(interleaving, "_sample", sample)
    bed = SimpleNamespace(
        slots=8, calibration=SimpleNamespace(distributions=(OWN,)), draw=lambda *_, **__: None, release=lambda *_: None
    )
    runner = SimpleNamespace(has_run=True)
    kernel, baselines = ({KERNEL: runner}, {"eager": runner}) if judged else ({}, {"eager": runner, "itself": runner})
    contest = Contestants(kernel, baselines, {NULL: runner} if judged else {}, dict.fromkeys(kernel, "plan"))
    quiet = SimpleNamespace(begin=lambda: None, is_present=lambda: False)
    setup = PairSetup(lambda: None, None, quiet, random.Random(1), lambda: 0.0, holds=True)
    found = interleaving.run_pair(bed, contest, 6, setup, CheckTally())
    everyone = set(contest.everyone())
    assert sum(names == everyone for names, held in called if held) >= 6
    assert {frozenset(names) for names, held in called if not held} == ({frozenset({KERNEL, NULL})} if judged else set())
    assert set(found.audits) == ({KERNEL, NULL} if judged else set())


def test_a_few_samples_have_enough_audits_to_know_what_they_vary_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one audit on each workload of a suite, honest kernels were doubted for one late reply."""

    def sample(_: object, contest: Contestants, *__: object) -> tuple[dict[str, Timing], list[object]]:
        return {name: Timing(8.0, 13.0, 0.0, enqueue_us=5.0) for name in contest.everyone()}, []

    monkeypatch.setattr(interleaving, "_sample", sample)
    calibration = SimpleNamespace(distributions=(OWN, "x64"))
    bed = SimpleNamespace(slots=8, calibration=calibration, draw=lambda *_, **__: None, release=lambda *_: None)
    runner = SimpleNamespace(has_run=True)
    contest = Contestants({KERNEL: runner}, {"eager": runner}, {NULL: runner}, {KERNEL: "plan"})
    quiet = SimpleNamespace(begin=lambda: None, is_present=lambda: False)
    for seed in range(20):
        setup = PairSetup(lambda: None, None, quiet, random.Random(seed), lambda: 0.0, holds=True)
        found = interleaving.run_pair(bed, contest, shared_samples(6, 8), setup, CheckTally(), 1)
        assert len(found.audits[KERNEL]) == len(found.audits[NULL]) >= 3


@pytest.mark.parametrize(
    ("eager_s", "kernel_s", "samples", "most_perturbed"),
    [(0.2, 0.2, 6, 3), (2.0, 2.0, 2, 1), (0.2, 2.0, 6, 3), (2.0, 0.2, 2, 1)],
)
def test_fewer_calls_are_made_where_the_baselines_take_seconds(
    eager_s: float, kernel_s: float, samples: int, most_perturbed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warm-up, two samples and one perturbed call in a pair. A kernel that waits does not save itself checks."""
    called: list[set[str]] = []

    def sample(_: object, contest: Contestants, *__: object) -> tuple[dict[str, Timing], list[object]]:
        called.append(set(contest.everyone()))
        took = {"eager": eager_s, KERNEL: kernel_s, NULL: 1e-5}
        return {name: Timing(took[name] * 1e6, took[name] * 1e6, 0.0) for name in contest.everyone()}, []

    monkeypatch.setattr(interleaving, "_sample", sample)
    calibration = SimpleNamespace(distributions=(OWN, "x64", "ties", "zeros", "spiked"))
    bed = SimpleNamespace(slots=8, calibration=calibration, draw=lambda *_, **__: None, release=lambda *_: None)
    runner = SimpleNamespace(has_run=False)
    contest = Contestants({KERNEL: runner}, {"eager": runner}, {NULL: runner}, {KERNEL: "plan"})
    quiet = SimpleNamespace(begin=lambda: None, is_present=lambda: False)
    for seed in range(20):
        called.clear()
        setup = PairSetup(lambda: None, None, quiet, random.Random(seed), lambda: 0.0)
        found = interleaving.run_pair(bed, contest, 6, setup, CheckTally())
        assert len(found.kernel) >= samples
        assert len(found.kernel) <= samples or eager_s < 1
        first = called.index({KERNEL, "eager", NULL})
        second = called.index({KERNEL, "eager", NULL}, first + 1)
        assert called[second:].count({KERNEL}) <= most_perturbed
