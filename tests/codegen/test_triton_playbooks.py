"""The Triton kernels of the shipped playbooks, called in Triton's interpreter on small shapes, and resolved for others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from codegen.test_naive_kernels import FLOORS, TINY, Case, error, of_reference, poison
from support.triton_interpreter import PlanRun, installed, resolved_for, run_plans
from torch import Tensor

from engine.domain.model import Dialect, Role
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.toolchain.tunables import default_values, parse_tunables

pytestmark = pytest.mark.filterwarnings("ignore")

FILES = {path.parents[1].name: path for path in sorted(Path("problems").glob("*/playbook/triton_*.py"))}
INTERPRETED = {name: file for name, file in FILES.items() if name != "conv2d"}
"""Without a kernel that is part of another's."""
SMALL = {"BM": 16, "BN": 16, "BK": 64, "BLOCK": 32, "PARTS": 4}
"""Tiles that the tiny shapes fill only in part."""


def chosen(code: str, wanted: dict[str, int]) -> dict[str, int]:
    declared = default_values(parse_tunables(code, Dialect.TRITON))
    return declared | {name: value for name, value in wanted.items() if name in declared}


@pytest.fixture(scope="module")
def called() -> dict[str, tuple[Case, dict[str, Tensor] | str]]:
    cases: dict[str, Case] = {}
    runs: dict[str, PlanRun] = {}
    for name, file in INTERPRETED.items():
        code = file.read_text()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            case = cases[name] = of_reference(name, TINY[name])
        given = [operand.name for operand in case.signature.operands if operand.role is not Role.OUTPUT]
        operands = dict(zip(given, (t.clone() for t in case.arguments), strict=True)) | {"out": poison(case.eager[0])}
        runs[name] = PlanRun(code, resolved_for(code, case.signature, chosen(code, SMALL)), operands)
    results = run_plans(runs)
    return {name: (case, results[name]) for name, case in cases.items()}


@pytest.mark.slow
@installed
@pytest.mark.parametrize("name", INTERPRETED)
def test_a_playbooks_triton_kernel_is_as_accurate_as_eager(
    called: dict[str, tuple[Case, dict[str, Tensor] | str]], name: str
) -> None:
    case, results = called[name]
    assert not isinstance(results, str), results
    eager, exact = case.eager[0], case.exact[0].double()
    assert error(results["out"], exact) <= max(4 * error(eager, exact), FLOORS[eager.dtype])


def test_every_shipped_problem_has_one() -> None:
    assert set(FILES) == set(TINY)


@pytest.mark.parametrize("name", FILES)
def test_it_resolves_for_every_workload(name: str) -> None:
    code = FILES[name].read_text()
    problem = catalog.find(name)
    signature = Reference(problem, catalog.workload_for(problem, "small")).signature()
    resolved = resolved_for(code, signature, chosen(code, {}))
    assert len(resolved.plan.launches) == code.count("# @launch ")
