"""Tracing: operands, removal of mutations and composite operators, and untraceable models."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.domain.model import Problem, Signature, Workload
from engine.problem import catalog
from engine.problem.graph import MAX_TABLE_ELEMENTS, trace, trace_reference
from engine.problem.graph_ir import Graph, Ref, TensorType, TracedShape, Unsupported, references
from engine.problem.reference import Reference
from engine.trial.protocol import TraceReply

pytestmark = pytest.mark.filterwarnings("ignore")


class Mixed(nn.Module):
    """A parameter, a buffer, a plain tensor, and a table made in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3, bias=False)
        self.register_buffer("scale", torch.ones(3))
        self.offset = torch.full((3,), 2.0)

    def forward(self, x: Tensor, pair: list[Tensor]) -> dict[str, object]:
        table = torch.tensor([1.0, float("inf"), 3.0])
        return {"a": self.linear(x) * self.scale + self.offset, "b": pair[0] + pair[1] * table, "n": 7}


def traced(model: nn.Module, *inputs: object, count: int) -> Graph:
    graph = trace(model, inputs, [f"p{place}" for place in range(count)])
    assert isinstance(graph, Graph), graph
    return graph


@pytest.mark.slow
def test_operands_are_inputs_parameters_buffers_and_plain_tensors() -> None:
    x = torch.randn(2, 3)
    graph = trace(Mixed(), (x, [x, x[:1]]), ["x", "pair0", "pair1", "weight", "scale", "offset"])
    assert isinstance(graph, Graph)
    assert [(name, kind.shape) for name, kind in graph.operands] == [
        ("x", (2, 3)), ("pair0", (2, 3)), ("pair1", (1, 3)), ("weight", (3, 3)), ("scale", (3,)), ("offset", (3,)),
    ]  # fmt: skip
    used = {name for node in graph.nodes for name in references(node.arguments)}
    assert {"x", "pair0", "pair1", "weight", "scale", "offset"} <= used
    assert graph.tables[0].values == (1.0, float("inf"), 3.0)
    assert len(graph.outputs) == 3


def test_a_graph_survives_the_channel() -> None:
    x = torch.randn(2, 3)
    graph = traced(Mixed(), x, [x, x], count=6)
    for reply in (TraceReply((TracedShape(Signature((), {}), one),)) for one in (graph, Unsupported("aten.x", "do this"))):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=TraceReply) == reply


@pytest.mark.slow
def test_tracing_leaves_the_model_unchanged() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), Mixed().linear)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    held = dict(model.named_parameters())
    traced(model, torch.randn(4, 3), count=7)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(held[name] is value for name, value in model.named_parameters())


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y += 1
        y[0] = 0
        F.relu_(y)
        return F.cosine_similarity(y, x)


class Placed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        product = torch.empty(4, 4)
        torch.matmul(x, x.t(), out=product)
        return product


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        InPlace(),
        Placed(),
        nn.GRU(3, 4),
        nn.BatchNorm1d(3),
        nn.RMSNorm(3),
        nn.TransformerEncoderLayer(3, 1, 4, dropout=0.0).eval(),
    ],
    ids=lambda m: type(m).__name__,
)
def test_nothing_is_changed_in_place(model: nn.Module) -> None:
    count = 1 + len(list(model.parameters())) + len(list(model.buffers()))
    graph = traced(model, torch.randn(4, 3), count=count)
    assert graph.nodes
    assert not [node.target for node in graph.nodes if node.operator.endswith("_") or node.operator == "copy_"]


@pytest.mark.slow
def test_only_nodes_that_the_outputs_need_are_kept() -> None:
    graph = traced(nn.BatchNorm1d(3), torch.randn(4, 3), count=6)
    used = {name for node in graph.nodes for name in references(node.arguments)}
    assert {"p0", "p1", "p2"} <= used
    assert not {"p3", "p4", "p5"} & used, "training mode does not read the running statistics"
    evaluated = traced(nn.BatchNorm1d(3).eval(), torch.randn(4, 3), count=6)
    assert {"p3", "p4"} <= {name for node in evaluated.nodes for name in references(node.arguments)}


def test_arguments_are_named_and_complete() -> None:
    graph = traced(nn.Conv2d(2, 2, 3, padding=1), torch.randn(1, 2, 4, 4), count=3)
    (node,) = graph.nodes
    assert node.operator == "convolution"
    assert node.results == (TensorType((1, 2, 4, 4), "float32"),)
    assert (node.arguments["x"], node.arguments["padding"], node.arguments["groups"]) == (Ref("p0"), (1, 1), 1)


class Peeking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x


class Heavy(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.held = [torch.arange(size)]

    def forward(self, x: Tensor) -> Tensor:
        return x + self.held[0]


class Making(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        normalised: Tensor = nn.LayerNorm(x.shape)(x)
        return normalised


class Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source = torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(x.shape, generator=self.source)


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (Peeking(), "cannot be traced"),
        (Heavy(MAX_TABLE_ELEMENTS + 1), "4097 elements"),
        (Making(), "a module that is made in forward"),
        (Drawing(), "neither a tensor nor a number (Generator)"),
    ],
    ids=["looks at values", "large constant", "makes a module", "keeps a generator"],
)
def test_an_untraceable_model_is_unsupported(model: nn.Module, what: str) -> None:
    size = MAX_TABLE_ELEMENTS + 1 if isinstance(model, Heavy) else 3
    found = trace(model, (torch.randn(size),), ["x"])
    assert isinstance(found, Unsupported)
    assert what in found.line
    assert "\n" not in found.line


def test_names_must_match_the_operands() -> None:
    with pytest.raises(ValueError, match="2 names"):
        trace(nn.ReLU(), (torch.randn(2),), ["x", "y"])


@pytest.mark.slow
@pytest.mark.parametrize("name", catalog.shipped_names())
def test_shipped_problems_are_traced_at_full_size_without_allocating(name: str) -> None:
    """Gigabytes of inputs: on a small machine this passes only if they are not allocated."""
    problem = catalog.find(name)
    reference = Reference(problem, catalog.workload_for(problem, "full"))
    graph = trace_reference(reference)
    assert isinstance(graph, Graph)
    assert tuple(n for n, _ in graph.operands) == tuple(o.name for o in reference.signature().operands if o.role != "output")
    assert len(graph.outputs) == len(reference.signature().with_roles(*["output"]))  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_reference_that_reads_its_inputs_while_creating_them_is_traced(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom torch import nn\nn = 4\nclass Model(nn.Module):\n    def forward(self, x):\n        return x * 2\n"
        "def get_inputs():\n    x = torch.rand(n)\n    return [x / x.sum().item()]\ndef get_init_inputs():\n    return []\n"
    )
    problem = Problem("peek", "peek", text, "", (Workload("full", {"n": 4}),), {}, str(tmp_path))
    graph = trace_reference(Reference(problem, problem.workloads[0]))
    assert isinstance(graph, Graph)
    assert [node.operator for node in graph.nodes] == ["mul"]
