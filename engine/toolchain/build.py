"""Code → artefact: look it up in the cache, else compile it in the sandbox and cache the result.

Code that does not compile is a value (``BuildFailure``); an exception means that this machine cannot build.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import msgspec

from engine.domain import python_syntax
from engine.domain.errors import EspalierError, KernelCodeError
from engine.domain.model import Contract, Dialect, Resources
from engine.sandbox.confinement import Confinement
from engine.sandbox.process import ProcessResult
from engine.sandbox.watchdog import Excess
from engine.toolchain.cache import LOG, Cache, CacheEntry, cache_folder, digest
from engine.toolchain.compiler_run import LARGEST_ARTEFACT, run_compiler
from engine.toolchain.diagnostics import first_error, ptxas_resources, vectorised_loops
from engine.toolchain.included import included_files
from engine.toolchain.macro_clash import clash_error
from engine.toolchain.plan import parse_plan
from engine.toolchain.recipe import Recipe
from engine.toolchain.recipes import VECTOR_REPORT, recipe_for
from engine.toolchain.triton import build as triton_build
from engine.toolchain.triton.resolution import TritonJob

_SCHEME = 1
"""Incremented when the meaning of a cache entry changes."""
_FULL_DISK = 16 << 20
"""Free bytes below which \"no space left\" is blamed on the disk, not on the kernel."""

_LONGEST_REPORT = 1 << 20
"""Characters of the vectorisation report that are read."""


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
    included: tuple[str, ...] = ()
    """What was read of the user's header trees: path, number of files and their digest, a line each."""
    digest: str = ""
    """SHA-256 of the binary."""


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """Code that did not build: ``reason`` is the first error in the kernel's own file, one line."""

    reason: str
    log: str
    seconds: float
    timed_out: bool = False


BuildOutcome = Artefact | BuildFailure


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A compiler that succeeded: what it printed, how long it ran, and what the device functions use."""

    output: str
    seconds: float
    resources: tuple[Resources, ...]


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
            _write_inputs(folder, request, recipe)
            for name, text in recipe.extra_files.items():
                (folder / name).write_text(text, encoding="utf-8")
        result = await _compile(request, recipe, folder, confinement, cache)
        if isinstance(result, BuildFailure):
            return result
        with cache.disk_errors():
            found = included_files(folder, recipe.trees)
            _keep_outputs(folder, recipe, _with_lines(result.output, [f"included {one}" for one in found]))
            if recipe.intermediate:  # the first step ran the file's own code, which may have changed its inputs
                _write_inputs(folder, request, recipe)
            used = result.resources
            entry = CacheEntry(key, recipe.binary, digest(folder / recipe.binary), result.seconds, recipe.identity, used, found)
        cache.publish(folder, entry)
    return _artefact(entry, cache, cached=False)


def _with_lines(log: str, lines: Sequence[str]) -> str:
    return "\n".join([*filter(None, [log.rstrip()]), *lines, ""]) if lines else log


def _write_inputs(folder: Path, request: BuildRequest, recipe: Recipe) -> None:
    texts = {recipe.code_file: request.code, **({recipe.header: request.header} if recipe.argv else {})}
    for name, text in texts.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(text, encoding="utf-8", errors="surrogatepass")


def _artefact(entry: CacheEntry, cache: Cache, *, cached: bool) -> Artefact:
    folder = cache.folder(entry.key)
    log = cache.log(entry.key)
    return Artefact(
        entry.key, folder, folder / entry.binary, entry.seconds, cached, entry.resources, log, entry.included, entry.digest
    )


async def _compile(
    request: BuildRequest, recipe: Recipe, folder: Path, confinement: Confinement, cache: Cache
) -> _Compiled | BuildFailure:
    if not recipe.argv:
        return _check_python(request)
    if clash := _tunable_clash(request):
        return BuildFailure(clash, clash, 0.0)
    run = await run_compiler(recipe, folder, confinement, cache)
    result = run.result
    if run.limit:
        error = first_error(result.output, recipe.code_file, request.name) if result.exceeded is Excess.OUTPUT else None
        reason = error or f"{request.name}: the compiler {run.limit}"
        return BuildFailure(reason, result.output, result.seconds, result.timed_out)
    binary = folder / (recipe.intermediate or recipe.binary)
    if result.status != 0 or not binary.is_file() or binary.is_symlink():
        with cache.disk_errors():
            _check_disk(result, folder, cache)
        reason = _first_error(request, recipe, result) or _exit_reason(request, result)
        return BuildFailure(reason, result.output, result.seconds)
    if reason := _too_large(request, binary.stat().st_size) or _missing_entries(request, result):
        return BuildFailure(reason, result.output, result.seconds)
    if request.dialect is Dialect.TRITON:
        return await _assemble(request, result, folder, confinement, cache)
    used = ptxas_resources(result.output) if request.dialect is Dialect.CUDA else ()
    return _Compiled(result.output, result.seconds, used)


async def _assemble(
    request: BuildRequest, result: ProcessResult, folder: Path, confinement: Confinement, cache: Cache
) -> _Compiled | BuildFailure:
    """The second step of a Triton build. What the first printed is the file's own: no resource is read from it."""
    jobs = msgspec.json.decode(request.header, type=list[TritonJob])
    done = await triton_build.assemble(folder, jobs, request.arch, request.name, confinement, cache)
    log = "\n".join(part for part in (result.output.rstrip(), done.log) if part)
    if isinstance(done, triton_build.NotAssembled):
        return BuildFailure(done.reason, log or done.reason, result.seconds + done.seconds)
    return _Compiled(log, result.seconds + done.seconds, done.resources)


def _too_large(request: BuildRequest, size: int) -> str:
    if size <= LARGEST_ARTEFACT:
        return ""
    return f"{request.name}: the compiled binary has {size / (1 << 20):.0f} MiB: at most {LARGEST_ARTEFACT >> 20} MiB"


def _first_error(request: BuildRequest, recipe: Recipe, result: ProcessResult) -> str | None:
    file, code, header = recipe.code_file, request.code, request.header
    clash = clash_error(result.output, file, request.name, code, header, request.tunables)
    return clash or first_error(result.output, file, request.name)


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
    if request.contract is not Contract.PLAN or request.dialect is Dialect.TRITON:
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


def _check_python(request: BuildRequest) -> _Compiled | BuildFailure:
    began = time.monotonic()
    reason = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            python_syntax.parse(request.code, request.name)
    except SyntaxError as error:
        reason = f"{request.name}:{error.lineno or 0}:{error.offset or 0}: error: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        reason = f"{request.name}: error: {error or 'nested too deeply'}"
    seconds = time.monotonic() - began
    return BuildFailure(reason, reason, seconds) if reason else _Compiled("", seconds, ())


def _start_of(report: Path) -> str:
    with report.open(errors="replace") as file:
        return file.read(_LONGEST_REPORT)


def _keep_outputs(folder: Path, recipe: Recipe, output: str) -> None:
    """Delete everything that is not part of a cache entry, and write its log."""
    report = folder / VECTOR_REPORT
    lines = vectorised_loops(_start_of(report), recipe.code_file) if report.is_file() else ""
    kept = {recipe.code_file, recipe.binary, recipe.header}
    for path in folder.iterdir():
        if path.name in kept and path.is_file() and not path.is_symlink():
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    log = output if not lines else f"{output.rstrip()}\n{lines}\n".lstrip()
    (folder / LOG).write_text(log, encoding="utf-8")
