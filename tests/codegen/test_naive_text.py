"""The text of naive kernels: guards, launch lines, workspace, and unsupported graphs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.codegen.ir import Program
from engine.codegen.lowering import lower
from engine.codegen.naive import naive, workspace_layout
from engine.domain.model import Contract, Dialect, Operand, Role, Signature
from engine.problem import header
from engine.problem.graph_ir import Argument, Graph, Node, Ref, TensorType, Unsupported
from engine.toolchain.kernel_file import classify
from engine.toolchain.plan import parse_plan

PAIRS = [(Dialect.CPP, Contract.HOST), (Dialect.CUDA, Contract.PLAN), (Dialect.CUDA, Contract.HOST)]


def kind(*shape: int) -> TensorType:
    return TensorType(shape, "float32")


def node(name: str, target: str, result: TensorType, **arguments: Argument) -> Node:
    return Node(name, target, arguments, (result,))


def softmax_graph(rows: int = 3, columns: int = 5) -> tuple[Graph, Signature]:
    whole = kind(rows, columns)
    graph = Graph(
        (("x", whole),),
        (),
        (node("softmax", "_softmax.default", whole, x=Ref("x"), dim=1, half_to_float=False),),
        ("softmax",),
    )
    operands = (
        Operand("x", Role.INPUT, (rows, columns), "float32"),
        Operand("out", Role.OUTPUT, (rows, columns), "float32"),
    )
    return graph, Signature(operands, {"DIM": columns, "EPS": 1e-5})


def chain(*targets: str) -> Graph:
    """A chain of unary operators on a vector."""
    nodes = tuple(
        node(f"n{place}", f"{target}.default", kind(4), x=Ref(f"n{place - 1}" if place else "x"))
        for place, target in enumerate(targets)
    )
    return Graph((("x", kind(4)),), (), nodes, (nodes[-1].name,))


@pytest.mark.parametrize(("dialect", "contract"), PAIRS)
def test_code_follows_the_contract_and_is_reproducible(dialect: Dialect, contract: Contract) -> None:
    graph, signature = softmax_graph()
    text = naive(graph, signature, dialect, contract)
    assert isinstance(text, str)
    assert classify(text, "kernel.cu" if dialect is Dialect.CUDA else "kernel.cpp") == (dialect, contract)
    assert text == naive(graph, signature, dialect, contract)
    assert all(len(line) <= 200 for line in text.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("change", ["X_DIM1", "DIM", "EPS"])
def test_code_rejects_other_shapes_and_constants(tmp_path: Path, change: str) -> None:
    graph, signature = softmax_graph()
    text = naive(graph, signature, Dialect.CPP, Contract.HOST)
    assert isinstance(text, str)
    (tmp_path / "kernel.cpp").write_text(text)
    rendered = header.render(signature, Dialect.CPP, "tiny")
    command = ["g++", "-std=c++20", "-fopenmp", "-fsyntax-only", "kernel.cpp"]
    (tmp_path / "problem.h").write_text(rendered)
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    other = "\n".join(
        f"#define {change} 6" if line.startswith(f"#define {change} ") else line for line in rendered.splitlines()
    )
    (tmp_path / "problem.h").write_text(other + "\n")
    refused = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "scaffolded for other shapes" in refused.stderr


def test_elementwise_chains_are_one_step() -> None:
    program = lower(chain("exp", "neg", "tanh"), ["out"])
    assert isinstance(program, Program)
    assert len(program.steps) == 1
    assert program.steps[0].comment.startswith("aten.exp + aten.neg + aten.tanh -> (4)")


@pytest.mark.parametrize(("dialect", "contract"), PAIRS)
def test_remainders_of_integers_use_no_function_of_floating_point_numbers(dialect: Dialect, contract: Contract) -> None:
    """CUDA has no ``fmod`` of integers."""
    whole = TensorType((4,), "int64")
    graph = Graph((("x", whole),), (), (node("r", "fmod.Scalar", whole, x=Ref("x"), other=3),), ("r",))
    signature = Signature((Operand("x", Role.INPUT, (4,), "int64"), Operand("out", Role.OUTPUT, (4,), "int64")), {})
    text = naive(graph, signature, dialect, contract)
    assert isinstance(text, str)
    assert "% 3" in text
    assert " fmod(" not in text


def test_views_cost_no_step() -> None:
    nodes = (
        node("t", "permute.default", kind(5, 3), x=Ref("x"), dims=(1, 0)),
        node("v", "view.default", kind(15), x=Ref("t"), size=(15,)),
        node("e", "exp.default", kind(15), x=Ref("v")),
    )
    program = lower(Graph((("x", kind(3, 5)),), (), nodes, ("e",)), ["out"])
    assert isinstance(program, Program)
    assert [step.target for step in program.steps] == ["out"]


def test_long_reductions_into_few_results_are_split() -> None:
    nodes = (node("s", "sum.default", TensorType((), "float32"), x=Ref("x"), dtype=None),)
    program = lower(Graph((("x", kind(1 << 20)),), (), nodes, ("s",)), ["out"])
    assert isinstance(program, Program)
    assert [step.parallel_iterations for step in program.steps] == [1024, 1]


def test_the_workspace_reuses_dead_buffers() -> None:
    """Each sum needs only the previous one: two buffers are enough."""
    size, nodes = 1 << 12, []
    for place in range(6):
        source = f"c{place - 1}" if place else "x"
        nodes.append(node(f"c{place}", "cumsum.default", kind(2, size), x=Ref(source), dim=1, dtype=None))
    program = lower(Graph((("x", kind(2, size)),), (), tuple(nodes), ("c5",)), ["out"])
    assert isinstance(program, Program)
    found = workspace_layout(program)
    assert len(found.offsets) == 6
    assert found.size == 2 * 2 * size * 4
    assert all(offset % 256 == 0 for offset in found.offsets.values())


@pytest.mark.parametrize(
    ("graph", "what"),
    [
        (chain("linalg_svd"), "aten.linalg_svd.default"),
        (chain("exp", "bernoulli"), "random numbers (aten.bernoulli)"),
        (Graph((("x", TensorType((4,), "complex64")),), (), (), ("x",)), "the dtype complex64"),
        (chain(*["cumsum_like"]), "aten.cumsum_like.default"),
    ],
)
def test_an_unsupported_graph_is_one_line(graph: Graph, what: str) -> None:
    found = lower(graph, ["out"])
    assert isinstance(found, Unsupported)
    assert found.what == what
    assert "\n" not in found.line


def test_programs_are_bounded() -> None:
    nodes = [node("c0", "cumsum.default", kind(4), x=Ref("x"), dim=0, dtype=None)]
    nodes += [node(f"c{k}", "cumsum.default", kind(4), x=Ref(f"c{k - 1}"), dim=0, dtype=None) for k in range(1, 9)]
    graph = Graph((("x", kind(4)),), (), tuple(nodes), ("c8",))
    assert isinstance(lower(graph, ["out"], max_steps=10), Program)
    refused = lower(graph, ["out"], max_steps=8)
    assert isinstance(refused, Unsupported)
    assert "more than 8 kernels" in refused.what


def test_operand_names_may_clash_with_functions_and_loops() -> None:
    graph = Graph(
        (("exp", kind(4)), ("i", kind(4))),
        (),
        (
            node("a", "add.Tensor", kind(4), x=Ref("exp"), other=Ref("i"), alpha=1),
            node("e", "exp.default", kind(4), x=Ref("a")),
        ),
        ("e",),
    )
    rows = (("exp", Role.INPUT), ("i", Role.INPUT), ("out", Role.OUTPUT))
    operands = tuple(Operand(name, role, (4,), "float32") for name, role in rows)
    text = naive(graph, Signature(operands, {}), Dialect.CUDA, Contract.PLAN)
    assert isinstance(text, str)
    assert "exp_[i2] + i[i2]" in text
    assert parse_plan(text).launches[0].arguments[0].token.text == "exp"


def test_graph_and_signature_must_agree() -> None:
    graph, signature = softmax_graph()
    with pytest.raises(ValueError, match="operands"):
        naive(chain("exp"), Signature(signature.operands[1:], {}), Dialect.CPP, Contract.HOST)
    with pytest.raises(ValueError, match="under the module contract"):
        naive(graph, signature, Dialect.PYTHON, Contract.MODULE)
