"""Doubts about times and outputs that broke no rule, on synthetic timings."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.domain.model import Device, Operand, PrecisionClass, Role, Signature, Verification
from engine.domain.preparation import Peaks
from engine.trial.judge.caches.peaks_cache import better
from engine.trial.judge.timing import plausibility, roofline
from engine.trial.judge.timing.call_times import Timing
from engine.trial.judge.timing.pair_times import KERNEL, NULL, CallCost, PairTimes

CPU = Device("cpu", 0, "some processor", "x86_64", 2, 1 << 25, 1 << 33, "torch 2")
GPU = replace(CPU, kind="cuda", name="some accelerator")
OPERANDS = (Operand("x", Role.INPUT, (1 << 20,), "float32"), Operand("out", Role.OUTPUT, (1 << 20,), "float32"))
SIGNATURE = Signature(OPERANDS, {}, operations=1e6)
PEAKS = Peaks(8 * (1 << 20) * 1e4, {"fp32": 1e12})
"""Gives a floor of 100 µs."""


def pairs(claimed: float = 400.0, beside: float = 150.0, idle: float = 0.0) -> list[PairTimes]:
    kernel = [Timing(claimed, claimed + beside, idle) for _ in range(12)]
    null = [Timing(1.0, 151.0, 0.0) for _ in range(12)]
    return [PairTimes({KERNEL: kernel, NULL: null})]


def doubts_in(found: list[PairTimes], device: Device = CPU, *, cold: bool = True) -> tuple[str, ...]:
    return plausibility.timing_doubts(found, SIGNATURE, PEAKS, device, cold=cold)


def test_what_the_cores_own_caches_hold_is_not_part_of_the_floor() -> None:
    assert doubts_in(pairs(70))
    cached = replace(CPU, core_caches=(1 << 15, 1 << 20))  # on both cores a quarter of the bytes
    assert not doubts_in(pairs(70), cached)
    assert doubts_in(pairs(50), cached)
    assert doubts_in(pairs(70), replace(CPU, core_caches=(1 << 15,)))
    assert doubts_in(pairs(70), replace(cached, kind="cuda"))


def test_ceilings_measured_twice_count_at_their_best() -> None:
    found = better(Peaks(2.0, {"fp32": 1.0, "fp16": 8.0}), Peaks(1.0, {"fp32": 3.0}))
    assert found == Peaks(2.0, {"fp32": 3.0, "fp16": 8.0})
    assert better(Peaks(1.0, {"fp32": 1.0}), found) == found, "a unit that one of them missed"


@pytest.mark.parametrize(
    ("small", "large", "kept"), [(1.0, 2.0, True), (1.0, 0.5, False), (0.01, 2.0, False)],
    ids=["faster", "not faster", "emulated"],
)  # fmt: skip
def test_a_cpus_ceilings_have_the_narrow_types_that_it_multiplies_faster(
    monkeypatch: pytest.MonkeyPatch, small: float, large: float, kept: bool
) -> None:
    """A product of bfloat16 is then no kernel that is faster than the device allows."""

    def rate(n: int, dtype: torch.dtype, label: str) -> float:
        return 1e12 * (1.0 if dtype == torch.float32 else small if n < 1000 else large)

    monkeypatch.setattr(roofline, "_product_rate", rate)
    monkeypatch.setattr(roofline, "_cpu_bandwidth", lambda _: 1e10)
    found = roofline.measure_peaks(CPU).operations_per_s
    assert found == ({"fp32": 1e12, "bf16": 2e12, "fp16": 2e12} if kept else {"fp32": 1e12})


def test_eight_bit_floats_are_multiplied_in_bfloat16_where_no_unit_multiplies_them() -> None:
    operands = (Operand("x", Role.INPUT, (1 << 10,), "float8_e4m3fn"), Operand("out", Role.OUTPUT, (1 << 10,), "bfloat16"))
    ceilings = Peaks(1e10, {"fp32": 1e12, "bf16": 2e12})
    found = roofline.floor(Signature(operands, {}, operations=1e12, unit="fp32"), ceilings)
    assert (found.bound, found.floor_us) == ("operations (bf16)", 5e5)


@pytest.mark.parametrize("device", [CPU, GPU])
def test_an_ordinary_time_raises_no_doubt(device: Device) -> None:
    assert doubts_in(pairs(), device) == ()


@pytest.mark.parametrize(
    ("device", "claimed", "doubted"), [(CPU, 90, False), (CPU, 70, True), (GPU, 90, False), (GPU, 70, True)]
)
def test_a_time_below_the_floor_is_doubted(device: Device, claimed: float, doubted: bool) -> None:
    assert bool(doubts_in(pairs(claimed), device)) is doubted
    assert not doubts_in(pairs(claimed), device, cold=False)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"beside": 2000.0}, "not corroborated"),
        ({"idle": 900.0}, "still busy"),
    ],
)
def test_each_doubt_has_its_message(made: dict[str, float], words: str) -> None:
    (found,) = doubts_in(pairs(**made))
    assert words in found
    assert "\n" not in found


@pytest.mark.parametrize(("beside", "doubted", "sure"), [(200.0, False, False), (400.0, True, False), (900.0, True, True)])
def test_little_hidden_time_is_uncorroborated_and_much_quarantines(beside: float, doubted: bool, sure: bool) -> None:
    found = pairs(beside=beside)
    assert bool(doubts_in(found)) is doubted
    assert bool(plausibility.timing_doubts(found, SIGNATURE, PEAKS, CPU, cold=True, sure=True)) is sure


@pytest.mark.parametrize(
    ("times", "jitter", "doubted"),
    [
        ([0.1] * 7 + [6135.0] * 5, 0.0, True),  # the median at the least time that counts, the interval 60,000 times as wide
        ([0.1] * 12, 900.0, True),  # all shorter than the error of what was subtracted
        ([0.1] * 7 + [60.0] * 5, 10.0, False),  # a kernel of a few microseconds
        ([4000.0] * 7 + [30_000.0] * 5, 100.0, False),  # other work on the machine
    ],
)
def test_a_time_that_is_lost_in_its_own_error_is_uncorroborated(times: list[float], jitter: float, doubted: bool) -> None:
    (made,) = pairs()
    kernel = [Timing(us, us + 150.0, 0.0) for us in times]
    found = [replace(made, times={**made.times, KERNEL: kernel}, cost=CallCost(150.0, jitter))]
    unresolved = [words for words in doubts_in(found, cold=False) if "not resolved" in words]
    assert bool(unresolved) is doubted
    assert plausibility.timing_doubts(found, SIGNATURE, PEAKS, CPU, cold=False, sure=True) == ()


@pytest.mark.parametrize("calm", [True, False])
def test_honest_calls_do_not_vouch_for_forged_ones(calm: bool) -> None:
    forged = [Timing(100.0, 650.0, 0.0)] * 7
    honest = [Timing(500.0, 650.0, 0.0)] * 5
    (made,) = pairs()
    found = [replace(made, times={**made.times, KERNEL: [*forged, *honest]}, calm=calm)]
    assert "not corroborated" in doubts_in(found)[0]


def verification(jitter: float) -> Verification:
    return Verification("class:fp32 (10x)", 5, 1e-7, 1e-6, 1e-6, 1e-6, 1e-5, PrecisionClass.FP32, jitter=jitter)


@pytest.mark.parametrize(("jitter", "doubted"), [(0.0, False), (9e-6, False), (2e-5, True)])
def test_outputs_on_the_same_inputs_may_differ_by_rounding_only(jitter: float, doubted: bool) -> None:
    assert bool(plausibility.verification_doubts(verification(jitter))) is doubted
