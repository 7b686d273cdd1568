"""Runs a finalist under the sanitizers of its dialect, once, before a session ends with it. No torch.

A sanitizer that cannot run gives a note, not an exception.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.domain import work as w
from engine.domain.model import Device, Dialect
from engine.sandbox.confinement import Confinement
from engine.trial.tools import compute_sanitizer, gcc_sanitizers
from engine.trial.tools.kernel_case import DumpInputs, KernelCase, Store

_LARGEST = 256 << 20
"""Bytes of operands above which a case is skipped: the sanitizers multiply the time by ten or more."""


def choose_cases(main: KernelCase, holdouts: Sequence[KernelCase]) -> tuple[KernelCase, ...]:
    """The workload and the smallest hold-out shape, or whichever of them are small enough; at least one."""
    others = sorted(holdouts, key=lambda case: case.size)[:1]
    cases = tuple(case for case in (main, *others) if case.size <= _LARGEST)
    return cases or (min((main, *others), key=lambda case: case.size),)


async def sanitize(
    dialect: Dialect,
    cases: Sequence[KernelCase],
    plan: bytes,
    device: Device,
    dump: DumpInputs,
    confinement: Confinement,
    store: Store,
) -> w.Sanitized:
    """Run a kernel under the sanitizers of its dialect, on fresh inputs of these cases. Raises as ``build`` does."""
    match dialect:
        case Dialect.CPP:
            return await gcc_sanitizers.sanitize_cpp(cases, dump, confinement, store)
        case Dialect.CUDA | Dialect.TRITON:
            tool = compute_sanitizer.find_tool()
            return await compute_sanitizer.sanitize_cuda(cases[0], plan, device, tool, dump, confinement, store)
        case _:
            return w.Sanitized((), note="no sanitizer for python kernels; a module's compiled extensions are not checked")
