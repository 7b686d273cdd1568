"""Generates a naive Triton kernel from an ATen graph: one vector of elements a program, serial loops for reductions.

Knows the layout of a Triton file; ``triton_code`` writes expressions.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence

from engine.codegen.cpp_code import stored_type
from engine.codegen.ir import Buffer, IrStep, Kind, Program
from engine.codegen.lowering import NotLowered, lower
from engine.codegen.naive import MAX_PLAN_ARGUMENTS, WorkspaceLayout, buffers_of, is_wide, step_parameters, workspace_layout
from engine.codegen.ports import MESSAGE, Port, PortText, ports_of
from engine.codegen.shape_cases import plan_expression
from engine.codegen.triton_code import STORED, VectorWriter, helper_lines, parameter
from engine.domain.model import Role
from engine.problem.graph_ir import TracedShape, Unsupported
from engine.toolchain.plan import MAX_LAUNCHES

_WIDTH = 118
_JOINED = ":\N{NO-BREAK SPACE}"
"""Keeps a parameter and its annotation on one line; textwrap does not break there."""


def triton_ports(shapes: Sequence[TracedShape]) -> list[Port] | Unsupported:
    """Naive kernels for several shapes: one text for all shapes that need the same steps."""
    programs: list[Program] = []
    for shape in shapes:
        if isinstance(shape.graph, Unsupported):
            return shape.graph
        outputs = [operand.name for operand in shape.signature.with_roles(Role.OUTPUT)]
        program = lower(shape.graph, outputs, MAX_LAUNCHES)
        if isinstance(program, Unsupported):
            return program
        if any(len(set(buffers_of(step))) > MAX_PLAN_ARGUMENTS for step in program.steps):
            return Unsupported("a join of more tensors than one @launch line has room for", "use --dialect python")
        programs.append(program)
    wide = any(is_wide(program) for program in programs)
    try:
        texts = [list(_TritonFile(program, workspace_layout(program), wide).lines()) for program in programs]
    except NotLowered as error:
        return error.reason
    return ports_of(texts, [shape.signature for shape in shapes], "#", _finished)


def _finished(port: PortText) -> list[str]:
    """The file with its guards, and with the parameters and arguments for the numbers that differ."""
    starts = [place for place, line in enumerate(port.lines) if line.startswith("def step")]
    functions = [port.lines[start:end] for start, end in zip(starts, [*starts[1:], len(port.lines)], strict=True)]
    lines = port.lines[: starts[0]]
    for place, (head, *body) in enumerate(functions):
        guards = list(_static_asserts(port)) if place == 0 else []
        guards += _reals(port, body)
        used = _used(port, [*guards, *body])
        at = next(k for k, line in enumerate(lines) if line.startswith(f"# @launch {_name(head)}("))
        lines[at] = _with_arguments(lines[at], port, used)
        comment, *rest = body
        given = [name for name in used if name not in port.defined or _is_whole(port, name)]
        lines += [*_head(head, given), comment, *guards, *rest]
    return lines


def _used(port: PortText, lines: Sequence[str]) -> list[str]:
    """The sizes and defined numbers that these lines name."""
    words = set(re.findall(r"\w+", "\n".join(lines)))
    return [name for name in (*port.cases.tables[0], *port.defined) if name in words]


def _reals(port: PortText, lines: Sequence[str]) -> Iterator[str]:
    """Definitions of numbers that are no integers, which a launch line cannot give."""
    for name in _used(port, lines):
        if name in port.defined and not _is_whole(port, name):
            (usual, _), *others = port.cases.conditions(port.deciding, port.defined[name])
            tests = "".join(f"{value} if {' or '.join(one).replace('&&', 'and')} else " for value, one in others)
            yield f"    {name}: tl.constexpr = {tests}{usual}"


def _is_whole(port: PortText, name: str) -> bool:
    return all(value.isdecimal() for value in port.defined[name])


def _name(head: str) -> str:
    return head.removeprefix("def ").partition("(")[0]


def _head(head: str, used: Sequence[str]) -> Iterator[str]:
    begin = head[: head.index("(") + 1]
    text = "".join((head.removesuffix("):"), *(f", {name}: tl.constexpr" for name in used), "):"))
    wrapped = textwrap.wrap(
        text.replace(": tl", f"{_JOINED}tl"), _WIDTH, subsequent_indent=" " * len(begin), break_long_words=False
    )
    yield from (line.replace(_JOINED, ": ") for line in wrapped)


def _with_arguments(launch: str, port: PortText, used: Sequence[str]) -> str:
    """A launch line that also gives the numbers which no name of a plan stands for."""
    given = "".join(
        f", {name}={plan_expression(port.cases, port.deciding, port.defined[name])}"
        for name in used
        if name in port.defined and _is_whole(port, name)
    )
    begin, end = launch.rsplit(") grid(", 1)
    return f"{begin}{given}) grid({end}"


def _static_asserts(port: PortText) -> Iterator[str]:
    terms = [term.replace("&&", "and") for term in port.cases.requirements(port.deciding)]
    plain = [term for term in terms if "||" not in term]
    for at in range(0, len(plain), 4):
        yield f'    tl.static_assert({" and ".join(plain[at : at + 4])}, "{MESSAGE}")'
    for term in (term for term in terms if "||" in term):
        yield "    tl.static_assert(" + "\n                     or ".join(term.split(" || ")) + f', "{MESSAGE}")'


class _TritonFile:
    """The text of one file."""

    def __init__(self, program: Program, workspace: WorkspaceLayout, wide: bool) -> None:
        self.steps, self.buffers, self.workspace = program.steps, {b.name: b for b in program.buffers}, workspace
        self.index = "tl.int64" if wide else "tl.int32"
        self.helpers: set[str] = set()

    def lines(self) -> Iterator[str]:
        bodies = [list(self._step(step)) for step in self.steps]
        yield "# Naive port, generated from the reference's graph: correct, not optimised, one function per step."
        yield "import triton"
        yield "import triton.language as tl"
        yield ""
        yield "# Sizes are hard-coded below: run `espalier scaffold` again for other shapes or constants."
        yield "# @tune BLOCK = 256, 128, 512"
        if self.workspace.size:
            yield f"# @workspace {self.workspace.size}"
        for step in self.steps:
            arguments = ", ".join(self._place(buffer) for buffer in step_parameters(self.buffers, step))
            yield f"# @launch {step.name}({arguments}) grid(ceil_div({step.parallel_iterations}, BLOCK))"
        for helper in sorted(self.helpers):
            yield from ("", "", *helper_lines(helper))
        for body in bodies:
            yield from ("", "", *body)

    def _place(self, buffer: Buffer) -> str:
        if buffer.place == "operand":
            return buffer.name
        offset = self.workspace.offsets[buffer.name]
        return f"workspace{f'+{offset}' if offset else ''} as {STORED[stored_type(buffer)]}"

    def _step(self, step: IrStep) -> Iterator[str]:
        given = [parameter(b.name) if b.place == "operand" else b.name for b in step_parameters(self.buffers, step)]
        writer = VectorWriter(self.buffers, self.index, {*given, "BLOCK", "mask", "tl", "triton"}, self.helpers)
        yield "@triton.jit"
        yield f"def {step.name}({', '.join([*given, 'BLOCK: tl.constexpr'])}):"
        yield f"    # {step.comment}"
        self._open(step, writer)
        self._fill(step, writer)
        yield from writer.lines

    def _open(self, step: IrStep, writer: VectorWriter) -> None:
        loops = step.loops[:-1] if step.scan else step.loops
        whole = writer.name("i")
        program = "tl.program_id(0)" if self.index == "tl.int32" else "tl.program_id(0).to(tl.int64)"
        writer.add_line(f"{whole} = {program} * BLOCK + tl.arange(0, BLOCK)")
        writer.add_line(f"mask = {whole} < {step.parallel_iterations}")
        for place, loop in enumerate(loops):
            stride = math.prod(other.extent for other in loops[place + 1 :])
            quotient = f"{whole} // {stride}" if stride > 1 else whole
            text = f"{quotient} % {loop.extent}" if place else quotient
            name = writer.name(loop.name.partition("#")[0]) if len(loops) > 1 else whole
            if len(loops) > 1:
                writer.add_line(f"{name} = {text}")
            writer.declare(loop, name)

    def _fill(self, step: IrStep, writer: VectorWriter) -> None:
        """The statement that stores the elements, or the serial loop of a scan."""
        target = self.buffers[step.target]
        name = parameter(target.name) if target.place == "operand" else target.name
        if not step.scan:
            value = writer.value(step.body)
            writer.add_line(
                f"tl.store({name} + {writer.text(step.offset)}, {self._stored(target, value, step.body.kind)}, mask=mask)"
            )
            return
        kind = Kind.LONG if step.body.kind is Kind.LONG else Kind.DOUBLE
        total = writer.name("acc")
        writer.add_line(f"{total} = {writer.full(0 if step.scan == 'sum' else 1, kind)}")
        loop = step.loops[-1]
        writer.declare(loop, writer.open_loop(loop))
        value = writer.value(step.body)
        writer.add_line(f"{total} = {total} {'+' if step.scan == 'sum' else '*'} {value}.to({writer.type_of(kind)})")
        result = f"{total}.to(tl.float32)" if step.body.kind is Kind.FLOAT else total
        writer.add_line(f"tl.store({name} + {writer.text(step.offset)}, {result}, mask=mask)")

    def _stored(self, target: Buffer, value: str, kind: Kind) -> str:
        """``tl.store`` converts to the type of the pointer, but for booleans."""
        return f"{value}.to(tl.int8)" if kind is Kind.BOOL and target.place != "operand" else value
