"""The file that `espalier scaffold` writes: a naive kernel, an empty one, or the reference as a module; and the plan's help.

Chooses the contract and writes the text around a kernel; ``naive`` generates the kernel itself. Traces and compiles nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.codegen.module_scaffold import module_source
from engine.codegen.naive import abi, naive_ports
from engine.codegen.ports import Port, macro_name
from engine.codegen.triton_code import parameter
from engine.codegen.triton_naive import triton_ports
from engine.domain.errors import ProblemError
from engine.domain.model import Contract, Dialect, Operand, Problem, Role, Signature, Workload
from engine.problem import header, names
from engine.problem.graph_ir import TracedShape, Unsupported
from engine.problem.names import unused_name
from engine.toolchain.dispatch import Dispatch, DispatchMember, DispatchShape, deciding_settings, dispatch_text

CONTRACTS = {
    Dialect.CUDA: (Contract.PLAN, Contract.HOST),
    Dialect.CPP: (Contract.HOST,),
    Dialect.TRITON: (Contract.PLAN,),
    Dialect.PYTHON: (Contract.MODULE,),
}
"""The contracts of each dialect, the default first."""

MAX_LISTED_OPERANDS = 8
"""Operands described in an empty kernel; more would not fit on a screen."""


def contract_for(dialect: Dialect, contract: Contract | None = None) -> Contract:
    """The given contract, or the dialect's default.

    Raises ProblemError for a contract that the dialect does not support.
    """
    allowed = CONTRACTS[dialect]
    if contract is None:
        return allowed[0]
    if contract not in allowed:
        fitting = " or ".join(allowed)
        raise ProblemError(f"{dialect} does not support the {contract} contract: omit --contract, or use {fitting}")
    return contract


def scaffold(
    problem: Problem,
    workloads: Sequence[Workload],
    shapes: Sequence[TracedShape],
    dialect: Dialect,
    contract: Contract | None = None,
) -> str:
    """A correct, naive kernel for these workloads; a dispatch where they need different steps.

    ``shapes`` are the workloads' traces (``python`` ignores them). Without ``contract``, it is the dialect's default; the host
    contract where a CUDA plan would be too large. Raises ProblemError, in one line, for an operator without a lowering, and for
    a contract that the dialect does not have.
    """
    chosen = contract_for(dialect, contract)
    if dialect is Dialect.PYTHON:
        return module_source(problem.reference, workloads[0].settings)
    _check(problem, shapes[0].signature)
    why: Unsupported | None = None
    if dialect is Dialect.TRITON:
        ports = triton_ports(shapes)
    else:
        ports = naive_ports(shapes, dialect, chosen)
        if isinstance(ports, Unsupported) and contract is None and dialect is Dialect.CUDA:
            why, ports = ports, naive_ports(shapes, dialect, Contract.HOST)
    if isinstance(ports, Unsupported):
        raise ProblemError(f"{problem.name}: {(why or ports).line}")
    text = _dispatched(problem, workloads, ports, dialect) if len(ports) > 1 else ports[0].text
    return f"// Under the host contract, because a plan cannot hold {why.what}.\n{text}" if why else text


def _dispatched(problem: Problem, workloads: Sequence[Workload], ports: Sequence[Port], dialect: Dialect) -> str:
    """One file of several ports, of which the shape chooses one."""
    settings = deciding_settings(workloads)
    if not settings:
        raise ProblemError(
            f"{problem.name}: the workloads need different kernels, and differ in no setting that each of them states: "
            "choose one with --workload"
        )
    members = [
        DispatchMember(
            f"naive{number}", {}, tuple(
                DispatchShape({name: workloads[place].settings[name] for name in settings}) for place in port.places
            ), port.text,
        )
        for number, port in enumerate(ports, 1)
    ]  # fmt: skip
    return dispatch_text(Dispatch(settings, tuple(members)), dialect, "Naive ports of shapes that need different steps.")


def empty_kernel(signature: Signature, dialect: Dialect, contract: Contract | None = None, *, listed: bool = True) -> str:
    """A kernel to fill in: it compiles, receives the right operands, and writes zeros. ``listed``: its head lists them."""
    operands = _operand_comments(signature, "#" if dialect is Dialect.TRITON else "//") if listed else []
    match contract_for(dialect, contract):
        case Contract.PLAN:
            return _empty_triton(signature, operands) if dialect is Dialect.TRITON else _empty_plan(signature, operands)
        case Contract.HOST:
            return _empty_host(signature, dialect, operands)
        case Contract.MODULE:
            return _empty_module(signature)


def _check(problem: Problem, signature: Signature) -> None:
    if not signature.scalar_only:
        raise ProblemError(f"{problem.name}: the model has arguments or tensors that C has no type for: use --dialect python")


def _operand_comments(signature: Signature, mark: str = "//") -> list[str]:
    """Comment lines that list the operands."""
    head = f"{mark} Operands (contiguous, row-major; outputs are poisoned before each call; inputs are read-only):"
    shown = (
        signature.operands if len(signature.operands) <= MAX_LISTED_OPERANDS else signature.operands[: MAX_LISTED_OPERANDS - 1]
    )
    width = max(len(o.name) for o in shown)
    lines = []
    for o in shown:
        note = names.instead_of(o.name, signature.constants)
        lines.append(f"{mark}   {names.identifier(o.name):<{width}}  {o.role:<9}  {o.dtype} {_shape(o)}{note and f', {note}'}")
    if len(shown) < len(signature.operands):
        where = ", see problem.h" if mark == "//" else ""
        lines.append(f"{mark}   and {len(signature.operands) - len(shown)} more{where}")
    return [head, *lines]


def _shape(operand: Operand) -> str:
    return "(" + ", ".join(str(extent) for extent in operand.shape) + ")"


def _first_output(signature: Signature) -> tuple[Operand, str]:
    """The first output and the name of its macros."""
    output = signature.with_roles(Role.OUTPUT)[0]
    return output, macro_name(output, header.plan_names(signature, 0))


def _empty_plan(signature: Signature, operands: list[str]) -> str:
    output, macro = _first_output(signature)
    at = unused_name("i", [o.name for o in signature.operands].__contains__)
    inputs = signature.with_roles(Role.INPUT)[:3]
    kind = names.type_name(output.name)
    declared = ", ".join([f"const {names.type_name(o.name)}* {o.name}" for o in inputs] + [f"{kind}* {output.name}"])
    given = ", ".join(o.name for o in (*inputs, output))
    return "\n".join(
        [
            "// A cuda kernel under the plan contract: device code only. The @launch lines are launched in",
            "// order, with operands, `workspace` or tensor maps as arguments.",
            *operands,
            '#include "problem.h"  // for each operand x: x_t, X_NUMEL, X_RANK, X_DIM0 ...; the constants',
            "",
            "// @tune   BLOCK = 256, 128, 512",
            f"// @launch first_kernel({given}) grid(ceil_div({macro}_NUMEL, BLOCK)) block(BLOCK)",
            "",
            f'extern "C" __global__ void first_kernel({declared})',
            "{",
            f"    const long {at} = (long)blockIdx.x * BLOCK + threadIdx.x;",
            f"    if ({at} < {macro}_NUMEL) {output.name}[{at}] = {kind}(0.0f);",
            "}",
            "",
        ]
    )


def _empty_triton(signature: Signature, operands: list[str]) -> str:
    output, macro = _first_output(signature)
    given = [*(o.name for o in signature.with_roles(Role.INPUT)[:3]), output.name]
    parameters = ", ".join(parameter(name) for name in given)
    at = unused_name("i", [o.name for o in signature.operands].__contains__)
    return "\n".join(
        [
            "# A triton kernel under the plan contract: only the functions run, launched as the @launch lines say, in order.",
            *operands,
            "# tl.constexpr parameters take tunables and constants by name: X_NUMEL, X_RANK, X_DIM0 ... of each operand x,",
            "# the reference's numbers, SMS. num_warps and num_stages can be tunables too.",
            "import triton",
            "import triton.language as tl",
            "",
            "# @tune   BLOCK = 1024, 512, 2048",
            "# @tune   num_warps = 4, 8",
            f"# @launch first_kernel({', '.join(given)}) grid(ceil_div({macro}_NUMEL, BLOCK))",
            "",
            "",
            "@triton.jit",
            f"def first_kernel({parameters}, {macro}_NUMEL: tl.constexpr, BLOCK: tl.constexpr):",
            f"    {at} = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
            f"    tl.store({parameter(output.name)} + {at}, tl.zeros((BLOCK,), tl.float32), mask={at} < {macro}_NUMEL)",
            "",
        ]
    )


def _empty_host(signature: Signature, dialect: Dialect, operands: list[str]) -> str:
    output, macro = _first_output(signature)
    at = unused_name("i", [o.name for o in signature.operands].__contains__)
    cuda = dialect is Dialect.CUDA
    name, kind = output.name, names.type_name(output.name)
    kernel = [
        f"static __global__ void first_kernel({kind}* {name})",
        "{",
        f"    const long {at} = (long)blockIdx.x * blockDim.x + threadIdx.x;",
        f"    if ({at} < {macro}_NUMEL) {name}[{at}] = {kind}(0.0f);",
        "}",
        "",
    ]
    body = (
        [f"    first_kernel<<<({macro}_NUMEL + 255) / 256, 256, 0, stream>>>({name});"]
        if cuda
        else ["#pragma omp parallel for", f"    for (long {at} = 0; {at} < {macro}_NUMEL; ++{at}) {name}[{at}] = {kind}(0.0f);"]
    )
    return "\n".join(
        [
            f"// A {dialect} kernel under the host contract: launch() receives every operand in this order,",
            "// outputs last, then `workspace` (aligned scratch)" + (". It must enqueue only on `stream`." if cuda else "."),
            *operands,
            '#include "problem.h"  // for each operand x: x_t, X_NUMEL, X_RANK, X_DIM0 ...; the constants',
            "",
            *(["#include <cuda_runtime.h>", ""] if cuda else []),
            *(kernel if cuda else []),
            'extern "C" size_t workspace_bytes(void) { return 0; }',
            "",
            f'extern "C" void launch({abi(signature, dialect, plain=True)})',
            "{",
            *body,
            "}",
            "",
        ]
    )


def _empty_module(signature: Signature) -> str:
    inputs = ", ".join(o.name for o in signature.with_roles(Role.INPUT))
    outputs = signature.with_roles(Role.OUTPUT)
    made = [f"torch.zeros({o.shape}, dtype=torch.{o.dtype}, device={_device(signature)})" for o in outputs]
    result = made[0] if len(made) == 1 else "(" + ", ".join(made) + ")"
    return "\n".join(
        [
            '"""A python kernel under the module contract: constructed and called like Model, with the same weights."""',
            "",
            "import torch",
            "from torch import nn",
            "",
            "",
            "class ModelNew(nn.Module):",
            "    def __init__(self, *arguments, **named) -> None:",
            '        """Receives get_init_inputs(); Model\'s weights are then loaded by name."""',
            "        super().__init__()",
            "",
            f"    def forward(self, {inputs}):" if inputs else "    def forward(self):",
            f"        return {result}",
            "",
        ]
    )


def _device(signature: Signature) -> str:
    inputs = signature.with_roles(Role.INPUT)
    return f"{inputs[0].name}.device" if inputs else '"cpu"'


TRITON_GRAMMAR = """\
A triton plan is a .py file of @triton.jit or @gluon.jit functions with its launches
in comment lines. Its other code is run once, when it is compiled, and never launches.

# @tune NAME = v1, v2, ...        an integer, first value the default; num_warps,
#                                 num_stages, num_ctas and maxnreg set the compiler's
# @require EXPR                   combinations for which EXPR is 0 are skipped
# @workspace BYTES [zero]         scratch; zero: cleared before every call
# @launch FUNCTION(arg, ..., PARAMETER=arg) grid(x[,y[,z]])
#         [num_warps(EXPR)] [num_stages(EXPR)] [num_ctas(EXPR)] [maxnreg(EXPR)]
#         [cooperative]           all on one line; several are launched in order

arg    an operand, workspace[+EXPR] [as DTYPE] (default float32), EXPR, None;
       a number that is not tl.constexpr is passed by value
tl.constexpr parameters that the line leaves out take the tunable or the constant
       with their name (FUNCTION_NAME before NAME), else their default
names  as in a plan of .cu files: tunables, X_NUMEL X_DIM0 ..., constants, SMS
@triton.autotune configurations become tunables. Tensor descriptors are made in the
kernel (tl.make_tensor_descriptor), not on the host.
"""
"""The grammar of a Triton plan, for prompts and help."""

GRAMMAR = """\
A plan is a .cu file of device code with its launches in comment lines.
Kernels are extern "C" __global__; #include "problem.h" for names and types.

// @tune NAME = v1, v2, ...        a compile-time int, first value the default
// @require EXPR                   combinations for which EXPR is 0 are skipped
// @workspace BYTES [zero]         scratch; zero: cleared before every call
// @tensormap NAME = SOURCE [as DTYPE(d0,...)] tile(t0,...) [swizzle(32|64|128)]
//     SOURCE: an operand, or workspace[+EXPR]; sizes are outermost first
// @launch KERNEL(arg, ...) grid(x[,y[,z]]) block(x[,y[,z]])
//         [shared(BYTES)] [cluster(x[,y[,z]])] [cooperative]
//     all on one line; several lines are launched in order on one stream

arg    an operand, workspace, workspace+EXPR, or the name of a tensor map
       (taken as const __grid_constant__ CUtensorMap)
EXPR   integers, names, + - * / % ( ) < <= > >= == != (/ rounds down),
       ceil_div(a,b) min(a,b) max(a,b) next_pow2(a)
names  tunables, SMS (multiprocessors), and what problem.h defines:
       X_NUMEL X_RANK X_DIM0 ... of each operand x, the reference's constants
Operands: inputs as forward takes them, parameters, buffers, then out or
out0, out1 ...; contiguous, row-major; x_t is the type of x's elements.
"""
