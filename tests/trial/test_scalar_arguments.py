"""Floating-point scalars among ``forward``'s arguments vary for modules where the reference allows it."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.domain import work as w
from engine.domain.model import Contract, Dialect, FailureKind, Workload
from engine.problem import catalog
from engine.problem.arguments.scalar_arguments import Change, scalars, vary_scalars
from engine.problem.reference import Reference
from engine.trial.bench import Assignment, KernelSpec, TrialBench

REFERENCE = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, s, more):
        return x * s + more["bias"]


def get_inputs():
    return [torch.rand(64, 48), 3.14, {"bias": 0.5, "axis": 1}]


def get_init_inputs():
    return []
"""
HONEST = REFERENCE.replace("class Model(", "class ModelNew(")
BAKED = HONEST.replace("x * s", "x * 3.14")

plain = st.one_of(st.integers(), st.booleans(), st.none(), st.text(max_size=3))
numbers = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False, min_value=-1e300, max_value=1e300)
values = st.recursive(
    st.one_of(plain, numbers),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


def leaves(value: object) -> list[object]:
    match value:
        case list() | tuple():
            return [leaf for inner in value for leaf in leaves(inner)]
        case dict():
            return [leaf for inner in value.values() for leaf in leaves(inner)]
        case _:
            return [value]


@given(arguments=st.lists(values, max_size=4).map(tuple), seed=st.integers(0, 2**62))
def test_only_floats_vary_and_keep_sign_and_magnitude(arguments: tuple[object, ...], seed: int) -> None:
    varied = vary_scalars(arguments, seed, Change.ZEROS_KEPT)
    assert varied == vary_scalars(arguments, seed, Change.ZEROS_KEPT)
    assert list(scalars(arguments)) == [leaf for leaf in leaves(list(arguments)) if isinstance(leaf, float)]
    assert vary_scalars(arguments, seed, Change.NONE) == arguments
    for before, after in zip(leaves(list(arguments)), leaves(list(varied)), strict=True):
        if isinstance(before, float):
            assert isinstance(after, float)
            assert abs(after - before) <= 0.2500001 * abs(before)
        else:
            assert before is after


def test_tensors_and_special_values_stay() -> None:
    tensor = torch.ones(3)
    same, infinite, undefined = vary_scalars((tensor, math.inf, math.nan), 1, Change.ALL)
    assert same is tensor
    assert infinite == math.inf
    assert isinstance(undefined, float)
    assert math.isnan(undefined)


@pytest.mark.parametrize(
    ("forward", "inputs", "varies"),
    [
        ("return x * s", "3.0", True),
        ("return torch.nn.functional.interpolate(x[None, None], scale_factor=s)[0, 0]", "2.0", False),  # another shape
        ("return x.pow(s - 2.0) if s == 2.0 else x.neg().sqrt()", "2.0", False),  # another domain
        ("return x * {2.0: 1.0}[s]", "2.0", False),  # raises
        ("return x * s", "3", False),
        ("return x + s * x.neg()", "0.0", True),
        ("return x / s if s else x", "0.0", True),
        ("return x + s ** 0.5", "0.0", True),  # takes no negative number
        ("return torch.nn.functional.dropout(x, s)", "0.0", False),  # draws random numbers
        ("return x * {0.0: 1.0}[s]", "0.0", False),
    ],
)
def test_scalars_vary_where_the_reference_takes_others(tmp_path: Path, forward: str, inputs: str, varies: bool) -> None:
    file = tmp_path / "theirs.py"
    code = REFERENCE.replace("forward(self, x, s, more)", "forward(self, x, s)").replace('return x * s + more["bias"]', forward)
    file.write_text(code.replace('3.14, {"bias": 0.5, "axis": 1}', inputs))
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    given = reference.inputs(1)
    assert (reference.varied_scalars(given, 5)[1] != given[1]) == varies


def test_zeros_vary_with_the_signs_that_the_reference_takes() -> None:
    found = {change: [vary_scalars((0.0,), seed, change)[0] for seed in range(40)] for change in Change}
    assert found[Change.NONE] == found[Change.ZEROS_KEPT] == [0.0] * 40
    for change, least in ((Change.ALL, -0.5), (Change.ZEROS_POSITIVE, 0.0)):
        numbers = [number for number in found[change] if isinstance(number, float)]
        assert least <= min(numbers) < least + 0.1
        assert 0.4 < max(numbers) <= 0.5


@pytest.mark.slow
def test_a_module_that_holds_the_usual_value_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "theirs.py"
    file.write_text(REFERENCE)
    problem = catalog.find(str(file))

    async def judge() -> list[object]:
        bench = TrialBench(Assignment(problem, problem.workloads[0], "cpu"), lambda _: "")
        specs = [KernelSpec(f"{i}.py", code, Dialect.PYTHON, Contract.MODULE, {}) for i, code in enumerate((HONEST, BAKED))]
        try:
            return [await bench.verify_kernel(spec, lambda _: None) for spec in specs]
        finally:
            await bench.close()

    honest, baked = asyncio.run(judge())
    assert isinstance(honest, w.Verified), honest
    assert isinstance(baked, w.Failed)
    assert baked.failure.kind is FailureKind.MISMATCH
