"""A finalist under the sanitizers, once, before a session ends with it: fresh inputs of the workload and of a hold-out shape.

``cpp`` runs as a program of its own (``engine.build.sanitised``) in the builder's confinement, with time and memory limits.
``python`` has no sanitizer. That none could run is a value, like what was found. No torch.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.build import findings, sanitised
from engine.build.build import BuildFailure, BuildRequest, Outcome
from engine.build.cache import Cache, cache_folder
from engine.build.confinement import CommandLimits, Confinement, run_confined
from engine.domain import work as w
from engine.domain.model import Role, Signature, Workload
from engine.trial.layout import nbytes

LIMITS = CommandLimits(seconds=60.0, memory_bytes=None, file_bytes=64 << 20, processes=1024)
"""Of the program: one that does not end by then is stopped."""
_ENOUGH_S = 1.5
"""No further call of a shape is begun after this long."""
_MEMORY = 8 << 30
_LARGEST = 256 << 20
"""Bytes of operands beyond which a shape is left to others: the sanitizers multiply the time by ten or more."""
CALLS = 3
"""Calls on fresh inputs, for each shape."""

Draw = Callable[[Workload, Path, int], Awaitable[list[Path]]]
"""Has fresh inputs for a shape written to a folder, one file for each call: the operands that are read, one after another."""
Store = Callable[[bytes], str]


@dataclass(frozen=True, slots=True)
class Shape:
    """One workload, what a kernel for it is called with, and how it is built."""

    workload: Workload
    signature: Signature
    request: BuildRequest

    @property
    def size(self) -> int:
        return sum(nbytes(o) for o in self.signature.operands)


def chosen(main: Shape, holdouts: Sequence[Shape]) -> tuple[Shape, ...]:
    """The workload and the smallest hold-out shape, or whichever of them are small enough; at least one."""
    others = sorted(holdouts, key=lambda shape: shape.size)[:1]
    shapes = tuple(shape for shape in (main, *others) if shape.size <= _LARGEST)
    return shapes or (min((main, *others), key=lambda shape: shape.size),)


async def sanitize_cpp(shapes: Sequence[Shape], draw: Draw, confinement: Confinement, store: Store) -> w.Sanitized:
    """Build and run every shape's program. Raises ToolchainError, SandboxError, or EspalierError for a full disk."""
    builds = await asyncio.gather(*(_build(shape, confinement) for shape in shapes))
    runs: list[_Run] = []
    cache = Cache(cache_folder())
    for shape, built in zip(shapes, builds, strict=True):
        if isinstance(built, BuildFailure):
            runs.append(_Run((), f"{_name(shape)}: does not build with sanitizers: {built.reason}", built.log, ran=False))
            continue
        with cache.workplace() as folder:
            # Where the caller's temporary files are is none of the program's business: it runs beside its inputs.
            shutil.copy(built.binary, folder / "kernel")
            files = await draw(shape.workload, folder, CALLS)
            argv = [str(folder / "kernel"), *(str(f) for f in files)]
            result = await run_confined(argv, confinement.for_programs(LIMITS), folder)
        runs.append(_read(shape, result.output, result.status, timed_out=result.timed_out))
    return _together(runs, store)


@dataclass(frozen=True, slots=True)
class _Run:
    findings: tuple[str, ...]
    note: str
    log: str
    ran: bool = True


async def _build(shape: Shape, confinement: Confinement) -> Outcome:
    operands = [sanitised.Lent(o.name, nbytes(o), o.role is Role.OUTPUT) for o in shape.signature.operands]
    main = sanitised.harness(operands, seconds=_ENOUGH_S, memory_bytes=_MEMORY)
    return await sanitised.build_sanitised(shape.request, main, confinement)


def _read(shape: Shape, output: str, status: int, *, timed_out: bool) -> _Run:
    found = findings.of_gcc(output, "kernel.cpp", shape.request.name)
    note = ""
    if timed_out:
        note = f"{_name(shape)}: stopped after {LIMITS.seconds:g} s under the sanitizers"
    elif findings.out_of_memory(output):
        note = f"{_name(shape)}: stopped for taking more than {_MEMORY >> 30} GiB under the sanitizers"
    elif not found and (status != 0 or sanitised.FINISHED not in output):
        how = f"signal {-status}" if status < 0 else f"status {status}"
        found = (f"{shape.request.name}: ended with {how} under the sanitizers before its calls were done",)
    return _Run(tuple(f"{one} ({_name(shape)})" for one in found), note, f"{_name(shape)}\n{output}\n")


def _name(shape: Shape) -> str:
    settings = ", ".join(f"{k}={v:g}" for k, v in shape.workload.settings.items())
    return settings or shape.workload.name


def _together(runs: Sequence[_Run], store: Store) -> w.Sanitized:
    """One line of a source file is one finding, on however many shapes it shows."""
    found: dict[str, str] = {}
    for one in (finding for run in runs for finding in run.findings):
        found.setdefault(one.rpartition(" (")[0], one)
    tools = sanitised.TOOLS if any(run.ran for run in runs) else ()
    notes = "; ".join(run.note for run in runs if run.note)
    log = "".join(run.log for run in runs)
    return w.Sanitized(tools, tuple(found.values()), notes, store(log.encode()) if log.strip() else "")


def timed(result: w.Sanitized, seconds: float) -> w.Sanitized:
    """``result`` with how long it took."""
    return replace(result, seconds=seconds)
