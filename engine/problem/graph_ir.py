"""The graph of a reference's forward pass, as plain data: ATen operators over named tensors.

Knows how such a graph is written down and read back (JSON), so that the process which traces a model (torch) and the one
which writes kernels from the graph (no torch) can be different ones. Does not know what any operator means.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Scalar = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of a tensor by name."""

    name: str


Argument: TypeAlias = Scalar | Ref | tuple["Argument", ...]
"""What an operator is called with. Dtypes are strings as torch spells them, without the prefix."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of one tensor of the graph."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Node:
    """One operator application. ``target`` is the ATen name with overload (``add.Tensor``), or ``getitem``.

    ``arguments`` are named as in the operator's schema, defaults filled in; ``self`` and ``input`` are both called ``x``.
    ``results`` has one type per result; ``None`` where a result is not a tensor.
    """

    name: str
    target: str
    arguments: Mapping[str, Argument]
    results: tuple[TensorType | None, ...]

    @property
    def operator(self) -> str:
        """The name without the overload: ``add``."""
        return self.target.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Table:
    """A small tensor that the reference itself makes from Python numbers, values in row-major order."""

    name: str
    type: TensorType
    values: tuple[bool | int | float, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """A forward pass without side effects.

    ``operands`` are the tensors it is called with, in the order of the signature (inputs, parameters, buffers);
    ``outputs`` names one tensor per output operand. Nodes come in an order in which they can be computed.
    """

    operands: tuple[tuple[str, TensorType], ...]
    tables: tuple[Table, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Why no graph, or no naive kernel, can be had: the operator (or construct) and what to do instead."""

    what: str
    remedy: str = "write it by hand with --empty, or use --dialect python"

    @property
    def line(self) -> str:
        """One line for a person."""
        return f"this problem uses {self.what}, for which no naive kernel can be generated: {self.remedy}"


def to_json(graph: Graph | Unsupported) -> str:
    """One line of JSON that :func:`from_json` reads back to an equal value."""
    if isinstance(graph, Unsupported):
        return json.dumps({"unsupported": graph.what, "remedy": graph.remedy})
    return json.dumps(
        {
            "operands": [[name, *_type(kind)] for name, kind in graph.operands],
            "tables": [[t.name, *_type(t.type), [_encode(v) for v in t.values]] for t in graph.tables],
            "nodes": [_node(node) for node in graph.nodes],
            "outputs": list(graph.outputs),
        }
    )


def from_json(text: str) -> Graph | Unsupported:
    """The graph, or the reason for its absence, that :func:`to_json` wrote; ValueError or KeyError for anything else."""
    data = json.loads(text)
    if "unsupported" in data:
        return Unsupported(data["unsupported"], data["remedy"])
    return Graph(
        operands=tuple((name, TensorType(tuple(shape), dtype)) for name, shape, dtype in data["operands"]),
        tables=tuple(
            Table(name, TensorType(tuple(shape), dtype), tuple(_number(v) for v in values))
            for name, shape, dtype, values in data["tables"]
        ),
        nodes=tuple(
            Node(
                node["name"],
                node["target"],
                {key: _decode(value) for key, value in node["arguments"].items()},
                tuple(TensorType(tuple(r[0]), r[1]) if r else None for r in node["results"]),
            )
            for node in data["nodes"]
        ),
        outputs=tuple(data["outputs"]),
    )


def _type(kind: TensorType) -> list[object]:
    return [list(kind.shape), kind.dtype]


def _node(node: Node) -> dict[str, object]:
    return {
        "name": node.name,
        "target": node.target,
        "arguments": {key: _encode(value) for key, value in node.arguments.items()},
        "results": [_type(r) if r else None for r in node.results],
    }


def _encode(value: Argument) -> object:
    match value:
        case Ref(name):
            return {"ref": name}
        case tuple():
            return [_encode(v) for v in value]
        case float() if not math.isfinite(value):
            return {"float": str(value)}
        case _:
            return value


def _decode(value: object) -> Argument:
    match value:
        case {"ref": str(name)}:
            return Ref(name)
        case {"float": str(text)}:
            return float(text)
        case list():
            return tuple(_decode(v) for v in value)
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise ValueError(f"not an argument of a graph: {value!r}")


def _number(value: object) -> bool | int | float:
    decoded = _decode(value)
    if not isinstance(decoded, bool | int | float):
        raise ValueError(f"not a number of a table: {value!r}")
    return decoded


def references(arguments: Mapping[str, Argument] | Sequence[Argument]) -> tuple[str, ...]:
    """The names of all tensors used in the arguments, in order, with repetitions."""
    found: list[str] = []
    for value in arguments.values() if isinstance(arguments, Mapping) else arguments:
        match value:
            case Ref(name):
                found.append(name)
            case tuple():
                found.extend(references(value))
            case _:
                pass
    return tuple(found)
