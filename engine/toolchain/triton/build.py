"""Builds a Triton file: Triton writes PTX in the builder's sandbox, ptxas assembles it in a sandbox of its own.

Importing the file runs its code, which may change Triton and write anything. What it writes is data: PTX text and a few sizes,
read strictly. The PTX is assembled by a second process that the file cannot reach, and the driver reports what the device code
takes when it is loaded. A file that lies about its sizes can only make its own launch fail.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec

from engine.domain.errors import ToolchainError
from engine.domain.model import Resources
from engine.sandbox.confinement import Confinement
from engine.toolchain.cache import Cache
from engine.toolchain.compiler_run import run_compiler
from engine.toolchain.compilers import Compiler, identify
from engine.toolchain.device_images import DeviceImage, pack
from engine.toolchain.diagnostics import first_error, ptxas_resources
from engine.toolchain.recipe import Recipe
from engine.toolchain.resolution import SHARED_BYTES
from engine.toolchain.triton.resolution import TritonJob

KERNEL = "kernel.py"
JOBS = "jobs.json"
RESULT = "result.json"
BINARY = "kernel.images"
_WORKER = "compile_worker.py"
_PTX_BYTES = 64 << 20
"""Most bytes of a result: the PTX of all functions."""
_NOT_INSTALLED = "triton is not installed: triton kernels need it; pip install triton"
_OWN = frozenset({"engine", "espalier.py"})
"""What a file may not find beside Triton: problems and sessions are shipped in it."""
_WARP = 32
_HIDDEN = 2
"""Parameters that Triton adds: the addresses of global scratch and of the profiler's."""
_ARCH = re.compile(r"sm_(\d{2,3})[af]?")


@dataclass(frozen=True, slots=True)
class TritonInstall:
    """The installed Triton: ``site`` is the folder it is imported from."""

    version: str
    site: Path
    ptxas: Compiler


async def find_triton() -> TritonInstall:
    """The installed Triton and the ptxas that comes with it. Nothing of it is imported here.

    Raises:
        ToolchainError: it is not installed, or its ptxas does not start.
    """
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise ToolchainError(_NOT_INSTALLED)
    package = Path(spec.origin).parent
    tools = package / "backends" / "nvidia" / "bin"
    # The newer of the two, which reads every version of PTX that Triton writes.
    ptxas = next((tools / name for name in ("ptxas-blackwell", "ptxas") if (tools / name).is_file()), None)
    if ptxas is None:
        raise ToolchainError(f"the triton in {package} has no ptxas: install one for NVIDIA GPUs, pip install triton")
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError as error:
        raise ToolchainError(_NOT_INSTALLED) from error
    return TritonInstall(version, package.parent, await identify("ptxas", ptxas, tools))


async def triton_recipe(arch: str) -> Recipe:
    """How a Triton file becomes PTX; ``assemble`` makes the artefact of it.

    Raises:
        ToolchainError: Triton is missing or broken, or does not build for ``arch``.
    """
    match = _ARCH.fullmatch(arch)
    if match is None:
        raise ToolchainError(f"Triton builds for GPU architectures such as sm_90a, not for '{arch}'")
    found = await find_triton()
    python = Path(os.path.realpath(sys.executable))
    sites = list(dict.fromkeys([str(found.site), *_sites()]))
    argv = (str(python), "-I", "-S", "-B", _WORKER, KERNEL, JOBS, RESULT, match[1], *sites)
    readable = tuple(dict.fromkeys([*_python(python), *(place for site in sites for place in _visible(Path(site)))]))
    worker = (Path(__file__).parent / _WORKER).read_text(encoding="utf-8")
    return Recipe(
        argv, KERNEL, BINARY, (f"triton {found.version}", found.ptxas.version, sys.version.split()[0], arch), readable,
        extra_files={_WORKER: worker}, header=JOBS, intermediate=RESULT,
    )  # fmt: skip


def _sites() -> Iterator[str]:
    """Where this Python's packages are: the file may import torch or numpy."""
    paths = sysconfig.get_paths()
    yield from dict.fromkeys((paths["purelib"], paths["platlib"]))


def _python(python: Path) -> Iterator[Path]:
    for folder in {Path(sys.base_prefix), python.parent, Path(sysconfig.get_paths()["stdlib"])}:
        if not _in_system(folder) and folder.exists():
            yield folder


def _visible(site: Path) -> Iterator[Path]:
    if _in_system(site) or not site.is_dir():
        return
    if any((site / name).exists() for name in _OWN):
        yield from sorted(place for place in site.iterdir() if place.name not in _OWN)
    else:
        yield site


def _in_system(folder: Path) -> bool:
    return any(folder.is_relative_to(system) for system in ("/usr", "/bin", "/lib"))


class _CompiledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the sandboxed process says about one function."""

    entry: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_$][A-Za-z0-9_$]{0,511}$")]
    ptx: str
    shared: Annotated[int, msgspec.Meta(ge=0, le=SHARED_BYTES)]
    num_warps: Annotated[int, msgspec.Meta(ge=1, le=32)]
    scratch_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
    scratch_align: Annotated[int, msgspec.Meta(ge=1, le=512)]
    profile_bytes: Annotated[int, msgspec.Meta(ge=0, le=0)]


@dataclass(frozen=True, slots=True)
class Assembled:
    """The artefact was written; ``log`` is ptxas's output."""

    log: str
    seconds: float
    resources: tuple[Resources, ...]


@dataclass(frozen=True, slots=True)
class NotAssembled:
    reason: str
    log: str
    seconds: float


async def assemble(
    folder: Path, jobs: Sequence[TritonJob], arch: str, name: str, confinement: Confinement, cache: Cache
) -> Assembled | NotAssembled:
    """Assemble the PTX in ``folder`` and write the artefact there; ``name`` is the file name shown in messages.

    Raises:
        ToolchainError: ptxas is missing or cannot be started.
        EspalierError: the cache folder cannot be written.
    """
    compiled = _read(folder / RESULT, jobs, name)
    if isinstance(compiled, NotAssembled):
        return compiled
    ptxas = (await find_triton()).ptxas
    images: list[DeviceImage] = []
    used: list[Resources] = []
    log, seconds = "", 0.0
    for one, job in zip(compiled, jobs, strict=True):
        with cache.disk_errors():
            place = Path(tempfile.mkdtemp(prefix="assemble-", dir=folder))
            (place / "kernel.ptx").write_text(one.ptx, encoding="utf-8")
        flags = ("-v", "-lineinfo", *(("--regAllocOptLevel=2",) if "release 13" in ptxas.version else ()))  # as Triton calls it
        argv = (str(ptxas.path), *flags, f"--gpu-name={arch}", "kernel.ptx", "-o", "kernel.cubin")
        run = await run_compiler(Recipe(argv, "kernel.ptx", "kernel.cubin", (), ptxas.readable), place, confinement, cache)
        result = run.result
        log, seconds = log + result.output, seconds + result.seconds
        binary = place / "kernel.cubin"
        if run.limit or result.status != 0 or not binary.is_file():
            error = first_error(result.output, "kernel.ptx", name) or f"{name}: ptxas exited with status {result.status}"
            return NotAssembled(f"{name}: ptxas {run.limit}" if run.limit else error, log, seconds)
        parameters = _parameters(one)
        explicit = sum(kind != "constexpr" for _, kind in job.signature)
        if not explicit <= parameters <= explicit + _HIDDEN or (one.scratch_bytes and parameters == explicit):
            where = f"{name}:{job.line}:{job.column}"
            reason = f"{where}: error: '{job.function}' compiles to {parameters} parameters, the launch passes {explicit}"
            return NotAssembled(reason, log, seconds)
        with cache.disk_errors():
            cubin = binary.read_bytes()
        images.append(
            DeviceImage(one.entry, one.num_warps * _WARP, one.shared, parameters, one.scratch_bytes, one.scratch_align, cubin)
        )
        used += [replace(each, shared_bytes=each.shared_bytes + one.shared) for each in ptxas_resources(result.output)]
    with cache.disk_errors():
        place = Path(tempfile.mkdtemp(prefix="packed-", dir=folder)) / BINARY
        place.write_bytes(pack(images))
        if (folder / BINARY).is_dir() and not (folder / BINARY).is_symlink():
            shutil.rmtree(folder / BINARY)
        place.replace(folder / BINARY)
    return Assembled(log, seconds, tuple(used))


def _read(path: Path, jobs: Sequence[TritonJob], name: str) -> list[_CompiledFunction] | NotAssembled:
    """The result of the sandboxed process, which may have written anything."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            data = file.read(_PTX_BYTES + 1)
        compiled = msgspec.json.decode(data, type=list[_CompiledFunction]) if len(data) <= _PTX_BYTES else []
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return NotAssembled(f"{name}: Triton's result cannot be used: {str(error)[:200]}", "", 0.0)
    if len(compiled) != len(jobs):
        return NotAssembled(f"{name}: Triton compiled {len(compiled)} of {len(jobs)} functions", "", 0.0)
    return compiled


def _parameters(one: _CompiledFunction) -> int:
    """How many parameters the entry has; -1 where the PTX has no such entry. The driver counts again."""
    entry = re.search(rf"\.entry\s+{re.escape(one.entry)}\s*\(([^)]*)\)", one.ptx)
    return entry[1].count(".param") if entry else -1
