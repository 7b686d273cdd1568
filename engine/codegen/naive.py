"""Generates a naive kernel from an ATen graph: plain loops in C++, one thread per element in CUDA. Correct, readable, slow.

Knows the layout of a file under each contract, and assigns intermediates to the workspace. ``lowering`` decides what is
computed, ``cpp_code`` writes expressions.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.codegen import ir, norms, pointwise, products, reductions, sorting, views, windows
from engine.codegen.cpp_code import ExpressionWriter, helper_definition, literal, parameter_name, stored_type
from engine.codegen.ir import Buffer, IrStep, Kind, Program
from engine.codegen.lowering import lower
from engine.codegen.ports import GUARDS, Port, c_text, ports_of
from engine.domain.model import Contract, Dialect, Role, Signature
from engine.problem import names
from engine.problem.graph_ir import Graph, TracedShape, Unsupported
from engine.toolchain.plan import MAX_LAUNCHES

OPERATORS = (
    pointwise,
    views,
    reductions,
    products,
    norms,
    sorting,
    windows,
)
"""Modules that register lowerings when they are imported."""

WORKSPACE_ALIGNMENT = 256
"""Alignment of intermediates, in bytes."""
MAX_HOST_STEPS = 1024
"""Longest program under the host contract; unrolled recurrences exceed it."""
MAX_PLAN_ARGUMENTS = 45
"""Arguments of one launch of a plan."""
MIN_PARALLEL_ITERATIONS = 64
"""Iterations that are enough for the cores of a CPU."""
MAX_INT_ELEMENTS = 2**30
"""Buffers below this size are indexed by int."""


def naive(graph: Graph, signature: Signature, dialect: Dialect, contract: Contract) -> str | Unsupported:
    """Code that computes the graph for the signature's shapes and rejects others at compile time.

    ``cpp`` under the host contract, ``cuda`` under plan or host. Raises ValueError for other pairs, and for a graph whose
    operands are not the signature's.
    """
    found = naive_ports([TracedShape(signature, graph)], dialect, contract)
    return found if isinstance(found, Unsupported) else found[0].text


def naive_ports(shapes: Sequence[TracedShape], dialect: Dialect, contract: Contract) -> list[Port] | Unsupported:
    """Naive kernels for several shapes: one text for all shapes that need the same steps."""
    if (dialect, contract) not in ((Dialect.CPP, Contract.HOST), (Dialect.CUDA, Contract.PLAN), (Dialect.CUDA, Contract.HOST)):
        raise ValueError(f"no naive kernel in {dialect} under the {contract} contract")
    plan = contract is Contract.PLAN
    programs: list[Program] = []
    for shape in shapes:
        program = _program(shape, MAX_LAUNCHES if plan else MAX_HOST_STEPS)
        if isinstance(program, Unsupported):
            return program
        if plan and any(len(set(buffers_of(step))) > MAX_PLAN_ARGUMENTS for step in program.steps):
            return Unsupported("a join of more tensors than one @launch line has room for", "use --contract host")
        programs.append(program)
    wide = any(is_wide(program) for program in programs)
    texts = [
        list(_KernelText(program, shape.signature, dialect, contract, wide).lines())
        for program, shape in zip(programs, shapes, strict=True)
    ]
    return ports_of(texts, [shape.signature for shape in shapes], "//", c_text)


def _program(shape: TracedShape, max_steps: int) -> Program | Unsupported:
    if isinstance(shape.graph, Unsupported):
        return shape.graph
    given = [name for name, _ in shape.graph.operands]
    wanted = [operand.name for operand in shape.signature.with_roles(Role.INPUT, Role.PARAMETER, Role.BUFFER)]
    if given != wanted:
        raise ValueError(f"the graph's operands are {given}, the signature's are {wanted}")
    return lower(shape.graph, [operand.name for operand in shape.signature.with_roles(Role.OUTPUT)], max_steps)


def is_wide(program: Program) -> bool:
    """Whether a buffer is too large for an int as its index."""
    return any(buffer.numel >= MAX_INT_ELEMENTS for buffer in program.buffers)


@dataclass(frozen=True, slots=True)
class WorkspaceLayout:
    """Byte offsets of intermediates in the workspace, and its size."""

    offsets: dict[str, int]
    size: int


def workspace_layout(program: Program) -> WorkspaceLayout:
    """First fit: an intermediate reuses the memory of those that no later step reads."""
    scratch = {b.name: b for b in program.buffers if b.place == "workspace"}
    last = {name: place for place, step in enumerate(program.steps) for name in buffers_of(step)}
    live: list[tuple[int, int, str]] = []
    offsets: dict[str, int] = {}
    size = 0
    for place, step in enumerate(program.steps):
        live = [held for held in live if last[held[2]] >= place]
        buffer = scratch.get(step.target)
        if buffer is None or buffer.name in offsets:
            continue
        needed = -(-buffer.numel * _bytes(buffer) // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
        start = 0
        for begin, end, _ in sorted(live):
            if begin - start >= needed:
                break
            start = max(start, end)
        live.append((start, start + needed, buffer.name))
        offsets[buffer.name] = start
        size = max(size, start + needed)
    return WorkspaceLayout(offsets, size)


def _bytes(buffer: Buffer) -> int:
    return {"double": 8, "long": 8, "float": 4, "int": 4, "short": 2}.get(stored_type(buffer), 1)


def buffers_of(step: IrStep) -> Iterator[str]:
    """The buffers of a step, its target first."""
    yield step.target
    yield from (e.buffer for e in ir.walk(step.body) if isinstance(e, ir.ReadElement))


def step_parameters(buffers: Mapping[str, Buffer], step: IrStep) -> list[Buffer]:
    """What the function of a step takes, its target last. Tables are constants of the file."""
    used = dict.fromkeys(name for name in buffers_of(step) if name != step.target)
    return [buffers[name] for name in (*used, step.target) if buffers[name].place != "table"]


class _KernelText:
    """The text of one kernel file."""

    def __init__(self, program: Program, signature: Signature, dialect: Dialect, contract: Contract, wide: bool) -> None:
        self.program, self.signature, self.dialect, self.contract = program, signature, dialect, contract
        self.buffers = {b.name: b for b in program.buffers}
        self.workspace = workspace_layout(program)
        self.index = "long" if wide else "int"
        self.helpers: set[str] = set()

    def lines(self) -> Iterator[str]:
        """The whole text."""
        steps = [list(self._step(step)) for step in self.program.steps]
        yield "// Naive port, generated from the reference's graph: correct, not optimised, one function per step."
        yield '#include "problem.h"'
        yield ""
        yield from self._includes()
        yield ""
        yield "// Sizes are hard-coded below: run `espalier scaffold` again for other shapes or constants."
        yield GUARDS
        yield ""
        qualifier = "__device__ inline" if self.dialect is Dialect.CUDA else "inline"
        if self.helpers:
            yield from (helper_definition(name, qualifier) for name in sorted(self.helpers))
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

    def _tables(self) -> Iterator[str]:
        for buffer in (b for b in self.program.buffers if b.place == "table"):
            kind = {"float": Kind.FLOAT, "double": Kind.DOUBLE}.get(stored_type(buffer), Kind.INDEX)
            values = ", ".join(literal(value, kind) for value in buffer.values)
            qualifier = "__device__ const" if self.dialect is Dialect.CUDA else "static const"
            text = f"{qualifier} {stored_type(buffer)} {buffer.name}[{max(buffer.numel, 1)}] = {{{values}}};"
            yield from textwrap.wrap(text, 118, subsequent_indent="    ", break_long_words=False)
            yield ""

    def _declared(self, step: IrStep) -> list[str]:
        """The parameters of a step's function."""
        parts: list[str] = []
        for buffer in step_parameters(self.buffers, step):
            const = "" if buffer.name == step.target else "const "
            if buffer.place == "operand":
                parts.append(f"{const}{names.type_name(buffer.name)}* {parameter_name(buffer.name)}")
            else:
                parts.append(f"{const}{stored_type(buffer)}* {buffer.name}")
        return parts

    def _step(self, step: IrStep) -> Iterator[str]:
        taken = {parameter_name(name) for name in self.buffers} | {s.name for s in self.program.steps}
        writer = ExpressionWriter(self.buffers, self.index, taken, self.helpers, indent=1)
        head = f'extern "C" __global__ void {step.name}(' if self.dialect is Dialect.CUDA else f"static void {step.name}("
        yield f"// {step.comment}"
        yield head + f",\n{' ' * len(head)}".join(_wrap_parameters(self._declared(step), 116 - len(head))) + ")"
        yield "{"
        opened = self._open_cuda(step, writer) if self.dialect is Dialect.CUDA else self._open_cpp(step, writer)
        self._fill(step, writer)
        for _ in range(opened):
            writer.indent -= 1
            writer.add_line("}")
        yield from writer.lines
        yield "}"

    def _open_cpp(self, step: IrStep, writer: ExpressionWriter) -> int:
        loops = step.loops[:-1] if step.scan else step.loops
        depth, iterations = 0, 1
        while depth < len(loops) and iterations < MIN_PARALLEL_ITERATIONS:
            iterations *= loops[depth].extent
            depth += 1
        if iterations > 1:
            writer.lines.append("#pragma omp parallel for" + (f" collapse({depth})" if depth > 1 else ""))
        for loop in loops:
            name = writer.variable(loop)
            writer.add_line(f"for ({self.index} {name} = 0; {name} < {loop.extent}; ++{name}) {{")
            writer.indent += 1
        return len(loops)

    def _open_cuda(self, step: IrStep, writer: ExpressionWriter) -> int:
        loops = step.loops[:-1] if step.scan else step.loops
        only = writer.variable(loops[0]) if len(loops) == 1 else writer.name("i")
        wide = "(long)" if self.index == "long" else ""
        writer.add_line(
            f"for ({self.index} {only} = {wide}blockIdx.x * blockDim.x + threadIdx.x; {only} < {step.parallel_iterations};"
        )
        writer.add_line(f"     {only} += {wide}gridDim.x * blockDim.x) {{")
        writer.indent += 1
        for place, loop in enumerate(loops if len(loops) > 1 else ()):
            stride = math.prod(other.extent for other in loops[place + 1 :])
            quotient = f"{only} / {stride}" if stride > 1 else only
            text = f"{quotient} % {loop.extent}" if place else quotient
            writer.add_line(f"const {self.index} {writer.variable(loop)} = {text};")
        return 1

    def _fill(self, step: IrStep, writer: ExpressionWriter) -> None:
        """The statement that stores an element, or the serial loop of a scan."""
        target = self.buffers[step.target]
        name = parameter_name(step.target)
        kind = names.type_name(target.name) if target.place == "operand" else ""
        plain = target.dtype in ("float32", "float64", "int64")
        if not step.scan:
            value = writer.value(step.body)
            writer.add_line(f"{name}[{writer.text(step.offset, 0)}] = {f'{kind}({value})' if kind and not plain else value};")
            return
        whole = step.body.kind is Kind.LONG
        writer.add_line(f"{'long' if whole else 'double'} {(total := writer.name('acc'))} = {0 if step.scan == 'sum' else 1};")
        serial = writer.variable(step.loops[-1])
        writer.add_line(f"for ({self.index} {serial} = 0; {serial} < {step.loops[-1].extent}; ++{serial}) {{")
        writer.indent += 1
        value = writer.value(step.body)
        writer.add_line(f"{total} {'+' if step.scan == 'sum' else '*'}= {value};")
        rounded = f"float({total})" if step.body.kind is Kind.FLOAT else total
        writer.add_line(f"{name}[{writer.text(step.offset, 0)}] = {kind or stored_type(target)}({rounded});")
        writer.indent -= 1
        writer.add_line("}")

    def _plan(self) -> Iterator[str]:
        if self.workspace.size:
            yield f"// @workspace {self.workspace.size}"
        for step in self.program.steps:
            arguments = ", ".join(self._place(buffer) for buffer in step_parameters(self.buffers, step))
            grid = f"ceil_div({step.parallel_iterations}, {_block(step)})"
            yield f"// @launch {step.name}({arguments}) grid({grid}) block({_block(step)})"
        yield ""

    def _place(self, buffer: Buffer) -> str:
        if buffer.place == "operand":
            return buffer.name
        offset = self.workspace.offsets[buffer.name]
        return f"workspace+{offset}" if offset else "workspace"

    def _launch(self) -> Iterator[str]:
        yield f'extern "C" void launch({abi(self.signature, self.dialect)})'
        yield "{"
        scratch = [b for b in self.program.buffers if b.place == "workspace"]
        if scratch:
            yield "    char* scratch = static_cast<char*>(workspace);"
        for buffer in scratch:
            kind, offset = stored_type(buffer), self.workspace.offsets[buffer.name]
            yield f"    {kind}* {buffer.name} = reinterpret_cast<{kind}*>(scratch + {offset});"
        for step in self.program.steps:
            arguments = ", ".join(
                parameter_name(b.name) if b.place == "operand" else b.name for b in step_parameters(self.buffers, step)
            )
            config = f"<<<{_grid(step)}, {_block(step)}, 0, stream>>>" if self.dialect is Dialect.CUDA else ""
            yield f"    {step.name}{config}({arguments});"
        yield "}"
        if self.workspace.size:
            yield ""
            yield f'extern "C" size_t workspace_bytes(void) {{ return {self.workspace.size}; }}'


def abi(signature: Signature, dialect: Dialect, plain: bool = False) -> str:
    """The parameters of ``launch`` under the host contract; ``plain``: with the operands' own names."""
    parts = [
        f"{'' if o.role is Role.OUTPUT else 'const '}{names.type_name(o.name)}* {o.name if plain else parameter_name(o.name)}"
        for o in signature.operands
    ]
    parts.append("void* workspace")
    if dialect is Dialect.CUDA:
        parts.append("cudaStream_t stream")
    return ",\n                       ".join(_wrap_parameters(parts, 90))


def _wrap_parameters(parts: Sequence[str], width: int) -> list[str]:
    """Parameters joined into lines of at most ``width``."""
    rows: list[str] = []
    for part in parts:
        if rows and len(rows[-1]) + len(part) + 2 <= width:
            rows[-1] += f", {part}"
        else:
            rows.append(part)
    return rows


def _block(step: IrStep) -> int:
    """Threads per block: fewer for small steps, so that several multiprocessors get work."""
    return 256 if step.parallel_iterations >= 2**16 else 64 if step.parallel_iterations >= 2**13 else 32


def _grid(step: IrStep) -> int:
    return -(-step.parallel_iterations // _block(step))
