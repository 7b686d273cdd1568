"""The compilers of a module (torch's extension builder, Inductor), run once in the builder's sandbox with all cores.

Runners get what was compiled (``runner.module_caches``) and compile nothing again. On a CPU the module is called once on fresh
inputs; for a GPU it is constructed without the device, for the device's architecture only: extensions are compiled ahead, and
what compiles at its first launch does so in the first runner. A module that cannot be built like this is compiled by its
runners.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engine.domain.errors import ToolchainError
from engine.domain.model import Device
from engine.sandbox.confinement import Confinement
from engine.sandbox.include_trees import include_trees
from engine.sandbox.process import ProcessResult, run
from engine.sandbox.python_process import python_once
from engine.sandbox.watchdog import TreeLimits
from engine.toolchain import compilers, included
from engine.toolchain.build import Artefact, BuildFailure
from engine.toolchain.build_budget import build_budget, share
from engine.toolchain.cache import LOG, Cache, CacheEntry, cache_folder, digest
from engine.trial.runner.module_caches import ARCHITECTURES, COMPILED, COMPILER_FAILED, LIGHT, WENT_ON
from engine.trial.tools.kernel_case import DumpInputs, KernelCase, sandboxed, write_spec

_SCHEME = 5
_BINARY = "caches.tar"
_SECONDS = 300.0
_MOST_BYTES = 256 << 20
"""Largest output: the archive in base64."""
_PROCESSES = 256
_EXTENSION = re.compile(r"\b(?:cpp_extension|load_inline)\b")
_COMPILES = re.compile(r"\b(?:cpp_extension|load_inline|torch\s*\.\s*compile)\b|\bimport\s+compile\b|\.compile\(")
_PINNING = ("OMP_PROC_BIND", "OMP_PLACES")
"""OpenMP binds the first thread to one core, and every compiler that it starts with it."""
_WHOLE_API = re.compile(
    r"\bPYBIND11|\bpybind11\b|\bpy::|\bTORCH_LIBRARY|\btorch::(?:autograd|class_|data|fft|jit|linalg|nn|optim|python|special)\b"
)
_ERROR = re.compile(r"^[^\s:]*:\d+(?::\d+)?: (?:fatal )?error: .*|^.*\berror: .*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ModuleCaches:
    """The archive of a module's caches; ``path`` is empty if it compiled nothing ahead."""

    path: str
    seconds: float


def compiles(code: str, device: Device) -> bool:
    """Whether a module has compilers that can run ahead of its trial, by its text."""
    return (_COMPILES if device.kind == "cpu" else _EXTENSION).search(code) is not None


async def compile_module(
    case: KernelCase, device: Device, built: Artefact, scalars: Sequence[Any], dump: DumpInputs, confinement: Confinement
) -> ModuleCaches | BuildFailure:
    """Compile what the module compiles, or find what an earlier call did. Raises EspalierError if the cache cannot be used."""
    key = await _key(case, device)
    cache = Cache(cache_folder())
    if (entry := cache.find(key)) is not None:
        return ModuleCaches(_path(cache, entry), 0.0)
    with cache.build_folder() as folder:
        inputs = await dump(case.workload, folder, 1) if device.kind == "cpu" else []
        spec = write_spec(case, b"", device, built, folder, scalars)
        with cache.disk_errors():
            async with share(cache.root, build_budget()):
                run_with = partial(_run, [spec, *inputs], device, folder, confined=sandboxed(confinement))
                light = device.kind == "cuda" and not _WHOLE_API.search(case.request.code)
                result = await run_with(light=light)
                if light and _lacks_headers(_after(result.output, COMPILER_FAILED).decode(errors="replace")):
                    result = await run_with(light=False)
        if words := _after(result.output, COMPILER_FAILED):
            log = words.decode(errors="replace")
            found = _ERROR.search(log)
            return BuildFailure(
                f"{case.request.name}: {found[0].strip() if found else log.splitlines()[0]}", log, result.seconds
            )
        archive = _after(result.output, COMPILED)
        for path in list(folder.iterdir()):
            path.unlink()
        with cache.disk_errors():
            (folder / _BINARY).write_bytes(archive)
            (folder / LOG).write_text(result.output[:1000] if not archive else "")
            entry = CacheEntry(key, _BINARY, digest(folder / _BINARY), result.seconds, (device.software,))
        if archive:
            cache.publish(folder, entry)
    return ModuleCaches(_path(cache, entry) if archive else "", result.seconds)


def _lacks_headers(log: str) -> bool:
    """Whether a compiler that had a part of torch's headers may have failed for lack of the others.

    Any error of a front end may come of that: torch's headers include many of the standard library. ptxas reads none.
    """
    return log == WENT_ON or _ERROR.search(log) is not None


def _path(cache: Cache, entry: CacheEntry) -> str:
    return str(cache.folder(entry.key) / entry.binary)


async def _key(case: KernelCase, device: Device) -> str:
    """A digest of everything that the caches depend on."""
    found = []
    for find in (compilers.find_gxx, *((compilers.find_nvcc,) if device.kind == "cuda" else ())):
        try:
            found.append((await find()).version)
        except ToolchainError as error:
            found.append(str(error))
    parts = {
        "scheme": _SCHEME, "code": case.request.code, "tunables": dict(sorted(case.request.tunables.items())),
        "name": case.request.name, "settings": dict(sorted(case.workload.settings.items())), "device": device.name,
        "arch": device.arch, "cpu": await compilers.cpu_arch(), "software": device.software, "threads": device.units,
        "operands": [[o.name, o.role, o.dtype, list(o.shape)] for o in case.signature.operands],
        "python": platform.python_version(), "compilers": found, "includes": included.identity(include_trees()),
    }  # fmt: skip
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


async def _run(files: Sequence[Path], device: Device, folder: Path, *, confined: bool, light: bool) -> ProcessResult:
    """``light``: torch's headers declare what the module's text uses (``runner.torch_headers``)."""
    argv, environment = python_once(
        "engine.trial.runner.module_build", files, "cpu", [], [folder], confined=confined, threads=device.units
    )
    environment = {name: value for name, value in environment.items() if name not in _PINNING}
    environment["MAX_JOBS"] = str(len(os.sched_getaffinity(0)))
    if device.kind == "cuda":
        environment[ARCHITECTURES] = torch_architecture(device.arch)
    if light:
        environment[LIGHT] = "1"
    limits = TreeLimits(build_budget().alone_bytes, _PROCESSES, None, _MOST_BYTES)
    return await run(
        argv, seconds=_SECONDS, folder=Path("/"), environment=environment, output_bytes=_MOST_BYTES, limits=limits
    )  # fmt: skip


def torch_architecture(arch: str) -> str:
    """``sm_90a`` as torch's extension builder names it by default: ``9.0``."""
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    return f"{match[1]}.{match[2]}" if match is not None else arch


def _after(output: str, mark: str) -> bytes:
    """What the last line with this mark holds."""
    lines = [line for line in output[-_MOST_BYTES:].splitlines()[-3:] if line.startswith(mark)]
    try:
        return base64.b64decode(lines[-1].removeprefix(mark), validate=True) if lines else b""
    except ValueError:
        return b""
