"""One call of a kernel on a GPU under Nsight Compute, in the runner's sandbox, on fresh inputs of the session's workload.

Counted are all launches of the call: of a ``cuda`` kernel its own functions, of a module also torch's and its libraries'. A
module's first call, in which it may compile or tune itself, is not counted.

If the tool is missing or may not read the device's counters, the result is the reason. Clocks are not locked: a profile sees
the device as a measurement does. No torch.
"""

from __future__ import annotations

import glob
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.domain.model import Device
from engine.domain.profile import Profile
from engine.sandbox.confinement import Confinement
from engine.sandbox.process import ProcessResult, run
from engine.sandbox.python_process import python_once
from engine.toolchain.build import BuildFailure, build
from engine.toolchain.cache import Cache, cache_folder
from engine.trial.messages import PROFILED
from engine.trial.tools import ncu_output
from engine.trial.tools.kernel_case import DumpInputs, KernelCase, Store, sandboxed, write_spec

_SECONDS = 300.0
"""Time limit. The tool replays the kernel a dozen times, restoring its memory each time; importing torch is included."""
_NO_TOOL = "Nsight Compute (ncu) is not installed: it comes with the CUDA toolkit"


@dataclass(frozen=True, slots=True)
class ProfiledKernel:
    """A kernel to profile on one workload and device."""

    case: KernelCase
    device: Device
    plan: bytes = b""
    """The resolved plan; empty for other contracts."""
    scalars: tuple[Any, ...] = ()
    """How a module is constructed and called, as in ``LoadKernel``."""


def find_tool() -> Path | None:
    """ncu of CUDA_HOME, on the PATH, or in its default folder (the newest version)."""
    homes = [os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "", "/usr/local/cuda"]
    places = [os.path.join(home, "bin") for home in homes if home]
    own = sorted(glob.glob("/opt/nvidia/nsight-compute/*"), reverse=True)
    found = shutil.which("ncu", path=os.pathsep.join([*places, os.environ.get("PATH", os.defpath), *own]))
    return Path(found) if found else None


async def profile_gpu(
    subject: ProfiledKernel, dump: DumpInputs, confinement: Confinement, store: Store, *, cold: bool, tool: Path | None = None
) -> Profile:
    """The counters of one call, or a note why there are none. Raises as ``build`` does."""
    tool = tool or find_tool()
    if tool is None:
        return Profile(0, note=_NO_TOOL)
    case, device = subject.case, subject.device
    built = await build(case.request, confinement)
    if isinstance(built, BuildFailure):
        return Profile(0, note=f"does not build: {built.reason}", log=store(built.log.encode()))
    with Cache(cache_folder()).build_folder() as folder:
        files = await dump(case.workload, folder, 1)
        spec = write_spec(case, subject.plan, device, built, folder, subject.scalars)
        before = [str(tool), *arguments(cold=cold)]
        places = [folder, built.folder, tool.resolve().parent.parent]
        argv, environment = python_once(
            "engine.trial.runner.profile_target", [spec, *files], device.label, before, places, confined=sandboxed(confinement)
        )
        result = await run(argv, seconds=_SECONDS, folder=Path("/"), environment={**environment, PROFILED: "1"})
    return read(result, device, store)


def arguments(*, cold: bool) -> list[str]:
    """The tool's options: clocks not locked, caches as in a measurement, CSV output."""
    sections = [word for name in ncu_output.SECTIONS for word in ("--section", name)]
    return [
        "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--cache-control",
        "all" if cold else "none", "--profile-from-start", "off", *sections,
    ]  # fmt: skip


def read(result: ProcessResult, device: Device, store: Store) -> Profile:
    """The profile in the tool's output."""
    log = store(result.output.encode()) if result.output.strip() else ""
    found = ncu_output.parse_ncu(result.output)
    if found is None:
        note = f"ncu stopped after {_SECONDS:g} s" if result.timed_out else f"ncu: {ncu_output.why_not(result.output)}"
        return Profile(0, note=note, log=log, seconds=result.seconds)
    return Profile(
        0, "ncu", device.name, found.launches, found.metrics, found.stalls, log=log, seconds=result.seconds
    )  # fmt: skip
