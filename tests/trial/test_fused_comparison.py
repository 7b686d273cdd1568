"""One pass over large tensors: its kernels, run on a CPU, find the moments and errors that blocks find."""

from __future__ import annotations

import importlib.util
import math
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.emulated_comparison import EmulatedComparison

from engine.domain.errors import DeviceError
from engine.domain.model import Device, Operand, Role
from engine.trial.judge.outputs import comparison, fused_comparison
from engine.trial.judge.outputs.blocks import Moments
from engine.trial.judge.outputs.comparison import compare, finite_errors, finite_moments, finite_rounding, rounding_errors
from engine.trial.judge.outputs.fused_comparison import ComparisonVariant, DeviceKernels, FusedPair, fused_pair
from engine.trial.judge.tolerance.special_values import Comparison, compare_special
from engine.trial.shared.cuda import driver, nvrtc

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WIDE = (torch.float64, torch.float32)
TYPES = [*((one, torch.float64) for one in FLOATS), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)]
"""Of an output and the expected one. Each takes a compiler a second, twice."""
VARIANTS = [
    *(ComparisonVariant(output, expected, finite) for output in FLOATS for expected in WIDE for finite in (False, True)),
    *(ComparisonVariant(output, expected, finite=True, to_float=True) for output in FLOATS for expected in WIDE),
]
TILES = fused_comparison.THREADS * fused_comparison.TILE
SIZES = st.one_of(
    st.sampled_from([1, 2, 255, 256, 257, TILES - 1, TILES, TILES + 1, 2 * TILES + 1, 5 * TILES + 300]),
    st.integers(1, 3 * TILES),
)
FILLS = {
    "normal": lambda right, noise: (right, right + 1e-3 * noise),
    "right": lambda right, noise: (right, right),
    "apart": lambda right, noise: (right, noise),
    "positive": lambda right, noise: (right.clamp_min(0), right.clamp_min(0) + 1e-3 * noise),
    "far from zero": lambda right, noise: (right + 1000, right + 1000 + noise),
    "a first outlier": lambda right, noise: (torch.cat((right[:1] + 1e4, right[1:])), right),
    "constant": lambda right, noise: (torch.full_like(right, 3.5), torch.full_like(right, 3.25)),
    "zeros": lambda right, noise: (torch.zeros_like(right), torch.zeros_like(right)),
    "growing": lambda right, noise: (torch.arange(1.0, len(right) + 1.0), torch.arange(1.0, len(right) + 1.0) + noise),
    "large": lambda right, noise: (right * 1e18, (right + noise) * 1e18),
    "small": lambda right, noise: (right * 1e-7, (right + noise) * 1e-7),
}  # fmt: skip
"""The expected elements and those of the output, from two draws of the normal distribution."""

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> EmulatedComparison:
    return EmulatedComparison(tmp_path_factory.mktemp("comparison"))


@pytest.fixture
def fused(kernels: EmulatedComparison, monkeypatch: pytest.MonkeyPatch) -> EmulatedComparison:
    """All tensors of a CPU take the kernels."""
    kernels.launched.clear()
    monkeypatch.setattr(fused_comparison, "KERNELS", kernels)
    monkeypatch.setattr(fused_comparison, "LEAST", 0)
    return kernels


def drawn(fill: str, size: int, seed: int, dtypes: tuple[torch.dtype, torch.dtype]) -> tuple[torch.Tensor, torch.Tensor]:
    """An output and the expected one."""
    generator = torch.Generator().manual_seed(seed)
    right, noise = (torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(2))
    expected, output = FILLS[fill](right, noise)
    return output.to(dtypes[0]), expected.to(dtypes[1])


def with_odd_ones(tensor: torch.Tensor, places: Sequence[int], value: float) -> torch.Tensor:
    changed = tensor.clone()
    for place in places:
        changed[place % len(changed)] = value
    return changed


def in_blocks(work: Callable[[], object]) -> object:
    """What blocks find, without anything remembered."""
    comparison._remembered.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_comparison, "LEAST", 1 << 60)
        found = work()
    comparison._remembered.clear()
    return found


def assert_same(work: Callable[[], object]) -> None:
    found, right = work(), in_blocks(work)
    least = 1e-15 * right.rms if isinstance(right, Moments) and math.isfinite(right.rms) else 0.0  # numbers cancel in a mean
    for one, other in zip(astuple(found), astuple(right), strict=True):  # type: ignore[call-overload]
        near = other if isinstance(other, str) else pytest.approx(other, rel=1e-12, abs=max(least, 1e-300), nan_ok=True)
        assert one == near, (found, right)


EACH = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@given(st.sampled_from(sorted(FILLS)), SIZES, st.integers(0, 99), st.sampled_from(TYPES))
@EACH
def test_errors_are_those_of_blocks(
    fused: EmulatedComparison, fill: str, size: int, seed: int, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    output, expected = drawn(fill, size, seed, dtypes)
    assert_same(lambda: compare([output], [expected], ["out"]))
    assert_same(lambda: finite_errors(output, expected))
    assert_same(lambda: finite_rounding(output, expected, dtypes[0]))
    assert_same(lambda: rounding_errors([output], [expected]))


@pytest.mark.slow
@given(
    st.sampled_from(sorted(FILLS)), SIZES, st.integers(0, 99), st.sampled_from(TYPES),
    st.lists(st.integers(0, 3 * TILES), max_size=4), st.lists(st.integers(0, 3 * TILES), max_size=4),
    st.sampled_from([math.inf, -math.inf, math.nan]),
)  # fmt: skip
@example("normal", 5 * TILES, 1, (torch.float16, torch.float64), [0], [0], math.inf)
@example("normal", 2, 1, (torch.float32, torch.float64), [0, 1], [0, 1], math.nan)
@example("normal", 600, 1, (torch.float32, torch.float64), [200], [], math.nan)
@example("normal", 600, 1, (torch.float32, torch.float64), [600 - 1], [], math.inf)
@EACH
def test_what_is_not_finite_is_treated_alike(
    fused: EmulatedComparison, fill: str, size: int, seed: int, dtypes: tuple[torch.dtype, torch.dtype], mine: list[int],
    right: list[int], value: float,
) -> None:  # fmt: skip
    output, expected = drawn(fill, size, seed, dtypes)
    output, expected = with_odd_ones(output, mine, value), with_odd_ones(expected, right, value)
    assert_same(lambda: compare([output], [expected], ["out"]))
    assert_same(lambda: comparison._errors_of_all(output, expected))
    assert_same(lambda: finite_errors(output, expected))
    assert_same(lambda: finite_rounding(output, expected, torch.float16))
    assert_same(lambda: finite_rounding(output, expected, torch.float32))
    assert_same(lambda: finite_moments(expected))


@pytest.mark.slow
@given(
    SIZES, st.integers(0, 99), st.sampled_from(TYPES),
    st.lists(st.tuples(st.integers(0, 3 * TILES), st.sampled_from([math.inf, -math.inf, math.nan])), max_size=4),
    st.lists(st.tuples(st.integers(0, 3 * TILES), st.sampled_from([math.inf, -math.inf, math.nan])), max_size=4),
)  # fmt: skip
@example(600, 1, (torch.float32, torch.float64), [(200, math.inf)], [(200, math.inf)])
@example(600, 1, (torch.float16, torch.float64), [(200, math.inf)], [(200, -math.inf)])
@example(600, 1, (torch.bfloat16, torch.float64), [(200, math.nan)], [(200, math.inf)])
@EACH
def test_what_is_not_finite_alike_is_counted(
    fused: EmulatedComparison, size: int, seed: int, dtypes: tuple[torch.dtype, torch.dtype],
    mine: list[tuple[int, float]], right: list[tuple[int, float]],
) -> None:  # fmt: skip
    output, expected = drawn("normal", size, seed, dtypes)
    for place, value in mine:
        output = with_odd_ones(output, [place], value)
    for place, value in right:
        expected = with_odd_ones(expected, [place], value)
    here, there = output.isfinite(), expected.isfinite()
    alike = (here & there) | (output.isnan() & expected.isnan()) | (output.double() == expected.double())
    pair = fused_pair(output, expected, "unlike")
    assert pair is not None
    assert pair.unlike() == (int((here & ~there).sum()), int((there & ~here).sum()), int((~alike).sum()))
    assert bool(comparison._mask_flaw(output, expected, "out")) == (not bool(alike.all()))
    found = compare_special([output], [expected])
    plain = cast(Comparison, in_blocks(lambda: compare_special([output], [expected])))
    assert torch.equal(found.hidden[0], plain.hidden[0])
    assert replace(found, hidden=()) == replace(plain, hidden=())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_half_is_decoded(fused: EmulatedComparison, dtype: torch.dtype) -> None:
    """One element at a time would take long: the largest error of each two neighbours shows a wrong one."""
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    every = every[every.isfinite()]
    assert comparison._errors_of_all(every, every.double()).max_abs == 0
    moved = every.double() * (1 + 2.0**-20)
    assert_same(lambda: comparison._errors_of_all(every, moved))
    odd = torch.tensor([math.inf, -math.inf, math.nan], dtype=dtype)
    for one in odd.split(1):
        assert not comparison._errors_of_all(one, torch.ones(1, dtype=torch.float64)).finite


@pytest.mark.parametrize("value", [1e-300, 1e-160, 1e150, 1e160, 1e200, 1e308])
def test_numbers_at_the_ends_of_the_range(fused: EmulatedComparison, value: float) -> None:
    output, expected = drawn("apart", 600, 3, (torch.float64, torch.float64))
    output, expected = output * value, expected * value
    assert_same(lambda: comparison._errors_of_all(output, expected))
    assert_same(lambda: compare([output], [expected], ["out"]))


@pytest.mark.parametrize("wrong", [0.0, 1e-320, 1.0, math.inf])
def test_the_kernels_compare_with_zeros_too(fused: EmulatedComparison, wrong: float) -> None:
    """ReLU gives nothing else for negative inputs. Blocks took three times as long there."""
    expected = torch.zeros(600, dtype=torch.float64)
    output = with_odd_ones(expected, [7], wrong)
    assert_same(lambda: comparison._errors_of_all(output, expected))
    assert_same(lambda: compare([output], [expected], ["out"]))
    assert "errors" in {name for name, _ in fused.launched}
    assert finite_moments(expected).in_range
    assert not finite_moments(with_odd_ones(expected, [7], 1e-200)).zero


def test_an_error_beyond_the_range_is_found_behind_others(fused: EmulatedComparison) -> None:
    expected = torch.full((3 * TILES,), -1e308, dtype=torch.float64)
    output = expected * 0.5
    output[0], expected[0] = 1e10, 0  # the same thread's first: 1e10 scaled, and times 1e308 beyond the range too
    output[2 * TILES] = 1.5e308
    assert_same(lambda: comparison._errors_of_all(output, expected))
    right = FusedPair(output, expected, False, None).errors(1.0)
    assert max(scaled for _, _, scaled in right) == math.inf


@pytest.mark.slow
def test_nothing_has_no_error(fused: EmulatedComparison) -> None:
    nothing = torch.empty(0)
    assert_same(lambda: compare([nothing], [nothing.double()], ["out"]))
    assert_same(lambda: finite_errors(nothing, nothing.double()))
    assert_same(lambda: finite_rounding(nothing, nothing.double(), torch.float16))
    assert_same(lambda: finite_moments(nothing))
    assert [name for name, _ in fused.launched] == ["moments"] * 3


@pytest.mark.slow
@given(st.integers(0, 7), st.integers(0, 3), st.sampled_from(FLOATS))
@EACH
def test_parts_of_tensors_at_any_address(fused: EmulatedComparison, skipped: int, also: int, dtype: torch.dtype) -> None:
    output, expected = drawn("normal", 700, 5, (dtype, torch.float64))
    assert_same(lambda: compare([output[skipped : 600 + skipped]], [expected[also : 600 + also]], ["out"]))
    assert fused.launched


@pytest.mark.slow
def test_complex_numbers_count_as_two(fused: EmulatedComparison) -> None:
    output = torch.randn(500, dtype=torch.complex64)
    expected = output.to(torch.complex128) + 1e-5
    assert_same(lambda: compare([output], [expected], ["out"]))
    assert ("errors", ComparisonVariant(torch.float32, torch.float64, False)) in fused.launched


@pytest.mark.slow
def test_large_tensors_are_rounded_in_parts(fused: EmulatedComparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_comparison, "_ROUNDED_AT_ONCE", 100)
    output, expected = drawn("normal", 950, 7, (torch.bfloat16, torch.float64))
    assert_same(lambda: finite_rounding(with_odd_ones(output, [5, 500], math.nan), expected, torch.bfloat16))
    assert [name for name, _ in fused.launched] == ["moments"] * 10 + ["errors"] * 10


@pytest.mark.slow
def test_many_blocks_leave_a_row_each(fused: EmulatedComparison, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    many = EmulatedComparison(tmp_path, most_blocks=100)
    monkeypatch.setattr(fused_comparison, "KERNELS", many)
    output, expected = drawn("growing", 6 * TILES + 1, 7, (torch.float32, torch.float64))
    assert_same(lambda: compare([output], [expected], ["out"]))
    pair = fused_pair(output, expected, "errors")
    assert pair is not None
    assert len(pair.errors(1.0)) == 7


def unfit() -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    plain, wide = torch.randn(40, 30), torch.randn(40, 30, dtype=torch.float64)
    yield "not contiguous", plain.T, wide.T.contiguous()
    yield "the expected one not contiguous", plain.T.contiguous(), wide.T
    yield "integers", plain.int(), wide
    yield "of 8 bits", plain.to(torch.float8_e4m3fn), wide
    yield "another device", plain, wide.to("meta")


@pytest.mark.parametrize(("output", "expected"), [pytest.param(a, b, id=name) for name, a, b in unfit()])
def test_other_tensors_are_left_to_blocks(fused: EmulatedComparison, output: torch.Tensor, expected: torch.Tensor) -> None:
    assert fused_pair(output, expected, "errors") is None


def test_tensors_that_are_not_contiguous_are_compared_in_blocks(fused: EmulatedComparison) -> None:
    output = torch.randn(40, 30).T
    assert compare([output], [output.double()], ["out"]).max_abs == 0
    assert not fused.launched


def test_small_tensors_and_those_of_the_cpu_are_compared_in_blocks() -> None:
    output = torch.randn(100)
    assert fused_pair(output, output.double(), "errors") is None
    assert isinstance(fused_comparison.KERNELS, DeviceKernels)


def test_without_a_compiler_blocks_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def missing(source: str, options: Sequence[str]) -> bytes:
        asked.append(list(options))
        raise DeviceError("NVRTC cannot be used (libnvrtc is not found)")

    made = DeviceKernels(missing)
    made.device_type = "cpu"
    monkeypatch.setattr(driver, "bindings", lambda: None)
    monkeypatch.setattr(driver.Context, "open", lambda index: SimpleNamespace(attribute=lambda name: 9))
    monkeypatch.setattr(fused_comparison, "KERNELS", made)
    monkeypatch.setattr(fused_comparison, "LEAST", 0)
    output, expected = drawn("normal", 1000, 1, (torch.float32, torch.float64))
    for _ in range(2):
        assert_same(lambda: compare([output], [expected], ["out"]))
    assert made.missing == "NVRTC cannot be used (libnvrtc is not found)"
    variants = [["-DOUTPUT=double", "-DEXPECTED=double"], ["-DOUTPUT=float", "-DEXPECTED=double"]]
    assert asked == [
        ["-arch=sm_99", "-std=c++17", *two, "-DFINITE_ONLY=0", "-DTO_FLOAT=0", f"-DONLY={number}"]
        for number, two in enumerate(variants, 1)
    ]  # the moments and the errors, once each


def test_what_large_outputs_need_is_compiled_once_in_threads_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[str, ...]] = []
    begun = threading.Event()

    def compiler(source: str, options: Sequence[str]) -> bytes:
        assert begun.wait(10), "it was compiled where it was asked for"
        compiled.append(tuple(options[2:]))
        raise DeviceError("too old a driver")

    made = DeviceKernels(compiler)
    monkeypatch.setattr(driver, "bindings", lambda: None)
    monkeypatch.setattr(driver.Context, "open", lambda index: SimpleNamespace(attribute=lambda name: 9))
    monkeypatch.setattr(fused_comparison, "_ON_DEVICES", made)
    large, small = ((fused_comparison.LEAST,), (100,))
    outputs = [
        Operand("y", Role.OUTPUT, shape, kind) for shape, kind in ((large, "float32"), (small, "float16"), (large, "int64"))
    ]
    gpu = Device("cuda", 0, "", "sm_90a", 132, 0, 0, "")
    fused_comparison.compile_ahead(outputs, replace(gpu, kind="cpu"))
    fused_comparison.compile_ahead(outputs, gpu)
    begun.set()
    exact, device = torch.float64, torch.device("cuda", 0)
    plain, finite = (ComparisonVariant(torch.float32, exact, finite=finite) for finite in (False, True))
    rounding = ComparisonVariant(exact, exact, finite=True, to_float=True)
    in_half = ComparisonVariant(torch.bfloat16, exact, finite=False)
    wanted = [
        (ComparisonVariant(exact, exact, finite=False), "moments"), (plain, "errors"), (in_half, "errors"),
        (rounding, "moments"), (rounding, "errors"), (plain, "unlike"), (finite, "moments"), (finite, "errors"),
    ]  # fmt: skip
    assert not any(made.ready(variant, device, [name]) for variant, name in wanted)
    assert made.missing == "too old a driver"
    assert sorted(compiled) == sorted(tuple(variant.macros(name)) for variant, name in wanted)
    fused_comparison.compile_ahead(outputs, gpu)
    assert len(compiled) == len(wanted)


def test_a_launch_that_fails_is_an_error(fused: EmulatedComparison, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> torch.Tensor:
        raise DeviceError("launching errors failed")

    monkeypatch.setattr(fused, "launch", failing)
    with pytest.raises(DeviceError, match="launching errors failed"):
        compare([torch.ones(10)], [torch.ones(10, dtype=torch.float64)], ["out"])


def test_sizes_are_those_of_the_source() -> None:
    found = re.search(r"THREADS = (\d+), TILE = (\d+), BLOCKS_PER_UNIT = (\d+);", fused_comparison.SOURCE.read_text())
    assert found is not None
    sizes = fused_comparison.THREADS, fused_comparison.TILE, fused_comparison.BLOCKS_PER_UNIT
    assert tuple(map(int, found.groups())) == sizes


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90a"])
def test_nvcc_compiles_it_without_warnings(architecture: str, tmp_path: Path) -> None:
    options = ["-cubin", "-std=c++17", f"-arch={architecture}", "-Werror", "all-warnings", "-Xptxas", "-v"]
    for variant in (VARIANTS[0], VARIANTS[9], VARIANTS[-2]):
        command = ["nvcc", *options, *variant.macros(), "-o", "out.cubin", str(fused_comparison.SOURCE)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "warning" not in done.stderr
        assert done.stderr.count(" 0 bytes spill stores") == 3, done.stderr


@pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="cuda-bindings is not installed")
def test_nvrtc_compiles_every_variant() -> None:
    source = fused_comparison.SOURCE.read_text()
    try:
        nvrtc.compiled("", ["-arch=sm_75"])
    except DeviceError as error:
        pytest.skip(str(error))
    for variant in VARIANTS:
        for name in ("moments", "errors", "unlike"):
            image = nvrtc.compiled(source, ["-arch=sm_90", "-std=c++17", *variant.macros(name)])
            assert image.startswith(b"\x7fELF")
            assert [other for other in (b"moments", b"errors", b"unlike") if b".text." + other in image] == [name.encode()]
    with pytest.raises(DeviceError, match=r"NVRTC failed \(NVRTC_ERROR_COMPILATION\): .*error"):
        nvrtc.compiled("no C++", ["-arch=sm_90"])
