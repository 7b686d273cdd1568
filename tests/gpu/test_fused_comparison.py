"""Comparison in one pass on a device: what blocks find, for every type, without another wait or a copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import partial

import pytest
import torch

from engine.domain.errors import DeviceError
from engine.trial.judge.outputs import comparison, fused_comparison
from engine.trial.judge.outputs.comparison import compare, finite_errors, finite_moments, finite_rounding, spread
from engine.trial.judge.outputs.fused_comparison import DeviceKernels, fused_pair
from engine.trial.shared.cuda import nvrtc

pytestmark = pytest.mark.gpu

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
ELEMENTS = (1 << 26) + 77


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(1)
    return torch.randn(ELEMENTS, dtype=torch.float64, device="cuda", generator=generator).add_(3)


def in_blocks(work: Callable[[], object]) -> object:
    comparison._remembered.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_comparison, "LEAST", 1 << 60)
        found = work()
    comparison._remembered.clear()
    return found


def assert_same(work: Callable[[], object]) -> None:
    found, right = work(), in_blocks(work)
    if isinstance(found, float):
        assert found == pytest.approx(right, rel=1e-11)
        return
    for one, other in zip(astuple(found), astuple(right), strict=True):  # type: ignore[call-overload]
        near = other if isinstance(other, str) else pytest.approx(other, rel=1e-11, nan_ok=True)
        assert one == near, (found, right)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("wide", [torch.float64, torch.float32])
def test_the_kernels_find_what_blocks_find(expected: torch.Tensor, dtype: torch.dtype, wide: torch.dtype) -> None:
    right = expected.to(wide, copy=True)  # it is changed below
    output = (expected + 1e-3).to(dtype)
    kernels = fused_comparison.KERNELS
    assert fused_pair(output, right, "moments", "errors") is not None, getattr(kernels, "missing", "")
    assert_same(lambda: compare([output], [right], ["out"]))
    assert_same(lambda: spread(right))
    output[[0, 5, ELEMENTS - 1]] = torch.tensor([math.nan, math.inf, -math.inf], dtype=dtype, device="cuda")
    assert f"3 of {ELEMENTS} elements wrong, the first at 0 is not finite" in compare([output], [right], ["out"]).flaw
    assert_same(lambda: comparison._errors_of_all(output, right))
    assert_same(lambda: finite_errors(output, right))
    assert_same(lambda: finite_rounding(output, right, dtype))
    right[[1, 5]] = math.nan
    assert_same(lambda: finite_moments(right))
    assert_same(lambda: finite_errors(output, right))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_half_is_decoded(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_comparison, "LEAST", 0)
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype).cuda()
    every = every[every.isfinite()]
    assert fused_pair(every, every.double(), "moments", "errors") is not None
    assert comparison._errors_of_all(every, every.double()).max_abs == 0


@pytest.mark.parametrize("size", [1, 2, 255, 257, 2047, 2049, 100_001])
def test_sizes_and_addresses(expected: torch.Tensor, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_comparison, "LEAST", 0)
    output = (expected[: size + 7] * 1.001).half()
    for skipped in (0, 1, 3):
        assert fused_pair(output[skipped : size + skipped], expected[1 : size + 1], "moments", "errors") is not None
        assert_same(partial(compare, [output[skipped : size + skipped]], [expected[1 : size + 1]], ["out"]))


def test_it_follows_what_the_stream_still_writes(expected: torch.Tensor) -> None:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        output = torch.zeros(ELEMENTS, device="cuda")
        torch.cuda._sleep(200_000_000)
        output.copy_(expected)
        found = compare([output], [expected], ["out"])
    assert found.max_abs < 1e-6


def test_it_takes_no_memory_of_the_size_of_the_tensors(expected: torch.Tensor) -> None:
    output = expected.float()
    assert fused_pair(output, expected, "moments", "errors") is not None
    comparison._remembered.clear()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    compare([output], [expected], ["out"])
    assert torch.cuda.max_memory_allocated() - before < 1 << 20


def test_without_a_compiler_blocks_do_the_work(expected: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(source: str, options: Sequence[str]) -> bytes:
        raise DeviceError("NVRTC cannot be used")

    made = DeviceKernels(missing)
    output = expected.float()
    right = compare([output], [expected], ["out"])
    comparison._remembered.clear()
    monkeypatch.setattr(fused_comparison, "KERNELS", made)
    found = compare([output], [expected], ["out"])
    assert made.missing == "NVRTC cannot be used"
    assert astuple(found)[:3] == pytest.approx(astuple(right)[:3], rel=1e-11)


def test_machine_code_for_another_device_is_left_to_blocks(expected: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    other = "-arch=sm_75" if torch.cuda.get_device_capability() != (7, 5) else "-arch=sm_80"
    made = DeviceKernels(lambda source, options: nvrtc.compiled(source, [other, *options[1:]]))
    monkeypatch.setattr(fused_comparison, "KERNELS", made)
    assert fused_pair(expected, expected, "moments", "errors") is None
    assert made.missing.startswith("loading comparison.cu failed")
