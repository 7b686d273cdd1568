"""Where infinite and NaN inputs decide what a kernel must return."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.domain.model import Workload
from engine.problem import catalog
from engine.problem.arguments.values import tensors
from engine.problem.reference import Reference
from engine.trial.judge.inputs.cases import make_case, output_names
from engine.trial.judge.inputs.perturbations import INFINITIES, NANS, OWN
from engine.trial.judge.tolerance.calibration import calibrate
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase
from engine.trial.judge.tolerance.special_values import is_usable, only_computes, saturated


@pytest.mark.parametrize(
    ("operators", "defined"),
    [
        ("mm add relu_", False),  # fmaxf(x, 0) drops a NaN
        ("mm add", True),
        ("sub integer_pow mean", True),  # a mean squared error
        ("sub_ square_ sum", True),
        ("mse_loss", True),
        ("var_mean", False),  # fmaxf(mean of squares - square of the mean, 0) drops a NaN
        ("cumprod", True),
        ("convolution native_batch_norm mul", True),
        ("integer_pow mean add sqrt div", True),  # an RMS norm
        ("sub integer_pow sum sqrt", False),  # a distance: fmaxf(a² + b² - 2ab, 0) drops a NaN
        ("sub norm", False),
        ("sub integer_pow mean sqrt div", True),
        ("exp sum div", False),  # the usual vector exponential clamps its argument
        ("pow mean", False),  # exponents of any kind,
        ("unheard_of", False),
    ],
)
def test_arithmetic_defines_the_answer_where_operators_only_add_multiply_and_normalise(operators: str, defined: bool) -> None:
    assert only_computes(frozenset(operators.split())) is defined


@pytest.mark.parametrize(
    ("operators", "usable"),
    [
        ("exp sum pow integer_pow", {INFINITIES: True, NANS: True, OWN: True}),
        ("relu pow", {INFINITIES: True, NANS: False, OWN: True}),
        ("ne mul all bitwise_not", {INFINITIES: True, NANS: True, OWN: True}),
        ("nan_to_num exp", {INFINITIES: False, NANS: True, OWN: True}),
        ("nansum div", {INFINITIES: True, NANS: True, OWN: True}),
        ("isnan where sum", {INFINITIES: True, NANS: True, OWN: True}),
        ("where sum", {INFINITIES: True, NANS: False, OWN: True}),
        ("gt all", {INFINITIES: True, NANS: False, OWN: True}),
        ("embedding", {INFINITIES: False, NANS: False, OWN: True}),
    ],
)
def test_operators_decide_which_special_inputs_are_tried(operators: str, usable: dict[str, bool]) -> None:
    assert {name: is_usable(name, frozenset(operators.split())) for name in usable} == usable


MOST = torch.finfo(torch.float32).max
MODEL = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return {}
def get_inputs():
    return [torch.randn(64, 64)]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("distribution", [INFINITIES, NANS])
@pytest.mark.parametrize(
    ("forward", "honest", "slip"),
    [
        (
            "(2 * x, torch.isfinite(2 * x).all())",
            lambda x: (2 * x, ((2 * x).abs().max() < float("inf"))),
            lambda x: (2 * x, torch.tensor(True)),
        ),
        ("torch.isfinite(x.sum(1))", lambda x: torch.isfinite(x).all(1), lambda x: torch.ones(64, dtype=torch.bool)),
    ],
    ids=["a flag", "one for each row"],
)
def test_a_kernel_that_never_looks_for_infinities_is_wrong(
    tmp_path: Path, distribution: str, forward: str, honest: Callable[[Tensor], object], slip: Callable[[Tensor], object]
) -> None:
    file = tmp_path / "reference.py"
    file.write_text(MODEL.format(forward))
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    calibration = calibrate(reference, "class")
    assert distribution in calibration.distributions

    def passed(kernel: Callable[[Tensor], object]) -> bool:
        case = make_case(reference, distribution)
        outputs = list(tensors(kernel(*case.inputs)))  # type: ignore[arg-type]
        asked = ReferenceOnCase(reference, case)
        found = calibration.policy.rule(outputs, case.expected, output_names(reference), distribution, asked)
        assert not found.caveat
        return found.passed

    assert passed(honest)
    assert not passed(slip)


@pytest.mark.parametrize(
    ("forward", "honest", "slip"),
    [
        ("torch.nan_to_num(x).mul(2).softmax(1)", None, lambda x: (2 * x).softmax(1)),
        ("torch.nan_to_num(x).sum(1)", None, lambda x: torch.nan_to_num(x, 1.0).sum(1)),
        ("torch.nansum(x, 1)", lambda x: torch.where(torch.isnan(x), 0, x).sum(1), lambda x: x.sum(1)),
        ("torch.nanmean(x, 1)", None, lambda x: x.nansum(1) / x.shape[1]),
        ("torch.where(torch.isfinite(x), x, 0.0).sum(1)", None, lambda x: x.sum(1)),
        ("(x.sum(1), x.masked_fill(x != x, 0.0).sum(1))", None, lambda x: (x.sum(1), x.sum(1))),
    ],
)
def test_a_kernel_that_forgets_what_nan_means_is_wrong(
    tmp_path: Path, forward: str, honest: Callable[[Tensor], object] | None, slip: Callable[[Tensor], object]
) -> None:
    """They passed without a caveat: NaN was tried on no reference that replaces it."""
    right, wrong = _on(NANS, tmp_path, forward, honest), _on(NANS, tmp_path, forward, slip)
    assert right == (True, "")
    assert not wrong[0]


@pytest.mark.parametrize(
    ("forward", "honest", "slip"),
    [
        ("torch.where(torch.isfinite(x), x, 0.0).sum(1)", lambda x: torch.nan_to_num(x, 0, 0, 0).sum(1), lambda x: x.nansum(1)),
        ("x.masked_fill(x.isinf(), 1.0).sum(1)", None, lambda x: x.sum(1)),
        ("x.masked_fill(x == float('inf'), 1.0) * 2", None, lambda x: x * 2),
    ],
)
def test_a_kernel_that_forgets_what_infinities_mean_is_wrong(
    tmp_path: Path, forward: str, honest: Callable[[Tensor], object] | None, slip: Callable[[Tensor], object]
) -> None:
    right, wrong = (_on(INFINITIES, tmp_path, forward, kernel) for kernel in (honest, slip))
    assert right == (True, "")
    assert not wrong[0]


def by_moments(x: Tensor) -> Tensor:
    """A normalisation of rows with a variance that is kept from being negative: it loses a NaN there."""
    mean = x.mean(1, keepdim=True)
    variance = torch.nan_to_num(x.square().mean(1, keepdim=True) - mean.square(), 0.0).clamp(min=0)
    return (x - mean) * torch.rsqrt(variance + 1e-5)


@pytest.mark.parametrize("distribution", [pytest.param(INFINITIES, marks=pytest.mark.slow), NANS])
@pytest.mark.parametrize(
    ("forward", "honest"),
    [
        ("torch.nn.functional.layer_norm(x, (64,))", by_moments),
        ("torch.nn.functional.group_norm(x[None], 64)[0]", by_moments),
        (
            "x / torch.sqrt(x.pow(2).mean(1, keepdim=True) + 1e-5)",
            lambda x: x * (x * x).mean(1, keepdim=True).add(1e-5).rsqrt(),
        ),
        ("x / torch.norm(x, p='fro')", lambda x: x * (1 / x.square().sum().sqrt())),
        ("x / x.abs().sum(1, keepdim=True)", lambda x: x * x.abs().sum(1, keepdim=True).reciprocal()),
    ],
)
def test_a_normalisation_that_drops_what_is_not_finite_is_wrong(
    tmp_path: Path, distribution: str, forward: str, honest: Callable[[Tensor], Tensor]
) -> None:
    """``nan_to_num`` of what a BatchNorm returns passed with a caveat."""
    assert _on(distribution, tmp_path, forward, honest)[0]
    assert not _on(distribution, tmp_path, forward, lambda x: torch.nan_to_num(honest(x), 0.0, 0.0, 0.0))[0]


@pytest.mark.parametrize(
    ("forward", "norm"),
    [
        ("x / torch.norm(x, p=2, dim=1, keepdim=True)", lambda x: x.square().sum(1, keepdim=True).sqrt()),
        ("x / x.abs().sum(1, keepdim=True)", lambda x: x.abs().sum(1, keepdim=True)),
        ("x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-12)", lambda x: x.square().mean(1, keepdim=True).sqrt()),
        (
            "x / torch.sqrt(((x - x.mean(1, keepdim=True)) ** 2).mean(1, keepdim=True))",
            lambda x: (x.square().mean(1, keepdim=True) - x.mean(1, keepdim=True).square()).sqrt(),
        ),
    ],
)
def test_a_lower_bound_of_a_norm_may_lose_its_nan(tmp_path: Path, forward: str, norm: Callable[[Tensor], Tensor]) -> None:
    """``x / fmaxf(norm, 1e-12f)`` leaves the NaN where ``x`` has it, and no other in its row."""
    passed, caveat = _on(NANS, tmp_path, forward, lambda x: x / torch.fmax(norm(x), torch.tensor(1e-12)))
    assert passed
    assert "elements differ" in caveat


@pytest.mark.parametrize("forward", ["(x[:, None] - x).pow(2).sum(2).sqrt()", "torch.norm(x[:, None] - x, dim=2)"])
def test_a_squared_distance_that_is_kept_from_being_negative_may_lose_its_nan(tmp_path: Path, forward: str) -> None:
    def by_products(x: Tensor) -> Tensor:
        squares = x.square().sum(1)
        return torch.fmax(squares[:, None] + squares - 2 * x @ x.T, torch.tensor(0.0)).sqrt().fill_diagonal_(0.0)

    assert _on(NANS, tmp_path, forward, by_products)[0]


@pytest.mark.parametrize(
    ("forward", "slip", "honest"),
    [
        (
            "torch.relu(x @ x.abs().T)",
            lambda x: torch.relu(x @ x.abs().T).nan_to_num(),
            lambda x: torch.fmax(x @ x.abs().T, torch.tensor(0.0)),
        ),
        (
            "torch.logsumexp(x, 1)",
            lambda x: torch.logsumexp(x, 1).nan_to_num(),
            lambda x: (x - x.amax(1, keepdim=True)).exp().sum(1).log() + x.amax(1),
        ),
        pytest.param(
            "torch.nn.functional.softplus(x)",
            lambda x: torch.nn.functional.softplus(x).clamp(max=MOST),
            lambda x: x.exp().log1p(),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "torch.exp(x)",
            lambda x: torch.exp(x).nan_to_num(),
            lambda x: torch.exp(x.clamp(max=88.0)),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_largest_number_in_place_of_an_infinity_is_wrong(
    tmp_path: Path, forward: str, slip: Callable[[Tensor], Tensor], honest: Callable[[Tensor], Tensor]
) -> None:
    """``nan_to_num`` of a result passed with a caveat. An honest kernel may lose a NaN in a maximum, or bound an exponent."""
    assert not _on(INFINITIES, tmp_path, forward, slip)[0]
    assert _on(INFINITIES, tmp_path, forward, honest)[0]


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (torch.float32, True),
        (torch.float64, True),
        (torch.bfloat16, True),
        (torch.float16, False),
        (torch.float8_e4m3fn, False),
        (torch.float8_e5m2, False),
        (torch.int32, False),
        (torch.complex64, False),
    ],
)
def test_only_types_with_the_range_of_float32_hold_a_largest_number_that_is_wrong(dtype: torch.dtype, wide: bool) -> None:
    most = torch.finfo(dtype).max if dtype.is_floating_point else 1
    outputs, inf = [torch.tensor([most, -most, 1, 1], dtype=torch.float64).to(dtype)], float("inf")
    (found,) = saturated([torch.tensor([True, True, True, False])], outputs, [torch.tensor([inf, -inf, inf, 1.0]).double()])
    assert found.tolist() == [wide, wide, False, False]


def test_a_maximum_that_starts_at_the_least_number_is_right(tmp_path: Path) -> None:
    """An infinite element alone in its window is replaced by it."""
    passed, caveat = _on(INFINITIES, tmp_path, "x[:, :, None].amax(2)", lambda x: x.clamp(min=-MOST))
    assert passed
    assert "infinities" in caveat


def test_infinities_that_a_reference_makes_itself_are_another_matter(tmp_path: Path) -> None:
    forward = "(x * 2).masked_fill((x * 2).isinf(), 0.0)"
    passed, caveat = _on(INFINITIES, tmp_path, forward, lambda x: 2 * x)
    assert passed
    assert "infinities" in caveat


def test_nan_that_a_reference_makes_itself_is_another_matter(tmp_path: Path) -> None:
    passed, caveat = _on(NANS, tmp_path, "torch.nan_to_num((x - 1).softmax(1))", lambda x: (x - 1).softmax(1))
    assert passed
    assert "NaN" in caveat


def _on(distribution: str, folder: Path, forward: str, kernel: Callable[[Tensor], object] | None) -> tuple[bool, str]:
    """Whether a kernel, or the reference as it is, passes on special inputs, and with which caveat."""
    file = folder / "reference.py"
    file.write_text(MODEL.format(forward))
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    calibration = calibrate(reference, "class")
    assert distribution in calibration.distributions
    case = make_case(reference, distribution)
    outputs = list(tensors(kernel(*case.inputs))) if kernel else list(reference.call(case.model, case.inputs))  # type: ignore[arg-type]
    asked = ReferenceOnCase(reference, case)
    found = calibration.policy.rule(outputs, case.expected, output_names(reference), distribution, asked)
    return found.passed, found.caveat
