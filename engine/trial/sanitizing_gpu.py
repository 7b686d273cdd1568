"""A ``cuda`` finalist under compute-sanitizer: memcheck, racecheck and initcheck, one after the other, in the runner's sandbox.

Where the tool is not installed that is said, and holds nothing up. No torch.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from engine.build import findings
from engine.build.build import Artefact, BuildFailure, build_as
from engine.build.cache import Cache, cache_folder
from engine.build.compilers import recipe
from engine.build.confinement import Confinement
from engine.build.process import ProcessResult, run
from engine.domain import work as w
from engine.domain.model import Contract, Device
from engine.trial.layout import plan_layout
from engine.trial.sandbox import python_once
from engine.trial.sanitizing import CALLS, Draw, Shape, Store
from engine.trial.wire import ArenaLoan, Load

TOOLS = ("memcheck", "racecheck", "initcheck")
_SECONDS = 120.0
"""For one tool on one shape: they make a kernel ten to a hundred times slower, and importing torch takes some of it."""
_APART = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Torch then asks the driver for every tensor, and the tool knows where each ends."""
_NO_LOAN = ArenaLoan("none", 0, False)


@dataclass(frozen=True, slots=True)
class _Said:
    findings: tuple[str, ...]
    note: str
    log: str
    ran: str = ""


def find_tool() -> Path | None:
    """compute-sanitizer of CUDA_HOME, on the PATH, or where the toolkit puts itself."""
    homes = [os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "", "/usr/local/cuda"]
    places = [os.path.join(home, folder) for home in homes if home for folder in ("bin", "compute-sanitizer")]
    found = shutil.which("compute-sanitizer", path=os.pathsep.join([*places, os.environ.get("PATH", os.defpath)]))
    return Path(found) if found else None


async def sanitize_cuda(
    shape: Shape, plan: bytes, device: Device, tool: Path | None, draw: Draw, confinement: Confinement, store: Store
) -> w.Sanitized:
    """Build with line numbers and run every tool on fresh inputs of ``shape``. Raises as ``build`` does."""
    if tool is None:
        return w.Sanitized((), note="compute-sanitizer is not installed: it comes with the CUDA toolkit")
    request = shape.request
    how = await recipe(request.dialect, request.contract, request.arch, request.tunables)
    built = await build_as(request, replace(how, argv=(how.argv[0], "-lineinfo", *how.argv[1:])), confinement)
    if isinstance(built, BuildFailure):
        return w.Sanitized((), note=f"does not build with line numbers: {built.reason}", log=store(built.log.encode()))
    said: list[_Said] = []
    with Cache(cache_folder()).workplace() as folder:
        files = await draw(shape.workload, folder, CALLS)
        spec = specified(shape, plan, device, built, folder)
        for name in TOOLS:
            result = await _run(tool, name, device, (spec, *files), (folder, built.folder), confined=sandboxed(confinement))
            said.append(_read(name, result, request.name))
    found = tuple(dict.fromkeys(one for each in said for one in each.findings))
    log = "".join(each.log for each in said)
    ran = tuple(each.ran for each in said if each.ran)
    return w.Sanitized(ran, found, "; ".join(each.note for each in said if each.note), store(log.encode()) if log else "")


def sandboxed(confinement: Confinement) -> bool:
    """Whether what is run is held by bubblewrap."""
    return confinement.name == "bubblewrap"


def specified(shape: Shape, plan: bytes, device: Device, built: Artefact, folder: Path, scalars: Sequence[Any] = ()) -> Path:
    """The file that tells ``engine.trial.once`` what to call and with which operands; ``scalars`` are a module's."""
    layout = plan_layout(shape.signature.operands, 1)
    request = shape.request
    module = request.contract is Contract.MODULE
    load = Load(
        contract=request.contract.value, device=device.label, slots=layout.slots, inputs=_NO_LOAN, outputs=_NO_LOAN,
        threads=device.units, scalars=tuple(scalars), source=request.source if module else str(built.binary),
        filename=request.name, tunables=dict(request.tunables), plan=plan,
    )  # fmt: skip
    path = folder / "spec"
    path.write_bytes(msgspec.msgpack.encode(load))
    return path


async def _run(
    tool: Path, name: str, device: Device, arguments: Sequence[Path], readable: Sequence[Path], *, confined: bool
) -> ProcessResult:
    before = [
        str(tool), "--tool", name, "--report-api-errors", "no", "--print-limit", "20", "--error-exitcode", "9",
    ]  # fmt: skip
    places = [*readable, tool.resolve().parent.parent]
    argv, environment = python_once("engine.trial.once", arguments, device.label, before, places, confined=confined)
    return await run(argv, seconds=_SECONDS, folder=Path("/"), environment={**environment, **_APART})


def _read(name: str, result: ProcessResult, shown: str) -> _Said:
    log = f"{name}\n{result.output}\n"
    found = tuple(f"{one} ({name})" for one in findings.of_compute_sanitizer(result.output, "kernel.cu", shown))
    if result.timed_out:
        return _Said(found, f"{name}: stopped after {_SECONDS:g} s", log, name)
    if result.status != 0 and not found:
        lines = [line for line in result.output.splitlines() if line.strip()]
        return _Said((), f"{name} did not run: {lines[-1][:200] if lines else f'status {result.status}'}", log)
    return _Said(found, "", log, name)
