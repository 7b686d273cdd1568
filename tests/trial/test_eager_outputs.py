"""Outputs that equal the reference's are right without float64, and only those."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.domain.errors import ProblemError
from engine.domain.memory_plan import ROOMY, MemoryPlan
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge import devices, test_bed
from engine.trial.judge.inputs.perturbations import EDGES, FEW, FEW_X30, INFINITIES, NANS, NEARER_EDGES, OWN
from engine.trial.judge.tolerance.calibration import calibrate, complete
from engine.trial.judge.tolerance.eager_outputs import EagerOutputs
from engine.trial.judge.tolerance.findings import Findings

Bed = test_bed.TestBed  # a name that pytest does not collect
MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return nn.functional.softplus(x)

def get_inputs():
    return [torch.randn(16, 64)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def reference(tmp_path: Path) -> Reference:
    (tmp_path / "reference.py").write_text(MODEL)
    problem = catalog.find(str(tmp_path / "reference.py"))
    return Reference(problem, problem.workloads[0], "cpu")


@pytest.fixture
def bed(reference: Reference) -> Iterator[Bed]:
    found = Bed(reference, calibrate(reference, "class"), devices.describe("cpu"))
    yield found
    found.close()


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has an entry for each float64 run since."""
    runs: list[str] = []
    plain = Reference.exact_of
    monkeypatch.setattr(Reference, "exact_of", lambda *given: runs.append("float64") or plain(*given))
    return runs


def called(bed: Bed, kernel: Callable[[Tensor], Tensor], distribution: str = OWN, *, timed: bool = False) -> Findings:
    bed.refill(0, distribution)
    (x,) = (bed._inputs.tensor(slot) for slot in bed._input_slots(0))
    bed.outputs(0)[0].copy_(kernel(x))
    return bed.check(0, distribution, bed.take_outputs(0, alone=True) if timed else None)


def eager(x: Tensor) -> Tensor:
    return torch.nn.functional.softplus(x)


def accurate(x: Tensor) -> Tensor:
    return torch.nn.functional.softplus(x.double()).float()


def negative_ones_are_zero(x: Tensor) -> Tensor:
    return torch.where(x < -0.5, 0.0, eager(x))


def test_outputs_that_equal_the_reference_s_are_compared_with_float64_on_own_inputs_only(bed: Bed, exact: list[str]) -> None:
    assert called(bed, eager).ruling.passed
    assert len(exact) == 1
    assert called(bed, eager).ruling.errors.rel_fro > 0
    assert len(exact) == 2
    assert called(bed, eager, timed=True).ruling.passed
    assert all(called(bed, eager, name).ruling.passed for name in ("negated", "x64", "few"))
    assert called(bed, eager, "few", timed=True).ruling.passed
    assert len(exact) == 2
    assert all(called(bed, eager, name).ruling.passed for name in (INFINITIES, NANS))
    assert len(exact) >= 4


def test_other_right_outputs_are_compared_with_float64(bed: Bed, exact: list[str]) -> None:
    for distribution, timed in ((OWN, False), ("negated", False), (OWN, True)):
        assert called(bed, accurate, distribution, timed=timed).ruling.passed
    assert len(exact) >= 3
    assert called(bed, eager, "negated").ruling.passed
    assert len(exact) >= 4, "nobody looked whether they are equal"


def test_a_kernel_s_first_outputs_are_looked_at_whatever_the_last_kernel_s_were(bed: Bed, exact: list[str]) -> None:
    assert called(bed, accurate).ruling.passed
    bed.new_model()
    assert called(bed, eager).ruling.passed
    exact.clear()
    assert called(bed, eager, "negated").ruling.passed
    assert not exact


@pytest.mark.parametrize("timed", [False, True])
def test_a_kernel_that_equals_the_reference_at_first_is_refused_where_it_does_not(bed: Bed, timed: bool) -> None:
    assert called(bed, eager).ruling.passed
    assert called(bed, eager, "negated").ruling.passed
    found = called(bed, negative_ones_are_zero, "negated", timed=timed)
    assert not found.ruling.passed
    assert found.ruling.evidence


@pytest.mark.parametrize(("large", "instead"), [(FEW, FEW_X30), (EDGES, NEARER_EDGES)])
def test_smaller_numbers_are_tried_where_the_reference_overflows_and_the_kernel_equals_it(
    tmp_path: Path, large: str, instead: str
) -> None:
    """Where a sum overflows in fp32 and not in float64, all outputs are infinite: equal ones tell nothing of a kernel."""
    (tmp_path / "reference.py").write_text(MODEL.replace("nn.functional.softplus(x)", "x * torch.mean(x**24).log()"))
    problem = catalog.find(str(tmp_path / "reference.py"))
    reference = Reference(problem, problem.workloads[0], "cpu")
    bed = Bed(reference, calibrate(reference, "class", ahead=False), devices.describe("cpu"))
    bed.complete = lambda distribution: complete(reference, bed.calibration, distribution)
    overflows = lambda x: x * torch.mean(x**24).log()  # noqa: E731
    assert called(bed, overflows).ruling.passed
    assert instead not in bed.calibration.distributions
    assert called(bed, overflows, large).ruling.passed
    assert large not in bed.calibration.distributions
    assert instead in bed.calibration.distributions
    bed.close()


def test_a_reference_that_changes_some_inputs_only_is_not_asked(tmp_path: Path) -> None:
    """Its first call, on other inputs, did not show that: it would change those that outputs are compared on."""
    changes_some = MODEL.replace("return nn", "x.add_(0.5) if x[0, 0] > 0 else None\n        return nn")
    (tmp_path / "reference.py").write_text(changes_some)
    problem = catalog.find(str(tmp_path / "reference.py"))
    reference = Reference(problem, problem.workloads[0], "cpu")
    assert not reference.side_effects.changed_inputs
    bed = Bed(reference, calibrate(reference, "class"), devices.describe("cpu"))
    for _ in range(12):
        bed.new_model()
        found = called(bed, lambda x: eager(x + 0.5 if x[0, 0] > 0 else x))
        assert found.ruling.passed
        assert not bed.check(0).violation
    bed.close()


def test_a_change_of_an_input_or_beside_an_output_is_still_a_violation(bed: Bed) -> None:
    assert called(bed, eager).ruling.passed
    assert "changed its input" in called(bed, lambda x: eager(x.neg_()), "x64").violation


@pytest.mark.parametrize(
    ("tolerance", "plan", "looks"),
    {
        "": ("class", ROOMY, True),
        "looser": ("class:half", ROOMY, False),
        "against eager": ("kernelbench", ROOMY, False),
        "float64 on the host": ("class", MemoryPlan(1, True, False, False, exact_on_host=True), False),
        "in slices": ("class", MemoryPlan(1, True, False, False, False, exact_slices=4), False),
    }.values(),
)
def test_the_reference_is_not_asked_where_its_arithmetic_does_not_decide(
    reference: Reference, tolerance: str, plan: MemoryPlan, looks: bool
) -> None:
    outputs, calls = EagerOutputs(reference, calibrate(reference, tolerance), plan), list[int]()
    y = [torch.ones(4)]
    for timed in (False, True):
        ruling = outputs.ruling(y, OWN, lambda: calls.append(1) or y, timed=timed)
        assert (ruling is not None) == (looks and timed)
    assert len(calls) == 2 * looks


def test_equal_numbers_of_another_type_or_sign_are_not_equal_outputs(reference: Reference) -> None:
    outputs = EagerOutputs(reference, calibrate(reference, "class"), ROOMY)
    nan = torch.tensor([float("nan"), 0.0])
    for mine, right, equal in (
        (torch.zeros(2), torch.zeros(2), True), (nan, nan.clone(), True), (torch.zeros(2), -torch.zeros(2), False),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), False), (torch.zeros(2), torch.zeros(1, 2), False),
    ):  # fmt: skip
        outputs.look_again()
        outputs.ruling([mine], OWN, lambda right=right: [right], timed=False)
        assert (outputs.ruling([mine], "x64", lambda right=right: [right], timed=False) is not None) == equal


def test_float64_decides_where_equal_outputs_of_own_inputs_overflow(reference: Reference) -> None:
    """A kernel is refused there, as the reference would be: only other inputs may be beyond the reference."""
    outputs = EagerOutputs(reference, calibrate(reference, "class"), ROOMY)
    for right, passes in (
        (torch.ones(4), True),
        (torch.tensor([1.0, float("inf")]), False),
        (torch.tensor([float("nan")]), False),
    ):
        outputs.look_again()
        for timed in (False, True):
            ruling = outputs.ruling([right], OWN, lambda right=right: [right], timed=timed)
            assert (ruling is not None) == (timed and passes)
        assert outputs.ruling([right], "x64", lambda right=right: [right], timed=True) is not None


def bed_of(tmp_path: Path, model: str) -> Bed:
    (tmp_path / "reference.py").write_text(model)
    problem = catalog.find(str(tmp_path / "reference.py"))
    reference = Reference(problem, problem.workloads[0], "cpu")
    return Bed(reference, calibrate(reference, "class"), devices.describe("cpu"))


def test_each_of_several_outputs_must_be_equal(tmp_path: Path, exact: list[str]) -> None:
    bed = bed_of(tmp_path, MODEL.replace("softplus(x)", "softplus(x), x.tanh()"))
    off = 0.0

    def call(distribution: str) -> Findings:
        bed.refill(0, distribution)
        (x,) = (bed._inputs.tensor(slot) for slot in bed._input_slots(0))
        for output, value in zip(bed.outputs(0), (eager(x), x.tanh() + off), strict=True):
            output.copy_(value)
        return bed.check(0, distribution)

    assert call(OWN).ruling.passed
    exact.clear()
    assert call("negated").ruling.passed
    assert not exact
    off = 0.1
    found = call("negated")
    assert not found.ruling.passed
    assert "out1" in str(found.ruling.evidence)
    bed.close()


def test_a_reference_that_fails_in_its_own_arithmetic_leaves_it_to_float64(reference: Reference) -> None:
    outputs, y = EagerOutputs(reference, calibrate(reference, "class"), ROOMY), [torch.ones(4)]

    def fails() -> list[Tensor]:
        raise ProblemError("the reference ran out of memory")

    assert outputs.ruling(y, OWN, lambda: y, timed=False) is None
    assert outputs.ruling(y, "x64", lambda: y, timed=False) is not None
    assert outputs.ruling(y, "x64", fails, timed=False) is None
    assert outputs.ruling(y, "x64", lambda: y, timed=False) is None, "the outputs of the last call were not equal"


NORMALISES = MODEL.replace(
    "    def forward(self, x):\n        return nn.functional.softplus(x)",
    "    def __init__(self):\n        super().__init__()\n        self.norm = nn.BatchNorm1d(64)\n\n"
    "    def forward(self, x):\n        return self.norm(x)",
)


def test_asking_a_reference_that_keeps_statistics_changes_none(tmp_path: Path) -> None:
    """Running statistics change in each call of the kernel; those that the reference is called with stay what they were."""
    bed = bed_of(tmp_path, NORMALISES)
    assert bed.reference.side_effects.changes_state
    for distribution in (OWN, "negated", "x64", OWN, "x-64"):
        model = bed.draw_weights()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        bed.refill(0, distribution)
        (x,) = (bed._inputs.tensor(slot) for slot in bed._input_slots(0))
        bed.outputs(0)[0].copy_(bed.reference.call(model, (x,))[0])
        assert bed.check(0, distribution).ruling.passed
        assert all(torch.equal(value, before[name]) for name, value in bed.draw_weights().state_dict().items())
    bed.close()
