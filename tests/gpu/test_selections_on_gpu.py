"""References that select, on a device, with expected values on the device or on the host."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor
from trial.test_selections import BEAMS, GATE, Kernel, beams, gated, passes

from engine.domain.model import Workload
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge.inputs.cases import make_case
from engine.trial.judge.inputs.perturbations import OWN
from engine.trial.judge.tolerance.calibration import calibrate

pytestmark = [pytest.mark.gpu, pytest.mark.flaky(reruns=2)]


@pytest.mark.parametrize("exact_on_host", [False, True])
@pytest.mark.parametrize("is_sorted", [True, False], ids=["sorted", "in any order"])
@pytest.mark.parametrize(("text", "kernel"), [(GATE, gated), (BEAMS, beams)], ids=["gate", "beams"])
def test_choices_go_either_way(tmp_path: Path, text: str, kernel: Kernel, is_sorted: bool, exact_on_host: bool) -> None:
    file = tmp_path / "theirs.py"
    file.write_text(text.replace("SORTED", str(is_sorted)))
    reference = Reference(catalog.find(str(file)), Workload("full", {}), "cuda:0")
    reference.exact_on_host = exact_on_host
    calibration = calibrate(reference, "class")
    refused = []
    for distribution in calibration.distributions:
        case = make_case(reference, distribution)
        (x,) = case.inputs
        assert isinstance(x, Tensor)
        refused += [] if passes(reference, calibration, case, distribution, list(kernel(x))) else [distribution]
    assert refused == []
    case = make_case(reference, OWN)
    (x,) = case.inputs
    assert isinstance(x, Tensor)
    wrong = [output.roll(1, 0) for output in kernel(x)]
    assert not passes(reference, calibration, case, OWN, wrong)
