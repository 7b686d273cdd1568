"""Error measures and their limits, and flaws that no tolerance covers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.domain.model import PrecisionClass
from engine.trial.judge.outputs.comparison import NO_ERROR, Errors, compare
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.tolerance.policy import error_limit, strictest_class, within

SEEDS = st.integers(0, 2**32)
EVERYTHING = RelativeErrors(math.inf, math.inf)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def errors(output: torch.Tensor, expected: torch.Tensor) -> Errors:
    return compare([output], [expected], ["out"])


@given(SEEDS)
def test_the_exact_output_has_no_error(seed: int) -> None:
    expected = normal(seed, 5, 7)
    assert errors(expected.clone(), expected) == NO_ERROR


@given(SEEDS, st.floats(-1e3, 1e3), st.integers(-20, 20))
def test_errors_are_invariant_to_shift_and_scale(seed: int, shift: float, power: int) -> None:
    expected = normal(seed, 40)
    output = expected + 1e-3 * normal(seed + 1, 40)
    plain = errors(output, expected)
    moved = errors((output + shift) * 2.0**power, (expected + shift) * 2.0**power)
    assert moved.rel_fro == pytest.approx(plain.rel_fro, rel=1e-6)


def test_half_precision_of_an_almost_constant_output_is_a_large_error() -> None:
    expected = 1000 + normal(1, 1000)
    rounded = expected.to(torch.bfloat16).double()
    plain = float((rounded - expected).norm() / expected.norm())
    assert plain < 5e-3 < 0.5 < errors(rounded, expected).rel_fro


@given(SEEDS, st.integers(0, 9999), st.floats(0.5, 1e6))
def test_one_wrong_element_among_ten_thousand_exceeds_the_limit(seed: int, place: int, by: float) -> None:
    expected = normal(seed, 10_000)
    output = expected.clone()
    output[place] += by * (1 + abs(expected[place]))
    found = errors(output, expected)
    assert found.max_scaled >= 0.45 * by / 2
    assert not within(found, RelativeErrors(1.0, 0.1))


@given(SEEDS, st.integers(0, 19), st.sampled_from([math.nan, math.inf, -math.inf]), st.sampled_from(["float32", "float16"]))
def test_non_finite_outputs_never_pass(seed: int, place: int, bad: float, dtype: str) -> None:
    expected = normal(seed, 20)
    output = expected.to(getattr(torch, dtype))
    output[place] = bad
    found = errors(output, expected)
    assert "is not finite" in found.flaw
    assert not within(found, EVERYTHING)


@given(SEEDS, st.integers(0, 19), st.floats(-10, 10))
def test_a_finite_number_does_not_match_nan_or_infinity(seed: int, place: int, value: float) -> None:
    expected = normal(seed, 20)
    expected[place] = math.inf if seed % 2 else math.nan
    output = expected.clone()
    output[place] = value
    assert not within(errors(output, expected), EVERYTHING)
    output[place] = expected[place]
    assert errors(output, expected) == NO_ERROR


@pytest.mark.parametrize(("mine", "theirs"), [(math.inf, -math.inf), (math.nan, math.inf), (-math.inf, math.nan)])
def test_infinities_and_nans_are_distinguished(mine: float, theirs: float) -> None:
    assert errors(torch.tensor([1.0, mine]), torch.tensor([1.0, theirs], dtype=torch.float64)).flaw


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=30), st.integers(0, 29), st.integers(1, 5))
def test_integers_are_compared_exactly(values: list[int], place: int, by: int) -> None:
    expected = torch.tensor(values, dtype=torch.int32)
    assert errors(expected.clone(), expected) == NO_ERROR
    place %= len(values)
    assume(values[place] + by < 2**31)
    output = expected.clone()
    output[place] += by
    assert errors(output, expected).flaw.startswith("out: 1 of ")


@pytest.mark.parametrize("byte", [0xFF, 0x5B, 2])
def test_booleans_must_be_bytes_0_or_1(byte: int) -> None:
    expected = torch.ones(4, dtype=torch.bool)
    unwritten = torch.full((4,), byte, dtype=torch.uint8).view(torch.bool)
    assert "4 of 4 elements differ" in errors(unwritten, expected).flaw
    assert errors(expected.clone(), expected) == NO_ERROR


def test_both_parts_of_complex_numbers_count() -> None:
    expected = torch.complex(normal(1, 9), normal(2, 9))
    assert errors(expected.to(torch.complex64), expected).rel_fro < 1e-6
    assert errors(expected.conj().resolve_conj(), expected).rel_fro > 0.5


def test_empty_outputs_have_no_error() -> None:
    assert errors(torch.empty(0, 3), torch.empty(0, 3, dtype=torch.float64)) == NO_ERROR


def test_the_worst_output_counts() -> None:
    expected = [normal(1, 9), normal(2, 9)]
    outputs = [expected[0].clone(), expected[1] + 1]
    assert compare(outputs, expected, ["out0", "out1"]) == errors(outputs[1], expected[1])
    outputs[0][3] = math.nan
    assert compare(outputs, expected, ["out0", "out1"]).flaw.startswith("out0")


CLASSES = {"fp32": RelativeErrors(1e-7, 2e-7), "tf32": RelativeErrors(3e-4, 1e-3), "half": RelativeErrors(3e-3, 1e-2)}


def test_a_class_allows_its_factor_and_at_least_what_stricter_classes_allow() -> None:
    assert error_limit(PrecisionClass.FP32, CLASSES, torch.float32).rel_fro == pytest.approx(1e-6)
    assert error_limit(PrecisionClass.TF32, CLASSES, torch.float32) == RelativeErrors(pytest.approx(9e-4), pytest.approx(3e-3))
    loose_fp32 = {**CLASSES, "fp32": RelativeErrors(1e-2, 1e-2)}
    assert error_limit(PrecisionClass.TF32, loose_fp32, torch.float32).rel_fro == pytest.approx(1e-1)


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 2**-21), (torch.float16, 2**-10), (torch.bfloat16, 2**-7)])
def test_an_exact_reference_does_not_require_exactness(dtype: torch.dtype, least: float) -> None:
    exact = {"fp32": RelativeErrors(0.0, 0.0), "half": RelativeErrors(0.0, 0.0)}
    assert error_limit(PrecisionClass.FP32, exact, dtype) == RelativeErrors(least, least)


@pytest.mark.parametrize(
    ("rel_fro", "found"),
    [(5e-7, PrecisionClass.FP32), (5e-4, PrecisionClass.TF32), (5e-3, PrecisionClass.HALF), (0.5, PrecisionClass.NONE)],
)
def test_an_error_gets_the_strictest_class_it_meets(rel_fro: float, found: PrecisionClass) -> None:
    assert strictest_class(Errors(rel_fro, rel_fro, rel_fro), CLASSES, torch.float32) is found


def test_nan_errors_never_pass() -> None:
    assert not within(Errors(math.nan, 0.0, 0.0), EVERYTHING)
    assert not within(Errors(0.0, math.nan, 0.0), EVERYTHING)


def test_the_worst_of_several_errors_is_nan_if_one_is() -> None:
    undefined = Errors(math.nan, math.nan, math.nan)
    for found in (NO_ERROR.worst(undefined), undefined.worst(NO_ERROR)):
        assert all(map(math.isnan, (found.rel_fro, found.max_scaled, found.max_abs)))


def test_an_undefined_error_of_the_reference_widens_no_limit() -> None:
    undefined, known = RelativeErrors(math.nan, math.nan), RelativeErrors(1e-7, 1e-6)
    assert known.wider(undefined) == undefined.wider(known) == known
    assert not within(NO_ERROR, undefined.wider(undefined))


@pytest.mark.parametrize("size", [1e200, 1e300, 1e-200, 5e-324 * 2**60])
@pytest.mark.parametrize("count", [1, 40, 300_000])
def test_numbers_whose_squares_leave_the_range_of_float64_have_the_errors_of_others(size: float, count: int) -> None:
    """The squares of 1e200 are infinite, and those of 1e-200 are zero."""
    scale = 2.0 ** math.floor(math.log2(size))
    expected = normal(1, count)
    wrong = expected + 1e-3 * normal(2, count)
    plain, found = errors(wrong, expected), errors(wrong * scale, expected * scale)
    least = 1e-300 / size  # what is added to a divisor
    assert found.rel_fro == pytest.approx(plain.rel_fro, rel=1e-9 + least)
    assert found.max_scaled == pytest.approx(plain.max_scaled, rel=1e-9 + least)
    assert found.max_abs == pytest.approx(plain.max_abs * scale, rel=1e-9)
    assert errors(-expected * scale, expected * scale).rel_fro > 1
    assert errors(expected * scale, expected * scale) == NO_ERROR


@pytest.mark.parametrize("expected", [torch.tensor(3.0), torch.full((64,), -3.0), 3 + 1e-6 * normal(1, 64)])
def test_an_output_without_spread_is_scaled_by_its_rms(expected: torch.Tensor) -> None:
    found = errors(expected.double() * (1 + 1e-3), expected.double())
    assert found.rel_fro == pytest.approx(1e-3)
    assert found.max_scaled == pytest.approx(5e-4)


def test_a_spread_that_fp32_resolves_is_the_scale() -> None:
    expected = 3 + 1e-4 * normal(1, 64)
    assert errors(expected.mean().expand(64), expected).rel_fro == pytest.approx(1)


def test_zeros_must_be_zero() -> None:
    assert errors(torch.full((3,), 1e-9), torch.zeros(3, dtype=torch.float64)).rel_fro > 1e200
