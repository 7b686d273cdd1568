"""Python host code that launches a resolved Triton plan, for an exported kernel.

The text is appended to the kernel's file, which Triton then compiles and launches itself; nothing is compiled or launched here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from engine.export.plan_host import ENTRY
from engine.toolchain.resolution import OperandArg, ResolvedLaunch, ScalarArg, WorkspaceArg
from engine.toolchain.triton.plan import POINTERS
from engine.toolchain.triton.resolution import ResolvedTriton, TritonJob

_DTYPES = {pointer: dtype for dtype, pointer in POINTERS.items()}
_UNWRAPPED = '''

def espalier_unwrapped(found, values):
    """The function inside its decorators; ``values`` receives what @triton.heuristics computes."""
    while hasattr(found.fn, "fn"):
        if isinstance(getattr(found, "values", None), dict):
            values.update({name: compute(values) for name, compute in found.values.items() if name not in values})
        found = found.fn
    return found


def espalier_view(workspace, offset, dtype):
    """The workspace from ``offset`` on, in whole elements of ``dtype``."""
    size = (workspace.numel() - offset) // dtype.itemsize * dtype.itemsize
    return workspace[offset : offset + size].view(dtype)


def espalier_scratch(size, alignment, stream):
    """Memory for tensor descriptors that a kernel makes."""
    import torch

    return torch.empty(size, dtype=torch.int8, device="cuda")

'''


def triton_launcher(resolved: ResolvedTriton, operands: Sequence[str]) -> str:
    """Python text that defines ``ENTRY(operands, workspace)``; ``operands`` are names in the order of its first argument."""
    return _UNWRAPPED + "\n".join(_lines(resolved, operands)) + "\n"


def _lines(resolved: ResolvedTriton, operands: Sequence[str]) -> Iterator[str]:
    plan = resolved.plan
    yield ""
    yield f"def {ENTRY}(operands, workspace):"
    yield "    import torch"
    yield "    import triton"
    yield ""
    yield "    triton.set_allocator(espalier_scratch)"
    if plan.workspace_zeroed:
        yield "    workspace.zero_()"
    for launch in plan.launches:
        job = resolved.jobs[launch.image]
        constants = ", ".join(f"{name!r}: {_number(value)}" for name, value in job.constants.items())
        yield f"    values = {{{constants}}}"
        yield f"    function = espalier_unwrapped({launch.kernel}, values)"
        x, y, z = launch.grid
        yield f"    function[({x // launch.cluster[0]}, {y}, {z})](**values, {', '.join(_given(job, launch, operands))})"


def _given(job: TritonJob, launch: ResolvedLaunch, operands: Sequence[str]) -> Iterator[str]:
    """The arguments that are not compiled in, and the compiler's options."""
    arguments = iter(launch.arguments)
    for name, kind in job.signature:
        if kind == "constexpr":
            continue
        match next(arguments):
            case OperandArg(operand):
                yield f"{name}=operands[{operands.index(operand)}]"
            case WorkspaceArg(offset):
                dtype = _DTYPES[kind]
                yield f"{name}=espalier_view(workspace, {offset}, torch.{dtype})"
            case ScalarArg(_, value):
                yield f"{name}={_number(value)}"
    yield from (f"{option}={value}" for option, value in job.options.items())
    if launch.cooperative:
        yield "launch_cooperative_grid=True"


def _number(value: float | bool | None) -> str:
    return f"float({str(value)!r})" if isinstance(value, float) and not math.isfinite(value) else repr(value)
