"""The tolerance policies, and which problems each can judge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from engine.domain.errors import ProblemError
from engine.domain.model import PrecisionClass, Workload
from engine.domain.settings import TOLERANCES
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge.inputs.perturbations import OWN
from engine.trial.judge.judged_calls import CheckTally, judge_outputs
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.tolerance.calibration import Calibration, calibrate
from engine.trial.judge.tolerance.correctness_check import describe_check, try_trivial_models
from engine.trial.judge.tolerance.findings import Findings
from engine.trial.judge.tolerance.policies import AllclosePolicy, make_policy

CLASSES = {OWN: {"fp32": RelativeErrors(1e-7, 1e-7), "tf32": RelativeErrors(3e-4, 3e-4), "half": RelativeErrors(3e-3, 3e-3)}}


def softmax(width: int, tolerance: str) -> tuple[Reference, Calibration]:
    reference = Reference(catalog.find("softmax"), Workload("tiny", {"batch_size": 4, "dim": width}))
    return reference, calibrate(reference, tolerance)


@pytest.mark.parametrize(
    ("tolerance", "width", "verifiable"),
    [
        ("class", 512, True),
        ("class", 16384, True),
        ("class:half", 512, True),
        ("crfm", 512, False),  # every output is below 1e-2: zeros pass
        ("crfm", 16384, False),
        ("kernelbench", 512, True),
        ("kernelbench", 16384, False),  # 6e-5 is within 1e-4 of zero
    ],
)
def test_a_check_that_a_trivial_model_passes_is_not_verifiable(tolerance: str, width: int, verifiable: bool) -> None:
    reference, calibration = softmax(width, tolerance)
    check = describe_check(reference, calibration)
    assert check.verifiable is verifiable
    assert {n.name for n in check.nulls} >= {"zeros", "constant", "other input's output", "one tile unwritten"}
    if not verifiable:
        assert "zeros" in {n.name for n in check.nulls if n.passed}


@pytest.mark.parametrize("text", TOLERANCES)
def test_every_policy_has_a_name_and_accepts_the_exact_output(text: str) -> None:
    policy = make_policy(text, PrecisionClass.TF32, CLASSES, torch.float32)
    assert policy.name.startswith(text)
    exact = torch.randn(50, dtype=torch.float64)
    ruling = policy.rule([exact.float()], [exact], ["out"], OWN)
    assert ruling.passed
    assert policy.label(ruling.errors, OWN) is PrecisionClass.FP32


@pytest.mark.parametrize("text", TOLERANCES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_every_policy_rejects_one_element_that_is_far_off(text: str, bad: float) -> None:
    policy = make_policy(text, PrecisionClass.HALF, CLASSES, torch.float32)
    exact = torch.randn(50, dtype=torch.float64)
    output = exact.float()
    output[17] = bad
    assert not policy.rule([output], [exact], ["out"], OWN).passed


@pytest.mark.parametrize(
    ("text", "dtype", "just", "over"),
    [
        ("crfm", torch.float32, 0.99e-2, 1.02e-2),
        ("kernelbench", torch.float32, 0.99e-4, 1.02e-4),
        ("kernelbench", torch.float16, 0.99e-2, 1.3e-2),
    ],
)
def test_allclose_means_allclose(text: str, dtype: torch.dtype, just: float, over: float) -> None:
    policy = make_policy(text, PrecisionClass.FP32, CLASSES, dtype)
    expected = torch.zeros(8, dtype=dtype)
    for error, passed in ((just, True), (over, False)):
        output = expected.clone()
        output[3] = error
        assert policy.rule([output], [expected], ["out"], OWN).passed is passed
        assert torch.allclose(output, expected, rtol=policy.limit(OWN).rel_fro and 0, atol=policy.tolerance) is passed


@pytest.mark.parametrize("text", TOLERANCES)
@pytest.mark.parametrize("wrong", [lambda x: x.conj().resolve_conj(), lambda x: -x, torch.zeros_like])
def test_every_policy_compares_both_parts_of_complex_numbers(text: str, wrong: Callable[[torch.Tensor], torch.Tensor]) -> None:
    policy = make_policy(text, PrecisionClass.FP32, CLASSES, torch.complex64)
    expected = torch.complex(torch.randn(50, dtype=torch.float64), torch.randn(50, dtype=torch.float64))
    output = expected.to(torch.complex64)
    assert policy.rule([output], [expected], ["out"], OWN).passed
    assert not policy.rule([wrong(output)], [expected], ["out"], OWN).passed


@pytest.mark.parametrize("text", ["", "classy", "class:bf16", "class:", "crfm:1", "1e-2"])
def test_an_unknown_policy_is_rejected_with_the_list(text: str) -> None:
    with pytest.raises(ProblemError, match=r"use one of class, .*kernelbench"):
        make_policy(text, PrecisionClass.FP32, CLASSES, torch.float32)


@pytest.mark.slow
def test_a_looser_class_is_requested_by_name() -> None:
    _, strict = softmax(512, "class")
    _, loose = softmax(512, "class:half")
    assert strict.policy.limit(OWN).rel_fro < 1e-4 < loose.policy.limit(OWN).rel_fro


def test_eager_passes_every_policy_that_is_against_eager() -> None:
    for tolerance in ("crfm", "kernelbench"):
        reference, calibration = softmax(64, tolerance)
        assert isinstance(calibration.policy, AllclosePolicy)
        assert calibration.distributions == (OWN,)
        assert not next(n for n in try_trivial_models(reference, calibration) if n.name == "input echo").passed


RECTIFIER = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(32, 64)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(("tolerance", "passes"), [("class", False), ("kernelbench", True)])
def test_only_perturbed_inputs_reject_an_input_echo_of_relu(tmp_path: Path, tolerance: str, passes: bool) -> None:
    file = tmp_path / "rectifier.py"
    file.write_text(RECTIFIER)
    problem = catalog.find(str(file))
    reference = Reference(problem, next(iter(problem.workloads)), "cpu")
    echo = next(n for n in try_trivial_models(reference, calibrate(reference, tolerance)) if n.name == "input echo")
    assert echo.passed is passes


class Unasked:
    """A case that must not be consulted, of a reference that neither selects nor jumps."""

    def in_order_of(self, outputs: Sequence[torch.Tensor]) -> None:
        return None

    def nearest_seen(self, outputs: Sequence[torch.Tensor], limit: float, most: float) -> None:
        return None

    def errors(self, wanted: Sequence[PrecisionClass]) -> dict[str, RelativeErrors]:
        raise AssertionError("asked")

    def plain_sums(self) -> Iterator[RelativeErrors]:
        raise AssertionError("asked")

    def tf32_sums(self) -> RelativeErrors | None:
        raise AssertionError("asked")

    def rounded_inputs(self) -> RelativeErrors:
        raise AssertionError("asked")

    def rounded_results(self) -> RelativeErrors:
        raise AssertionError("asked")

    def rounded_functions(self) -> RelativeErrors:
        return RelativeErrors(0.0, 0.0)

    def undecided(self) -> list[torch.Tensor | None]:
        raise AssertionError("asked")


@pytest.mark.parametrize("distribution", [OWN, "x64"])
@pytest.mark.parametrize(
    ("case_reference", "error", "passes"),
    [(2e-2, 0.19, True), (2e-2, 0.21, False), (3e-2, 0.1, None), (3e-2, 0.4, None), (0.0, 1e-3, False)],
)
def test_the_reference_error_on_the_same_case_is_allowed_within_limits(
    distribution: str, case_reference: float, error: float, passes: bool | None
) -> None:
    """A case on which the reference's own error is hopeless widens nothing; on perturbed inputs it is not judged."""
    passes = distribution != OWN if passes is None else passes
    policy = make_policy("class", PrecisionClass.FP32, {OWN: CLASSES[OWN], "x64": CLASSES[OWN]}, torch.float32)
    exact = torch.tensor([-1.0, 1.0] * 50, dtype=torch.float64)
    asked = []

    class Asked(Unasked):
        def errors(self, wanted: Sequence[PrecisionClass]) -> dict[str, RelativeErrors]:
            asked.append(tuple(wanted))
            return {"fp32": RelativeErrors(case_reference, case_reference)}

        def plain_sums(self) -> Iterator[RelativeErrors]:
            return iter(())

        def rounded_results(self) -> RelativeErrors:
            return RelativeErrors(0.0, 0.0)

    ruling = policy.rule([(exact * (1 + error)).float()], [exact], ["out"], distribution, Asked())
    assert ruling.passed is passes
    assert (ruling.own_errors is not None) == (case_reference == 3e-2 and error < 0.3 and distribution == OWN)
    assert asked == [(PrecisionClass.FP32,)]
    assert not passes or policy.label(ruling.errors, OWN) is PrecisionClass.FP32


@dataclass(frozen=True)
class Sums(Unasked):
    """A case on which the reference errs so much with sums of each kind; the first order of loops is exact."""

    plain: float
    tf32: float | None = None
    library: float = 0.0
    rounded: float = 0.0

    def errors(self, wanted: Sequence[PrecisionClass]) -> dict[str, RelativeErrors]:
        return {"fp32": RelativeErrors(self.library, self.library)}

    def plain_sums(self) -> Iterator[RelativeErrors]:
        yield RelativeErrors(0.0, 0.0)
        yield RelativeErrors(self.plain, self.plain)

    def tf32_sums(self) -> RelativeErrors | None:
        return None if self.tf32 is None else RelativeErrors(self.tf32, self.tf32)

    def rounded_inputs(self) -> RelativeErrors:
        return RelativeErrors(self.rounded, self.rounded)

    def rounded_results(self) -> RelativeErrors:
        return RelativeErrors(0.0, 0.0)


EXACT = torch.tensor([-1.0, 1.0] * 50, dtype=torch.float64)


@pytest.mark.parametrize("distribution", [OWN, "x64"])
@pytest.mark.parametrize(
    ("plain", "error", "passes"),
    [
        (0.0, 1e-4, False),
        (6e-5, 1e-4, True),  # twice the error of plain loops is allowed
        (4e-5, 1e-4, False),
        (0.2, 0.1, "x64"),  # twice this error does not discriminate: it widens nothing on the problem's own inputs
        (0.2, 0.39, "x64"),
        (0.2, 0.41, False),
    ],
)
def test_twice_the_error_of_plain_loops_is_allowed(distribution: str, plain: float, error: float, passes: bool | str) -> None:
    policy = make_policy("class", PrecisionClass.FP32, {OWN: CLASSES[OWN], "x64": CLASSES[OWN]}, torch.float32)
    ruling = policy.rule([(EXACT * (1 + error)).float()], [EXACT], ["out"], distribution, Sums(plain))
    assert ruling.passed is (passes if isinstance(passes, bool) else passes == distribution)
    if ruling.passed:
        assert policy.label(ruling.errors, distribution) is PrecisionClass.FP32, "it was within TF32's limits"
        tally = CheckTally()
        judge_outputs(Findings(ruling), tally, distribution)
        assert tally.limit is not None
        assert tally.errors.rel_fro <= tally.limit.rel_fro, "a verdict shows the limit that was applied"


@pytest.mark.parametrize(
    ("case", "error", "passes"),
    [
        (Sums(1e-6, 2e-4), 9e-5, True),
        (Sums(1e-6, 2e-4), 2e-4, False),  # more than half of what sums of TF32 terms err, and fp32 errs less here
        (Sums(1e-6, None), 2e-4, True),  # no sums
        (Sums(6e-5, 2e-4), 2e-4, True),  # plain loops err as much: these inputs tell nothing
        (Sums(1e-6, 2e-4, 1.1e-5), 2e-4, True),  # a library does
        (Sums(1e-6, 1.8e-5), 9e-5, True),  # sums of TF32 terms err little: these inputs tell nothing
        (Sums(1e-6, 2.2e-5), 2e-5, False),
        (Sums(1e-6, 2.2e-5, rounded=2.1e-5), 2e-5, True),  # rounding the inputs errs as much
        (Sums(1e-6, 2.2e-5, rounded=1.9e-5), 2e-5, False),
    ],
)
def test_no_limit_of_a_distribution_reaches_the_error_of_lower_precision(case: Sums, error: float, passes: bool) -> None:
    classes = {OWN: {"fp32": RelativeErrors(1e-4, 1e-4)}, "spiked": {"fp32": RelativeErrors(1e-4, 1e-2)}}
    policy = make_policy("class", PrecisionClass.FP32, classes, torch.float32)
    assert policy.rule([(EXACT * (1 + error)).float()], [EXACT], ["out"], "spiked", case).passed is passes
    wider = make_policy("class", PrecisionClass.TF32, classes, torch.float32)
    assert wider.rule([(EXACT * (1 + error)).float()], [EXACT], ["out"], "spiked", case).passed


@pytest.mark.parametrize("distribution", [OWN, "x64"])
@pytest.mark.parametrize(
    ("rounded", "error", "passes"),
    [
        ((1e-5,) * 5, 9e-5, "x64"),
        ((1e-5,) * 5, 1.1e-4, False),
        ((1e-6, 1e-2, 1e-6, 1e-2, 1e-6), 9e-5, False),  # two draws crossed a step of the reference
        ((0.0,) * 5, 9e-5, False),
        ((1e-2,) * 5, 2e-3, False),  # more than rounding may explain
    ],
)
def test_ten_times_the_error_of_rounded_inputs_is_allowed_on_perturbed_ones(
    distribution: str, rounded: tuple[float, ...], error: float, passes: bool | str
) -> None:
    draws = [RelativeErrors(one, one) for one in rounded]

    class Rounded(Sums):
        def rounded_inputs(self) -> RelativeErrors:
            return draws.pop()

    policy = make_policy("class", PrecisionClass.FP32, {OWN: CLASSES[OWN], "x64": CLASSES[OWN]}, torch.float32)
    found = policy.rule([(EXACT * (1 + error)).float()], [EXACT], ["out"], distribution, Rounded(0.0))
    assert found.passed is (passes == distribution)
    assert distribution == "x64" or len(draws) == 5, "not asked on the problem's own inputs"


@pytest.mark.parametrize("distribution", [OWN, "x64", "ties"])
@pytest.mark.parametrize(
    ("rounded", "error", "asked", "passes"),
    [
        ((1e-3,) * 5, 2.9e-3, 5, "x64"),  # however large
        ((1e-3,) * 5, 3.1e-3, 5, False),
        ((1e-2, 1e-3, 1.0, 1e-3, 1e-3), 2e-2, 5, False),  # two draws crossed a step of the reference
        ((1e-3,) * 5, 0.11, 1, False),  # far off: it is not asked again
    ],
)
def test_three_times_the_error_of_rounded_results_is_allowed_on_perturbed_inputs_without_ties(
    distribution: str, rounded: tuple[float, ...], error: float, asked: int, passes: bool | str
) -> None:
    draws = [RelativeErrors(one, one) for one in reversed(rounded)]

    class Rounded(Sums):
        def rounded_results(self) -> RelativeErrors:
            return draws.pop()

    policy = make_policy("class", PrecisionClass.FP32, dict.fromkeys((OWN, "x64", "ties"), CLASSES[OWN]), torch.float32)
    found = policy.rule([(EXACT * (1 + error)).float()], [EXACT], ["out"], distribution, Rounded(0.0))
    assert found.passed is (passes == distribution)
    assert len(draws) == 5 - asked * (distribution == "x64")


@pytest.mark.parametrize(("worst", "overall", "passes"), [(3.9, 0.5, True), (4.1, 0.5, False), (3.9, 1.1, False)])
@pytest.mark.parametrize("distribution", [OWN, "x64"])
def test_one_element_may_err_four_times_as_much_where_the_whole_output_is_within_its_limit(
    worst: float, overall: float, passes: bool, distribution: str
) -> None:
    classes = {name: {"fp32": RelativeErrors(1e-4, 1e-3)} for name in (OWN, "x64")}
    policy = make_policy("class", PrecisionClass.FP32, classes, torch.float32)
    exact = torch.tensor([-1.0, 1.0] * 50_000, dtype=torch.float64)
    found = exact * (1 + overall * 1e-3)
    found[0] = exact[0] * (1 + 2 * worst * 1e-2)
    assert policy.rule([found.float()], [exact], ["out"], distribution, Sums(0.0)).passed is passes


@pytest.mark.parametrize("bad", [0.0, math.nan])
def test_the_reference_is_not_consulted_if_it_cannot_help(bad: float) -> None:
    policy = make_policy("class", PrecisionClass.FP32, CLASSES, torch.float32)
    exact = torch.randn(50, dtype=torch.float64)

    assert policy.rule([exact.float() + bad], [exact], ["out"], OWN, Unasked()).passed is (bad == 0)


HALF = {OWN: {"half": RelativeErrors(1e-2, 1e-2)}, "x64": {"half": RelativeErrors(1e-2, 1e-2)}}


@dataclass(frozen=True)
class Halves(Unasked):
    """A case of half precision: what its reference errs where operands are rounded, and whether it convolves."""

    rounded: tuple[float, float] = (0.0, 0.0)
    convolves: bool = False

    def errors(self, wanted: Sequence[PrecisionClass]) -> dict[str, RelativeErrors]:
        return {"fp32": RelativeErrors(0.0, 0.0), "half": RelativeErrors(0.0, 0.0)}

    def rounded_results(self) -> RelativeErrors:
        return RelativeErrors(*self.rounded)


@pytest.mark.parametrize("distribution", [OWN, "x64"])
@pytest.mark.parametrize(
    ("worst", "overall", "convolves", "passes"),
    [
        (1.9, 0.35, False, True),
        (2.1, 0.35, False, False),
        (1.9, 0.45, False, False),  # sums in half precision
        (2.4, 0.6, True, True),
        (2.6, 0.6, True, False),
        (2.4, 0.7, True, False),
    ],
)
def test_one_element_may_err_more_in_half_precision_where_the_whole_output_errs_little(
    distribution: str, worst: float, overall: float, convolves: bool, passes: bool
) -> None:
    policy = make_policy("class", PrecisionClass.HALF, HALF, torch.float16)
    asked = Halves(convolves=convolves)
    assert policy.rule([_with_errors(overall, worst)], [LONG], ["out"], distribution, asked).passed is passes


@pytest.mark.parametrize(("worst", "overall", "passes"), [(1.9, 0.35, True), (1.3, 0.54, False)])
def test_convolutions_in_bf16_are_judged_as_products(worst: float, overall: float, passes: bool) -> None:
    """Weights of eight bits err 1.3 and 0.54 times the limits, as transforms in bf16 would."""
    policy = make_policy("class", PrecisionClass.HALF, HALF, torch.bfloat16)
    assert policy.rule([_with_errors(overall, worst)], [LONG], ["out"], OWN, Halves(convolves=True)).passed is passes


@pytest.mark.parametrize(
    ("distribution", "worst", "overall", "passes"),
    [
        (OWN, 5.9, 0.8, True),  # two times three limits; the root of 0.75² and a third squared
        (OWN, 6.1, 0.8, False),
        (OWN, 5.9, 0.85, False),
        (OWN, 5.9, 1.1, False),
        ("x64", 11.9, 1.9, True),
        ("x64", 12.1, 1.9, False),
        ("x64", 11.9, 4.1, False),
    ],
)
def test_what_rounding_operands_explains_passes_in_half_precision(
    distribution: str, worst: float, overall: float, passes: bool
) -> None:
    policy = make_policy("class", PrecisionClass.HALF, HALF, torch.float16)
    asked = Halves((3e-2, 9e-2))
    assert policy.rule([_with_errors(overall, worst)], [LONG], ["out"], distribution, asked).passed is passes
    single = make_policy("class:fp32", PrecisionClass.HALF, {k: {"fp32": v["half"]} for k, v in HALF.items()}, torch.float16)
    assert not single.rule([_with_errors(overall, worst)], [LONG], ["out"], distribution, asked).passed


LONG = torch.tensor([-1.0, 1.0] * 500_000, dtype=torch.float64)


def _with_errors(overall: float, worst: float) -> torch.Tensor:
    """``LONG`` with these multiples of the limits of ``HALF``, three times its errors."""
    found = LONG * (1 + overall * 3e-2)
    found[0] = LONG[0] * (1 + 2 * worst * 3e-2)
    return found
