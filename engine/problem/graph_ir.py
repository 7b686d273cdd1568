"""The ATen graph of a reference's forward pass, as plain data: operators over named tensors.

Serialisable by msgspec, so that the process that traces a model (torch) and the one that generates kernels from the graph (no
torch) can be different. Knows no operator's meaning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from engine.domain.model import Signature

Scalar: TypeAlias = bool | int | float | str | None


class Ref(msgspec.Struct, frozen=True):
    """A use of a tensor by name."""

    name: str


Argument: TypeAlias = Scalar | Ref | tuple[Scalar | Ref, ...]
"""An operator's argument. Dtypes are strings as torch spells them, without the prefix."""


class TensorType(msgspec.Struct, frozen=True):
    """Shape and dtype of one tensor of the graph."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


class Node(msgspec.Struct, frozen=True):
    """One operator call. ``target`` is the ATen name with overload (``add.Tensor``), or ``getitem``.

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


class ConstantTable(msgspec.Struct, frozen=True):
    """A small tensor that the reference makes from Python numbers, in row-major order."""

    name: str
    type: TensorType
    values: tuple[bool | int | float, ...]


class Graph(msgspec.Struct, frozen=True, tag=True):
    """A forward pass without side effects.

    ``operands`` are its input tensors, in the order of the signature (inputs, parameters, buffers); ``outputs`` names one
    tensor per output operand. Nodes are in topological order.
    """

    operands: tuple[tuple[str, TensorType], ...]
    tables: tuple[ConstantTable, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]


class Unsupported(msgspec.Struct, frozen=True, tag=True):
    """The operator or construct that prevents a graph or a naive kernel, and a remedy."""

    what: str
    remedy: str = "write it by hand with --empty, or use --dialect python"

    @property
    def line(self) -> str:
        """The message, in one line."""
        return f"this problem uses {self.what}, for which no naive kernel can be generated: {self.remedy}"


class TracedShape(msgspec.Struct, frozen=True):
    """What a kernel is called with on one workload, and what it computes there."""

    signature: Signature
    graph: Graph | Unsupported


def references(arguments: Mapping[str, Argument]) -> tuple[str, ...]:
    """The names of all tensors used in the arguments, in order, with repetitions."""
    items = (item for value in arguments.values() for item in (value if isinstance(value, tuple) else (value,)))
    return tuple(item.name for item in items if isinstance(item, Ref))
