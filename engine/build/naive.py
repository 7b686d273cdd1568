"""A graph → the text of a first kernel: plain loops in C++, one thread per element in CUDA. Correct, readable, slow.

Knows what a source under each contract looks like, and where intermediates lie in the workspace. What is computed comes from
naive_lower.py, how an expression is spelled from naive_c.py.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.build import naive_ir as ir
from engine.build import (
    naive_norms,
    naive_order,
    naive_pointwise,
    naive_products,
    naive_reduce,
    naive_views,
    naive_windows,
)
from engine.build.naive_c import Spelling, helper, literal, local, stored_type
from engine.build.naive_ir import Buffer, Kind, Program, Step
from engine.build.naive_lower import lower
from engine.build.plan import MOST_LAUNCHES
from engine.domain.model import Contract, Dialect, Number, Operand, Role, Signature
from engine.problem import header, names
from engine.problem.graph_ir import Graph, Unsupported

OPERATORS = (
    naive_pointwise,
    naive_views,
    naive_reduce,
    naive_products,
    naive_norms,
    naive_order,
    naive_windows,
)
"""Modules that register what operators mean, loaded for that."""

ALIGNMENT = 256
"""Bytes: every intermediate begins at a multiple of this."""
MOST_CALLS = 1024
"""Steps under the host contract; a recurrence that unrolls to more is nothing to start from."""
MOST_ARGUMENTS = 45
"""Operands of one step of a plan."""
PARALLEL = 64
"""Turns that are enough to share among the cores of a CPU."""
SHORT = 2**30
"""Elements up to which positions are counted in an int."""


def naive(graph: Graph, signature: Signature, dialect: Dialect, contract: Contract) -> str | Unsupported:
    """A source that computes the graph for the signature's shapes, and refuses others at compile time.

    ``cpp`` under the host contract, ``cuda`` under plan or host; ValueError for other pairs, and for a graph whose operands are
    not the signature's.
    """
    if (dialect, contract) not in ((Dialect.CPP, Contract.HOST), (Dialect.CUDA, Contract.PLAN), (Dialect.CUDA, Contract.HOST)):
        raise ValueError(f"no naive kernel is written in {dialect} under the {contract} contract")
    given = [name for name, _ in graph.operands]
    wanted = [operand.name for operand in signature.of(Role.INPUT, Role.PARAMETER, Role.BUFFER)]
    if given != wanted:
        raise ValueError(f"the graph's operands are {given}, the signature's are {wanted}")
    plan = contract is Contract.PLAN
    program = lower(graph, [operand.name for operand in signature.of(Role.OUTPUT)], MOST_LAUNCHES if plan else MOST_CALLS)
    if isinstance(program, Unsupported):
        return program
    if plan and any(len(set(_touched(step))) > MOST_ARGUMENTS for step in program.steps):
        return Unsupported("a join of more tensors than one @launch line has room for", "use --contract host")
    return "\n".join(_Source(program, signature, dialect, contract).lines()) + "\n"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where intermediates lie: byte offsets in the workspace, and its size."""

    offsets: dict[str, int]
    size: int


def layout(program: Program) -> Layout:
    """First fit: an intermediate takes the place of those that no later step reads."""
    scratch = {b.name: b for b in program.buffers if b.place == "workspace"}
    last = {name: place for place, step in enumerate(program.steps) for name in _touched(step)}
    live: list[tuple[int, int, str]] = []
    offsets: dict[str, int] = {}
    size = 0
    for place, step in enumerate(program.steps):
        live = [held for held in live if last[held[2]] >= place]
        buffer = scratch.get(step.target)
        if buffer is None or buffer.name in offsets:
            continue
        needed = -(-buffer.numel * _bytes(buffer) // ALIGNMENT) * ALIGNMENT
        start = 0
        for begin, end, _ in sorted(live):
            if begin - start >= needed:
                break
            start = max(start, end)
        live.append((start, start + needed, buffer.name))
        offsets[buffer.name] = start
        size = max(size, start + needed)
    return Layout(offsets, size)


def _bytes(buffer: Buffer) -> int:
    return {"double": 8, "long": 8, "float": 4, "int": 4, "short": 2}.get(stored_type(buffer), 1)


def _touched(step: Step) -> Iterator[str]:
    yield step.target
    yield from (e.buffer for e in ir.walk(step.body) if isinstance(e, ir.Load))


class _Source:
    """One source text in the making."""

    def __init__(self, program: Program, signature: Signature, dialect: Dialect, contract: Contract) -> None:
        self.program, self.signature, self.dialect, self.contract = program, signature, dialect, contract
        self.buffers = {b.name: b for b in program.buffers}
        self.layout = layout(program)
        self.index = "int" if all(b.numel < SHORT for b in program.buffers) else "long"
        self.helpers: set[str] = set()

    def lines(self) -> Iterator[str]:
        """The whole text."""
        steps = [list(self._step(step)) for step in self.program.steps]
        yield "// A first kernel, written from the reference's graph: correct and naive on purpose, one function per step."
        yield '#include "problem.h"'
        yield ""
        yield from self._includes()
        yield ""
        yield from self._guards()
        yield ""
        qualifier = "__device__ inline" if self.dialect is Dialect.CUDA else "inline"
        if self.helpers:
            yield from (helper(name, qualifier) for name in sorted(self.helpers))
            yield ""
        yield from self._tables()
        if self.contract is Contract.PLAN:
            yield from self._plan()
        for step in steps:
            yield from step
            yield ""
        if self.contract is Contract.HOST:
            yield from self._launch()

    def _includes(self) -> Iterator[str]:
        yield "#include <math.h>"
        if self.contract is Contract.HOST:
            yield "#include <stddef.h>"
        yield "#include <stdlib.h>"
        if self.dialect is Dialect.CUDA and self.contract is Contract.HOST:
            yield ""
            yield "#include <cuda_runtime.h>"

    def _guards(self) -> Iterator[str]:
        """Refuse to compile for anything but the numbers that the text was written for."""
        table = header.plan_names(self.signature, 0)
        yield "// Sizes are written out below: for other shapes or constants, scaffold again."
        for operand in self.signature.operands:
            macro = stem(operand, table)
            yield from _asserted([f"{macro}_DIM{axis} == {extent}" for axis, extent in enumerate(operand.shape)])
        macros = ((names.macro(name), value) for name, value in self.signature.constants.items())
        yield from _asserted([f"{macro} == {header.literal(v)}" for macro, v in macros if table.get(macro) == v])

    def _tables(self) -> Iterator[str]:
        for buffer in (b for b in self.program.buffers if b.place == "table"):
            kind = {"float": Kind.FLOAT, "double": Kind.DOUBLE}.get(stored_type(buffer), Kind.INDEX)
            values = ", ".join(literal(value, kind) for value in buffer.values)
            qualifier = "__device__ const" if self.dialect is Dialect.CUDA else "static const"
            text = f"{qualifier} {stored_type(buffer)} {buffer.name}[{max(buffer.numel, 1)}] = {{{values}}};"
            yield from textwrap.wrap(text, 118, subsequent_indent="    ", break_long_words=False)
            yield ""

    def _parameters(self, step: Step) -> list[Buffer]:
        used = dict.fromkeys(name for name in _touched(step) if name != step.target)
        return [self.buffers[name] for name in (*used, step.target) if self.buffers[name].place != "table"]

    def _declared(self, step: Step) -> list[str]:
        """The parameters of a step's function."""
        parts: list[str] = []
        for buffer in self._parameters(step):
            const = "" if buffer.name == step.target else "const "
            if buffer.place == "operand":
                parts.append(f"{const}{names.type_name(buffer.name)}* {local(buffer.name)}")
            else:
                parts.append(f"{const}{stored_type(buffer)}* {buffer.name}")
        return parts

    def _step(self, step: Step) -> Iterator[str]:
        taken = {local(name) for name in self.buffers} | {s.name for s in self.program.steps}
        spelling = Spelling(self.buffers, self.index, taken, self.helpers, indent=1)
        head = f'extern "C" __global__ void {step.name}(' if self.dialect is Dialect.CUDA else f"static void {step.name}("
        yield f"// {step.comment}"
        yield head + f",\n{' ' * len(head)}".join(_rows(self._declared(step), 116 - len(head))) + ")"
        yield "{"
        opened = self._open_cuda(step, spelling) if self.dialect is Dialect.CUDA else self._open_cpp(step, spelling)
        self._fill(step, spelling)
        for _ in range(opened):
            spelling.indent -= 1
            spelling.put("}")
        yield from spelling.lines
        yield "}"

    def _open_cpp(self, step: Step, spelling: Spelling) -> int:
        loops = step.loops[:-1] if step.scan else step.loops
        depth, turns = 0, 1
        while depth < len(loops) and turns < PARALLEL:
            turns *= loops[depth].extent
            depth += 1
        if turns > 1:
            spelling.lines.append("#pragma omp parallel for" + (f" collapse({depth})" if depth > 1 else ""))
        for loop in loops:
            name = spelling.variable(loop)
            spelling.put(f"for ({self.index} {name} = 0; {name} < {loop.extent}; ++{name}) {{")
            spelling.indent += 1
        return len(loops)

    def _open_cuda(self, step: Step, spelling: Spelling) -> int:
        loops = step.loops[:-1] if step.scan else step.loops
        only = spelling.variable(loops[0]) if len(loops) == 1 else spelling.name("i")
        wide = "(long)" if self.index == "long" else ""
        spelling.put(f"for ({self.index} {only} = {wide}blockIdx.x * blockDim.x + threadIdx.x; {only} < {step.turns};")
        spelling.put(f"     {only} += {wide}gridDim.x * blockDim.x) {{")
        spelling.indent += 1
        for place, loop in enumerate(loops if len(loops) > 1 else ()):
            stride = math.prod(other.extent for other in loops[place + 1 :])
            quotient = f"{only} / {stride}" if stride > 1 else only
            text = f"{quotient} % {loop.extent}" if place else quotient
            spelling.put(f"const {self.index} {spelling.variable(loop)} = {text};")
        return 1

    def _fill(self, step: Step, spelling: Spelling) -> None:
        """The statement that stores an element, or the serial loop that stores a running total."""
        target = self.buffers[step.target]
        name = local(step.target)
        kind = names.type_name(target.name) if target.place == "operand" else ""
        plain = target.dtype in ("float32", "float64", "int64")
        if not step.scan:
            value = spelling.value(step.body)
            spelling.put(f"{name}[{spelling.text(step.offset, 0)}] = {f'{kind}({value})' if kind and not plain else value};")
            return
        whole = step.body.kind is Kind.LONG
        spelling.put(f"{'long' if whole else 'double'} {(total := spelling.name('acc'))} = {0 if step.scan == 'sum' else 1};")
        serial = spelling.variable(step.loops[-1])
        spelling.put(f"for ({self.index} {serial} = 0; {serial} < {step.loops[-1].extent}; ++{serial}) {{")
        spelling.indent += 1
        value = spelling.value(step.body)
        spelling.put(f"{total} {'+' if step.scan == 'sum' else '*'}= {value};")
        spelling.put(
            f"{name}[{spelling.text(step.offset, 0)}] = {kind or stored_type(target)}({'' if whole else 'float'}({total}));"
        )
        spelling.indent -= 1
        spelling.put("}")

    def _plan(self) -> Iterator[str]:
        if self.layout.size:
            yield f"// @workspace {self.layout.size}"
        for step in self.program.steps:
            arguments = ", ".join(self._place(buffer) for buffer in self._parameters(step))
            yield f"// @launch {step.name}({arguments}) grid({_grid(step)}) block({_block(step)})"
        yield ""

    def _place(self, buffer: Buffer) -> str:
        if buffer.place == "operand":
            return buffer.name
        offset = self.layout.offsets[buffer.name]
        return f"workspace+{offset}" if offset else "workspace"

    def _launch(self) -> Iterator[str]:
        yield f'extern "C" void launch({abi(self.signature, self.dialect)})'
        yield "{"
        scratch = [b for b in self.program.buffers if b.place == "workspace"]
        if scratch:
            yield "    char* scratch = static_cast<char*>(workspace);"
        for buffer in scratch:
            kind, offset = stored_type(buffer), self.layout.offsets[buffer.name]
            yield f"    {kind}* {buffer.name} = reinterpret_cast<{kind}*>(scratch + {offset});"
        for step in self.program.steps:
            arguments = ", ".join(local(b.name) if b.place == "operand" else b.name for b in self._parameters(step))
            how = f"<<<{_grid(step)}, {_block(step)}, 0, stream>>>" if self.dialect is Dialect.CUDA else ""
            yield f"    {step.name}{how}({arguments});"
        yield "}"
        if self.layout.size:
            yield ""
            yield f'extern "C" size_t workspace_bytes(void) {{ return {self.layout.size}; }}'


def abi(signature: Signature, dialect: Dialect, plain: bool = False) -> str:
    """The parameters of ``launch`` for a signature, as the host contract has them; ``plain``: under the operands' own names."""
    parts = [
        f"{'' if o.role is Role.OUTPUT else 'const '}{names.type_name(o.name)}* {o.name if plain else local(o.name)}"
        for o in signature.operands
    ]
    parts.append("void* workspace")
    if dialect is Dialect.CUDA:
        parts.append("cudaStream_t stream")
    return ",\n                       ".join(_rows(parts, 90))


def _asserted(terms: Sequence[str]) -> Iterator[str]:
    """Lines that refuse to compile unless all terms hold."""
    for place in range(0, len(terms), 4):
        yield f'static_assert({" && ".join(terms[place : place + 4])}, "scaffolded for other shapes");'


def _rows(parts: Sequence[str], width: int) -> list[str]:
    """Parameters joined into lines of moderate length."""
    rows: list[str] = []
    for part in parts:
        if rows and len(rows[-1]) + len(part) + 2 <= width:
            rows[-1] += f", {part}"
        else:
            rows.append(part)
    return rows


def stem(operand: Operand, table: Mapping[str, Number]) -> str:
    """What the header calls an operand's macros: its name, with ``_`` behind it where that was taken."""
    found = names.macro(operand.name)
    wanted = {f"DIM{axis}": extent for axis, extent in enumerate(operand.shape)} | {"RANK": len(operand.shape)}
    while any(table.get(f"{found}_{suffix}") != value for suffix, value in wanted.items()):
        found += "_"
    return found


def _block(step: Step) -> int:
    """Threads per block: fewer where there is little to share, so that several multiprocessors get some."""
    return 256 if step.turns >= 2**16 else 64 if step.turns >= 2**13 else 32


def _grid(step: Step) -> int:
    return -(-step.turns // _block(step))
