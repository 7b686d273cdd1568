"""Lowers an ATen graph to the loop-nest IR, and decides which tensors are stored and which are fused into their uses.

A tensor is an element function until it must be stored: it is expensive and used several times, reduced over, or an output.
Views are never stored. The lowerings of the operators register themselves from the modules that ``naive`` imports.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from engine.codegen import ir
from engine.codegen.ir import Buffer, Expr, Index, IrStep, Kind, Linear, Program, Var
from engine.problem.graph_ir import Argument, Graph, Node, Ref, Scalar, TensorType, Unsupported, references
from engine.problem.names import unused_name

MAX_EXPRESSION_PARTS = 64
"""Larger expressions are stored instead of fused."""
RANDOM_OPERATORS = frozenset(
    "bernoulli rand randn rand_like randn_like randint randperm uniform normal exponential multinomial".split()
)
"""Operators with random results, which no kernel can reproduce."""
VIEW_OPERATORS = frozenset(
    ("view", "permute", "expand", "unsqueeze", "squeeze", "clone", "alias", "getitem", "slice", "select", "full")
)
"""Operators that the comment of a kernel leaves out if it does anything else."""
CHEAP_FUNCTIONS = frozenset("cast add sub mul neg where lt le gt ge eq ne maximum minimum relu square".split())
"""Functions that are recomputed at every use."""


class NotLowered(Exception):
    """Carries an Unsupported out of a lowering; caught in ``lower``."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.reason = Unsupported(what, remedy) if remedy else Unsupported(what)


@dataclass(slots=True)
class Value:
    """A tensor: shape, dtype (torch's name), and ``load``, its element function. ``operators`` are the ones fused into it."""

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[Index], Expr]
    operators: tuple[str, ...] = ()
    name: str = ""
    """The node that computed it."""
    stored: str = ""
    """The buffer that holds it, once stored."""

    @property
    def kind(self) -> Kind:
        return kind_of(self.dtype)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


Lowered: TypeAlias = Value | Scalar | tuple["Lowered", ...]
"""An argument or a result of an operator."""
Lowering = Callable[..., Lowered]
REGISTRY: dict[str, Lowering] = {}
"""ATen operator (without overload) → its lowering, called with the context and the schema's arguments by name."""


def lowers(*operators: str) -> Callable[[Lowering], Lowering]:
    """Register a function as the lowering of ATen operators."""

    def register(function: Lowering) -> Lowering:
        REGISTRY.update(dict.fromkeys(operators, function))
        return function

    return register


def kind_of(dtype: str) -> Kind:
    """The kind that a torch dtype is computed in; NotLowered for complex and quantised ones."""
    if dtype not in ir.KINDS:
        raise NotLowered(f"the dtype {dtype}")
    return ir.KINDS[dtype]


@dataclass(slots=True)
class LoweringContext:
    """A program under construction."""

    node: Node | None = None
    buffers: dict[str, Buffer] = field(default_factory=dict)
    steps: list[IrStep] = field(default_factory=list)
    reserved: dict[str, str] = field(default_factory=dict)
    """Node name → the output operand to store it in."""
    max_steps: int = 256
    count: int = 0

    @property
    def operator(self) -> str:
        """The current node's operator, without its overload."""
        return self.node.operator if self.node else ""

    @property
    def current(self) -> str:
        """The current node's name."""
        return self.node.name if self.node else "value"

    @property
    def result(self) -> TensorType:
        """The type of the current node's only (or first) result."""
        first = self.node.results[0] if self.node else None
        if first is None:
            raise NotLowered(f"aten.{self.node.target if self.node else '?'} without a tensor as its result")
        return first

    def var(self, hint: str, extent: int) -> Linear:
        """A fresh loop variable as an index."""
        return ir.as_index(self.loop(hint, extent))

    def loop(self, hint: str, extent: int) -> Var:
        """A fresh loop variable."""
        self.count += 1
        return Var(f"{hint}#{self.count}", extent)

    def sample_element(self, value: Value) -> Expr:
        """The expression of an arbitrary element."""
        return value.load(tuple(self.var("i", extent) for extent in value.shape))

    def has_loop(self, value: Value) -> bool:
        """Whether computing an element takes a loop."""
        return not value.stored and any(isinstance(e, ir.Reduce) for e in ir.walk(self.sample_element(value)))

    def is_expensive(self, value: Value) -> bool:
        """Whether computing an element takes more than a few loads and additions."""
        if value.stored:
            return False
        parts = [e for e in ir.walk(self.sample_element(value)) if isinstance(e, ir.Reduce | ir.Apply)]
        return len(parts) > MAX_EXPRESSION_PARTS // 8 or any(
            isinstance(e, ir.Reduce) or e.function not in CHEAP_FUNCTIONS for e in parts
        )

    def is_cheap(self, value: Value) -> bool:
        """Whether an element is a load or a constant, with at most one cheap function applied."""
        if value.stored:
            return True
        parts = [e for e in ir.walk(self.sample_element(value)) if isinstance(e, ir.Reduce | ir.Apply)]
        steps = [e for e in parts if isinstance(e, ir.Reduce) or not _is_index_arithmetic(e)]
        return len(steps) <= 1 and all(isinstance(e, ir.Apply) and e.function in CHEAP_FUNCTIONS for e in steps)

    def store_if_loop(self, value: Value) -> Value:
        """The value, stored first if computing an element takes a loop."""
        if self.has_loop(value):
            self.store(value)
        return value

    def store_unless_cheap(self, value: Value) -> Value:
        """The value, stored first unless it is cheap: for users that read every element many times."""
        if not self.is_cheap(value):
            self.store(value)
        return value

    def store(self, value: Value, into: str = "") -> Value:
        """Add a step that stores the value in a buffer, and make the value read from there."""
        if value.stored:
            return value
        name = into or self.scratch(value.dtype, value.numel, value.name)
        loops, index = self._loops(value)
        self.emit(value, name, loops, ir.flatten(index, value.shape), value.load(index))
        self.read_from(value, name)
        return value

    def scratch(self, dtype: str, numel: int, origin: str = "") -> str:
        """A new workspace buffer named after a node (by default the current one); half floats are stored as float32."""
        base = f"t_{(origin or self.current).strip('_')}"
        name, again = base, 1
        while name in self.buffers:
            again += 1
            name = f"{base}_part{again}"
        kept = {Kind.FLOAT: "float32"}.get(kind_of(dtype), dtype)
        self.buffers[name] = Buffer(name, numel, kept, "workspace")
        return name

    def read_from(self, value: Value, name: str) -> None:
        """Make the value read from the buffer that holds it."""
        shape, kind = value.shape, value.kind
        value.load = lambda index: ir.ReadElement(name, ir.flatten(index, shape), kind)
        value.stored, value.operators = name, ()

    def emit(self, value: Value, target: str, loops: tuple[Var, ...], offset: Linear, body: Expr, scan: str = "") -> None:
        """Append a step that fills ``target``."""
        if len(self.steps) >= self.max_steps:
            raise NotLowered(f"a graph that comes to more than {self.max_steps} kernels (a recurrence, unrolled?)")
        if not value.numel:
            raise NotLowered("a tensor without elements")
        shown = [op for op in dict.fromkeys(value.operators) if op not in VIEW_OPERATORS] or list(
            dict.fromkeys(value.operators)
        )
        shape = ", ".join(str(extent) for extent in value.shape)
        operators = " + ".join(f"aten.{op}" for op in shown) or "copy"
        name = f"step{len(self.steps) + 1}_{shown[-1].strip('_') if shown else 'copy'}"
        comment = f"{operators} -> ({shape}) {self.buffers[target].dtype}"
        self.steps.append(IrStep(name, comment, target, loops, offset, body, scan))

    def _loops(self, value: Value) -> tuple[tuple[Var, ...], Index]:
        """One loop per dimension; adjacent loops are collapsed where that adds no division to the element's indices."""
        groups = [[place] for place, extent in enumerate(value.shape) if extent != 1] or [[]]
        loops, index = self._loops_over(value.shape, groups)
        least = _count_divisions(value.load(index))
        place = 0
        while place + 1 < len(groups):
            collapsed = [*groups[:place], groups[place] + groups[place + 1], *groups[place + 2 :]]
            trial = self._loops_over(value.shape, collapsed)
            if _count_divisions(value.load(trial[1])) <= least:
                groups, (loops, index) = collapsed, trial
            else:
                place += 1
        return loops, index

    def _loops_over(self, shape: tuple[int, ...], groups: list[list[int]]) -> tuple[tuple[Var, ...], Index]:
        """A loop for each group of dimensions, and the index that they form."""
        index = [ir.constant_index(0) for _ in shape]
        loops: list[Var] = []
        for number, group in enumerate(groups):
            extents = [shape[place] for place in group]
            loop = self.loop("i" if len(groups) == 1 else f"i{number}", math.prod(extents))
            for place, at in zip(group, ir.unflatten(ir.as_index(loop), extents), strict=True):
                index[place] = at
            loops.append(loop)
        return tuple(loop for loop in loops if loop.extent != 1), tuple(index)


def _count_divisions(expr: Expr) -> int:
    return sum(isinstance(e, ir.Div | ir.Mod) for e in ir.walk(expr))


def _is_index_arithmetic(expr: ir.Apply) -> bool:
    """Whether a function is a conversion or works on indices."""
    return expr.function == "cast" or any(a.kind is Kind.INDEX for a in expr.arguments)


def lower(graph: Graph, outputs: Sequence[str], max_steps: int = 256) -> Program | Unsupported:
    """The program of at most ``max_steps`` steps that computes the graph into the operands named ``outputs``.

    Unsupported where there is none. Raises ValueError where the outputs do not fit the graph.
    """
    if len(outputs) != len(graph.outputs):
        raise ValueError(f"the graph has {len(graph.outputs)} outputs, but {len(outputs)} names were given")
    try:
        return _lower(graph, outputs, LoweringContext(max_steps=max_steps))
    except NotLowered as stop:
        return stop.reason


def _lower(graph: Graph, outputs: Sequence[str], context: LoweringContext) -> Program:
    values: dict[str, Lowered] = {}
    for name, kind in graph.operands:
        context.buffers[name] = Buffer(name, kind.numel, kind.dtype, "operand")
        values[name] = _operand_value(context, name, kind)
    for table in graph.tables:
        name = unused_name(f"table_{table.name.strip('_')}", context.buffers.__contains__)
        context.buffers[name] = Buffer(name, table.type.numel, table.type.dtype, "table", table.values)
        values[table.name] = _operand_value(context, name, table.type)
    types = _types(graph)
    for name, source in zip(outputs, graph.outputs, strict=True):
        context.buffers[name] = Buffer(name, types[source].numel, types[source].dtype, "operand")
        context.reserved.setdefault(source, name)
    uses = Counter(graph.outputs) + Counter(ref for node in graph.nodes for ref in references(node.arguments))
    for node in graph.nodes:
        context.node = node
        values[node.name] = _store_if_reused(context, _lower_node(context, node, values), uses[node.name])
    for name, source in zip(outputs, graph.outputs, strict=True):
        value = values[source]
        if not isinstance(value, Value):
            raise NotLowered("an output that is no tensor")
        if value.stored != name:
            context.store(Value(value.shape, types[source].dtype, value.load, value.operators, value.name), into=name)
    used = {e.buffer for step in context.steps for e in ir.walk(step.body) if isinstance(e, ir.ReadElement)}
    used |= {step.target for step in context.steps}
    kept = tuple(b for b in context.buffers.values() if b.place == "operand" or b.name in used)
    return Program(kept, tuple(context.steps))


def _types(graph: Graph) -> dict[str, TensorType]:
    types = dict(graph.operands) | {table.name: table.type for table in graph.tables}
    return types | {node.name: node.results[0] for node in graph.nodes if node.results and node.results[0]}


def _operand_value(context: LoweringContext, name: str, kind: TensorType) -> Value:
    value = Value(kind.shape, kind.dtype, lambda index: ir.Const(0, Kind.LONG))
    context.read_from(value, name)
    return value


def _lower_node(context: LoweringContext, node: Node, values: dict[str, Lowered]) -> Lowered:
    function = REGISTRY.get(node.operator)
    if node.operator in RANDOM_OPERATORS:
        raise NotLowered(f"random numbers (aten.{node.operator})", "take dropout out of the reference, or put it in eval mode")
    if function is None:
        raise NotLowered(f"aten.{node.target}" if node.target != "getitem" else node.target)
    given = {name: _resolve(value, values) for name, value in node.arguments.items()}
    result = function(context, **given)
    if node.target == "getitem":
        return result
    operators = tuple(part for name in references(node.arguments) for part in _operators_of(values[name]))
    viewed = next((values[name] for name in references(node.arguments)), None) if node.operator in VIEW_OPERATORS else None
    name = viewed.name if isinstance(viewed, Value) and viewed.name else node.name
    return _with_operators(result, (*operators, node.operator), name)


def _resolve(argument: Argument, values: dict[str, Lowered]) -> Lowered:
    match argument:
        case Ref(name):
            return values[name]
        case tuple():
            return tuple(_resolve(a, values) for a in argument)
        case _:
            return argument


def _operators_of(value: Lowered) -> tuple[str, ...]:
    return value.operators if isinstance(value, Value) else ()


def _with_operators(value: Lowered, operators: tuple[str, ...], name: str) -> Lowered:
    match value:
        case Value(stored=stored):
            if not stored:
                value.operators, value.name = operators, value.name or name
            return value
        case tuple():
            return tuple(_with_operators(part, operators, name) for part in value)
        case _:
            return value


def _store_if_reused(context: LoweringContext, value: Lowered, uses: int) -> Lowered:
    """Store a value that is expensive and used more than once, or whose expression is too large."""
    if not isinstance(value, Value) or value.stored or context.node is None:
        return value
    again = uses > 1 and context.is_expensive(value)
    if again or sum(1 for _ in ir.walk(context.sample_element(value))) > 4 * MAX_EXPRESSION_PARTS:
        into = context.reserved.get(context.node.name, "")
        context.store(value, into if into and context.buffers[into].numel == value.numel else "")
    return value
