"""Perturbed inputs: how they change tensors, and that shortcuts fail on them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from engine.domain.model import Workload
from engine.ideas.prompts.context import PERTURBED
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge.calibration import Calibration, calibrate
from engine.trial.judge.cases import make_case, output_names
from engine.trial.judge.perturbations import OWN, PERTURBATIONS, perturb, swap_few, with_swaps


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


@pytest.mark.parametrize(
    ("problem", "settings", "shortcut"),
    [
        ("softmax", {"batch_size": 16, "dim": 1000}, without_maximum),
        ("softmax", {"batch_size": 16, "dim": 1000}, lambda x: without_maximum(x.double()).float()),
        ("softmax", {"batch_size": 16, "dim": 1000}, unless_large),
        ("layernorm", {"batch_size": 2, "features": 8, "dim1": 16, "dim2": 16}, of_squares),
    ],
)
def test_shortcuts_fail_on_perturbed_inputs_and_eager_does_not(
    problem: str, settings: dict[str, int], shortcut: Callable[..., torch.Tensor]
) -> None:
    reference = Reference(catalog.find(problem), Workload("tiny", settings))
    calibration = calibrate(reference, "class")

    def passes(distribution: str, call: Callable[..., Sequence[torch.Tensor]]) -> bool:
        case = make_case(reference, distribution)
        outputs = call(case)
        return calibration.policy.rule(outputs, case.expected, output_names(reference), distribution).passed

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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_swaps_move_a_few_elements_and_are_the_same_in_place_and_in_a_copy(dtype: torch.dtype) -> None:
    given = (torch.randn(300, 40).to(dtype).t(), torch.arange(5), 0.5, [torch.zeros(0), torch.randn(())])
    moved = with_swaps(given, (3, 4))
    x = given[0].contiguous()
    for seed in (3, 4):
        swap_few(x, random.Random(seed))
    assert torch.equal(x.view(torch.uint8), moved[0].view(torch.uint8))
    assert 1 <= int((moved[0].float() != given[0].float()).sum()) <= 12
    assert torch.equal(moved[0].float().flatten().sort()[0], given[0].float().flatten().sort()[0])
    assert torch.equal(moved[1], given[1])
    assert moved[2] == given[2]
    assert with_swaps(given, ()) is given


def test_prompts_have_words_for_every_perturbation() -> None:
    assert set(PERTURBED) == set(PERTURBATIONS)


@pytest.mark.parametrize("steps", [127, 128, 255])
def test_no_quantisation_of_tied_inputs_has_to_round_halves(steps: int) -> None:
    x = torch.randn(640, 24)
    (tied,) = perturb((x,), "ties")
    assert isinstance(tied, torch.Tensor)
    assert len(tied.unique()) <= 7
    for largest in (tied.abs().amax(), tied.abs().amax(1, keepdim=True)):
        scaled = steps * tied / largest
        assert float((scaled.frac().abs().nan_to_num() - 0.5).abs().min()) > 0.01
