"""Scaffolds: every contract gives a valid file, empty kernels compile, modules compute the same as the reference."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from engine.codegen.module_scaffold import module_source
from engine.codegen.naive import naive
from engine.codegen.scaffold import GRAMMAR, contract_for, empty_kernel, scaffold
from engine.domain.errors import ProblemError
from engine.domain.model import Contract, Dialect, Operand, Role, Signature, Workload
from engine.problem import catalog, header
from engine.problem.graph import trace_reference
from engine.problem.graph_ir import Graph, Node, Ref, TensorType, TracedShape, Unsupported
from engine.problem.reference import Reference
from engine.toolchain.kernel_file import classify
from engine.toolchain.plan import MAX_LAUNCHES, parse_plan
from engine.toolchain.tunables import parse_tunables

FILES = {Dialect.CUDA: "kernel.cu", Dialect.CPP: "kernel.cpp", Dialect.PYTHON: "kernel.py"}
WAYS = [
    (Dialect.CUDA, Contract.PLAN),
    (Dialect.CUDA, Contract.HOST),
    (Dialect.CPP, Contract.HOST),
    (Dialect.PYTHON, Contract.MODULE),
]

REFERENCE = '''\
"""A reference with helpers, unused numbers – and a non-ASCII comment."""
import math

import torch
from torch import nn

width = 3  # élan
height = 4
unused = torch.zeros(7)
slope: float = 0.5
doubled = slope * 2


def scaled(x):
    return x * doubled * math.sqrt(4)


class Base(nn.Module):
    def __init__(self):
        super(Base, self).__init__()


class Model(Base):  # the Model
    def __init__(self, width):
        """ä"""; super(Model, self).__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return scaled(self.linear(x)) * isinstance(self, Model)


def get_inputs():
    return [torch.rand(height, width)]


def get_init_inputs():
    return [width]
\f


if __name__ == "__main__":
    print(Model(width))
'''


@pytest.fixture(scope="module")
def softmax() -> tuple[Reference, Graph]:
    problem = catalog.find("softmax")
    reference = Reference(problem, Workload("tiny", {"batch_size": 3, "dim": 5}))
    graph = trace_reference(reference)
    assert isinstance(graph, Graph)
    return reference, graph


def scaffolded(reference: Reference, graph: Graph | Unsupported, dialect: Dialect, contract: Contract | None = None) -> str:
    shape = TracedShape(reference.signature(), graph)
    return scaffold(reference.problem, [reference.workload], [shape], dialect, contract)


def executed(text: str) -> ModuleType:
    module = ModuleType("scaffolded")
    exec(compile(text, "kernel.py", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize(("dialect", "contract"), WAYS)
def test_scaffold_of_every_contract(softmax: tuple[Reference, Graph], dialect: Dialect, contract: Contract) -> None:
    reference, graph = softmax
    signature = reference.signature()
    text = scaffolded(reference, graph, dialect, contract)
    assert classify(text, FILES[dialect]) == (dialect, contract)
    if dialect is not Dialect.PYTHON:
        assert text == naive(graph, signature, dialect, contract)


@pytest.mark.parametrize(("dialect", "contract"), WAYS)
def test_empty_of_every_contract_fits_on_a_screen(
    softmax: tuple[Reference, Graph], dialect: Dialect, contract: Contract
) -> None:
    text = empty_kernel(softmax[0].signature(), dialect, contract)
    assert classify(text, FILES[dialect]) == (dialect, contract)
    assert len(text.splitlines()) <= 30
    assert max(map(len, text.splitlines())) <= 110


def many_operands() -> Signature:
    rows = [("x", Role.INPUT, "float16"), *((f"p{k}", Role.PARAMETER, "bfloat16") for k in range(20))]
    rows += [("mask", Role.BUFFER, "bool"), ("out0", Role.OUTPUT, "bfloat16"), ("out1", Role.OUTPUT, "int64")]
    return Signature(tuple(Operand(n, r, (2, 3), d) for n, r, d in rows), {"K": 3})


def test_empty_host_kernel_compiles_and_exports_launch(tmp_path: Path) -> None:
    signature = many_operands()
    (tmp_path / "problem.h").write_text(header.render(signature, Dialect.CPP, "tiny"))
    (tmp_path / "kernel.cpp").write_text(text := empty_kernel(signature, Dialect.CPP))
    assert "15 more, see problem.h" in text or "more, see problem.h" in text
    command = ["g++", "-std=c++20", "-O1", "-fopenmp", "-fPIC", "-shared", "-Wall", "-Werror", "kernel.cpp", "-o", "k.so"]
    command += ["-Wl,--require-defined=launch"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_empty_plan_has_a_tunable_and_one_launch(softmax: tuple[Reference, Graph]) -> None:
    text = empty_kernel(softmax[0].signature(), Dialect.CUDA)
    assert [tunable.name for tunable in parse_tunables(text, Dialect.CUDA)] == ["BLOCK"]
    assert len(parse_plan(text).launches) == 1


def test_empty_module_can_be_constructed_and_called(softmax: tuple[Reference, Graph]) -> None:
    module = executed(empty_kernel(softmax[0].signature(), Dialect.PYTHON))
    assert module.ModelNew()(torch.rand(3, 5)).shape == (3, 5)


def test_module_is_the_reference_renamed() -> None:
    text = module_source(REFERENCE, {"slope": 0.25})
    module, given = executed(text), executed(REFERENCE)
    assert not hasattr(module, "Model")
    assert not any(hasattr(module, name) for name in ("get_inputs", "get_init_inputs", "unused", "width"))
    assert "# the Model" in text
    torch.manual_seed(0)
    new = module.ModelNew(3)
    torch.manual_seed(0)
    old = given.Model(3)
    x = torch.rand(4, 3)
    assert torch.equal(new(x) * 2, old(x)), "slope is half of the reference's"
    assert "if __name__" not in text


@pytest.mark.parametrize("name", catalog.shipped_names())
def test_shipped_problems_as_modules(name: str) -> None:
    problem = catalog.find(name)
    module = executed(module_source(problem.reference, {}))
    assert issubclass(module.ModelNew, torch.nn.Module)
    assert ast_names(module) == {"ModelNew"}


def ast_names(module: ModuleType) -> set[str]:
    """Classes that the module defines."""
    return {n for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__}


def test_modules_of_foreign_problems_keep_what_they_need() -> None:
    for path in sorted((Path(__file__).parents[1] / "problem" / "kernelbench").glob("*.py")):
        executed(module_source(path.read_text(encoding="utf-8"), {}))


def test_unsupported_is_one_clear_line(softmax: tuple[Reference, Graph]) -> None:
    reference, _ = softmax
    missing = Unsupported("aten.linalg_svd.default")
    with pytest.raises(ProblemError) as caught:
        scaffolded(reference, missing, Dialect.CPP)
    assert str(caught.value) == (
        "softmax: this problem uses aten.linalg_svd.default, for which no naive kernel can be generated: "
        "write it by hand with --empty, or use --dialect python"
    )
    assert "class ModelNew" in scaffolded(reference, missing, Dialect.PYTHON)


def running_sums(count: int) -> tuple[Reference, Graph]:
    """Softmax's operands, and a graph of as many steps as given."""
    reference = Reference(catalog.find("softmax"), Workload("tiny", {"batch_size": 3, "dim": 5}))
    whole = TensorType((3, 5), "float32")
    nodes = tuple(
        Node(f"n{k}", "cumsum.default", {"x": Ref(f"n{k - 1}" if k else "x"), "dim": 0, "dtype": None}, (whole,))
        for k in range(count)
    )
    return reference, Graph((("x", whole),), (), nodes, (nodes[-1].name,))


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "contract"), [(MAX_LAUNCHES - 1, Contract.PLAN), (MAX_LAUNCHES + 1, Contract.HOST)])
def test_more_launches_than_a_plan_holds_go_into_a_host_kernel(steps: int, contract: Contract) -> None:
    reference, graph = running_sums(steps)
    text = scaffolded(reference, graph, Dialect.CUDA)
    assert classify(text, "kernel.cu") == (Dialect.CUDA, contract)
    assert ("Under the host contract" in text) == (contract is Contract.HOST)


def test_a_contract_that_was_asked_for_is_kept() -> None:
    reference, graph = running_sums(MAX_LAUNCHES + 1)
    with pytest.raises(ProblemError, match="more than 256 kernels"):
        scaffolded(reference, graph, Dialect.CUDA, Contract.PLAN)


def test_dialect_and_contract_must_match() -> None:
    assert contract_for(Dialect.CUDA) is Contract.PLAN
    with pytest.raises(ProblemError, match="cpp does not support the plan contract"):
        contract_for(Dialect.CPP, Contract.PLAN)


@pytest.mark.parametrize(("text", "what"), [("class Model(:", "syntax"), ("x = 1", "no `class Model`")])
def test_an_invalid_reference_is_one_line(text: str, what: str) -> None:
    with pytest.raises(ProblemError, match=what):
        module_source(text, {})


def test_grammar_help_fits_on_one_screen() -> None:
    lines = GRAMMAR.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    for word in ("@tune", "@require", "@workspace", "@tensormap", "@launch", "cooperative", "ceil_div", "next_pow2", "SMS"):
        assert word in GRAMMAR


@pytest.mark.slow
def test_scaffolding_loads_no_torch() -> None:
    script = "import sys, engine.codegen.scaffold; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", script], cwd=root, check=False).returncode == 0
