"""Generates a naive Triton kernel from an ATen graph: one vector of elements a program, serial loops for reductions.

Knows the layout of a Triton file; ``triton_code`` writes expressions.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

from engine.codegen.cpp_code import stored_type
from engine.codegen.ir import Buffer, IrStep, Kind
from engine.codegen.lowering import NotLowered, lower
from engine.codegen.naive import MAX_INT_ELEMENTS, MAX_PLAN_ARGUMENTS, buffers_of, macro_name, workspace_layout
from engine.codegen.naive import WorkspaceLayout as WorkspaceLayout
from engine.codegen.triton_code import STORED, VectorWriter, helper_lines, parameter
from engine.domain.model import Number, Role, Signature
from engine.problem import header, names
from engine.problem.graph_ir import Graph, Unsupported
from engine.toolchain.plan import MAX_LAUNCHES

_WIDTH = 118
_JOINED = ":\N{NO-BREAK SPACE}"
"""Keeps a parameter and its annotation on one line; textwrap does not break there."""


def naive_triton(graph: Graph, signature: Signature) -> str | Unsupported:
    """Code that computes the graph for the signature's shapes and rejects others when it is compiled."""
    outputs = [operand.name for operand in signature.with_roles(Role.OUTPUT)]
    program = lower(graph, outputs, MAX_LAUNCHES)
    if isinstance(program, Unsupported):
        return program
    if any(len(set(buffers_of(step))) > MAX_PLAN_ARGUMENTS for step in program.steps):
        return Unsupported("a join of more tensors than one @launch line has room for", "use --dialect python")
    try:
        return (
            "\n".join(
                _TritonFile(program.steps, {b.name: b for b in program.buffers}, signature, workspace_layout(program)).lines()
            )
            + "\n"
        )
    except NotLowered as error:
        return error.reason


class _TritonFile:
    """The text of one file."""

    def __init__(
        self, steps: tuple[IrStep, ...], buffers: dict[str, Buffer], signature: Signature, workspace: WorkspaceLayout
    ) -> None:
        self.steps, self.buffers, self.signature, self.workspace = steps, buffers, signature, workspace
        wide = any(buffer.numel >= MAX_INT_ELEMENTS for buffer in buffers.values())
        self.index = "tl.int64" if wide else "tl.int32"
        self.helpers: set[str] = set()

    def lines(self) -> Iterator[str]:
        bodies = [list(self._step(step, first=place == 0)) for place, step in enumerate(self.steps)]
        yield "# Naive port, generated from the reference's graph: correct, not optimised, one function per step."
        yield "import triton"
        yield "import triton.language as tl"
        yield ""
        yield "# Sizes are hard-coded below: run `espalier scaffold` again for other shapes or constants."
        yield "# @tune BLOCK = 256, 128, 512"
        if self.workspace.size:
            yield f"# @workspace {self.workspace.size}"
        for step in self.steps:
            arguments = ", ".join(self._place(buffer) for buffer in self._given(step))
            yield f"# @launch {step.name}({arguments}) grid(ceil_div({step.parallel_iterations}, BLOCK))"
        for helper in sorted(self.helpers):
            yield from ("", "", *helper_lines(helper))
        for body in bodies:
            yield from ("", "", *body)

    def _given(self, step: IrStep) -> list[Buffer]:
        used = dict.fromkeys(name for name in buffers_of(step) if name != step.target)
        return [self.buffers[name] for name in (*used, step.target) if self.buffers[name].place != "table"]

    def _place(self, buffer: Buffer) -> str:
        if buffer.place == "operand":
            return buffer.name
        offset = self.workspace.offsets[buffer.name]
        return f"workspace{f'+{offset}' if offset else ''} as {STORED[stored_type(buffer)]}"

    def _checks(self) -> dict[str, Number]:
        """Shapes and constants that the text was generated for, by their names in a plan."""
        table = header.plan_names(self.signature, 0)
        found: dict[str, Number] = {}
        for operand in self.signature.operands:
            macro = macro_name(operand, table)
            found |= {f"{macro}_DIM{axis}": extent for axis, extent in enumerate(operand.shape)}
        macros = ((names.macro(name), value) for name, value in self.signature.constants.items())
        return found | {macro: value for macro, value in macros if table.get(macro) == value}

    def _step(self, step: IrStep, *, first: bool) -> Iterator[str]:
        checks = self._checks() if first else {}
        given = [parameter(b.name) if b.place == "operand" else b.name for b in self._given(step)]
        writer = VectorWriter(self.buffers, self.index, {*given, *checks, "BLOCK", "mask", "tl", "triton"}, self.helpers)
        yield "@triton.jit"
        head = f"def {step.name}("
        text = ", ".join([*given, *(f"{name}{_JOINED}tl.constexpr" for name in ("BLOCK", *checks))])
        wrapped = textwrap.wrap(f"{head}{text}):", _WIDTH, subsequent_indent=" " * len(head), break_long_words=False)
        yield from (line.replace(_JOINED, ": ") for line in wrapped)
        yield f"    # {step.comment}"
        terms = [f"{name} == {value!r}" for name, value in checks.items()]
        for at in range(0, len(terms), 4):
            yield f'    tl.static_assert({" and ".join(terms[at : at + 4])}, "scaffolded for other shapes")'
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
