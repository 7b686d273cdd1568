"""From an ATen graph to the steps of a naive program: what becomes a kernel of its own, and what is computed where it is used.

A tensor is held as a rule for its elements until something demands memory: several uses of something expensive, a
reduction over it, an output. Views never demand it. Knows that policy; what each operator means is registered by the
modules that naive.py loads for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from engine.build import naive_ir as ir
from engine.build.naive_ir import Buffer, Expr, Index, Kind, Linear, Program, Step, Var
from engine.problem.graph_ir import Argument, Graph, Node, Ref, Scalar, TensorType, Unsupported, references
from engine.problem.names import free

LONGEST = 64
"""An expression of more parts than this is stored rather than carried on."""
RANDOM = frozenset("bernoulli rand randn rand_like randn_like randint randperm uniform normal exponential multinomial".split())
"""Operators that no kernel can agree with."""
VIEWS = frozenset(("view", "permute", "expand", "unsqueeze", "squeeze", "clone", "alias", "getitem", "slice", "select", "full"))
"""Operators not worth a word in the comment of a kernel that does anything else."""
CHEAP = frozenset("cast add sub mul neg where lt le gt ge eq ne maximum minimum relu square".split())
"""Functions that may be computed again at every use."""


class NotLowered(Exception):
    """Carries an Unsupported out of a lowering; never leaves this module."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.reason = Unsupported(what, remedy) if remedy else Unsupported(what)


@dataclass(slots=True)
class Value:
    """A tensor: its shape, its dtype (torch's name) and the rule for its elements. ``story``: the operators in that rule."""

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[Index], Expr]
    story: tuple[str, ...] = ()
    name: str = ""
    """The node that computed it."""
    stored: str = ""
    """The buffer it was written to, once it was."""

    @property
    def kind(self) -> Kind:
        return kind_of(self.dtype)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


Lowered: TypeAlias = Value | Scalar | tuple["Lowered", ...]
"""What an argument or a result of an operator is held as."""
Lowering = Callable[..., Lowered]
REGISTRY: dict[str, Lowering] = {}
"""ATen operator (without overload) → its meaning: called with the context and the schema's arguments by name."""


def lowers(*operators: str) -> Callable[[Lowering], Lowering]:
    """Register a function as the meaning of ATen operators."""

    def register(function: Lowering) -> Lowering:
        REGISTRY.update(dict.fromkeys(operators, function))
        return function

    return register


def kind_of(dtype: str) -> Kind:
    """What values of a torch dtype are computed in; NotLowered for complex and quantised ones."""
    if dtype not in ir.KINDS:
        raise NotLowered(f"the dtype {dtype}")
    return ir.KINDS[dtype]


@dataclass(slots=True)
class Context:
    """A program in the making."""

    node: Node | None = None
    buffers: dict[str, Buffer] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    reserved: dict[str, str] = field(default_factory=dict)
    """Node name → the output operand that it should be written to."""
    most: int = 256
    """Steps that the program may have."""
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
        found = self.node.results[0] if self.node else None
        if found is None:
            raise NotLowered(f"aten.{self.node.target if self.node else '?'} without a tensor as its result")
        return found

    def var(self, hint: str, extent: int) -> Linear:
        """A fresh loop variable as an index."""
        return ir.atom(self.loop(hint, extent))

    def loop(self, hint: str, extent: int) -> Var:
        """A fresh loop variable."""
        self.count += 1
        return Var(f"{hint}#{self.count}", extent)

    def probe(self, value: Value) -> Expr:
        """The rule of some element, to look at."""
        return value.load(tuple(self.var("i", extent) for extent in value.shape))

    def heavy(self, value: Value) -> bool:
        """Whether an element costs a loop."""
        return not value.stored and any(isinstance(e, ir.Reduce) for e in ir.walk(self.probe(value)))

    def costly(self, value: Value) -> bool:
        """Whether an element costs more than a few loads and additions."""
        if value.stored:
            return False
        parts = [e for e in ir.walk(self.probe(value)) if isinstance(e, ir.Reduce | ir.Apply)]
        return len(parts) > LONGEST // 8 or any(isinstance(e, ir.Reduce) or e.function not in CHEAP for e in parts)

    def idle(self, value: Value) -> bool:
        """Whether an element is no more than a load, a constant, or one cheap step away from that."""
        if value.stored:
            return True
        parts = [e for e in ir.walk(self.probe(value)) if isinstance(e, ir.Reduce | ir.Apply)]
        steps = [e for e in parts if isinstance(e, ir.Reduce) or not _free(e)]
        return len(steps) <= 1 and all(isinstance(e, ir.Apply) and e.function in CHEAP for e in steps)

    def light(self, value: Value) -> Value:
        """The value, stored first if an element costs a loop."""
        if self.heavy(value):
            self.store(value)
        return value

    def plain(self, value: Value) -> Value:
        """The value, stored first unless an element is close to a load: for what reads every element many times."""
        if not self.idle(value):
            self.store(value)
        return value

    def store(self, value: Value, into: str = "") -> Value:
        """Give the value memory: a step that fills a buffer. The value is changed to read from there."""
        if value.stored:
            return value
        name = into or self.scratch(value.dtype, value.numel, value.name)
        loops, index = self._loops(value)
        self.emit(value, name, loops, ir.flatten(index, value.shape), value.load(index))
        self.point(value, name)
        return value

    def scratch(self, dtype: str, numel: int, origin: str = "") -> str:
        """A new buffer of the workspace, named after a node (the current one); half floats are kept as float32."""
        base = f"t_{(origin or self.current).strip('_')}"
        name, again = base, 1
        while name in self.buffers:
            again += 1
            name = f"{base}_part{again}"
        kept = {Kind.FLOAT: "float32"}.get(kind_of(dtype), dtype)
        self.buffers[name] = Buffer(name, numel, kept, "workspace")
        return name

    def point(self, value: Value, name: str) -> None:
        """Make the value read from a buffer that holds all of it."""
        shape, kind = value.shape, value.kind
        value.load = lambda index: ir.Load(name, ir.flatten(index, shape), kind)
        value.stored, value.story = name, ()

    def emit(self, value: Value, target: str, loops: tuple[Var, ...], offset: Linear, body: Expr, scan: str = "") -> None:
        """Append a step that fills ``target``."""
        if len(self.steps) >= self.most:
            raise NotLowered(f"a graph that comes to more than {self.most} kernels (a recurrence, unrolled?)")
        if not value.numel:
            raise NotLowered("a tensor without elements")
        told = [op for op in dict.fromkeys(value.story) if op not in VIEWS] or list(dict.fromkeys(value.story))
        shape = ", ".join(str(extent) for extent in value.shape)
        story = " + ".join(f"aten.{op}" for op in told) or "copy"
        name = f"step{len(self.steps) + 1}_{told[-1].strip('_') if told else 'copy'}"
        comment = f"{story} -> ({shape}) {self.buffers[target].dtype}"
        self.steps.append(Step(name, comment, target, loops, offset, body, scan))

    def _loops(self, value: Value) -> tuple[tuple[Var, ...], Index]:
        """One loop per dimension, neighbours joined into one where no index of the rule has to take it apart again."""
        groups = [[place] for place, extent in enumerate(value.shape) if extent != 1] or [[]]
        loops, index = self._over(value.shape, groups)
        least = _divisions(value.load(index))
        place = 0
        while place + 1 < len(groups):
            joined = [*groups[:place], groups[place] + groups[place + 1], *groups[place + 2 :]]
            trial = self._over(value.shape, joined)
            if _divisions(value.load(trial[1])) <= least:
                groups, (loops, index) = joined, trial
            else:
                place += 1
        return loops, index

    def _over(self, shape: tuple[int, ...], groups: list[list[int]]) -> tuple[tuple[Var, ...], Index]:
        """A loop for each group of dimensions, and the index they make."""
        found = [ir.fixed(0) for _ in shape]
        loops: list[Var] = []
        for number, group in enumerate(groups):
            extents = [shape[place] for place in group]
            loop = self.loop("i" if len(groups) == 1 else f"i{number}", math.prod(extents))
            for place, at in zip(group, ir.unflatten(ir.atom(loop), extents), strict=True):
                found[place] = at
            loops.append(loop)
        return tuple(loop for loop in loops if loop.extent != 1), tuple(found)


def _divisions(expr: Expr) -> int:
    return sum(isinstance(e, ir.Div | ir.Mod) for e in ir.walk(expr))


def _free(expr: ir.Apply) -> bool:
    """Whether a function only serves an index, or converts."""
    return expr.function == "cast" or any(a.kind is Kind.INDEX for a in expr.arguments)


def lower(graph: Graph, outputs: Sequence[str], most: int = 256) -> Program | Unsupported:
    """The program of at most ``most`` steps that computes the graph, its results in the operands named ``outputs``.

    Or what stands in the way of it. Raises ValueError where the outputs do not fit the graph.
    """
    if len(outputs) != len(graph.outputs):
        raise ValueError(f"the graph has {len(graph.outputs)} outputs, but {len(outputs)} names were given")
    try:
        return _lowered(graph, outputs, Context(most=most))
    except NotLowered as stop:
        return stop.reason


def _lowered(graph: Graph, outputs: Sequence[str], context: Context) -> Program:
    values: dict[str, Lowered] = {}
    for name, kind in graph.operands:
        context.buffers[name] = Buffer(name, kind.numel, kind.dtype, "operand")
        values[name] = _source(context, name, kind)
    for table in graph.tables:
        name = free(f"table_{table.name.strip('_')}", context.buffers.__contains__)
        context.buffers[name] = Buffer(name, table.type.numel, table.type.dtype, "table", table.values)
        values[table.name] = _source(context, name, table.type)
    types = _types(graph)
    for name, source in zip(outputs, graph.outputs, strict=True):
        context.buffers[name] = Buffer(name, types[source].numel, types[source].dtype, "operand")
        context.reserved.setdefault(source, name)
    uses = Counter(graph.outputs) + Counter(ref for node in graph.nodes for ref in references(node.arguments))
    for node in graph.nodes:
        context.node = node
        values[node.name] = _settled(context, _applied(context, node, values), uses[node.name])
    for name, source in zip(outputs, graph.outputs, strict=True):
        value = values[source]
        if not isinstance(value, Value):
            raise NotLowered("an output that is no tensor")
        if value.stored != name:
            context.store(Value(value.shape, types[source].dtype, value.load, value.story, value.name), into=name)
    used = {e.buffer for step in context.steps for e in ir.walk(step.body) if isinstance(e, ir.Load)}
    used |= {step.target for step in context.steps}
    kept = tuple(b for b in context.buffers.values() if b.place == "operand" or b.name in used)
    return Program(kept, tuple(context.steps))


def _types(graph: Graph) -> dict[str, TensorType]:
    types = dict(graph.operands) | {table.name: table.type for table in graph.tables}
    return types | {node.name: node.results[0] for node in graph.nodes if node.results and node.results[0]}


def _source(context: Context, name: str, kind: TensorType) -> Value:
    value = Value(kind.shape, kind.dtype, lambda index: ir.Const(0, Kind.LONG))
    context.point(value, name)
    return value


def _applied(context: Context, node: Node, values: dict[str, Lowered]) -> Lowered:
    function = REGISTRY.get(node.operator)
    if node.operator in RANDOM:
        raise NotLowered(f"random numbers (aten.{node.operator})", "take dropout out of the reference, or put it in eval mode")
    if function is None:
        raise NotLowered(f"aten.{node.target}" if node.target != "getitem" else node.target)
    given = {name: _resolved(value, values) for name, value in node.arguments.items()}
    result = function(context, **given)
    if node.target == "getitem":
        return result
    story = tuple(part for name in references(node.arguments) for part in _story(values[name]))
    told = next((values[name] for name in references(node.arguments)), None) if node.operator in VIEWS else None
    return _told(result, (*story, node.operator), told.name if isinstance(told, Value) and told.name else node.name)


def _resolved(argument: Argument, values: dict[str, Lowered]) -> Lowered:
    match argument:
        case Ref(name):
            return values[name]
        case tuple():
            return tuple(_resolved(a, values) for a in argument)
        case _:
            return argument


def _story(value: Lowered) -> tuple[str, ...]:
    return value.story if isinstance(value, Value) else ()


def _told(value: Lowered, story: tuple[str, ...], name: str) -> Lowered:
    match value:
        case Value(stored=stored):
            if not stored:
                value.story, value.name = story, value.name or name
            return value
        case tuple():
            return tuple(_told(part, story, name) for part in value)
        case _:
            return value


def _settled(context: Context, value: Lowered, uses: int) -> Lowered:
    """Store what is expensive and used more than once, and what grew too long."""
    if not isinstance(value, Value) or value.stored or context.node is None:
        return value
    again = uses > 1 and context.costly(value)
    if again or sum(1 for _ in ir.walk(context.probe(value))) > 4 * LONGEST:
        into = context.reserved.get(context.node.name, "")
        context.store(value, into if into and context.buffers[into].numel == value.numel else "")
    return value
