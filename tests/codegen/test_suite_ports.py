"""Naive ports of suites: one file computes every workload, in every dialect, and rejects other shapes."""

from __future__ import annotations

import asyncio
import ctypes
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from codegen.test_naive_kernels import EMULATED, FLOORS, Case, emulated, error, of_module, of_reference, poison
from support.triton_interpreter import PlanRun, installed, resolved_for, run_plans
from torch import Tensor, nn

from engine.codegen.scaffold import scaffold
from engine.codegen.shape_cases import ShapeCases, merged, plan_expression, skeleton
from engine.domain.model import Contract, Dialect, Role, Workload
from engine.problem import catalog, header
from engine.problem.graph_ir import TracedShape
from engine.sandbox.confinement import Confinement
from engine.toolchain.build import Artefact, BuildRequest, build
from engine.toolchain.dispatch import is_dispatch
from engine.toolchain.expressions import Cursor, evaluate, parse_expression, tokenize
from engine.toolchain.kernel_build import for_shape
from engine.toolchain.kernel_file import KernelCode, classify
from engine.toolchain.triton.resolution import encode_jobs
from engine.toolchain.tunables import default_values, parse_tunables


class Scaled(nn.Module):
    """Numbers that are no integers differ from shape to shape; so do steps, where the sum is long enough to be split."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * (0.3 + x.shape[0]) / 7).sum(1) + x.mean()


def scaled(n: int, m: int) -> Case:
    return of_module(Scaled(), (torch.randn(n, m),))


def shipped(name: str) -> Callable[..., Case]:
    return lambda **settings: of_reference(name, settings)


SUITES: Mapping[str, tuple[Callable[..., Case], list[dict[str, int]]]] = {
    "softmax": (shipped("softmax"), [{"batch_size": b, "dim": d} for b, d in ((3, 5), (7, 300), (4, 64), (9, 300))]),
    "conv2d": (
        shipped("conv2d"),
        [{"batch_size": b, "out_channels": 5, "height": h, "width": 29} for b, h in ((2, 31), (3, 23), (1, 31))],
    ),
    "rmsnorm_bf16": (shipped("rmsnorm_bf16"), [{"tokens": t, "hidden": 72} for t in (5, 8, 300)]),
    "scaled": (scaled, [{"n": n, "m": m} for n, m in ((3, 5), (7, 11), (2, 9000))]),
}
DIALECTS = (Dialect.CPP, Dialect.CUDA, Dialect.TRITON)


@dataclass(frozen=True)
class Suite:
    """A suite with its port in each dialect."""

    workloads: list[Workload]
    cases: list[Case]
    texts: dict[Dialect, str]

    def code(self, place: int, dialect: Dialect) -> str:
        """What is built for one workload."""
        text = self.texts[dialect]
        code = KernelCode(text, *classify(text, f"naive{dialect.suffix}"), "naive")
        return for_shape(code, {}, self.workloads[place], self.cases[place].signature)[0].text


@pytest.fixture(scope="module", params=SUITES)
def ported(request: pytest.FixtureRequest) -> Suite:
    make, settings = SUITES[request.param]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        cases = [make(**one) for one in settings]
    workloads = [Workload(f"w{place}", one) for place, one in enumerate(settings)]
    problem = catalog.find("softmax")  # only its name is used
    shapes = [TracedShape(case.signature, case.graph) for case in cases]
    return Suite(workloads, cases, {dialect: scaffold(problem, workloads, shapes, dialect) for dialect in DIALECTS})


def compiled(folder: Path, text: str, case: Case) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    (folder / "problem.h").write_text(header.render(case.signature, Dialect.CPP, "tiny"))
    (folder / "kernel.cpp").write_text(text)
    command = ["g++", "-std=c++20", "-O0", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-shared", "kernel.cpp", "-o", "k.so"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def check(case: Case, found: list[Tensor]) -> None:
    for output, eager, exact in zip(found, case.eager, case.exact, strict=True):
        assert error(output, exact.double()) <= max(4 * error(eager, exact.double()), FLOORS[eager.dtype])


@pytest.mark.slow
@pytest.mark.parametrize("dialect", [Dialect.CPP, Dialect.CUDA])
def test_a_port_of_a_suite_computes_every_workload(ported: Suite, dialect: Dialect, tmp_path: Path) -> None:
    for place, case in enumerate(ported.cases):
        text = ported.code(place, dialect)
        if dialect is Dialect.CUDA:
            text = EMULATED + emulated(text, case.signature)
        built = compiled(tmp_path / str(place), text, case)
        assert built.returncode == 0, built.stderr
        library = ctypes.CDLL(str(tmp_path / str(place) / "k.so"))
        outputs = [poison(t) for t in case.eager]
        scratch = torch.zeros(1 << 20, dtype=torch.uint8)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*case.arguments, *outputs)]
        if dialect is Dialect.CPP:
            library.launch(*pointers, ctypes.c_void_p(scratch.data_ptr()))
        else:
            library.plan((ctypes.c_void_p * len(pointers))(*pointers), ctypes.c_void_p(scratch.data_ptr()))
        check(case, outputs)


@pytest.mark.slow
@installed
def test_a_triton_port_of_a_suite_computes_every_workload(ported: Suite) -> None:
    runs: dict[str, PlanRun] = {}
    for place, case in enumerate(ported.cases):
        code = ported.code(place, Dialect.TRITON)
        given = [o.name for o in case.signature.operands if o.role is not Role.OUTPUT]
        outputs = [o.name for o in case.signature.with_roles(Role.OUTPUT)]
        operands = dict(zip(given, (t.clone() for t in case.arguments), strict=True))
        operands |= dict(zip(outputs, map(poison, case.eager), strict=True))
        chosen = {**default_values(parse_tunables(code, Dialect.TRITON)), "BLOCK": 2048}
        runs[str(place)] = PlanRun(code, resolved_for(code, case.signature, chosen), operands)
    results = run_plans(runs)
    for place, case in enumerate(ported.cases):
        found = results[str(place)]
        assert not isinstance(found, str), found
        check(case, [found[o.name] for o in case.signature.with_roles(Role.OUTPUT)])


@pytest.mark.slow
def test_shapes_outside_the_suite_are_rejected(tmp_path: Path) -> None:
    shapes = [of_reference("softmax", {"batch_size": b, "dim": d}) for b, d in ((3, 400), (7, 300), (3, 300))]
    workloads = [Workload(f"w{place}", {"batch_size": place}) for place in range(2)]
    traced = [TracedShape(case.signature, case.graph) for case in shapes[:2]]
    text = scaffold(catalog.find("softmax"), workloads, traced, Dialect.CPP)
    assert not is_dispatch(text, Dialect.CPP)
    assert "X_DIM0" in text.partition("static void")[2], "the sizes are those of problem.h"
    results = [compiled(tmp_path / str(place), text, case) for place, case in enumerate(shapes)]
    assert [result.returncode == 0 for result in results] == [True, True, False]
    assert "scaffolded for other shapes" in results[2].stderr


@pytest.mark.slow
def test_a_suite_that_needs_different_steps_is_a_dispatch() -> None:
    cases = [scaled(3, 5), scaled(2, 9000)]
    shapes = [TracedShape(case.signature, case.graph) for case in cases]
    workloads = [Workload("a", {"n": 3, "m": 5}), Workload("b", {"n": 2, "m": 9000})]
    for dialect in DIALECTS:
        text = scaffold(catalog.find("softmax"), workloads, shapes, dialect)
        assert is_dispatch(text, dialect)
        contract = Contract.HOST if dialect is Dialect.CPP else Contract.PLAN
        assert classify(text, f"naive{dialect.suffix}") == (dialect, contract)


def cases_of(*tables: Mapping[str, int]) -> ShapeCases:
    return ShapeCases(tables, [name for name in tables[0] if "DIM" in name], [n for n in tables[0] if "DIM" not in n])


@pytest.mark.parametrize(
    ("values", "written"),
    [
        (("4", "8"), "X_DIM0"),
        (("12", "24"), "(X_DIM0 * 3)"),
        (("2", "4"), "(X_DIM0 / 2)"),
        (("20", "56"), "(X_DIM0 * X_DIM1)"),
        (("9", "11"), "(9 + 2 * (X_DIM0 == 8))"),
    ],
)
def test_numbers_that_differ_are_written_by_the_shape(values: tuple[str, str], written: str) -> None:
    tables = {"X_DIM0": 4, "X_DIM1": 5}, {"X_DIM0": 8, "X_DIM1": 7}
    cases = cases_of(*tables)
    deciding = cases.deciding([values])
    assert deciding == ("X_DIM0",)
    text = plan_expression(cases, deciding, values)
    assert text == written
    for table, value in zip(tables, values, strict=True):
        assert evaluate(parse_expression(Cursor(tokenize(text, 1, 1))), table) == int(value)


def test_shapes_of_equal_sizes_are_told_apart_by_constants() -> None:
    cases = cases_of({"X_DIM0": 4, "K": 1}, {"X_DIM0": 4, "K": 2}, {"X_DIM0": 5, "K": 2})
    assert cases.deciding([("1", "2", "2")]) == ("X_DIM0", "K")
    assert cases.deciding([("1", "1", "2")]) == ("X_DIM0",)
    assert cases_of({"X_DIM0": 4}, {"X_DIM0": 4}).deciding([("1", "2")]) is None


def test_texts_are_merged_number_by_number() -> None:
    texts = [["for i < 3 * x2;", "y = 0.5f + t_3;"], ["for i < 4 * x2;", "y = 0.25f + t_3;"]]
    assert skeleton(texts[0]) == skeleton(texts[1])
    assert merged(texts, lambda values, line: "|".join(values)) == ["for i < 3|4 * x2;", "y = 0.5f|0.25f + t_3;"]


@pytest.mark.slow
@installed
def test_a_triton_port_of_a_suite_compiles_for_hopper(ported: Suite, bubblewrap: Confinement, cache_root: object) -> None:
    """Its guards, and numbers that are no integers, are expressions that the compiler evaluates."""
    code = ported.code(0, Dialect.TRITON)
    jobs = encode_jobs(resolved_for(code, ported.cases[0].signature).jobs)
    request = BuildRequest(code, Dialect.TRITON, Contract.PLAN, jobs, {"BLOCK": 256}, "sm_90a", "k.py")
    outcome = asyncio.run(build(request, bubblewrap))
    assert isinstance(outcome, Artefact), outcome
