"""The verdict of a problem's own format, beside Espalier's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from problem import format_files as files

from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge import devices
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.test_bed import TestBed as Bed
from engine.trial.judge.tolerance import calibration, correctness_check, perturbed_calibration
from engine.trial.judge.tolerance.calibration import calibrate
from engine.trial.judge.tolerance.correctness_check import try_trivial_models
from engine.trial.judge.tolerance.format_check import format_verdict

STRICT, LOOSE = RelativeErrors(1e-6, 1e-6), RelativeErrors(0.5, 0.5)
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
    calibrated = calibrate(reference, "class")
    assert not any(one.passed for one in try_trivial_models(reference, calibrated))
    monkeypatch.setattr(correctness_check, "refuses", lambda *_: False)
    assert any(one.passed for one in try_trivial_models(reference, calibrated))


QR = (
    files.REFERENCE_PY[: files.REFERENCE_PY.index("def generate_input")]
    + """
def generate_input(n: int, seed: int, kind: str = "flat") -> input_t:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    return torch.randn(4, n, n, device="cuda", generator=gen)


def ref_kernel(data: input_t) -> output_t:
    return torch.geqrf(data)


def check_implementation(data, output):
    a, (h, tau) = data, output
    if not all(bool(t.isfinite().all()) for t in (h, tau)):
        return False, "not finite"
    q = torch.linalg.householder_product(h, tau).double()
    apart = (q @ torch.triu(h).double() - a.double()).abs().amax()
    turned = (q.mT @ q - torch.eye(q.shape[-1], device=a.device, dtype=torch.float64)).abs().amax()
    good = bool(apart <= 1e-4 * a.abs().amax()) and bool(turned <= 1e-4)
    return good, "" if good else "Q R is not A"
"""
)


LARGE_SIGNS = SIGNS.replace("x.dtype == torch.float32", "x.dtype == torch.float32 or x.amax() < 2")


@pytest.mark.parametrize("code", [SIGNS, LARGE_SIGNS], ids=["on its own inputs", "on larger ones"])
def test_several_right_answers_are_sought_until_they_are_found(
    tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference of linalg/qr_v2 was called and checked again on every further kind of inputs."""
    reference, *_ = opened(files.write_kernelbot(tmp_path, reference=code))
    found: list[bool] = []
    seek = calibration.several_right
    for module in (calibration, perturbed_calibration):
        monkeypatch.setattr(module, "several_right", lambda *given: found.append(seek(*given)) or found[-1])
    assert calibrate(reference, "class").several
    assert found.index(True) == len(found) - 1


def test_two_calls_are_compared_that_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case of linalg/eigh_py was computed once to seek further right answers, and twice again to compare two calls."""
    reference, *_ = opened(files.write_kernelbot(tmp_path, reference=SIGNS))
    called: list[tuple[object, ...]] = []
    call = reference.call
    monkeypatch.setattr(reference, "call", lambda *given, **named: called.append(given) or call(*given, **named))
    calibrate(reference, "class")
    most = max(sum(other[1] is given[1] for other in called) for given in called)
    assert most == 4, "one call each in fp32 and TF32, and two that are compared"


def turned(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The compact factors of ``a`` with another sign in one reflection: as right as LAPACK's."""
    h, _ = torch.geqrf(a)
    x = a[:, :, 0].double()
    beta = -torch.sign(torch.diagonal(h, dim1=1, dim2=2)[:, 0].double()) * x.norm(dim=1)
    v = x.clone()
    v[:, 0] -= beta
    v = v / v[:, :1]
    scale = 2 / (v * v).sum(1)
    rest = a.double() - scale[:, None, None] * v[:, :, None] * (v[:, None, :] @ a.double())
    inner, others = torch.geqrf(rest[:, 1:, 1:].float())
    out = rest.float()
    out[:, 1:, 1:], out[:, 1:, 0] = inner, v[:, 1:].float()
    return out.contiguous(), torch.cat([scale[:, None].float(), others], 1)


@pytest.fixture
def factored(tmp_path: Path) -> Iterator[Bed]:
    task = files.TASK.replace('"n": 8, "kind": "flat", "seed": 1', '"n": 12, "kind": "flat", "seed": 1')
    reference, *_ = opened(files.write_kernelbot(tmp_path, task, QR))
    bed = Bed(reference, calibrate(reference, "class"), devices.describe("cpu"), slots=1)
    bed.turn_to("kernel")
    yield bed
    bed.close()


def test_a_factorisation_is_found_to_have_several_right_answers(factored: Bed) -> None:
    """Also where float64 agrees on the problem's own inputs: it differs there now and then, where a pivot is next to zero."""
    assert factored.calibration.several
    assert factored.calibration.float64_tells
    assert any("check_implementation" in note for note in factored.calibration.notes)
    assert not any(one.passed for one in try_trivial_models(factored.reference, factored.calibration))


def test_an_answer_that_differs_from_float64_s_is_right_if_the_checker_accepts_it(factored: Bed) -> None:
    factored.refill(0)
    (a,) = factored._given(0)
    for outputs, words in ((torch.geqrf(a), ""), (turned(a), "the format's checker accepts it: its error is unknown")):
        found = factored.check(0, taken=list(outputs))
        assert found.ruling.passed, found.ruling.errors.flaw
        assert words in found.ruling.caveat
    stale = factored.reference.call(factored.draw_weights(), (torch.randn_like(a),))
    found = factored.check(0, taken=list(stale))
    assert not found.ruling.passed
    assert "check_implementation refuses the output: Q R is not A" in found.ruling.errors.flaw


def test_an_answer_that_is_unique_is_compared_with_float64_only(tmp_path: Path) -> None:
    reference, *_ = opened(files.write_kernelbot(tmp_path, reference=PROPERTY))
    assert not calibrate(reference, "class").several


def test_where_float64_tells_nothing_the_checker_is_asked_on_every_call(tmp_path: Path) -> None:
    reference, *_ = opened(files.write_kernelbot(tmp_path, reference=SIGNS))
    calibrated = calibrate(reference, "class")
    assert calibrated.several == "own"
    assert not calibrated.float64_tells
    assert calibrated.distributions == ("own",)
    bed = Bed(reference, calibrated, devices.describe("cpu"), slots=1)
    bed.turn_to("kernel")
    bed.refill(0)
    right = bed.reference.call(bed.draw_weights(), bed._given(0))
    assert bed.check(0, taken=right).ruling.passed
    assert bed.check(0, taken=[-right[0]]).ruling.passed
    for wrong in (right[0] * 0.9, right[0].flip(0)):
        assert not bed.check(0, taken=[wrong]).ruling.passed
    bed.close()


def test_a_comparison_with_eager_stays_one(tmp_path: Path) -> None:
    """The policies of other projects are theirs."""
    reference, *_ = opened(files.write_kernelbot(tmp_path, reference=SIGNS))
    assert not calibrate(reference, "crfm").several
