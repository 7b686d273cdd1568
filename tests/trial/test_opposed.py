"""Inputs shifted against each other: what they leave as it is, and which kernels they find."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge.inputs.cases import Case, make_case
from engine.trial.judge.inputs.perturbations import OPPOSED, OWN, perturb
from engine.trial.judge.timing.call_order import PerturbedCheck, first_checks
from engine.trial.judge.tolerance.calibration import calibrate
from engine.trial.judge.tolerance.candidate_distributions import candidates
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase

TINY = torch.finfo(torch.float32).tiny
ATTENTION = """import torch


class Model(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def get_inputs():
    return [torch.randn(2, 4, count, 32).to(torch.DTYPE) for count in (QUERIES, 64, 64)]


def get_init_inputs():
    return []
"""


SOFTMAX = """import torch


class Model(torch.nn.Module):
    def forward(self, x, *more):
        return x.softmax(-1)


def get_inputs():
    return [INPUTS]


def get_init_inputs():
    return []
"""


def reference_of(folder: Path, text: str) -> Reference:
    (folder / "reference.py").write_text(text)
    problem = catalog.find(str(folder))
    return Reference(problem, problem.workloads[0])


def by_maximum(largest: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """An attention in fp32 whose exponentials are relative to ``largest`` of the scores."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q.float() @ k.float().mT / math.sqrt(q.shape[-1])
        powers = (scores - largest(scores)).exp()
        return (powers @ v.float() / powers.sum(-1, keepdim=True)).to(q.dtype)

    return attention


KERNELS = {
    "maximum": (by_maximum(lambda scores: scores.amax(-1, keepdim=True)), True),
    "from -1e30": (by_maximum(lambda scores: scores.amax(-1, keepdim=True).clamp(min=-1e30)), True),
    "from 0": (by_maximum(lambda scores: scores.amax(-1, keepdim=True).clamp(min=0)), False),
    "from the least positive": (by_maximum(lambda scores: scores.amax(-1, keepdim=True).clamp(min=TINY)), False),
}


@pytest.mark.slow
@pytest.mark.parametrize("queries", [1, 64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_maximum_of_scores_that_starts_at_zero_fails(tmp_path: Path, dtype: str, queries: int) -> None:
    reference = reference_of(tmp_path, ATTENTION.replace("DTYPE", dtype).replace("QUERIES", str(queries)))
    calibration = calibrate(reference, "class")
    assert OPPOSED in calibration.distributions
    cases = [make_case(reference, distribution) for distribution in (OWN, *[OPPOSED] * _DRAWS)]

    def passes(kernel: Callable[..., torch.Tensor], case: Case) -> bool:
        on = OWN if case.own else OPPOSED
        asked = ReferenceOnCase(reference, case)
        return calibration.policy.rule([kernel(*case.inputs)], case.expected, ["out"], on, asked).passed

    for kernel, right in KERNELS.values():
        assert passes(kernel, cases[0])
        assert {passes(kernel, case) for case in cases[1:]} == {right}


_DRAWS = 8
"""In every one of them queries and keys are shifted against each other."""


@given(count=st.integers(2, 5), seed=st.integers(0, 2**62))
def test_some_inputs_move_up_and_others_down(count: int, seed: int) -> None:
    own = tuple(torch.rand(3, 7) for _ in range(count))
    moved = perturb((*own, torch.arange(4), 0.5), OPPOSED, seed)
    again = perturb((*own, torch.arange(4), 0.5), OPPOSED, seed)
    assert torch.equal(moved[count], torch.arange(4))  # type: ignore[arg-type]
    assert moved[count + 1] == 0.5
    ways = set()
    for before, after, other in zip(own, moved, again, strict=False):
        assert isinstance(after, torch.Tensor)
        assert torch.equal(after, other)  # type: ignore[arg-type]
        way = (after - before).round().unique()
        assert way.numel() == 1
        ways.add(float(way))
    assert ways == {32.0, -32.0}


def test_half_precision_moves_by_less() -> None:
    """Between 16 and 32 a bfloat16 keeps a few bits of a number below one, and a product of 128 such is infinite in fp16."""
    own = tuple(torch.rand(64).to(dtype) for dtype in (torch.float16, torch.bfloat16))
    ways = {float((after - before).mean().round()) for before, after in zip(own, perturb(own, OPPOSED), strict=True)}  # type: ignore[operator]
    assert ways == {8.0, -8.0}


@pytest.mark.parametrize("inputs", ["torch.randn(4, 8)", "torch.randn(4, 8), torch.arange(8)"])
def test_a_single_input_has_no_other_to_oppose(tmp_path: Path, inputs: str) -> None:
    assert OPPOSED not in candidates(reference_of(tmp_path, SOFTMAX.replace("INPUTS", inputs)))


def test_opposed_inputs_are_tried_twice() -> None:
    """Of four inputs or more, two that are multiplied may move alike in one of them."""
    checks = first_checks(Random(1), [OWN, OPPOSED, "negated"])
    found = [one for one in checks if one.distribution == OPPOSED]
    assert len(found) >= 2
    assert PerturbedCheck(OPPOSED, partly=False, optional=True) in found
