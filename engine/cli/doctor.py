"""``espalier doctor``: what this machine has, lacks, and what to do about it. Changes nothing."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.output import show, show_json
from engine.cli.ui import registered_ui
from engine.domain.errors import ToolchainError
from engine.journal import log_file, store
from engine.report.text.lines import Span, Tone, table
from engine.sandbox.bubblewrap import bubblewrap_reason
from engine.session.devices import gpu_names
from engine.toolchain import compilers
from engine.toolchain.cache import cache_folder
from engine.trial.judge import nvml
from engine.trial.tools import ncu, perf

_LOW_DISK = 2 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; ``remedy`` is empty when nothing needs doing."""

    name: str
    ok: bool
    found: str
    remedy: str = ""


@click.command()
@o.json_option
def doctor(as_json: bool) -> None:
    """What this machine has and lacks for kernels on its CPU and its GPUs."""
    checks = _all_checks()
    if as_json:
        show_json({"ok": all(check.ok for check in checks), "checks": checks})
        return
    show(table([_check_row(check) for check in checks]))


def _check_row(check: Check) -> list[Span]:
    mark = Span("ok", Tone.GOOD) if check.ok else Span("missing", Tone.WARN)
    words = f"{check.found}; {check.remedy}" if check.remedy else check.found
    return [Span(check.name, Tone.STRONG), mark, Span(words)]


def _all_checks() -> list[Check]:
    return [
        _python(), _torch(),
        _compiler("g++", "cpp kernels on a CPU", compilers.find_gxx),
        _compiler("nvcc", "cuda kernels", compilers.find_nvcc),
        _gpu(), _bindings(), _bubblewrap(), _address_sanitizer(), _compute_sanitizer(), _nvml(), _counters(), _counters_cpu(),
        _folder("cache", cache_folder().parent, "set ESPALIER_CACHE to a folder of your own"),
        _folder("sessions", store.sessions_root(), "set ESPALIER_HOME to a folder of your own"),
        Check("log", True, str(log_file.path())), _terminal_ui(),
    ]  # fmt: skip


def _python() -> Check:
    version = platform.python_version()
    ok = platform.python_version_tuple()[:2] in (("3", "11"), ("3", "12"))
    return Check("python", ok, version, "" if ok else "use Python 3.11 or 3.12")


def _torch() -> Check:
    version = _version("torch")
    if version is None:
        return Check("torch", False, "not installed", "pip install 'torch>=2.6,<2.14'")
    return Check("torch", True, version)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _compiler(name: str, use: str, find: Callable[[], Awaitable[compilers.Compiler]]) -> Check:
    async def toolchain() -> compilers.Compiler:
        return await find()

    try:
        found = asyncio.run(toolchain())
    except ToolchainError as error:
        what, _, remedy = str(error).partition(": ")
        return Check(name, False, what, remedy)
    return Check(name, True, f"{found.path}, {found.version} ({use})")


def _gpu() -> Check:
    names = gpu_names()
    if names:
        return Check("gpu", True, "; ".join(f"cuda:{n} {name}" for n, name in enumerate(names)))
    return Check("gpu", False, "the driver offers none", "the CPU is used; for GPUs install NVIDIA's driver")


def _bindings() -> Check:
    version = _version("cuda-bindings")
    if version is None:
        return Check("cuda-bindings", not gpu_names(), "not installed", "for GPUs: pip install 'espalier[gpu]'")
    return Check("cuda-bindings", True, version)


def _bubblewrap() -> Check:
    reason = bubblewrap_reason()
    if reason is None:
        return Check("bubblewrap", True, "works: foreign code has no network and a read-only file system")
    remedy = "install it (Debian: apt install bubblewrap)" if "not installed" in reason else "allow user namespaces"
    return Check("bubblewrap", False, f"{reason}; resource limits alone hold", remedy)


def _address_sanitizer() -> Check:
    gxx = shutil.which("g++")
    if gxx is None:
        return Check("sanitizer cpp", False, "no g++", "install it (Debian: apt install g++)")
    done = subprocess.run([gxx, "-print-file-name=libasan.so"], capture_output=True, text=True, timeout=20, check=False)
    path = Path(done.stdout.strip())
    if path.is_absolute():
        return Check("sanitizer cpp", True, f"{path.name} of g++")
    return Check("sanitizer cpp", False, "g++ has no libasan", "install libasan of your g++'s version")


def _compute_sanitizer() -> Check:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    places = [str(Path(home) / "bin")] if home else []
    found = shutil.which(
        "compute-sanitizer", path=os.pathsep.join([*places, os.environ.get("PATH", ""), compilers.DEFAULT_CUDA])
    )
    if found is not None:
        return Check("sanitizer cuda", True, found)
    return Check("sanitizer cuda", not gpu_names(), "no compute-sanitizer", "for GPUs: install it with the CUDA toolkit")


def _nvml() -> Check:
    try:
        nvml.open_gpu(0)
    except nvml.NvmlMissing as error:
        what, _, remedy = str(error).partition(": ")
        advice = remedy or "for GPUs: clocks, throttling and other processes are not seen without it"
        return Check("nvml", not gpu_names(), what, advice)
    return Check("nvml", True, "clocks, throttling and other processes are seen")


def _counters() -> Check:
    found = ncu.find_tool()
    if found is not None:
        return Check("counters", True, str(found))
    return Check("counters", not gpu_names(), "no ncu", "for GPUs: install Nsight Compute with the CUDA toolkit")


def _counters_cpu() -> Check:
    """Always ok: most virtual machines have none, and only ``espalier profile`` needs them."""
    found = asyncio.run(perf.perf_support())
    words = f"not read: {found}" if isinstance(found, str) else f"{found.tool} counts {len(found.events)} events"
    return Check("counters cpu", True, words)


def _folder(name: str, folder: Path, advice: str) -> Check:
    there = next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Check(name, False, f"{folder} cannot be written", advice)
    free = shutil.disk_usage(there).free
    words = f"{folder}, {free / (1 << 30):.1f} GiB free"
    return Check(name, free > _LOW_DISK, words, "" if free > _LOW_DISK else f"make room, or {advice}")


def _terminal_ui() -> Check:
    if registered_ui() is None:
        return Check("screen", False, "the terminal face is not in this version", "every act is possible with the commands")
    return Check("screen", True, "the terminal face is installed")
