"""Errors of the reference on perturbed inputs that are measured only when a kernel errs more than limits allow at least."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from trial.ground import tiny
from trial.test_test_bed import Bed

from engine.domain.errors import ProblemError
from engine.domain.model import PrecisionClass, Workload
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge import devices
from engine.trial.judge.inputs.cases import make_case, output_names
from engine.trial.judge.inputs.perturbations import COPIES, FEW, FEW_X30, GRADED, INSTEAD_OF, OWN, UNEQUAL, WIDE_ONLY
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.tolerance import calibration, known_calibrations, perturbed_calibration
from engine.trial.judge.tolerance.calibration import Calibration, calibrate, complete, keep_calibration, restore
from engine.trial.judge.tolerance.class_policy import ClassPolicy
from engine.trial.judge.tolerance.correctness_check import try_trivial_models
from engine.trial.judge.tolerance.known_calibrations import KnownCalibrations
from engine.trial.judge.tolerance.perturbed_calibration import can_wait
from engine.trial.judge.tolerance.policy import WholeCase
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase

MODEL = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return {}
def get_inputs():
    return [torch.rand(16, 256)]
def get_init_inputs():
    return []
"""
SOFTMAX = "torch.softmax(x, 1)"
UNSTABLE = "torch.exp(x) / torch.exp(x).sum(1, keepdim=True)"
OVERFLOWS = "torch.exp(2.6 * x.clamp(max=250))"
"""In fp32 for numbers from 35 on, and not in float64: on ``FEW`` in all cases but one in 10,000, and never on ``FEW_X30``."""


def returning(folder: Path, expression: str) -> Reference:
    file = folder / "reference.py"
    file.write_text(MODEL.format(expression))
    problem = catalog.find(str(file))
    return Reference(problem, problem.workloads[0], "cpu")


@pytest.mark.parametrize(
    ("expression", "waits"),
    [
        (SOFTMAX, True),
        ("torch.relu(x @ x.T)", True),
        ("x.to(torch.int64)", False),
        ("torch.linalg.cholesky(x[:, :16] @ x[:, :16].T + 16 * torch.eye(16))", False),
        ("x[:, x[0, :8].long()]", False),
        ("x[x > 0.5].sum()", False),
        ("x if x.sum() > 0 else -x", False),
        ("x * (1 if x.numpy().min() >= 0 else 1 / 0)", False),
        ("x[:, : int(10 * max(x[0].tolist()))].sum()", False),
        ("torch.div(x.long() + 8, x.long() + 1, rounding_mode='floor') * x", False),
        ("torch.div(torch.arange(256), 2, rounding_mode='floor') * x", True),
    ],
)
def test_only_what_runs_on_any_numbers_waits(tmp_path: Path, expression: str, waits: bool) -> None:
    assert can_wait(returning(tmp_path, expression)) is waits


@pytest.mark.parametrize("expression", [SOFTMAX, "torch.relu(x)", "x.sum(1)", "torch.nn.functional.gelu(x) @ x.T", UNSTABLE])
def test_least_limits_are_within_those_that_are_measured(tmp_path: Path, expression: str) -> None:
    """A kernel that passes on an unmeasured distribution passes wherever it is measured."""
    reference = returning(tmp_path, expression)
    least, measured = (calibrate(reference, "class", ahead=ahead) for ahead in (False, True))
    assert least.unmeasured == set(least.distributions) - {OWN}
    assert set(measured.distributions) - set(least.distributions) <= set(INSTEAD_OF)
    limits = least.policy.classes[OWN], measured.policy.classes[OWN]  # cases of their own
    for distribution in set(least.distributions) & set(measured.distributions) - {OWN}:
        one, other = least.policy.limit(distribution), measured.policy.limit(distribution)
        room = max(limits[0]["fp32"].rel_fro / max(limits[1]["fp32"].rel_fro, 1e-30), 1.0)
        assert one.rel_fro <= other.rel_fro * room, distribution


@pytest.fixture
def late(tmp_path: Path) -> Iterator[Callable[[str], tuple[Bed, list[str]]]]:
    """Makes a bed whose calibration waits, and a list of the distributions that were measured since."""
    made: list[Bed] = []

    def make(expression: str) -> tuple[Bed, list[str]]:
        reference = returning(tmp_path, expression)
        bed, measured = Bed(reference, calibrate(reference, "class", ahead=False), devices.describe("cpu")), list[str]()

        def measure(distribution: str) -> Calibration:
            measured.append(distribution)
            return complete(reference, bed.calibration, distribution)

        bed.complete = measure
        made.append(bed)
        return bed, measured

    yield make
    for bed in made:
        bed.close()


def answered(bed: Bed, distribution: str, kernel: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether a kernel passes on new inputs."""
    bed.refill(0, distribution)
    (x,) = [bed._inputs.tensor(s) for s in bed._read_slots(0)]
    bed.outputs(0)[0].copy_(kernel(x))
    return bed.check(0, distribution).ruling.passed


FORMULAS: dict[str, list[Callable[[Tensor], Tensor]]] = {
    "F.softplus(x)": [
        F.softplus,
        lambda x: torch.log(1 + torch.exp(x)),
        lambda x: x.clamp(0) + torch.log1p(torch.exp(-x.abs())),
    ],
    "F.silu(x)": [F.silu, lambda x: x / (1 + torch.exp(-x)), lambda x: x * (torch.tanh(x / 2) / 2 + 0.5)],
}


@pytest.mark.parametrize(
    ("expression", "distribution", "kernel"),
    [
        ("F.softplus(x)", "shifted by 8", lambda x: F.softplus(x, threshold=8.0)),
        ("F.softplus(x)", "lowered by 8", lambda x: torch.where(x < -7.5, 0.0, F.softplus(x))),
        ("F.silu(x)", "shifted by 8", lambda x: torch.where(x > 8, x, F.silu(x))),
        ("F.silu(x)", "lowered by 8", lambda x: torch.where(x < -7.5, 0.0, F.silu(x))),
    ],
)
def test_a_function_replaced_by_its_limit_is_found_where_it_nears_it(
    late: Callable[[str], tuple[Bed, list[str]]], expression: str, distribution: str, kernel: Callable[[Tensor], Tensor]
) -> None:
    bed, _ = late(expression.replace("F.", "torch.nn.functional."))
    assert not answered(bed, distribution, kernel)
    for formula in FORMULAS[expression]:
        assert answered(bed, distribution, formula)


def test_a_right_kernel_takes_no_measuring(late: Callable[[str], tuple[Bed, list[str]]]) -> None:
    bed, measured = late("torch.relu(x)")
    for distribution in bed.calibration.distributions:
        assert answered(bed, distribution, torch.relu), distribution
    assert measured == []


def test_a_wrong_kernel_is_refused_by_measured_limits(late: Callable[[str], tuple[Bed, list[str]]]) -> None:
    bed, measured = late("torch.relu(x)")
    assert answered(bed, OWN, torch.clone)
    assert not answered(bed, "negated", torch.clone)
    assert measured == ["negated"]
    assert "negated" not in bed.calibration.unmeasured
    assert not answered(bed, "negated", torch.clone)
    assert measured == ["negated"]


def test_limits_for_large_inputs_are_measured_together(late: Callable[[str], tuple[Bed, list[str]]]) -> None:
    bed, measured = late(SOFTMAX)
    assert not answered(bed, "sunk", lambda x: torch.softmax(x / 2, 1))
    assert measured == ["sunk"]
    assert not set(WIDE_ONLY) & bed.calibration.unmeasured
    assert len({bed.calibration.policy.limit(one).rel_fro for one in WIDE_ONLY}) == 1


def test_inputs_on_which_the_reference_is_inaccurate_are_left_out_and_others_take_their_place(
    late: Callable[[str], tuple[Bed, list[str]]],
) -> None:
    """The exponential overflows in the reference: no kernel is judged there, whatever it returns."""
    bed, measured = late(OVERFLOWS)
    assert FEW in bed.calibration.distributions
    assert FEW_X30 not in bed.calibration.distributions
    assert answered(bed, FEW, lambda x: torch.exp(x) + torch.nan)
    assert measured == [FEW]
    assert FEW not in bed.calibration.distributions
    assert FEW_X30 in bed.calibration.unmeasured
    assert answered(bed, FEW, torch.zeros_like), "drawn before it was left out"
    assert not answered(bed, FEW_X30, torch.zeros_like)


@pytest.mark.slow
@pytest.mark.parametrize("expression", [SOFTMAX, "torch.cumsum(x, 1)", "torch.log_softmax(x, 1) @ x.T"])
def test_kernels_fare_as_with_limits_measured_ahead(
    expression: str, tmp_path: Path, late: Callable[[str], tuple[Bed, list[str]]]
) -> None:
    """Eager passes; half the sum, or the input with noise that is a hundredth of its scale, does not."""
    bed, _ = late(expression)
    whole = calibrate(bed.reference, "class")
    for distribution in bed.calibration.distributions:
        case = make_case(bed.reference, distribution)
        right = bed.reference.call(case.model, case.inputs)[0]
        for wrong in (right, right * (1 + 0.02 * torch.randn(right.shape))):
            asked, names = ReferenceOnCase(bed.reference, case), output_names(bed.reference)
            ruling = bed.calibration.policy.rule([wrong], case.expected, names, distribution, asked)
            if ruling.unmeasured:
                assert bed.complete is not None
                bed.calibration = bed.complete(distribution)
            if distribution not in bed.calibration.distributions:
                break
            ruling = bed.calibration.policy.rule([wrong], case.expected, names, distribution, asked)
            assert not ruling.unmeasured
            if distribution in whole.distributions:
                assert ruling.passed == whole.policy.rule([wrong], case.expected, names, distribution, asked).passed, (
                    distribution
                )


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("out of memory"), RuntimeError("busy")])
def test_a_kernel_that_takes_the_memory_does_not_end_the_check(
    late: Callable[[str], tuple[Bed, list[str]]], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Were these inputs left out, as those on which a reference fails are, a wrong kernel would pass on them."""
    bed, _ = late("torch.relu(x)")

    def fails(*_: object) -> dict[str, RelativeErrors]:
        raise ProblemError("forward() failed") from error

    monkeypatch.setattr(perturbed_calibration, "class_errors", fails)
    with pytest.raises(ProblemError):
        answered(bed, "negated", torch.clone)
    assert "negated" in bed.calibration.unmeasured
    assert calibrate(bed.reference, "class").fails_on_some, "measured ahead, while no kernel runs"


def test_errors_within_least_limits_that_look_like_lower_precision_are_judged_by_measured_ones() -> None:
    """The reference errs least in fp32 on this case, and the errors are those of TF32."""
    classes = {OWN: {"fp32": RelativeErrors(1e-7, 1e-7)}, "x64": {"fp32": RelativeErrors(1e-3, 1e-3)}}
    policy = ClassPolicy(PrecisionClass.FP32, classes, torch.float32, unmeasured=frozenset({"x64"}))
    right = torch.randn(64, 64, dtype=torch.float64)
    wrong = (right * (1 + 1e-3 * torch.randn(64, 64))).float()
    asked = SimpleNamespace(
        errors=lambda _: {"fp32": RelativeErrors(1e-7, 1e-1)},
        tf32_sums=lambda: RelativeErrors(1e-3, 1e-3),
        plain_sums=lambda: iter(()),
        rounded_inputs=lambda: RelativeErrors(1e-7, 1e-7),
        in_order_of=lambda _: None,
    )
    for least in (RelativeErrors(1e-3, 1e-3), RelativeErrors(1e-3, 1e-5)):  # the worst element is within the case's own limit
        one = replace(policy, classes={**classes, "x64": {"fp32": least}})
        ruling = one.rule([wrong], [right], ["out"], "x64", cast(WholeCase, asked))
        assert ruling.unmeasured
        assert not ruling.passed


def test_what_is_not_measured_is_cached_as_such(tmp_path: Path) -> None:
    reference = returning(tmp_path, SOFTMAX)
    found = complete(reference, calibrate(reference, "class", ahead=False), "negated")
    again = restore(reference, "class", keep_calibration(reference, found))
    assert again.unmeasured == found.unmeasured != frozenset()
    assert "negated" not in again.unmeasured
    assert again.distributions == found.distributions


def test_an_echo_is_rejected_by_measured_limits(tmp_path: Path) -> None:
    """ReLU of numbers that are not negative is its input: negative ones tell them apart, and are tried first."""
    reference = returning(tmp_path, "torch.relu(x)")
    found, measured = calibrate(reference, "class", ahead=False), list[str]()

    def measure(distribution: str) -> Calibration:
        nonlocal found
        measured.append(distribution)
        found = complete(reference, found, distribution)
        return found

    assert not any(one.passed for one in try_trivial_models(reference, found, measure))
    assert measured == ["x-64"]


def test_a_hold_out_has_the_workload_s_limits_once_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    main, tail = (Reference(tiny(), Workload(name, {"rows": rows, "width": 64})) for name, rows in (("full", 8), ("tail", 3)))
    known = KnownCalibrations(b"", "class")
    holdout = known.of_holdout(tail, known.of_workload(main))
    assert holdout.unmeasured == known.of_workload(main).unmeasured - {UNEQUAL, GRADED, COPIES} != frozenset()
    calls: list[str] = []
    measure = known_calibrations.complete
    monkeypatch.setattr(known_calibrations, "complete", lambda *given: calls.append(given[2]) or measure(*given))
    for _ in range(2):
        holdout = known.complete_holdout(tail, holdout, "x64")
        assert "x64" not in holdout.unmeasured | known.of_workload(main).unmeasured
        assert holdout.policy.limit("x64").rel_fro >= known.of_workload(main).policy.limit("x64").rel_fro
    assert calls == ["x64"]
    later = KnownCalibrations(known.encode(), "class")
    assert "x64" not in later.of_workload(main).unmeasured
    assert "x64" not in later.of_holdout(tail, later.of_workload(main)).unmeasured


def test_where_memory_is_short_all_errors_are_measured_before_a_kernel_takes_some(tmp_path: Path) -> None:
    """Whether they were put off before, here or in an earlier evaluation."""
    reference = returning(tmp_path, OVERFLOWS)
    known = KnownCalibrations(b"", "class")
    assert FEW in known.of_workload(reference).unmeasured
    later = KnownCalibrations(known.encode(), "class")
    fresh = KnownCalibrations(b"", "class")
    for one in (known, later, fresh):
        found = one.of_workload(reference, ahead=True)
        assert found.unmeasured == frozenset()
        assert FEW_X30 in found.distributions
        assert FEW not in found.distributions


def test_a_hold_out_has_what_is_used_instead_on_the_workload(tmp_path: Path) -> None:
    """It is calibrated before the kernel is checked on the workload, where these inputs prove to be none to judge on."""
    main, tail = (returning(tmp_path, OVERFLOWS) for _ in range(2))
    known = KnownCalibrations(b"", "class")
    holdout = known.of_holdout(tail, known.of_workload(main))
    assert known.up_to_date(tail, holdout) is holdout
    assert FEW_X30 in known.complete(FEW).unmeasured
    again = known.up_to_date(tail, holdout)
    assert FEW not in again.distributions
    assert FEW_X30 in again.unmeasured


@pytest.mark.slow
def test_a_slow_calibration_leaves_out_no_kinds_where_only_float64_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GRU of KernelBench was tried on 20 of 29 kinds, and one with its output clamped passed."""
    plain = calibration.class_errors
    monkeypatch.setattr(calibration, "class_errors", lambda *given: time.sleep(0.5) or plain(*given))
    monkeypatch.setattr(calibration, "_PERTURBED_S", 4.0)
    reference = returning(tmp_path, SOFTMAX)
    assert len(calibrate(reference, "class", ahead=True).distributions) < 10
    assert len(calibrate(reference, "class", ahead=False).distributions) > 20
