"""Indices where ties decide: an index is right when the value that it selects is, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.codegen.naive import naive
from engine.domain import work as w
from engine.domain.model import Contract, Dialect, Workload
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.bench import Assignment, KernelSpec, TrialBench
from engine.trial.judge.inputs.cases import make_case, output_names
from engine.trial.judge.inputs.perturbations import OWN
from engine.trial.judge.tolerance.calibration import calibrate
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase

MODEL = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return {}
def get_inputs():
    return [{}]
def get_init_inputs():
    return []
"""
TIED = "torch.randint(0, 9, (8, 40)).float() / 4"


def last_of_equals(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest elements, and of equal ones the last."""
    flipped = x.flip(1)
    order = flipped.argsort(dim=1, descending=True, stable=True)[:, :5]
    return flipped.gather(1, order), x.shape[1] - 1 - order


@dataclass(frozen=True)
class Indices:
    """A reference with index outputs, other right answers, and wrong ones."""

    reference: str
    right: Callable[[Tensor], tuple[Tensor, ...]]
    wrong: tuple[Callable[[Tensor], tuple[Tensor, ...]], ...]
    inputs: str = TIED


def with_indices(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """The five largest, with other indices."""

    def found(x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = x.topk(5, 1)
        return values, change(indices)

    return found


CASES = {
    "topk": Indices(
        "x.topk(5, 1)",
        last_of_equals,
        (
            with_indices(lambda i: i + 1),
            with_indices(lambda i: i[:, :1].expand(-1, 5)),
            with_indices(lambda i: i - 40),
            with_indices(lambda i: i + 40),
            with_indices(lambda i: i.roll(1, 0)),
            with_indices(lambda i: i.flip(1)),
        ),
    ),
    "topk of integers": Indices(
        "x.topk(5, 1)", last_of_equals, (with_indices(lambda i: i + 1),), "torch.randint(0, 9, (8, 40))"
    ),
    "max of integers": Indices(
        "x.max(1)",
        lambda x: (x.amax(1), 39 - x.flip(1).argmax(1)),
        (lambda x: (x.amax(1), x.argmin(1)),),
        "torch.randint(0, 9, (8, 40))",
    ),
    "sort": Indices(
        "torch.sort(x, 1)",
        lambda x: (x.sort(1).values, 39 - x.flip(1).argsort(dim=1, stable=True)),
        (lambda x: (x.sort(1).values, x.argsort(1).flip(1)), lambda x: (x.sort(1).values, x.argsort(1)[:, :1].expand(-1, 40))),
    ),
    "argsort": Indices(
        "torch.argsort(x, 1, descending=True)",
        lambda x: (39 - x.flip(1).argsort(dim=1, descending=True, stable=True),),
        (lambda x: (x.argsort(1),), lambda x: (torch.zeros(8, 40, dtype=torch.int64),)),
    ),
    "the first few of a sort": Indices(
        "torch.argsort(x, 1, descending=True)[:, :4]",
        lambda x: (39 - x.flip(1).argsort(dim=1, descending=True, stable=True)[:, :4],),
        (lambda x: (x.argsort(1)[:, :4],),),
    ),
    "argmax": Indices(
        "x.argmax(1)", lambda x: (39 - x.flip(1).argmax(1),), (lambda x: (x.argmin(1),), lambda x: (x.argmax(1) + 1,))
    ),
    "argmin of everything": Indices(
        "x.argmin()", lambda x: (319 - x.reshape(-1).flip(0).argmin(),), (lambda x: (x.argmax(),),)
    ),
    "maximum with its index": Indices(
        "torch.max(x, 1, keepdim=True)",
        lambda x: (x.amax(1, True), 39 - x.flip(1).argmax(1, True)),
        (lambda x: (x.amax(1, True), x.argmax(1, True).roll(1, 0)),),
    ),
    "index as int32": Indices(
        "x.argmax(1).to(torch.int32)",
        lambda x: ((39 - x.flip(1).argmax(1)).int(),),
        (lambda x: (x.argmin(1).int(),),),
    ),
    "median": Indices(
        "x.median(1)",
        lambda x: (x.median(1).values, 39 - (x == x.median(1, True).values).int().flip(1).argmax(1)),
        (lambda x: (x.median(1).values, x.argmax(1)),),
    ),
    "chosen in any order": Indices(
        "x.topk(5, 1, sorted=False)",
        lambda x: x.topk(5, 1),
        (
            lambda x: (x.topk(5, 1).values, x.topk(5, 1).indices.flip(1)),
            lambda x: x.topk(5, 1, largest=False),
            lambda x: (x.topk(5, 1).values + 1, x.topk(5, 1).indices),
        ),
        "torch.randn(8, 40)",
    ),
    "weights of those chosen in any order": Indices(
        "(lambda t: (torch.softmax(t.values, 1), t.indices.int()))(x.topk(5, 1, sorted=False))",
        lambda x: (torch.softmax(x.topk(5, 1).values, 1).flip(1), x.topk(5, 1).indices.int().flip(1)),
        (
            lambda x: (torch.softmax(x.topk(5, 1).values, 1).flip(1), x.topk(5, 1).indices.int()),
            lambda x: (x.topk(5, 1).values, x.topk(5, 1).indices.int()),
        ),
        "torch.randn(8, 40)",
    ),
    "chosen in any order among equals": Indices(
        "x.topk(5, 1, sorted=False)",
        last_of_equals,
        (
            lambda x: (last_of_equals(x)[0], last_of_equals(x)[1].flip(1)),
            lambda x: (x.topk(5, 1).values, x.topk(5, 1).indices[:, :1].expand(-1, 5)),
            lambda x: (x.topk(5, 1).values, x.topk(5, 1).indices + 40),
        ),
    ),
    "values in any order": Indices(
        "x.topk(5, 1, sorted=False).values",
        lambda x: (x.topk(5, 1).values.flip(1),),
        (lambda x: (x.topk(6, 1).values[:, 1:],), lambda x: (x.topk(5, 1).values[:, :1].expand(-1, 5),)),
        "torch.randn(8, 40)",
    ),
    "scores that are computed": Indices(
        "torch.softmax(x @ x.t(), 1).topk(3, 1).indices",
        lambda x: ((x @ x.t()).topk(3, 1).indices,),
        (lambda x: ((x @ x.t()).topk(3, 1, largest=False).indices,),),
        "torch.rand(64, 40)",
    ),
}


def reference_of(folder: Path, case: Indices) -> Reference:
    file = folder / "reference.py"
    file.write_text(MODEL.format(case.reference, case.inputs))
    return Reference(catalog.find(str(file)), Workload("full", {}))


@pytest.mark.parametrize("name", CASES)
def test_an_index_is_right_when_its_value_is(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    reference = reference_of(tmp_path, case)
    calibration = calibrate(reference, "class")

    def passes(kernel: Callable[[Tensor], tuple[Tensor, ...]]) -> bool:
        on = make_case(reference, OWN)
        outputs = list(kernel(*on.inputs))  # type: ignore[arg-type]
        check = calibration.policy.rule(outputs, on.expected, output_names(reference), OWN, ReferenceOnCase(reference, on))
        return check.passed

    assert all(passes(case.right) for _ in range(3))
    assert not any(passes(wrong) for wrong in case.wrong)


def test_a_stable_sort_defines_its_indices(tmp_path: Path) -> None:
    case = Indices("torch.sort(x, dim=1, stable=True)", last_of_equals, ())
    reference = reference_of(tmp_path, case)
    on = make_case(reference, OWN)
    (x,) = on.inputs
    assert isinstance(x, Tensor)
    other = 39 - x.flip(1).argsort(dim=1, stable=True)
    assert ReferenceOnCase(reference, on).equivalent([on.expected[0], other])[1] is None


def test_a_largest_integer_is_no_index(tmp_path: Path) -> None:
    """Of a vector, the place of another element with the value at the place would be right."""
    case = Indices("x + x.max()", lambda x: (x + x.max(),), (lambda x: (x + 1 + x.max(),),), "torch.randint(0, 9, (8, 40))")
    reference = reference_of(tmp_path, case)
    calibrate(reference, "class")
    on = make_case(reference, OWN)
    assert ReferenceOnCase(reference, on).equivalent(on.expected) == [None]


CONVERTED = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x, mask):
        best = torch.where(mask, x, float("-inf")).argmax(1)
        return (torch.where(mask.any(1), best, -1) if MARKED else best % 7), x.argmax(1)
def get_inputs():
    mask = torch.rand(64, 300) > 0.6
    mask[3] = False
    return [torch.rand(64, 300), mask]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("marked", [True, False])
def test_a_choice_among_equals_opens_only_what_follows_from_it(tmp_path: Path, marked: bool) -> None:
    """A row without an element has equal scores; its index is replaced, or reduced to another number."""
    file = tmp_path / "reference.py"
    file.write_text(CONVERTED.replace("MARKED", str(marked)))
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    calibration = calibrate(reference, "class")

    def passes(kernel: Callable[[Tensor, Tensor], Tensor], distribution: str, by: int = 0) -> bool:
        case = make_case(reference, distribution)
        x, mask = case.inputs
        assert isinstance(x, Tensor)
        assert isinstance(mask, Tensor)
        best = kernel(x, mask)
        outputs = [torch.where(mask.any(1), best, -1) if marked else best % 7, x.argmax(1) + by]
        asked = ReferenceOnCase(reference, case)
        return calibration.policy.rule(outputs, case.expected, output_names(reference), distribution, asked).passed

    def last(x: Tensor, mask: Tensor) -> Tensor:
        return 299 - x.masked_fill(~mask, float("-inf")).flip(1).argmax(1)

    def from_zero(x: Tensor, mask: Tensor) -> Tensor:
        return (x * mask).argmax(1)

    assert all(passes(last, name) for name in calibration.distributions if name != OWN)
    assert not any(passes(last, name, 1) for name in ("x64", "negated"))
    assert passes(from_zero, "negated") is not marked


def test_a_reference_that_computes_with_an_index_is_not_judged_on_ties(tmp_path: Path) -> None:
    reference = reference_of(tmp_path, Indices("x.gather(1, x.flip(1).argmax(1, True))", last_of_equals, ()))
    assert not {"ties", "zeros"} & set(calibrate(reference, "class").distributions)


@pytest.mark.slow
def test_the_naive_port_is_verified_every_time(tmp_path: Path) -> None:
    reference_of(tmp_path, Indices("x.topk(5, 1)", last_of_equals, ()))
    problem = catalog.find(str(tmp_path / "reference.py"))

    async def judge() -> list[object]:
        bench = TrialBench(Assignment(problem, problem.workloads[0], "cpu"), lambda _: "")
        try:
            (traced,) = await bench.traced()
            code = naive(traced.graph, traced.signature, Dialect.CPP, Contract.HOST)  # type: ignore[arg-type]
            assert isinstance(code, str), code
            spec = KernelSpec("naive.cpp", code, Dialect.CPP, Contract.HOST, {})
            return [await bench.verify_kernel(spec, lambda _: None) for _ in range(5)]
        finally:
            await bench.close()

    for found in asyncio.run(judge()):
        assert isinstance(found, w.Verified | w.Suspected), found
