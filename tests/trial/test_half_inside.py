"""References that round to half precision between inputs and outputs of fp32: what a kernel may err."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

from engine.domain.model import PrecisionClass
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge.inputs.cases import default_class, make_case
from engine.trial.judge.inputs.perturbations import OWN
from engine.trial.judge.tolerance.calibration import Calibration, calibrate
from engine.trial.judge.tolerance.correctness_check import describe_check
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase

PRODUCT = """import torch


class Model(torch.nn.Module):
    def forward(self, x, w):
        FORWARD


def get_inputs():
    return [torch.randn(64, 256), torch.randn(256, 96) / 16]


def get_init_inputs():
    return []
"""
CAST = "return (x.to(torch.bfloat16) @ w.to(torch.bfloat16)).float()"
AUTOCAST = 'with torch.autocast("cpu", dtype=torch.bfloat16):\n            return (x @ w).float()'
PLAIN = "return x @ w"
"""Wide throughout."""
ASIDE = "return x @ w + torch.ones(96, dtype=torch.bfloat16)"
"""Nothing that is rounded to half precision changes by it."""


def calibrated(folder: Path, forward: str) -> tuple[Reference, Calibration]:
    (folder / "reference.py").write_text(PRODUCT.replace("FORWARD", forward))
    problem = catalog.find(str(folder))
    reference = Reference(problem, problem.workloads[0])
    return reference, calibrate(reference, "class")


def through(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: t.to(dtype).float()


def parts(x: torch.Tensor, w: torch.Tensor) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    return zip(x.split(128, 1), w.split(128), strict=True)


def in_steps(t: torch.Tensor) -> torch.Tensor:
    step = t.abs().amax() / 63
    return (t / step).round() * step


KERNELS: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], bool]] = {
    "in fp32": (lambda x, w: x @ w, True),
    "summed in fp32": (lambda x, w: through(torch.bfloat16)(x) @ through(torch.bfloat16)(w), True),
    "as the reference": (lambda x, w: (x.bfloat16() @ w.bfloat16()).float(), True),
    "in fp16": (lambda x, w: (x.half() @ w.half()).float(), True),
    "in two parts": (lambda x, w: sum((a @ b).float() for a, b in parts(x.bfloat16(), w.bfloat16())), True),
    "weights of eight bits": (lambda x, w: (x.bfloat16() @ through(torch.float8_e4m3fn)(w).bfloat16()).float(), False),
    "weights of seven bits": (lambda x, w: (x.bfloat16() @ in_steps(w).bfloat16()).float(), False),
    "one percent too large": (lambda x, w: (x.bfloat16() @ w.bfloat16()).float() * 1.011, False),
}


@pytest.mark.slow
@pytest.mark.parametrize("forward", [CAST, AUTOCAST], ids=["cast", "autocast"])
def test_errors_of_half_precision_get_its_factor(tmp_path: Path, forward: str) -> None:
    """With the factor of fp32, ten times the error of bf16 passed: that of weights of eight bits."""
    reference, calibration = calibrated(tmp_path, forward)
    assert default_class(reference) is PrecisionClass.FP32
    assert calibration.policy.name == "class:fp32 (3x)"
    assert describe_check(reference, calibration).factor == 3.0
    for _ in range(3):
        case = make_case(reference, OWN)
        asked = ReferenceOnCase(reference, case)
        for name, (kernel, right) in KERNELS.items():
            outputs = [kernel(*case.inputs)]
            assert calibration.policy.rule(outputs, case.expected, ["out"], OWN, asked).passed == right, name


@pytest.mark.slow
def test_smaller_errors_keep_the_factor_of_fp32(tmp_path: Path) -> None:
    """A constant of half precision that is exact rounds nothing: the limit is ten times the error of fp32, as without it."""
    reference, calibration = calibrated(tmp_path, ASIDE)
    assert reference.rounds_to_half()
    assert calibration.policy.name == "class:fp32 (10x)"
    errors = calibration.policy.classes[OWN]["fp32"]
    assert errors.rel_fro < 1e-6
    assert calibration.policy.limit(OWN).rel_fro == max(10 * errors.rel_fro, 2.0**-21)


@pytest.mark.parametrize(("forward", "rounds"), [(PLAIN, False), (CAST, True), (AUTOCAST, True)])
def test_the_trace_tells_whether_a_reference_rounds_to_half_precision(tmp_path: Path, forward: str, rounds: bool) -> None:
    (tmp_path / "reference.py").write_text(PRODUCT.replace("FORWARD", forward))
    problem = catalog.find(str(tmp_path))
    assert Reference(problem, problem.workloads[0]).rounds_to_half() == rounds
