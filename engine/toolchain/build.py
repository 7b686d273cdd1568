"""Code → artefact: look it up in the cache, else compile it in the sandbox and cache the result.

Code that does not compile is a value (``BuildFailure``); an exception means that this machine cannot build.
"""

from __future__ import annotations

import ast
import asyncio
import hashlib
import json
import re
import shutil
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

from engine.domain.errors import EspalierError, KernelCodeError, ToolchainError
from engine.domain.model import Contract, Dialect, Resources
from engine.sandbox.confinement import Confinement, run_confined
from engine.sandbox.process import ProcessResult
from engine.toolchain.cache import LOG, Cache, CacheEntry, cache_folder, digest
from engine.toolchain.diagnostics import first_error, ptxas_resources, vectorised_loops
from engine.toolchain.plan import parse_plan
from engine.toolchain.recipes import HEADER, VECTOR_REPORT, Recipe, recipe_for

_SCHEME = 1
"""Incremented when the meaning of a cache entry changes."""
_FULL_DISK = 16 << 20
"""Free bytes below which \"no space left\" is blamed on the disk, not on the kernel."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One kernel to build: its code, ``problem.h``, the value of each tunable, and the device."""

    code: str
    dialect: Dialect
    contract: Contract
    header: str
    """Text of ``problem.h``; ``python`` does not see it."""
    tunables: Mapping[str, int]
    arch: str
    """``sm_90a`` for ``cuda``. ``cpp`` is always built for this machine's CPU."""
    name: str
    """The file name shown in messages."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """A built kernel, in its cache folder."""

    key: str
    """SHA-256 of everything the binary depends on: code, header, tunables, flags, compilers, CPU."""
    folder: Path
    """Holds the code, ``problem.h``, the binary and ``log.txt``. Read-only."""
    binary: Path
    """``kernel.cubin`` (plan), ``kernel.so`` (host) or ``kernel.py`` (module)."""
    seconds: float
    """Wall time of the compiler, in an earlier build if ``cached``."""
    cached: bool
    resources: tuple[Resources, ...]
    """Of each ``__global__`` function, as ptxas reports them; empty for other dialects."""
    log: str


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """Code that did not build: ``reason`` is the first error in the kernel's own file, one line."""

    reason: str
    log: str
    seconds: float
    timed_out: bool = False


BuildOutcome = Artefact | BuildFailure


@dataclass(slots=True)
class _SharedBuild:
    task: asyncio.Task[BuildOutcome]
    waiting: int = 0


_shared_builds: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[Path, str, str], _SharedBuild]] = WeakKeyDictionary()


async def build(request: BuildRequest, confinement: Confinement) -> BuildOutcome:
    """Build ``request``, or return the cached artefact of an earlier build.

    Concurrent builds of one kernel in this process run once and share the outcome; the compiler is stopped when the last waiter
    is cancelled.

    Raises:
        ToolchainError: the compiler is missing or broken.
        EspalierError: the cache folder cannot be written (full disk, no permission).
    """
    recipe = await recipe_for(request.dialect, request.contract, request.arch, request.tunables)
    return await build_with(request, recipe, confinement)


async def build_with(request: BuildRequest, recipe: Recipe, confinement: Confinement) -> BuildOutcome:
    """``build`` with another recipe. Raises the same."""
    key = _key(request, recipe)
    cache = Cache(cache_folder())
    builds = _shared_builds.setdefault(asyncio.get_running_loop(), {})
    cache_key = (cache.root, key, request.name)  # failures contain the kernel's name
    shared = builds.get(cache_key)
    if shared is None:
        shared = builds[cache_key] = _SharedBuild(asyncio.create_task(_find_or_build(request, recipe, key, cache, confinement)))
    shared.waiting += 1
    try:
        return await asyncio.shield(shared.task)
    finally:
        shared.waiting -= 1
        if shared.waiting == 0:
            builds.pop(cache_key, None)
            await _cancel(shared.task)


async def _cancel(task: asyncio.Task[BuildOutcome]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait([task])


def _key(request: BuildRequest, recipe: Recipe) -> str:
    python = request.dialect is Dialect.PYTHON
    parts = {
        "scheme": _SCHEME,
        "source": request.code,
        "header": "" if python else request.header,
        "contract": request.contract,
        "tunables": {} if python else dict(sorted(request.tunables.items())),
        "flags": recipe.argv,
        "identity": recipe.identity,
        **({"beside": dict(recipe.extra_files)} if recipe.extra_files else {}),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


async def _find_or_build(
    request: BuildRequest, recipe: Recipe, key: str, cache: Cache, confinement: Confinement
) -> BuildOutcome:
    if entry := cache.find(key):
        return _artefact(entry, cache, cached=True)
    if cache.needs_trim():
        await asyncio.to_thread(cache.trim)
    with cache.build_folder() as folder:
        with cache.disk_errors():
            (folder / recipe.code_file).write_text(request.code, encoding="utf-8", errors="surrogatepass")
            if recipe.argv:
                (folder / HEADER).write_text(request.header, encoding="utf-8")
            for name, text in recipe.extra_files.items():
                (folder / name).write_text(text, encoding="utf-8")
        result = await _compile(request, recipe, folder, confinement, cache)
        if isinstance(result, BuildFailure):
            return result
        with cache.disk_errors():
            _keep_outputs(folder, recipe, result.output)
            used = ptxas_resources(result.output) if request.dialect is Dialect.CUDA else ()
            entry = CacheEntry(key, recipe.binary, digest(folder / recipe.binary), result.seconds, recipe.identity, used)
        cache.publish(folder, entry)
    return _artefact(entry, cache, cached=False)


def _artefact(entry: CacheEntry, cache: Cache, *, cached: bool) -> Artefact:
    folder = cache.folder(entry.key)
    log = cache.log(entry.key)
    return Artefact(entry.key, folder, folder / entry.binary, entry.seconds, cached, entry.resources, log)


async def _compile(
    request: BuildRequest, recipe: Recipe, folder: Path, confinement: Confinement, cache: Cache
) -> ProcessResult | BuildFailure:
    if not recipe.argv:
        return _check_python(request)
    if clash := _tunable_clash(request):
        return BuildFailure(clash, clash, 0.0)
    try:
        result = await run_confined(recipe.argv, confinement, folder, recipe.readable, recipe.path)
    except OSError as error:
        raise ToolchainError(f"{recipe.argv[0]} cannot be started: {error.strerror}") from error
    if result.timed_out:
        limit = confinement.limits.seconds
        reason = f"{request.name}: the compiler exceeded its time limit of {limit:g} s"
        return BuildFailure(reason, result.output, result.seconds, timed_out=True)
    binary = folder / recipe.binary
    if result.status != 0 or not binary.is_file() or binary.is_symlink():
        with cache.disk_errors():
            _check_disk(result, folder, cache)
        reason = first_error(result.output, recipe.code_file, request.name) or _exit_reason(request, result)
        return BuildFailure(reason, result.output, result.seconds)
    if reason := _missing_entries(request, result):
        return BuildFailure(reason, result.output, result.seconds)
    return result


def _tunable_clash(request: BuildRequest) -> str:
    """The error where ``problem.h`` redefines a tunable, which would override its value."""
    for name in request.tunables:
        if re.search(rf"^[ \t]*#[ \t]*define[ \t]+{re.escape(name)}\b", request.header, re.MULTILINE):
            return f"{request.name}: error: tunable '{name}' has the name of a constant in problem.h: rename it"
    return ""


def _exit_reason(request: BuildRequest, result: ProcessResult) -> str:
    end = f"was killed by signal {-result.status}" if result.status < 0 else f"exited with status {result.status}"
    return f"{request.name}: the compiler {end} and printed nothing"


def _check_disk(result: ProcessResult, folder: Path, cache: Cache) -> None:
    if "No space left on device" in result.output and shutil.disk_usage(folder).free < _FULL_DISK:
        raise EspalierError(f"the build cache {cache.root} is full: free some space, or set ESPALIER_CACHE to another folder")


def _missing_entries(request: BuildRequest, result: ProcessResult) -> str:
    """The error where a plan launches a kernel that the device code does not export."""
    if request.contract is not Contract.PLAN:
        return ""
    entries = {use.function for use in ptxas_resources(result.output)}
    try:
        plan = parse_plan(request.code)
    except KernelCodeError as error:
        return f"{request.name}:{error.line}:{error.column}: error: {str(error).partition(': ')[2] or error}"
    for launch in plan.launches:
        if launch.kernel.text not in entries:
            where = f"{request.name}:{launch.kernel.line}:{launch.kernel.column}"
            return f"{where}: error: no entry '{launch.kernel.text}' in the compiled code: declare it extern \"C\" __global__"
    return ""


def _check_python(request: BuildRequest) -> ProcessResult | BuildFailure:
    began = time.monotonic()
    reason = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(request.code, request.name)
    except SyntaxError as error:
        reason = f"{request.name}:{error.lineno or 0}:{error.offset or 0}: error: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        reason = f"{request.name}: error: {error or 'nested too deeply'}"
    seconds = time.monotonic() - began
    return BuildFailure(reason, reason, seconds) if reason else ProcessResult(0, "", seconds, timed_out=False)


def _keep_outputs(folder: Path, recipe: Recipe, output: str) -> None:
    """Delete everything that is not part of a cache entry, and write its log."""
    report = folder / VECTOR_REPORT
    lines = vectorised_loops(report.read_text(errors="replace"), recipe.code_file) if report.is_file() else ""
    kept = {recipe.code_file, recipe.binary, HEADER}
    for path in folder.iterdir():
        if path.name in kept and path.is_file() and not path.is_symlink():
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    log = output if not lines else f"{output.rstrip()}\n{lines}\n".lstrip()
    (folder / LOG).write_text(log, encoding="utf-8")
