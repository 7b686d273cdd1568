"""Compares what a reference returns with what its format declares. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from engine.domain.errors import ProblemError
from engine.domain.model import Operand, Problem, Role, Workload
from engine.problem.formats import axis_expressions


def check_outputs(problem: Problem, workload: Workload, operands: Sequence[Operand]) -> None:
    """Raises ProblemError where a reference's output has another shape or another count than the format declares."""
    declared = problem.origin_format
    if declared is None or not declared.outputs:
        return
    file = declared.file or problem.origin
    outputs = [operand for operand in operands if operand.role is Role.OUTPUT]
    if len(outputs) != len(declared.outputs):
        raise ProblemError(
            f"{file}: outputs: the reference returns {len(outputs)} on workload {workload.name}; "
            f"the definition has {len(declared.outputs)}: correct one of them"
        )
    known = {axis: size for axis, size in declared.axes.items() if isinstance(size, int)}
    known |= {
        a: int(workload.settings[own]) for a in declared.axes if (own := _setting(a, workload)) is not None and a not in known
    }
    sizes = axis_expressions.resolve({a: t for a, t in declared.axes.items() if isinstance(t, str) and t}, known)
    for tensor, operand in zip(declared.outputs, outputs, strict=True):
        shape = [axis_expressions.size(axis, sizes) for axis in tensor.axes or ()]
        if list(operand.shape) != shape:
            raise ProblemError(
                f"{file}: outputs.{tensor.name}.shape: the reference returns {list(operand.shape)} on workload "
                f"{workload.name}; the definition says {shape}: correct one of them"
            )


def _setting(axis: str, workload: Workload) -> str | None:
    """The setting of a variable axis: its name, with ``_`` appended where the reference has that name itself."""
    return next((name for name in workload.settings if name.rstrip("_") == axis.rstrip("_")), None)
