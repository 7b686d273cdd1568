"""``espalier doctor``: what this machine has and lacks, and what to do about it."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from engine.cli import environment
from engine.cli import options as o
from engine.cli.exit_codes import DONE, FAILED, end
from engine.cli.output import show, show_json
from engine.cli.ui import registered_ui
from engine.domain.errors import EspalierError, ToolchainError
from engine.domain.settings import BASELINES
from engine.journal import log_file, trust_records, user_folders
from engine.report.text.lines import Line, Span, Tone, counted, table
from engine.sandbox.bubblewrap import bubblewrap_reason
from engine.sandbox.trial_sandbox import judge_reason
from engine.session import requirements
from engine.session.devices import gpu_names
from engine.toolchain import cache_bound, compilers
from engine.toolchain.cache import Cache, cache_folder
from engine.trial import lease
from engine.trial.judge import nvml
from engine.trial.tools import ncu, perf

_LOW_DISK = 2 << 30
_OLDEST_PYTHON = ">=3.11"
"""Where the program is not installed; elsewhere its metadata decides."""
_GPU_EXTRA = "pip install 'espalier[gpu]'"
_CUDA_TOOLKIT = "install the CUDA toolkit"

EPILOG = """\b
Exit status: 0, also if something is missing; --json has "ok" for a script. 1 if
PROBLEM does not fit. 2 if the cache cannot be cleared."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    ok: bool
    """Whether a search on this machine's default device lacks nothing here."""
    detail: str
    """What was found."""
    remedy: str = ""
    """What to do; of a check that is ok, what an optional part needs."""


@click.command(epilog=EPILOG)
@click.argument("problem", type=o.PROBLEM, required=False)
@o.device_option
@o.workload_option
@click.option("--baselines", type=o.NameList(BASELINES), default=("eager",), metavar="NAME,...",
              help="The baselines to plan memory for. Default: eager.")  # fmt: skip
@click.option("--clear-cache", is_flag=True, help="Delete the compiled kernels that no running session uses, then check.")
@o.json_option
def doctor(problem: str | None, clear_cache: bool, as_json: bool, **given: Any) -> None:
    """Check compilers, GPU, sandbox and folders of this machine, and name the package for what is missing.

    With PROBLEM, print the memory plan instead: what judging it needs, what is free, and which workload fits.
    """
    _refuse_unused(problem, clear_cache)
    if problem is not None:
        from engine.cli.doctor_memory import show_memory

        fits = show_memory(problem, given["device"], given["workload"], given["baselines"], as_json=as_json)
        end(DONE if fits else FAILED)
        return
    if clear_cache:
        deleted = Cache(cache_folder()).clear()
        show([f"{_kernels(deleted)} deleted from {cache_folder()}"], err=True)
    checks = _all_checks()
    if as_json:
        show_json({"ok": all(check.ok for check in checks), "checks": checks})
        return
    show(table([_check_row(check) for check in checks]))


def _refuse_unused(problem: str | None, clear_cache: bool) -> None:
    """Raises UsageError for options that belong to the other kind of check."""
    if problem is not None and clear_cache:
        raise click.UsageError("--clear-cache takes no PROBLEM")
    unused = next(filter(o.was_typed, ("device", "workload", "baselines")), None)
    if problem is None and unused is not None:
        raise click.UsageError(f"--{unused} needs a PROBLEM")


def _check_row(check: Check) -> Line:
    if not check.ok:
        mark = Span("missing", Tone.WARN)
    else:
        mark = Span("optional", Tone.FAINT) if check.remedy else Span("ok", Tone.GOOD)
    detail = f"{check.detail}; {check.remedy}" if check.remedy else check.detail
    return (Span(check.name, Tone.STRONG), mark, Span(detail))


def _all_checks() -> list[Check]:
    return [
        _python(), _torch(), _gxx(), _nvcc(), _ninja(), _gpu(), _bindings(), _nvml(), _bubblewrap(), _reference_sandbox(),
        _cpp_sanitizers(), _compute_sanitizer(), _ncu(), _perf(),
        _folder("sessions", user_folders.sessions_root(), "set ESPALIER_HOME to another folder"),
        _folder("cache", cache_folder().parent, "set ESPALIER_CACHE to another folder"),
        _build_cache(), _leases(), Check("log", True, str(log_file.path())),
        _trust(), *_configuration(), _terminal_ui(),
    ]  # fmt: skip


def _trust() -> Check:
    """Permissions of sessions and problems from elsewhere."""
    found = list(trust_records.records())
    damaged = [str(one) for one in found if isinstance(one, EspalierError)]
    confirmed = [one for one in found if not isinstance(one, EspalierError) and one.confirmed]
    if damaged:
        return Check("trust", False, f"{damaged[0]}; it allows nothing", "delete the file, and allow its path again")
    return Check("trust", True, f"{counted(len(confirmed), 'path')} from elsewhere allowed; `espalier trust --list` lists them")


def _leases() -> Check:
    """Which processes measure, and which wait for them."""
    queues = [
        f"{queue.device} held by {queue.tickets[0].describe()}, {len(queue.tickets) - 1} waiting" for queue in lease.queues()
    ]
    return Check("leases", True, "; ".join(queues) or f"no device is in use: {lease.lease_folder()}")


def _python() -> Check:
    required = _metadata("Requires-Python") or _OLDEST_PYTHON
    oldest = re.search(r">=\s*(\d+)\.(\d+)", required)
    ok = oldest is None or sys.version_info[:2] >= (int(oldest[1]), int(oldest[2]))
    return Check("python", ok, platform.python_version(), "" if ok else f"install Python {required}")


def _metadata(field: str) -> str:
    try:
        return metadata.metadata("espalier")[field] or ""
    except (metadata.PackageNotFoundError, KeyError):
        return ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _torch() -> Check:
    version = _version("torch")
    return Check("torch", version is not None, version or "not installed", "" if version else requirements.TORCH)


def _compiler(name: str, use: str, find: Callable[[], Awaitable[compilers.Compiler]], *, needed: bool) -> Check:
    async def compiler() -> compilers.Compiler:
        return await find()

    try:
        found = asyncio.run(compiler())
    except ToolchainError as error:
        detail, _, remedy = str(error).partition(": ")
        return Check(name, not needed, detail, remedy)
    return Check(name, True, f"{_release(found.version)} for {use}: {found.path}")


def _release(version: str) -> str:
    """The version's number, as the compiler prints it: ``12.2.0`` or ``13.0``."""
    match = re.search(r"release ([\d.]+)", version) or re.search(r"([\d.]+)$", version)
    return match[1] if match else version


def _gxx() -> Check:
    return _compiler("g++", "cpp kernels", compilers.find_gxx, needed=True)


def _nvcc() -> Check:
    return _compiler("nvcc", "cuda kernels", compilers.find_nvcc, needed=bool(gpu_names()))


def _ninja() -> Check:
    version = _version("ninja")
    if version is None and shutil.which("ninja") is None:
        return Check("ninja", False, "not installed; python kernels with inline extensions need it", "pip install ninja")
    return Check("ninja", True, f"{version or shutil.which('ninja')} for python kernels with inline extensions")


def _gpu() -> Check:
    names = gpu_names()
    if names:
        return Check("gpu", True, "; ".join(f"cuda:{n} {name}" for n, name in enumerate(names)))
    return Check("gpu", True, "none found, kernels run on the CPU", "for an NVIDIA GPU, install its driver")


def _for_gpus(name: str, detail: str, remedy: str) -> Check:
    """Something that only kernels on a GPU need, which is missing."""
    return Check(name, not gpu_names(), detail, f"for an NVIDIA GPU, {remedy}")


def _bindings() -> Check:
    version = _version("cuda-bindings")
    return Check("cuda-bindings", True, version) if version else _for_gpus("cuda-bindings", "not installed", _GPU_EXTRA)


def _nvml() -> Check:
    try:
        nvml.open_gpu(0)
    except nvml.NvmlMissing as error:
        detail = str(error).partition(": ")[0]
        return _for_gpus("nvml", f"{detail}; clocks, throttling and other processes are not recorded", _GPU_EXTRA)
    return Check("nvml", True, "records clocks, throttling and other processes")


def _bubblewrap() -> Check:
    reason = bubblewrap_reason()
    if reason is None:
        return Check("bubblewrap", True, "works: kernels have no network and a read-only file system")
    return Check("bubblewrap", False, f"{reason}; kernels run with resource limits only", _sandbox_remedy(reason))


def _sandbox_remedy(reason: str) -> str:
    return requirements.BUBBLEWRAP if "not installed" in reason else requirements.USER_NAMESPACES


def _reference_sandbox() -> Check:
    reason = judge_reason()
    if reason is None:
        return Check("reference", True, "runs in the sandbox too: no network, no home, no key")
    detail = f"the reference runs outside the sandbox, with your rights: {reason}"
    return Check("reference", False, detail, _sandbox_remedy(reason))


def _cpp_sanitizers() -> Check:
    gxx = shutil.which("g++")
    if gxx is None:
        return Check("sanitizer cpp", False, "needs g++", "install g++ first")
    done = subprocess.run([gxx, "-print-file-name=libasan.so"], capture_output=True, text=True, timeout=20, check=False)
    path = Path(done.stdout.strip())
    if path.is_absolute():
        return Check("sanitizer cpp", True, f"AddressSanitizer and UBSan of g++ ({path.name})")
    return Check("sanitizer cpp", False, "g++ has no libasan", "dnf install libasan libubsan (Fedora)")


def _compute_sanitizer() -> Check:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    places = [str(Path(home) / "bin")] if home else []
    found = shutil.which(
        "compute-sanitizer", path=os.pathsep.join([*places, os.environ.get("PATH", ""), compilers.DEFAULT_CUDA])
    )
    if found is not None:
        return Check("sanitizer cuda", True, found)
    return _for_gpus("sanitizer cuda", "compute-sanitizer not found", _CUDA_TOOLKIT)


def _ncu() -> Check:
    found = ncu.find_tool()
    if found is not None:
        return Check("counters cuda", True, str(found))
    return _for_gpus("counters cuda", "Nsight Compute (ncu) not found", _CUDA_TOOLKIT)


def _perf() -> Check:
    """Always ok: most virtual machines have no counters, and only ``espalier kernel profile`` reads them."""
    found = asyncio.run(perf.perf_support())
    if isinstance(found, perf.PerfSupport):
        return Check("counters cpu", True, f"{found.tool} counts {len(found.events)} events")
    return Check("counters cpu", True, "none", found.reason.removeprefix("perf: "))


def _folder(name: str, folder: Path, advice: str) -> Check:
    existing = next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Check(name, False, f"{folder} is not writable", advice)
    free = shutil.disk_usage(existing).free
    detail = f"{folder}, {free / cache_bound.GB:.1f} GB free"
    return Check(name, free > _LOW_DISK, detail, "" if free > _LOW_DISK else f"free some space, or {advice}")


def _build_cache() -> Check:
    try:
        limits, used = cache_bound.bound(), Cache(cache_folder()).usage()
    except EspalierError as error:
        detail, _, remedy = str(error).partition(": ")
        return Check("build cache", False, detail, remedy)
    return Check("build cache", True, f"{_kernels(used)}; {limits}; `espalier doctor --clear-cache` empties it")


def _kernels(usage: cache_bound.CacheSize) -> str:
    return f"{usage.entries} compiled kernel{'' if usage.entries == 1 else 's'}, {usage.size / cache_bound.GB:.2f} GB"


def _configuration() -> list[Check]:
    names = ("user configuration", "project configuration")
    return [
        Check(name, True, f"{path}, {state.rpartition(': ')[2]}")
        for name, (path, state) in zip(names, environment.configuration(), strict=True)
    ]


def _terminal_ui() -> Check:
    if registered_ui() is None:
        return Check("terminal UI", False, "not installed", "use the commands; `espalier --help` lists them")
    return Check("terminal UI", True, "installed")
