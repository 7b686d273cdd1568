"""Naive Triton kernels of the cases of the other dialects, called in Triton's interpreter as they are launched.

Triton compiles a sample of them for Hopper as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
import torch
from codegen.test_naive_kernels import FLOORS, MAKERS, Case, error, poison
from support.triton_interpreter import PlanRun, installed, resolved_for, run_plans
from torch import Tensor

from engine.codegen.triton_naive import triton_ports
from engine.domain.model import Contract, Dialect, Role
from engine.problem.graph_ir import TracedShape, Unsupported
from engine.sandbox.confinement import Confinement
from engine.toolchain.build import Artefact, BuildRequest, build
from engine.toolchain.triton.resolution import encode_jobs

pytestmark = pytest.mark.filterwarnings("ignore")

SHIPPED = tuple(name for name in MAKERS if name.startswith("shipped") and name != "shipped conv2d_relu_maxpool")
"""Without the slowest, whose parts are among the others."""
SAMPLE = (*SHIPPED, "rounding", "integers", "cumprod", "constant", "lookups", "LogSoftmax-4d-27", "MaxPool2d-4d-34")
WIDE = {"BLOCK": 2048}
"""Fewer programs, which the interpreter runs one after the other."""


def made(name: str) -> Case:
    with torch.random.fork_rng():
        torch.manual_seed(list(MAKERS).index(name))
        return MAKERS[name]()


def ported(case: Case) -> str | Unsupported:
    """The naive kernel of one case alone."""
    found = triton_ports([TracedShape(case.signature, case.graph)])
    return found if isinstance(found, Unsupported) else found[0].text


@pytest.fixture(scope="module")
def called() -> Mapping[str, tuple[Case, dict[str, Tensor] | str]]:
    cases = {name: made(name) for name in SAMPLE}
    runs: dict[str, PlanRun] = {}
    for name, case in cases.items():
        text = ported(case)
        assert isinstance(text, str), (name, text)
        given = [o.name for o in case.signature.operands if o.role is not Role.OUTPUT]
        outputs = [o.name for o in case.signature.operands if o.role is Role.OUTPUT]
        operands = dict(zip(given, (t.clone() for t in case.arguments), strict=True))
        operands |= dict(zip(outputs, map(poison, case.eager), strict=True))
        runs[name] = PlanRun(text, resolved_for(text, case.signature, WIDE), operands)
    results = run_plans(runs)
    return {name: (case, results[name]) for name, case in cases.items()}


@pytest.mark.slow
@installed
@pytest.mark.parametrize("name", SAMPLE)
def test_naive_triton_kernel_is_as_accurate_as_eager(
    called: Mapping[str, tuple[Case, dict[str, Tensor] | str]], name: str
) -> None:
    case, results = called[name]
    assert not isinstance(results, str), results
    outputs = case.signature.with_roles(Role.OUTPUT)
    for operand, eager, exact in zip(outputs, case.eager, case.exact, strict=True):
        found = results[operand.name]
        if not eager.is_floating_point():
            assert torch.equal(found, eager)
        elif not torch.equal(found, eager):
            assert torch.equal(found.isfinite(), eager.isfinite())
            assert error(found, exact.double()) <= max(4 * error(eager, exact.double()), FLOORS[eager.dtype])
    for operand, given in zip(case.signature.operands, case.arguments, strict=False):
        assert torch.equal(results[operand.name], given), "changed its inputs"


@pytest.mark.slow
@installed
def test_naive_triton_kernel_compiles_for_hopper(bubblewrap: Confinement, cache_root: object) -> None:
    case = made("shipped layernorm")
    text = ported(case)
    assert isinstance(text, str)
    resolved = resolved_for(text, case.signature)
    request = BuildRequest(text, Dialect.TRITON, Contract.PLAN, encode_jobs(resolved.jobs), {"BLOCK": 256}, "sm_90a", "k.py")
    outcome = asyncio.run(build(request, bubblewrap))
    assert isinstance(outcome, Artefact), outcome
    assert {used.function for used in outcome.resources} == {job.function for job in resolved.jobs}


@pytest.mark.slow
def test_other_shapes_are_rejected_when_it_is_compiled() -> None:
    case = made("shipped softmax")
    text = ported(case)
    assert isinstance(text, str)
    assert "tl.static_assert(X_DIM0 == 5 and X_DIM1 == 77" in text


@pytest.mark.slow
def test_what_triton_lacks_is_refused_by_name() -> None:
    found = ported(made("functions"))
    assert isinstance(found, Unsupported)
    assert "atan" in found.line
