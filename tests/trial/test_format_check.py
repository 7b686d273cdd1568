"""The verdict of a problem's own format, beside Espalier's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from problem import format_files as files

from engine.domain.preparation import ClassErrors
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge import correctness_check
from engine.trial.judge.calibration import calibrate
from engine.trial.judge.correctness_check import try_trivial_models
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.format_check import format_verdict

STRICT, LOOSE = ClassErrors(1e-6, 1e-6), ClassErrors(0.5, 0.5)
PROPERTY = files.REFERENCE_PY.replace(
    "check_implementation = make_match_reference(ref_kernel, rtol=1e-3, atol=1e-4)",
    "def check_implementation(data, output):\n"
    "    good = bool((output.abs() <= 1).all())\n"
    "    return good, '' if good else 'an element is larger than 1'",
)


def opened(path: Path, workload: str = "small") -> tuple[Reference, torch.nn.Module, tuple[object, ...], torch.Tensor]:
    problem = catalog.find(str(path))
    reference = Reference(problem, catalog.workload_for(problem, workload), "cpu")
    model, inputs = reference.model(1), reference.inputs(1)
    return reference, model, inputs, reference.call(model, inputs)[0]


@pytest.mark.parametrize(("wrong", "passed"), [(0.0, True), (0.005, True), (0.02, False)])
def test_a_share_of_the_elements_must_match(tmp_path: Path, wrong: float, passed: bool) -> None:
    reference, model, inputs, right = opened(files.write_sol(tmp_path, None, files.workload(125)))
    output = right.clone().reshape(-1)
    output[: int(wrong * output.numel())] += 1.0
    found = format_verdict(reference, model, inputs, [output.reshape(right.shape)], STRICT)
    assert found is not None
    assert (found.passed, found.stricter) == (passed, "espalier")
    looser = format_verdict(reference, model, inputs, [right], LOOSE)
    assert looser is not None
    assert looser.stricter == "format"


def test_a_task_s_own_check_stands_beside_ours(tmp_path: Path) -> None:
    reference, model, inputs, right = opened(files.write_kernelbot(tmp_path))
    found = format_verdict(reference, model, inputs, [right], STRICT)
    assert found is not None
    assert (found.passed, found.tolerance) == (True, "check_implementation, atol 0.0001, rtol 0.001")
    wrong = format_verdict(reference, model, inputs, [right + 1], STRICT)
    assert wrong is not None
    assert (wrong.passed, wrong.detail) == (False, "mismatch")


def test_where_several_answers_are_right_the_tasks_check_decides_too(tmp_path: Path) -> None:
    reference, model, inputs, right = opened(files.write_kernelbot(tmp_path, reference=PROPERTY))
    found = format_verdict(reference, model, inputs, [right * 0.5], STRICT)
    assert found is not None
    assert (found.passed, found.unique) == (True, False)
    with pytest.raises(TrialFailed, match="kernelbot's check_implementation refuses the output: an element is larger than 1"):
        format_verdict(reference, model, inputs, [right + 9], STRICT)


SIGNS = (
    files.REFERENCE_PY[: files.REFERENCE_PY.index("def generate_input")]
    + """
def generate_input(n: int, seed: int, kind: str = "flat") -> input_t:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    x = torch.rand(n, n, device="cuda", generator=gen) + 0.5
    return x, torch.empty_like(x)


def ref_kernel(data: input_t) -> output_t:
    x, output = data
    # Another root in float64, as a factorisation whose signs depend on rounding.
    output[...] = x.sqrt() if x.dtype == torch.float32 else -x.sqrt()
    return output


def check_implementation(data, output):
    assert output.any(), "nothing was computed"
    good = torch.allclose(output * output, data[0], rtol=1e-4)
    return good, "" if good else "not a root"
"""
)


def test_a_trivial_model_must_pass_the_tasks_check_too_where_several_answers_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits of a comparison with one of the answers are wide there: alone it lets models pass that compute nothing."""
    reference, *_ = opened(files.write_kernelbot(tmp_path, reference=SIGNS))
    calibration = calibrate(reference, "class")
    assert not any(one.passed for one in try_trivial_models(reference, calibration))
    monkeypatch.setattr(correctness_check, "refuses", lambda *_: False)
    assert any(one.passed for one in try_trivial_models(reference, calibration))
