"""The gate of every problem that ships, at sizes that take no time: what computes nothing is refused, what is right is not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from engine.domain.model import PrecisionClass, Workload
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.calibration import Calibration, calibrate, default_class, make_case, make_gate, names_of
from engine.trial.distributions import OWN

SIZES: Mapping[str, Mapping[str, int]] = {
    "softmax": {"batch_size": 8, "dim": 1000},
    "layernorm": {"batch_size": 2, "features": 8, "dim1": 16, "dim2": 16},
    "matmul_fp32": {"m": 48, "n": 64, "k": 256},
    "matmul_fp16": {"m": 48, "n": 64, "k": 256},
    "conv2d": {"batch_size": 1, "height": 48, "width": 48},
    "conv2d_relu_maxpool": {"batch_size": 1, "height": 48, "width": 48},
    "attention_fp16": {"batch_size": 1, "heads": 2, "sequence": 96, "head_dim": 32},
}


def test_every_shipped_problem_is_here() -> None:
    assert set(SIZES) == set(catalog.shipped_names())


@pytest.fixture(scope="module", params=SIZES)
def judged(request: pytest.FixtureRequest) -> tuple[Reference, Calibration]:
    problem = catalog.find(request.param)
    full = problem.workload("full")
    assert full is not None
    reference = Reference(problem, Workload("tiny", {**full.settings, **SIZES[request.param]}))
    return reference, calibrate(reference, "class")


def test_nulls_are_refused(judged: tuple[Reference, Calibration]) -> None:
    gate = make_gate(*judged)
    assert gate.verifiable, [n for n in gate.nulls if n.passed]
    assert len(gate.nulls) >= 4
    assert all(n.rel_fro > gate.rel_fro_limit for n in gate.nulls)
    assert 0 < gate.rel_fro_limit < 0.02
    assert OWN in judged[1].distributions
    assert len(judged[1].distributions) >= 4


def test_the_class_is_that_of_eager(judged: tuple[Reference, Calibration]) -> None:
    reference, _ = judged
    half = reference.problem.name.endswith("fp16")
    assert default_class(reference) is (PrecisionClass.HALF if half else PrecisionClass.FP32)


def test_the_right_answer_passes_on_every_distribution(judged: tuple[Reference, Calibration]) -> None:
    reference, calibration = judged
    for distribution in calibration.distributions:
        case = make_case(reference, distribution)
        eager = reference.call(case.model, case.inputs)
        rounded = [e.to(o.dtype) for e, o in zip(case.expected, eager, strict=True)]
        for outputs in (eager, rounded):
            ruling = calibration.policy.rule(outputs, case.expected, names_of(reference), distribution)
            assert ruling.passed, (distribution, ruling)


def test_the_next_lower_precision_is_refused(judged: tuple[Reference, Calibration]) -> None:
    reference, calibration = judged
    case = make_case(reference, OWN)
    wide = default_class(reference) is PrecisionClass.FP32
    narrow = torch.bfloat16
    low = reference.call(reference.cast(case.model, narrow), reference.cast_inputs(case.inputs, narrow))
    outputs = [o.to(torch.float32 if wide else torch.float16) for o in low]
    assert not calibration.policy.rule(outputs, case.expected, names_of(reference), OWN).passed


def test_one_element_off_by_its_own_scale_is_refused(judged: tuple[Reference, Calibration]) -> None:
    reference, calibration = judged
    for distribution in calibration.distributions:
        case = make_case(reference, distribution)
        outputs = [e.clone() for e in case.expected]
        flat = outputs[0].view(-1)
        flat[flat.numel() // 3] += flat.abs().max() + outputs[0].std()
        assert not calibration.policy.rule(outputs, case.expected, names_of(reference), distribution).passed
