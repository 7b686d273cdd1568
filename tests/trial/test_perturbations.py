"""Perturbed inputs: how they change tensors, and that shortcuts fail on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.domain.model import Workload
from engine.ideas.prompts.context import PERTURBED
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge import devices
from engine.trial.judge.inputs import loaded_ahead, structure
from engine.trial.judge.inputs.cases import make_case, output_names
from engine.trial.judge.inputs.perturbations import (
    BY_CHANCE,
    COPIES,
    GRADED,
    INFINITIES,
    OPPOSED,
    OWN,
    PERTURBATIONS,
    RANGE_ENDS,
    SPECIAL,
    THRESHOLDS,
    UNEQUAL,
    _edges_raised,
    nudged,
    perturb,
)
from engine.trial.judge.tolerance.calibration import Calibration, calibrate
from engine.trial.judge.tolerance.candidate_distributions import candidates
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase


@pytest.mark.parametrize("name", [OWN, *PERTURBATIONS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_perturbations_keep_shape_type_and_integers(name: str, dtype: torch.dtype) -> None:
    given = (torch.rand(3, 101).to(dtype), torch.arange(5), 0.5, [torch.rand((), dtype=torch.float64)], None)
    bent = perturb(given, name)
    assert isinstance(bent[0], torch.Tensor)
    assert (bent[0].shape, bent[0].dtype) == (given[0].shape, given[0].dtype)
    assert bent[1] is given[1]
    assert bent[2:3] == given[2:3]
    assert bent[4] is None
    assert (name == OWN) == torch.equal(bent[0], given[0])


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("x64", lambda t: t * 64),
        ("x0.001", lambda t: t * 1e-3),
        ("shifted", lambda t: t + 32),
        ("raised", lambda t: t + 1000),
        ("alternating", lambda t: torch.stack((t[..., ::2], -t[..., 1::2]), -1).reshape(t.shape)),
    ],
)
def test_each_perturbation_changes_as_documented(name: str, wanted: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(4, 10)
    (bent,) = perturb((x,), name)
    torch.testing.assert_close(bent, wanted(x))


def test_infinities_are_of_both_signs() -> None:
    for _ in range(50):
        (bent,) = perturb((torch.zeros(64, 64),), INFINITIES)
        assert isinstance(bent, torch.Tensor)
        assert set(bent.unique().tolist()) == {-math.inf, 0.0, math.inf}


@pytest.mark.parametrize("size", [0, 1, 2])
def test_tensors_of_few_elements_have_infinities(size: int) -> None:
    (bent,) = perturb((torch.zeros(size),), INFINITIES)
    assert isinstance(bent, torch.Tensor)
    assert bool(bent.isinf().any()) == (size > 0)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", [name for name in PERTURBATIONS if name not in SPECIAL])
def test_perturbations_change_both_parts_of_complex_numbers_alike(name: str, dtype: torch.dtype) -> None:
    given = torch.view_as_complex(torch.rand(12, 97, 1, dtype=dtype.to_real()).expand(12, 97, 2).contiguous())
    (bent,) = perturb((given,), name)
    assert isinstance(bent, torch.Tensor)
    assert (bent.shape, bent.dtype) == (given.shape, dtype)
    assert not torch.equal(bent, given)
    assert torch.equal(bent.real, bent.imag)


def test_a_hermitian_matrix_stays_hermitian() -> None:
    random = torch.randn(2, 9, 9, dtype=torch.complex64)
    for name in PERTURBATIONS:
        (bent,) = perturb((random + random.mH,), name)
        assert isinstance(bent, torch.Tensor)
        torch.testing.assert_close(bent, bent.mH, rtol=0, atol=0)


@pytest.mark.parametrize("name", [GRADED, *(name for name in PERTURBATIONS if name not in SPECIAL)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_what_would_overflow_stays_as_it_is(name: str, dtype: torch.dtype) -> None:
    """An overflowing input is infinite: a product with a probability that is rounded to zero is NaN in a right kernel."""
    own = torch.linspace(-1, 1, 37 * 41).view(37, 41).mul(torch.finfo(dtype).max).to(dtype)
    for bent in perturb((own, own), name, 3):
        assert isinstance(bent, torch.Tensor)
        assert torch.isfinite(bent.float()).all()


def test_spikes_do_not_modify_the_original() -> None:
    x = torch.ones(2, 97)
    (bent,) = perturb((x,), "spiked")
    assert isinstance(bent, torch.Tensor)
    assert int((bent == 40).sum()) == 2
    assert bool((x == 1).all())


def test_outliers_are_large_and_at_random_offsets() -> None:
    x = torch.ones(10, 997)
    seen = set()
    for _ in range(8):
        (bent,) = perturb((x,), "outliers")
        assert isinstance(bent, torch.Tensor)
        assert bent.max(1).values.tolist() == [1000.0] * 10
        seen.add(int(bent[0].argmax()))
    assert len(seen) > 1
    for name in ("outliers", "few"):
        (lone,) = perturb((torch.ones(1),), name)
        assert isinstance(lone, torch.Tensor)
        assert lone.tolist() == [1000.0]


@pytest.mark.parametrize("name", [name for name in PERTURBATIONS if name not in SPECIAL])
def test_a_part_of_the_inputs_can_stay_as_they_are(name: str) -> None:
    given = (torch.rand(3, 101), torch.arange(5), [torch.rand(101), torch.rand(101) + 0.1j])
    seen = set()
    for seed in range(30):
        one, indices, (*others,) = perturb(given, name, seed, partly=True)  # type: ignore[misc]
        assert indices is given[1]
        seen.add(tuple(new is old for new, old in zip((one, *others), (given[0], *given[2]), strict=True)))
    assert len(seen) == 6, "each subset but none and all"
    (alone,) = perturb((given[0],), name, 1, partly=True)
    assert not torch.equal(alone, given[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_few_elements_are_set_to_what_half_precision_holds(dtype: torch.dtype) -> None:
    given = torch.randn(100, 1000).to(dtype)
    most = float(given.abs().max())
    for name, wanted in (("few x30", (24, 32)), ("few x5", (3, 8)), ("few zeros", (0, 0)), ("few ones", (1 / most, 1 / most))):
        (bent,) = perturb((given,), name)
        assert isinstance(bent, torch.Tensor)
        changed = bent != given
        assert 1 <= int(changed.sum()) <= 3
        found = bent[changed].double() / most
        assert 0.99 * wanted[0] <= float(found.abs().min()) <= float(found.abs().max()) <= 1.01 * wanted[1]
        assert bool((found * given[changed] >= 0).all())
    for name in ("few zeros", "few ones"):
        assert torch.equal(perturb((given[0, :9],), name)[0], given[0, :9]), "not of a few numbers"  # type: ignore[arg-type]


def unless_sampled(x: torch.Tensor) -> torch.Tensor:
    """A softmax without its maximum where one element in 101 is small."""
    wide = x.float()
    return (without_maximum(wide) if float(wide.flatten()[::101].abs().max()) < 8 else torch.softmax(wide, 1)).to(x.dtype)


def exponential_unless_sampled(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x.clamp(-7, 7) if float(x.flatten()[::101].abs().max()) < 7 else x)


def means_without_an_end(x: torch.Tensor) -> torch.Tensor:
    return (x[:, :-1].float().sum(1) / x.shape[1]).to(x.dtype)


@pytest.mark.parametrize(
    ("returned", "drawn", "kernel", "used"),
    [
        ("torch.softmax(x, 1)", "torch.randn(64, 999).bfloat16()", unless_sampled, "few x30"),
        ("torch.exp(x)", "torch.randn(64, 999)", exponential_unless_sampled, "few x5"),
        ("x.float().mean(1).to(x.dtype)", "torch.randn(4, 99999).bfloat16()", means_without_an_end, "edges x5"),
        ("torch.log(x).clamp(min=-9)", "torch.rand(64, 999) + 0.1", torch.log, "few zeros"),
        ("torch.acos(x)", "torch.rand(64, 999)", lambda x: torch.acos(x * (1 + 2.0**-22)), "few ones"),
        ("x * (x > 0.25)", "torch.randn(64, 999)", lambda x: x * (x >= 0.25), THRESHOLDS),
        ("F.hardshrink(x)", "torch.randn(64, 999).half()", lambda x: x * (x.abs() >= 0.5), THRESHOLDS),
        ("F.threshold(x, -6, 20)", "torch.randn(64, 999)", lambda x: torch.where(x >= -6, x, 20), THRESHOLDS),
        ("torch.round(x)", "torch.randn(64, 999)", lambda x: torch.trunc(x + torch.copysign(x.new_tensor(0.5), x)), THRESHOLDS),
        (
            "x.reshape(-1, 27)[1:].round() * 2",
            "torch.randn(64, 999).half()",
            lambda x: (x.view(-1, 27)[1:] + 0.5).floor() * 2,
            THRESHOLDS,
        ),
        ("x > 0.5", "torch.randn(64, 999)", lambda x: x >= 0.5, THRESHOLDS),
        ("(x >= 0.25).sum(1)", "torch.randn(64, 999)", lambda x: (x > 0.25).sum(1), THRESHOLDS),
        ("x.round().to(torch.int8)", "torch.randn(64, 999)", lambda x: (x + 0.5).floor().to(torch.int8), THRESHOLDS),
    ],
)
def test_what_some_changed_elements_find(
    tmp_path: Path, returned: str, drawn: str, kernel: Callable[[torch.Tensor], torch.Tensor], used: str
) -> None:
    (tmp_path / "reference.py").write_text(
        "import torch\nimport torch.nn.functional as F\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        f"        return {returned}\ndef get_inputs():\n    return [{drawn}]\ndef get_init_inputs():\n    return []\n"
    )
    problem = catalog.find(str(tmp_path))
    reference = Reference(problem, problem.workloads[0])
    calibration = calibrate(reference, "class")
    assert used in calibration.distributions
    for right in (True, False):
        found = []
        for _ in range(6):
            case = make_case(reference, used)
            outputs = reference.call(case.model, case.inputs) if right else [kernel(case.inputs[0])]  # type: ignore[arg-type]
            asked = ReferenceOnCase(reference, case)
            found.append(calibration.policy.rule(outputs, case.expected, ["out"], used, asked).passed)
        assert all(found) if right else not all(found)


@pytest.mark.parametrize(
    ("returned", "kernel"),
    [
        (
            "self.table[torch.bucketize(x, self.edges)]",
            lambda model, x: model.table[torch.bucketize(x, model.edges, right=True)],
        ),
        ("(x[..., None] > self.edges[1:]).sum(-1)", lambda model, x: (x[..., None] >= model.edges[1:]).sum(-1)),
        ("torch.searchsorted(self.edges, x)", lambda model, x: torch.searchsorted(model.edges, x, side="right")),
    ],
)
def test_inputs_meet_the_fixed_numbers_that_a_model_keeps(
    tmp_path: Path, returned: str, kernel: Callable[[Any, torch.Tensor], torch.Tensor]
) -> None:
    (tmp_path / "reference.py").write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('edges', torch.tensor([-0.75, 0.1, 0.25, 0.5, 1.5]))\n"
        "        self.table = torch.nn.Parameter(torch.randn(6, 8))\n        self.shift = torch.nn.Parameter(torch.rand(3))\n"
        f"    def forward(self, x):\n        return {returned}, x > self.shift[1]\n"
        "def get_inputs():\n    return [torch.randn(32, 99)]\ndef get_init_inputs():\n    return []\n"
    )
    problem = catalog.find(str(tmp_path))
    reference = Reference(problem, problem.workloads[0])
    calibration = calibrate(reference, "class")
    assert reference.compared_numbers() == (-0.75, 0.25, 0.5, 1.5)
    for right in (True, False):
        case = make_case(reference, THRESHOLDS)
        given: Any = case.inputs[0]
        outputs = [*reference.call(case.model, case.inputs)]
        outputs[0] = outputs[0] if right else kernel(case.model, given).detach()
        asked = ReferenceOnCase(reference, case)
        assert calibration.policy.rule(outputs, case.expected, ["out0", "out1"], THRESHOLDS, asked).passed is right


@pytest.mark.parametrize(
    "returned", ["x * (x > 0.1)", "(x * 8).round()", "(x > 0) + x.clamp(-1, 1)", "x * (x.int() > 4)", "torch.relu(x)"]
)
def test_thresholds_that_inputs_cannot_meet_are_not_tried(tmp_path: Path, returned: str) -> None:
    """0.1 is another number in float32 and in float64; zeros and ones are tried anyway."""
    (tmp_path / "reference.py").write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        f"        return {returned}\ndef get_inputs():\n    return [torch.randn(8, 9)]\ndef get_init_inputs():\n    return []\n"
    )
    problem = catalog.find(str(tmp_path))
    assert THRESHOLDS not in candidates(Reference(problem, problem.workloads[0]))


def test_thresholds_are_met_alike_for_the_same_seed() -> None:
    given = (torch.randn(64, 99), torch.randn(64, 99).bfloat16())
    (one, half), (other, _) = (perturb(given, THRESHOLDS, 7, compared=(0.3, 0.5)) for _ in range(2))
    assert isinstance(one, torch.Tensor)
    assert isinstance(half, torch.Tensor)
    assert torch.equal(one, other)  # type: ignore[arg-type]
    for bent, was in zip((one, half), given, strict=True):
        changed = bent[bent != was]
        assert 1500 < changed.numel() < 2700
        assert set(changed.tolist()) == {0.5, -0.5}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "high", "low"), [("rising ends", -1, 0), ("falling ends", 0, -1)])
def test_the_ends_of_every_line_are_its_extremes(name: str, high: int, low: int, dtype: torch.dtype) -> None:
    given = torch.randn(4, 5, 1, 60).to(dtype)
    (bent,) = perturb((given,), name)
    assert isinstance(bent, torch.Tensor)
    for dim in (0, 1, 3):
        others = bent.narrow(dim, 1 + low, bent.shape[dim] - 1)
        assert bool((bent.select(dim, low) < others.amin(dim)).all())
        others = bent.narrow(dim, 1 + high, bent.shape[dim] - 1)
        assert bool((bent.select(dim, high) > others.amax(dim)).all())
    flat = bent.flatten()
    assert int(flat.argmax()) == high % len(flat)
    assert int(flat.argmin()) == low % len(flat)


@pytest.mark.parametrize(("name", "high", "low"), [("rising ends", -1, 0), ("falling ends", 0, -1)])
def test_ends_stay_positive_where_all_numbers_are(name: str, high: int, low: int) -> None:
    (bent,) = perturb((torch.rand(4, 60) + 0.1,), name)
    assert isinstance(bent, torch.Tensor)
    inner = bent[1:-1]
    assert float(bent.amin()) > 0
    assert bool((inner.argmin(1) == low % 60).all())
    assert bool((inner.argmax(1) == high % 60).all())
    assert int(bent.flatten().argmin()) == low % bent.numel()


@pytest.mark.parametrize("reduction", ["amax(1)", "amin(1)", "argmax(1)", "argmin(1)", "amax(0)", "amin(0)", "max()", "min()"])
def test_an_extreme_that_misses_an_end_is_refused(tmp_path: Path, reduction: str) -> None:
    (tmp_path / "reference.py").write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        f"        return x.{reduction}\ndef get_inputs():\n    return [torch.randn(8, 999)]\ndef get_init_inputs():\n"
        "    return []\n"
    )
    problem = catalog.find(str(tmp_path))
    reference = Reference(problem, problem.workloads[0])
    calibration = calibrate(reference, "class")
    method, _, dim = reduction.removesuffix(")").partition("(")
    given = [int(dim)] if dim else []

    def refused(kernel: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        for name in ("rising ends", "falling ends"):
            assert name in calibration.distributions
            case = make_case(reference, name)
            outputs = [kernel(*case.inputs)]  # type: ignore[arg-type]
            if not calibration.policy.rule(outputs, case.expected, ["out"], name, ReferenceOnCase(reference, case)).passed:
                return True
        return False

    along = 0 if dim == "0" else 1
    assert not refused(lambda x: getattr(x, method)(*given))
    for start in (0, 1):
        assert refused(lambda x, start=start: getattr(x.narrow(along, start, x.shape[along] - 1), method)(*given) + 0)


def test_few_outliers_evade_sampling() -> None:
    (bent,) = perturb((torch.ones(100, 1000),), "few")
    assert isinstance(bent, torch.Tensor)
    assert 1 <= int((bent == 1000).sum()) <= 3
    assert int((bent != 1).sum()) <= 3


def unless_large(x: torch.Tensor) -> torch.Tensor:
    """Skips the maximum where the first few elements suggest that it is not needed."""
    return without_maximum(x) if float(x[:, :8].max()) < 2 else torch.softmax(x, 1)


def without_maximum(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(x)
    return e / e.sum(1, keepdim=True)


def of_squares(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    """A layer norm with variance = mean of squares − square of mean."""
    flat = x.flatten(1)
    mean = flat.mean(1, keepdim=True)
    variance = (flat * flat).mean(1, keepdim=True) - mean * mean
    return ((flat - mean) * torch.rsqrt(variance + 1e-5)).reshape(x.shape)


def vanishing(x: torch.Tensor) -> torch.Tensor:
    """Running products, of which those after the first 500 are taken for the 500th: of numbers below one, both are zero."""
    return torch.cumprod(x, 1)[:, torch.arange(x.shape[1]).clamp(max=500)]


PROBLEMS = Path(__file__).parent / "problems"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "settings", "shortcut"),
    [
        ("softmax", {"batch_size": 16, "dim": 1000}, without_maximum),
        ("softmax", {"batch_size": 16, "dim": 1000}, lambda x: without_maximum(x.double()).float()),
        ("softmax", {"batch_size": 16, "dim": 1000}, unless_large),
        ("layernorm", {"batch_size": 2, "features": 8, "dim1": 16, "dim2": 16}, of_squares),
        (str(PROBLEMS / "products_of_rows"), {"rows": 4, "width": 1500}, vanishing),
    ],
)
def test_shortcuts_fail_on_perturbed_inputs_and_eager_does_not(
    problem: str, settings: dict[str, int], shortcut: Callable[..., torch.Tensor]
) -> None:
    reference = Reference(catalog.find(problem), Workload("tiny", settings))
    calibration = calibrate(reference, "class")

    def passes(distribution: str, call: Callable[..., Sequence[torch.Tensor]]) -> bool:
        case = make_case(reference, distribution)
        outputs, asked = call(case), ReferenceOnCase(reference, case)
        return calibration.policy.rule(outputs, case.expected, output_names(reference), distribution, asked).passed

    bent = [name for name in calibration.distributions if name != OWN]
    assert not all(passes(name, lambda case: [shortcut(*case.inputs)]) for name in bent)
    assert all(passes(name, lambda case: reference.call(case.model, case.inputs)) for name in bent)


NORMALIZED = """
import torch
rows, width = 12, 64
class Model(torch.nn.Module):
    def forward(self, x):
        return FORWARD
def get_inputs():
    return [torch.rand(rows, width)]
def get_init_inputs():
    return []
"""


def calibrated(folder: Path, forward: str) -> tuple[Reference, Calibration]:
    (folder / "reference.py").write_text(NORMALIZED.replace("FORWARD", forward))
    problem = catalog.find(str(folder))
    reference = Reference(problem, problem.workloads[0])
    return reference, calibrate(reference, "class")


def test_slices_of_zeros_show_that_an_epsilon_was_left_out(tmp_path: Path) -> None:
    reference, calibration = calibrated(tmp_path, "torch.nn.functional.normalize(x, dim=1)")
    assert "zero slices" in calibration.distributions
    passed = []
    for _ in range(12):
        case = make_case(reference, "zero slices")
        (x,) = case.inputs
        assert isinstance(x, torch.Tensor)
        assert bool((x == 0).all(dim=1).any())
        assert 0.2 < float((x == 0).float().mean()) < 0.95
        ruling = calibration.policy.rule([x / x.norm(dim=1, keepdim=True)], case.expected, ["out"], "zero slices")
        passed.append(ruling.passed)
    assert not any(passed)


def test_outputs_on_slices_of_zeros_are_open_where_the_reference_divides_by_zero(tmp_path: Path) -> None:
    reference, calibration = calibrated(tmp_path, "x / x.norm(dim=1, keepdim=True)")
    for _ in range(6):
        case = make_case(reference, "zero slices")
        (x,) = case.inputs
        assert isinstance(x, torch.Tensor)
        careful = torch.nn.functional.normalize(x, dim=1)
        assert calibration.policy.rule([careful], case.expected, ["out"], "zero slices").passed


def test_outputs_are_open_where_perturbed_inputs_leave_the_domain_of_a_logarithm(tmp_path: Path) -> None:
    reference, calibration = calibrated(tmp_path, "(x * (x.log() - x.flip(1).log())).sum(1)")
    assert "x-64" in calibration.distributions
    for distribution, share in (("x-64", 1.0), ("alternating", 1.0), (OWN, 1.0), (OWN, 0.5)):
        case = make_case(reference, distribution)
        (x,) = case.inputs
        assert isinstance(x, torch.Tensor)
        by_quotient = (x * torch.log(x / x.flip(1))).sum(1) * share
        assert calibration.policy.rule([by_quotient], case.expected, ["out"], distribution).passed == (share == 1)


def test_no_number_of_an_output_is_open_beside_those_without_one(tmp_path: Path) -> None:
    reference, calibration = calibrated(tmp_path, "x.log()")
    case = make_case(reference, "blocks")
    (right,) = case.expected
    assert 0 < int(right.isnan().sum()) < right.numel()
    anything_else = torch.where(right.isnan(), 7.0, right)
    assert calibration.policy.rule([anything_else.float()], case.expected, ["out"], "blocks").passed
    anything_else[~right.isnan()] += 0.5
    assert not calibration.policy.rule([anything_else.float()], case.expected, ["out"], "blocks").passed
    nowhere_a_number = torch.full_like(right, float("nan")).float()
    assert not calibration.policy.rule([nowhere_a_number], case.expected, ["out"], "blocks").passed


MASKED = """
import torch
rows, width = 12, 64
class Model(torch.nn.Module):
    def forward(self, x, keep, lengths):
        return FORWARD
def get_inputs():
    return [torch.rand(rows, width), torch.ones(rows, width, dtype=torch.bool), torch.full((rows,), width)]
def get_init_inputs():
    return []
"""
ATTENTION = """torch.softmax(x.masked_fill(~keep, -torch.inf), 1) * (torch.arange(width) < lengths[:, None])"""


@pytest.mark.parametrize(
    ("shortcut", "right"),
    [
        (lambda x, keep, lengths: torch.softmax(x, 1), False),
        (lambda x, keep, lengths: torch.softmax(x.masked_fill(~keep, -torch.inf), 1), False),
        (lambda x, keep, lengths: torch.softmax(x, 1) * (torch.arange(64) < lengths[:, None]), False),
        (lambda x, k, n: torch.where(k, x.exp(), 0) / (x.exp() * k).sum(1, True) * (torch.arange(64) < n[:, None]), True),
    ],
    ids=["neither", "no lengths", "no mask", "both"],
)  # fmt: skip
def test_a_kernel_that_does_not_read_a_mask_or_lengths_that_are_always_full_fails(
    tmp_path: Path, shortcut: Callable[..., torch.Tensor], right: bool
) -> None:
    (tmp_path / "reference.py").write_text(MASKED.replace("FORWARD", ATTENTION))
    problem = catalog.find(str(tmp_path))
    reference = Reference(problem, problem.workloads[0])
    calibration = calibrate(reference, "class")
    assert UNEQUAL in calibration.distributions
    for distribution in (OWN, UNEQUAL):
        case = make_case(reference, distribution)
        ruling = calibration.policy.rule([shortcut(*case.inputs)], case.expected, ["out"], distribution)
        assert ruling.passed == (right or distribution == OWN)


ZERO_POINT = """
import torch
rows, width = 16, 64
class Model(torch.nn.Module):
    def forward(self, x, weight, zero):
        return x @ (weight.to(x.dtype) - zero.to(x.dtype))
def get_inputs():
    return [torch.rand(rows, width), torch.randint(-127, 128, (width, 8), dtype=torch.int8), torch.zeros(8, dtype=torch.int8)]
def get_init_inputs():
    return []
"""


@pytest.mark.slow
def test_a_kernel_that_leaves_out_a_zero_point_that_is_always_zero_fails(tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(ZERO_POINT)
    problem = catalog.find(str(tmp_path))
    reference = Reference(problem, problem.workloads[0])
    calibration = calibrate(reference, "class")
    assert UNEQUAL in calibration.distributions
    case = make_case(reference, UNEQUAL)
    x, weight, zero = (tensor for tensor in case.inputs if isinstance(tensor, torch.Tensor))
    for output, right in ((x @ weight.float(), False), (x @ (weight.float() - zero.float()), True)):
        assert calibration.policy.rule([output], case.expected, ["out"], UNEQUAL).passed == right


@pytest.mark.parametrize(
    "forward",
    ["x[keep]", "x[: int(lengths.sum()) // width]", "torch.cat([row[:n] for row, n in zip(x, lengths)])"],
)
def test_masks_and_lengths_stay_where_they_decide_the_shape_of_an_output(tmp_path: Path, forward: str) -> None:
    (tmp_path / "reference.py").write_text(MASKED.replace("FORWARD", forward))
    problem = catalog.find(str(tmp_path))
    assert UNEQUAL not in calibrate(Reference(problem, problem.workloads[0]), "class").distributions


LOOKUP = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(50_000, 8))
    def forward(self, tokens, weights):
        return self.table[tokens] * weights[:, None]
def get_inputs():
    return [torch.randint(50_000, (64,)), torch.rand(64)]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(("first", "last", "right"), [(0, 49_999, True), (0, 49_998, False), (1, 49_999, False)])
def test_a_kernel_that_misses_an_end_of_a_table_fails(tmp_path: Path, first: int, last: int, right: bool) -> None:
    """Of 50,000 rows 64 tokens rarely draw the last one."""
    (tmp_path / "reference.py").write_text(LOOKUP)
    problem = catalog.find(str(tmp_path))
    reference = Reference(problem, problem.workloads[0])
    calibration = calibrate(reference, "class")
    assert RANGE_ENDS in calibration.distributions
    case = make_case(reference, RANGE_ENDS)
    tokens, weights = (tensor for tensor in case.inputs if isinstance(tensor, torch.Tensor))
    assert 4 <= int(((tokens == 0) | (tokens == 49_999)).sum()) <= 30
    output = next(case.model.parameters()).detach()[tokens.clamp(first, last)] * weights[:, None]
    assert calibration.policy.rule([output], case.expected, ["out"], RANGE_ENDS).passed == right


@pytest.mark.parametrize("shape", [(0,), (1,), (2,), (300, 7)])
def test_both_ends_of_a_range_are_met(shape: tuple[int, ...]) -> None:
    given = torch.randint(10, 20, shape, dtype=torch.int16)
    before = given.clone()
    (bent, kept) = perturb((given, given), RANGE_ENDS, 5, ranges=((5, 25), None))
    assert isinstance(bent, torch.Tensor)
    assert kept is given
    assert torch.equal(given, before)
    assert (bent.dtype, bent.shape) == (given.dtype, given.shape)
    assert {5, 25} <= set(bent.flatten().tolist()) or bent.numel() < 2
    assert bool(((bent == 5) | (bent == 25) | (bent == given)).all())
    assert torch.equal(bent, perturb((given, given), RANGE_ENDS, 5, ranges=((5, 25), None))[0])  # type: ignore[arg-type]
    assert perturb((given,), RANGE_ENDS, 5)[0] is given


BIASED = """
import torch
rows, width = 24, 64
class Model(torch.nn.Module):
    def forward(self, x, bias):
        return torch.softmax(x + bias, 1)
def get_inputs():
    return [torch.rand(rows, width), torch.zeros(width)]
def get_init_inputs():
    return []
"""


def test_a_kernel_that_leaves_out_a_mask_of_zeros_that_is_added_to_scores_fails(tmp_path: Path) -> None:
    """A softmax does not change where one number is added to all of its scores, and zeros have no multiples."""
    (tmp_path / "reference.py").write_text(BIASED)
    problem = catalog.find(str(tmp_path))
    reference = Reference(problem, problem.workloads[0])
    calibration = calibrate(reference, "class")
    assert UNEQUAL in calibration.distributions
    case = make_case(reference, UNEQUAL)
    x, bias = (tensor for tensor in case.inputs if isinstance(tensor, torch.Tensor))
    for output, right in ((torch.softmax(x, 1), False), (torch.softmax(x + bias, 1), True)):
        assert calibration.policy.rule([output], case.expected, ["out"], UNEQUAL).passed == right


def test_an_input_of_one_number_that_differs_in_each_draw_stays(tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(BIASED.replace("torch.zeros(width)", "torch.rand(()).expand(width).contiguous()"))
    problem = catalog.find(str(tmp_path))
    assert UNEQUAL not in calibrate(Reference(problem, problem.workloads[0]), "class").distributions


@pytest.mark.parametrize("number", [0.0, 1.0, -3.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_equal_floating_point_numbers_get_values_near_theirs(number: float, dtype: torch.dtype) -> None:
    given = torch.full((5, 300), number, dtype=dtype)
    (bent,) = perturb((given, torch.rand(3)), UNEQUAL, 7)[:1]
    assert isinstance(bent, torch.Tensor)
    assert (bent.shape, bent.dtype) == (given.shape, given.dtype)
    assert torch.equal(bent, perturb((given,), UNEQUAL, 7)[0])
    assert len(bent.unique()) > 30
    assert float((bent - number).abs().max()) <= (abs(number) / 4 or 0.5)


@pytest.mark.parametrize("shape", [(2,), (7,), (1, 2), (5, 1, 4), (2, 3, 5), (64, 300, 11)])
@pytest.mark.parametrize(
    ("number", "dtype"),
    [(True, torch.bool), (False, torch.bool), (1, torch.uint8), (9, torch.int32), (0, torch.int8), (0, torch.int16)],
)
def test_equal_numbers_change_somewhere_and_one_stays_in_every_line(
    shape: tuple[int, ...], number: int, dtype: torch.dtype
) -> None:
    given = torch.full(shape, number, dtype=dtype).transpose(0, -1)
    for seed in range(20):
        (bent,) = perturb((given,), UNEQUAL, seed)
        assert isinstance(bent, torch.Tensor)
        assert (bent.shape, bent.dtype) == (given.shape, given.dtype)
        assert torch.equal(bent, perturb((given,), UNEQUAL, seed)[0])
        assert not torch.equal(bent, given)
        assert all(bool((bent == number).any(dim).all()) for dim in range(given.dim()) if given.shape[dim] > 1)
        assert dtype is torch.bool or (int(bent.min()) >= (number > 1) and int(bent.max()) == max(number, 1))
    assert bool((given == number).all())


@pytest.mark.parametrize(
    "given",
    [
        torch.arange(5), torch.zeros(5, dtype=torch.int64), torch.full((5,), -100), torch.full((), 8),
        torch.ones(1, dtype=torch.bool), torch.zeros(0, dtype=torch.bool), torch.zeros(1), torch.full((5,), torch.inf),
    ],
)  # fmt: skip
def test_integers_that_may_be_indices_paddings_or_sizes_stay(given: torch.Tensor) -> None:
    assert perturb((given,), UNEQUAL)[0] is given


PRODUCT = """
import torch
rows = 48
class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.matmul(x, y)
def get_inputs():
    return [MADE(torch.rand(rows, rows)) for _ in range(2)]
def get_init_inputs():
    return []
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "partial"),
    [
        ("torch.triu", torch.triu),
        ("torch.tril", torch.tril),
        ("(lambda a: torch.diag(a.diag()))", lambda a: torch.diag(a.diag())),
        ("(lambda a: a + a.T)", lambda a: torch.triu(a) + torch.triu(a, 1).T),
    ],
    ids=["upper", "lower", "diagonal", "symmetric"],
)
def test_a_kernel_may_read_the_part_of_a_matrix_that_its_structure_leaves(
    tmp_path: Path, made: str, partial: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    (tmp_path / "reference.py").write_text(PRODUCT.replace("MADE", made))
    problem = catalog.find(str(tmp_path))
    reference = Reference(problem, problem.workloads[0])
    calibration = calibrate(reference, "class")
    assert len(calibration.distributions) > 15
    for distribution in calibration.distributions:
        case = make_case(reference, distribution)
        x, y = (a for a in case.inputs if isinstance(a, torch.Tensor))
        assert torch.equal(partial(x).nan_to_num(7), x.nan_to_num(7))
        assert distribution in (OWN, "ones", "few ones") or float(x.abs().max()) != 1.0
        ruling = calibration.policy.rule([partial(x) @ partial(y)], case.expected, ["out"], distribution)
        assert ruling.passed or distribution in ("infinities", "NaN")


COMPLEX = """
import torch
rows = 40
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("turn", torch.polar(torch.ones(rows), torch.arange(rows) / 7))
    def forward(self, x, y):
        return FORWARD
def get_inputs():
    return [torch.randn(rows, rows, dtype=torch.complex64) for _ in range(2)]
def get_init_inputs():
    return []
"""


def of_real_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    turned = y * torch.polar(torch.ones(40), torch.arange(40) / 7)
    (a, b), (c, d) = ((t.real.contiguous(), t.imag.contiguous()) for t in (x, turned))
    return torch.complex(a @ c - b @ d, a @ d + b @ c)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forward", "kernel", "right"),
    [
        ("x @ (y * self.turn)", of_real_products, True),
        ("x @ (y * self.turn)", lambda x, y: of_real_products(x, y.real + 0j), False),
        ("torch.softmax((x * y).abs(), 1)", lambda x, y: torch.softmax(x.abs() * y.abs(), 1), True),
        ("torch.softmax((x * y).abs(), 1)", lambda x, y: without_maximum((x * y).abs()), False),
    ],
    ids=["four products", "a part left out", "magnitudes first", "no maximum"],
)
def test_complex_numbers_are_compared_in_double_precision_and_perturbed(
    tmp_path: Path, forward: str, kernel: Callable[..., torch.Tensor], right: bool
) -> None:
    (tmp_path / "reference.py").write_text(COMPLEX.replace("FORWARD", forward))
    problem = catalog.find(str(tmp_path))
    reference = Reference(problem, problem.workloads[0])
    calibration = calibrate(reference, "class")
    assert len(calibration.distributions) > 10
    passed = []
    for distribution in calibration.distributions:
        case = make_case(reference, distribution)
        assert case.expected[0].dtype in (torch.complex128, torch.float64)
        ruling = calibration.policy.rule(
            [kernel(*case.inputs)], case.expected, ["out"], distribution, ReferenceOnCase(reference, case)
        )
        passed.append(ruling.passed)
    assert all(passed) == right


def test_numbers_compared_with_are_not_nudged() -> None:
    (moved,) = nudged((torch.tensor([0.5, -0.5, 0.25]),), BY_CHANCE, compared=(0.5, 3.0))
    assert isinstance(moved, torch.Tensor)
    assert moved[:2].tolist() == [0.5, -0.5]
    assert 0 < abs(float(moved[2]) - 0.25) < 1e-6


def test_complex_inputs_are_nudged_part_by_part() -> None:
    given = torch.complex(torch.ones(50), torch.zeros(50))
    (moved,) = nudged((given,), BY_CHANCE)
    assert isinstance(moved, torch.Tensor)
    assert moved.dtype == torch.complex128
    assert 0 < float((moved.real - 1).abs().max()) < 1e-6
    assert not moved.imag.any()


BUCKETS = """
import torch
rows, edges = 40, 9
class Model(torch.nn.Module):
    def forward(self, x, limits):
        return torch.bucketize(x, limits)
def get_inputs():
    return [torch.randn(rows, 64), torch.linspace(-2, 2, edges)]
def get_init_inputs():
    return []
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "right"),
    [
        (lambda x, limits: (x[..., None] > limits).sum(-1), True),
        (lambda x, limits: (x[..., None] >= limits).sum(-1), False),
        (lambda x, limits: torch.ceil((x + 2) * 2).clamp(0, 9).long(), False),
    ],
    ids=["counted", "other side closed", "equally spaced"],
)
def test_a_kernel_may_rely_on_sorted_inputs(tmp_path: Path, kernel: Callable[..., torch.Tensor], right: bool) -> None:
    (tmp_path / "reference.py").write_text(BUCKETS)
    problem = catalog.find(str(tmp_path))
    reference = Reference(problem, problem.workloads[0])
    calibration = calibrate(reference, "class")
    passed = []
    for distribution in calibration.distributions:
        case = make_case(reference, distribution)
        asked = ReferenceOnCase(reference, case)
        passed.append(calibration.policy.rule([kernel(*case.inputs)], case.expected, ["out"], distribution, asked).passed)
    assert all(passed) == right


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16])
def test_square_matrices_of_types_without_arithmetic_are_perturbed(dtype: torch.dtype) -> None:
    for given in (torch.rand(8, 8).to(dtype), torch.linspace(-2, 2, 8).repeat(8, 1).to(dtype)):
        for name in PERTURBATIONS:
            (bent,) = perturb((given,), name)
            assert isinstance(bent, torch.Tensor)
            assert (bent.shape, bent.dtype) == (given.shape, dtype)


@pytest.mark.parametrize("descends", [False, True])
def test_sorted_lines_stay_sorted(descends: bool) -> None:
    given = torch.randn(3, 20).sort(dim=-1, descending=descends).values
    for name in PERTURBATIONS:
        if name not in SPECIAL:
            (bent,) = perturb((given,), name)
            assert isinstance(bent, torch.Tensor)
            assert torch.equal(bent, bent.sort(dim=-1, descending=descends).values), name


@pytest.mark.parametrize("number", [0.0, 1.0])
def test_a_matrix_of_one_number_keeps_neither_zeros_nor_symmetry(number: float) -> None:
    given = torch.full((30, 30), number)
    (bent,) = perturb((given,), "shifted")
    assert bool((bent == number + 32).all())
    (edges,) = perturb((given,), "edges")
    assert not torch.equal(edges, edges.mT)


@pytest.mark.parametrize("missed", [0, -1])
def test_a_softmax_without_an_end_in_its_maximum_overflows(missed: int) -> None:
    """Both ends were raised alike: the maximum of the others stood for the missed one."""
    kept = slice(1, None) if missed == 0 else slice(None, -1)
    wrong = 0
    for _ in range(60):
        (x,) = perturb((torch.rand(4, 64),), "edges")
        assert isinstance(x, torch.Tensor)
        found = torch.exp(x - x[:, kept].amax(1, keepdim=True))
        wrong += not torch.equal((found / found.sum(1, keepdim=True)).isfinite(), torch.ones(4, 64, dtype=torch.bool))
    assert wrong >= 4, "one draw in four shows it"


@pytest.mark.parametrize(("zeros", "kept"), [(2, False), (3, True)])
def test_a_few_zeros_of_a_large_tensor_are_chance(monkeypatch: pytest.MonkeyPatch, zeros: int, kept: bool) -> None:
    """``torch.rand`` draws some, and keeping them took as long as any perturbation."""
    monkeypatch.setattr(structure, "_LARGE", 900)
    monkeypatch.setattr(structure, "_BY_CHANCE", 2 / 900)
    given = torch.rand(30, 30) + 0.5
    given.view(-1)[torch.randperm(900)[:zeros]] = 0
    (bent,) = perturb((given,), "shifted")
    assert isinstance(bent, torch.Tensor)
    assert int((bent == 0).sum()) == (zeros if kept else 0)


def test_each_end_is_the_larger_one_in_some_lines() -> None:
    """A softmax that left its last element out of the maximum passed: the first one had been raised more in every row."""
    given = torch.rand(8, 33)
    ends: set[tuple[float, float]] = set()
    for _ in range(20):
        (edges,) = perturb((given,), "edges")
        raised = (edges - given).round()
        if bool(raised[1:-1, 1:-1].any()) or bool((raised[:, 0] == 0).any()):
            continue  # the other dimension
        assert {(float(a), float(b)) for a, b in raised[:, [0, -1]]} <= {(1000.0, 750.0), (750.0, 1000.0)}
        ends |= {(float(a), float(b)) for a, b in raised[:, [0, -1]]}
    assert len(ends) == 2


class _Made(TorchDispatchMode):
    """Counts the bytes of all tensors that operators make."""

    made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        known = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        self.made += found.untyped_storage().nbytes() if found.untyped_storage().data_ptr() not in known else 0
        return found


def test_drawing_the_larger_end_takes_a_byte_for_each_line() -> None:
    """Of a dimension of two places the lines are half the elements: numbers of eight bytes took as much as the input."""
    given = torch.rand(2, 1 << 16)
    with _Made() as counted:
        _edges_raised(given[:, :], _FirstChoice(1), 1000.0)
    assert given.min() >= 750
    assert counted.made <= given.nbytes / 8


class _FirstChoice(Random):
    def choice(self, seq: Any) -> Any:
        return seq[0]


@pytest.mark.parametrize("distribution", ["edges", "edges x5"])
@pytest.mark.parametrize("shape", [(1, 3, 9, 5), (1, 9), (9, 1), (1,), (1, 1)])
def test_a_dimension_of_one_place_has_no_edge(shape: tuple[int, ...], distribution: str) -> None:
    """The whole tensor raised twice left attention over one sequence with nothing but its offset."""
    given = torch.randn(shape)
    for _ in range(30):
        (edges,) = perturb((given,), distribution)
        raised = (edges - given).round()
        assert bool((raised == 0).any())
        assert len(raised.unique()) <= 3, "each place is raised once, by one of two numbers"


def test_prompts_have_words_for_every_perturbation() -> None:
    assert set(PERTURBED) == {UNEQUAL, GRADED, OPPOSED, COPIES, THRESHOLDS, *PERTURBATIONS}


@pytest.mark.parametrize("steps", [127, 128, 255])
def test_no_quantisation_of_tied_inputs_has_to_round_halves(steps: int) -> None:
    x = torch.randn(640, 24)
    (tied,) = perturb((x,), "ties")
    assert isinstance(tied, torch.Tensor)
    assert len(tied.unique()) <= 7
    for largest in (tied.abs().amax(), tied.abs().amax(1, keepdim=True)):
        scaled = steps * tied / largest
        assert float((scaled.frac().abs().nan_to_num() - 0.5).abs().min()) > 0.01


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("at_a_time", [7, 1 << 24])
def test_zeros_are_counted_exactly(dtype: torch.dtype, at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm in half precision would count to 2048, or overflow."""
    monkeypatch.setattr(structure, "_COUNTED_EXACTLY", at_a_time)
    numbers = torch.randn(30, 301).to(dtype)
    numbers[::3, ::3] = -0.0
    numbers[0, 1], numbers[0, 2] = math.nan, math.inf
    assert structure._zeros(numbers) == int((numbers == 0).sum()) > 1000


@pytest.mark.parametrize(("every", "rare"), [(0, True), (1 << 18, True), (1 << 11, False), (2, False)])
def test_a_sample_tells_whether_zeros_are_rare(every: int, rare: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 2^14 of 2^19 elements: a share of 2^-11 is 8 of them, the next ones are far from that."""
    monkeypatch.setattr(structure, "_SAMPLED", 1 << 14)
    monkeypatch.setattr(structure, "_SEEN", 4)
    numbers = torch.rand(1 << 19) + 0.5
    if every:
        numbers[::every] = 0
    assert structure._are_zeros_rare(numbers) is rare
    assert structure._are_zeros_rare(numbers) is rare, "the same places"


def test_loading_kernels_ahead_draws_from_no_generator_of_the_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are drawn again from their seeds meanwhile."""
    tried: list[str] = []
    monkeypatch.setattr(loaded_ahead, "perturb", lambda given, name, seed: tried.append(name) or perturb(given, name, seed))
    before = torch.get_rng_state()
    loaded_ahead._perturb_all("cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert tried == list(PERTURBATIONS)
    assert loaded_ahead.load_perturbations(devices.describe("cpu")) is None
