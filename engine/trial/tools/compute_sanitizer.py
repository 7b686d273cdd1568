"""A ``cuda`` or ``triton`` kernel under compute-sanitizer: memcheck, racecheck, initcheck, in the runner's sandbox. No torch.

If the tool is not installed, the result is a note.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.domain import work as w
from engine.domain.model import Device, Dialect
from engine.sandbox.confinement import Confinement
from engine.sandbox.process import ProcessResult, run
from engine.sandbox.python_process import python_once
from engine.toolchain.build import BuildFailure, build_with
from engine.toolchain.cache import Cache, cache_folder
from engine.toolchain.recipes import recipe_for
from engine.trial.tools import sanitizer_output
from engine.trial.tools.gcc_sanitizers import CALLS
from engine.trial.tools.kernel_case import DumpInputs, KernelCase, Store, sandboxed, write_spec

TOOLS = ("memcheck", "racecheck", "initcheck")
_SECONDS = 120.0
"""Time limit of one tool on one workload. A tool slows a kernel 10 to 100 times; importing torch is included."""
_NO_CACHING = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Torch then allocates every tensor separately, and the tool knows where each one ends."""


@dataclass(frozen=True, slots=True)
class _ToolReport:
    findings: tuple[str, ...]
    note: str
    log: str
    ran: str = ""


def find_tool() -> Path | None:
    """compute-sanitizer of CUDA_HOME, on the PATH, or in the toolkit's default folder."""
    homes = [os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "", "/usr/local/cuda"]
    places = [os.path.join(home, folder) for home in homes if home for folder in ("bin", "compute-sanitizer")]
    found = shutil.which("compute-sanitizer", path=os.pathsep.join([*places, os.environ.get("PATH", os.defpath)]))
    return Path(found) if found else None


async def sanitize_cuda(
    case: KernelCase, plan: bytes, device: Device, tool: Path | None, dump: DumpInputs, confinement: Confinement, store: Store
) -> w.Sanitized:
    """Build with line numbers and run every tool on fresh inputs of ``case``. Raises as ``build`` does."""
    if tool is None:
        return w.Sanitized((), note="compute-sanitizer is not installed: it comes with the CUDA toolkit")
    request = case.request
    how = await recipe_for(request.dialect, request.contract, request.arch, request.tunables)
    if request.dialect is not Dialect.TRITON:  # whose code always has line numbers
        how = replace(how, argv=(how.argv[0], "-lineinfo", *how.argv[1:]))
    built = await build_with(request, how, confinement)
    if isinstance(built, BuildFailure):
        return w.Sanitized((), note=f"does not build with line numbers: {built.reason}", log=store(built.log.encode()))
    reports: list[_ToolReport] = []
    with Cache(cache_folder()).build_folder() as folder:
        files = await dump(case.workload, folder, CALLS)
        spec = write_spec(case, plan, device, built, folder)
        for name in TOOLS:
            result = await _run(tool, name, device, (spec, *files), (folder, built.folder), confined=sandboxed(confinement))
            reports.append(_read(name, result, request.name))
    found = tuple(dict.fromkeys(one for each in reports for one in each.findings))
    log = "".join(each.log for each in reports)
    ran = tuple(each.ran for each in reports if each.ran)
    return w.Sanitized(ran, found, "; ".join(each.note for each in reports if each.note), store(log.encode()) if log else "")


async def _run(
    tool: Path, name: str, device: Device, arguments: Sequence[Path], readable: Sequence[Path], *, confined: bool
) -> ProcessResult:
    before = [
        str(tool), "--tool", name, "--report-api-errors", "no", "--print-limit", "20", "--error-exitcode", "9",
    ]  # fmt: skip
    places = [*readable, tool.resolve().parent.parent]
    argv, environment = python_once(
        "engine.trial.runner.profile_target", arguments, device.label, before, places, confined=confined
    )
    return await run(argv, seconds=_SECONDS, folder=Path("/"), environment={**environment, **_NO_CACHING})


def _read(name: str, result: ProcessResult, label: str) -> _ToolReport:
    log = f"{name}\n{result.output}\n"
    found = tuple(
        f"{one} ({name})"
        for one in sanitizer_output.parse_compute_sanitizer(
            result.output, "kernel.py" if label.endswith(".py") else "kernel.cu", label
        )
    )
    if result.timed_out:
        return _ToolReport(found, f"{name}: stopped after {_SECONDS:g} s", log, name)
    if result.status != 0 and not found:
        lines = [line for line in result.output.splitlines() if line.strip()]
        return _ToolReport((), f"{name} did not run: {lines[-1][:200] if lines else f'status {result.status}'}", log)
    return _ToolReport(found, "", log, name)
