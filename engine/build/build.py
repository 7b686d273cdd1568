"""Source → artefact: look in the cache, else compile in confinement, and keep what came out.

The one place where recipe, confinement, diagnostics and cache meet. A source that does not compile is a value; an
exception is a machine that cannot build.
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

from engine.build.cache import LOG, Cache, Entry, cache_folder, digest
from engine.build.compilers import HEADER, VECTOR_REPORT, Recipe, recipe
from engine.build.confinement import Confinement, run_confined
from engine.build.diagnostics import first_error, resources, vectorised
from engine.build.plan import parse_plan
from engine.build.process import ProcessResult
from engine.domain.errors import EspalierError, SourceError, ToolchainError
from engine.domain.model import Contract, Dialect, Resources

_SCHEME = 1
"""Raised when the meaning of a cache entry changes."""
_FULL_DISK = 16 << 20
"""Free bytes below which a compiler that ran out of space is believed."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One source to build: with which ``problem.h``, which value for each tunable, and for which device."""

    source: str
    dialect: Dialect
    contract: Contract
    header: str
    """Text of ``problem.h``; ``python`` does not see it."""
    tunables: Mapping[str, int]
    arch: str
    """``sm_90a`` for ``cuda``. ``cpp`` is always built for the CPU at hand."""
    name: str
    """The file's name as its author knows it, used in messages."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """What a build made, where the cache keeps it."""

    key: str
    """SHA-256 of all that decides the binary: source, header, tunables, flags, compilers, CPU."""
    folder: Path
    """Holds the source, ``problem.h``, the binary and ``log.txt``. Not to be written to."""
    binary: Path
    """``kernel.cubin`` (plan), ``kernel.so`` (host) or ``kernel.py`` (module)."""
    seconds: float
    """Wall time of the compiler when it ran; not now, if ``cached``."""
    cached: bool
    resources: tuple[Resources, ...]
    """Of each ``__global__`` function, as ptxas reports them; empty for other dialects."""
    log: str


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """A source that did not build: ``reason`` is the first error in its author's file, one line."""

    reason: str
    log: str
    seconds: float
    timed_out: bool = False


Outcome = Artefact | BuildFailure


@dataclass(slots=True)
class _Running:
    task: asyncio.Task[Outcome]
    waiting: int = 0


_running: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[Path, str], _Running]] = WeakKeyDictionary()


async def build(request: BuildRequest, confinement: Confinement) -> Outcome:
    """Build ``request``, or find what an earlier build of the same made.

    Builds of one key that overlap in this process run once and share the outcome; the compiler is stopped when the
    last who waits for it is cancelled.

    Raises:
        ToolchainError: the compiler is missing or broken.
        EspalierError: the cache folder cannot be written (full disk, no permission).
    """
    how = await recipe(request.dialect, request.contract, request.arch, request.tunables)
    return await build_as(request, how, confinement)


async def build_as(request: BuildRequest, how: Recipe, confinement: Confinement) -> Outcome:
    """``build`` by a recipe of the caller's. Raises the same."""
    key = _key(request, how)
    cache = Cache(cache_folder())
    running = _running.setdefault(asyncio.get_running_loop(), {})
    place = (cache.root, key)
    shared = running.get(place)
    if shared is None:
        shared = running[place] = _Running(asyncio.create_task(_find_or_build(request, how, key, cache, confinement)))
    shared.waiting += 1
    try:
        return await asyncio.shield(shared.task)
    finally:
        shared.waiting -= 1
        if shared.waiting == 0:
            running.pop(place, None)
            await _stop(shared.task)


async def _stop(task: asyncio.Task[Outcome]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait([task])


def _key(request: BuildRequest, how: Recipe) -> str:
    python = request.dialect is Dialect.PYTHON
    parts = {
        "scheme": _SCHEME,
        "source": request.source,
        "header": "" if python else request.header,
        "contract": request.contract,
        "tunables": {} if python else dict(sorted(request.tunables.items())),
        "flags": how.argv,
        "identity": how.identity,
        **({"beside": dict(how.beside)} if how.beside else {}),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


async def _find_or_build(request: BuildRequest, how: Recipe, key: str, cache: Cache, confinement: Confinement) -> Outcome:
    if entry := cache.find(key):
        return _artefact(entry, cache, cached=True)
    with cache.workplace() as folder:
        with cache.trouble():
            (folder / how.source).write_text(request.source, encoding="utf-8", errors="surrogatepass")
            if how.argv:
                (folder / HEADER).write_text(request.header, encoding="utf-8")
            for name, text in how.beside.items():
                (folder / name).write_text(text, encoding="utf-8")
        result = await _compile(request, how, folder, confinement, cache)
        if isinstance(result, BuildFailure):
            return result
        with cache.trouble():
            _tidy(folder, how, result.output)
            found = resources(result.output) if request.dialect is Dialect.CUDA else ()
            entry = Entry(key, how.binary, digest(folder / how.binary), result.seconds, how.identity, found)
        cache.publish(folder, entry)
    return _artefact(entry, cache, cached=False)


def _artefact(entry: Entry, cache: Cache, *, cached: bool) -> Artefact:
    folder = cache.folder(entry.key)
    log = cache.log(entry.key)
    return Artefact(entry.key, folder, folder / entry.binary, entry.seconds, cached, entry.resources, log)


async def _compile(
    request: BuildRequest, how: Recipe, folder: Path, confinement: Confinement, cache: Cache
) -> ProcessResult | BuildFailure:
    if not how.argv:
        return _check_python(request)
    if clash := _clash(request):
        return BuildFailure(clash, clash, 0.0)
    try:
        result = await run_confined(how.argv, confinement, folder, how.readable, how.path)
    except OSError as error:
        raise ToolchainError(f"{how.argv[0]} cannot be started: {error.strerror}") from error
    if result.timed_out:
        limit = confinement.limits.seconds
        reason = f"{request.name}: the compiler was stopped after {limit:g} s"
        return BuildFailure(reason, result.output, result.seconds, timed_out=True)
    binary = folder / how.binary
    if result.status != 0 or not binary.is_file() or binary.is_symlink():
        with cache.trouble():
            _check_disk(result, folder, cache)
        reason = first_error(result.output, how.source, request.name) or _ended(request, result)
        return BuildFailure(reason, result.output, result.seconds)
    if reason := _missing_entries(request, result):
        return BuildFailure(reason, result.output, result.seconds)
    return result


def _clash(request: BuildRequest) -> str:
    """Why the tunables could not take effect: ``problem.h`` would define one of them anew."""
    for name in request.tunables:
        if re.search(rf"^[ \t]*#[ \t]*define[ \t]+{re.escape(name)}\b", request.header, re.MULTILINE):
            return f"{request.name}: error: the tunable '{name}' is a constant of problem.h: choose another name"
    return ""


def _ended(request: BuildRequest, result: ProcessResult) -> str:
    how = f"was killed by signal {-result.status}" if result.status < 0 else f"ended with status {result.status}"
    return f"{request.name}: the compiler {how} and said nothing"


def _check_disk(result: ProcessResult, folder: Path, cache: Cache) -> None:
    if "No space left on device" in result.output and shutil.disk_usage(folder).free < _FULL_DISK:
        raise EspalierError(f"the build cache {cache.root} is full: make room there, or set ESPALIER_CACHE to another folder")


def _missing_entries(request: BuildRequest, result: ProcessResult) -> str:
    """Why a plan cannot launch what was built, when it launches a name that the device code does not have."""
    if request.contract is not Contract.PLAN:
        return ""
    entries = {found.function for found in resources(result.output)}
    try:
        plan = parse_plan(request.source)
    except SourceError as error:
        return f"{request.name}:{error.line}:{error.column}: error: {str(error).partition(': ')[2] or error}"
    for launch in plan.launches:
        if launch.kernel.text not in entries:
            where = f"{request.name}:{launch.kernel.line}:{launch.kernel.column}"
            return f"{where}: error: no entry '{launch.kernel.text}' was built: declare it extern \"C\" __global__"
    return ""


def _check_python(request: BuildRequest) -> ProcessResult | BuildFailure:
    began = time.monotonic()
    reason = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(request.source, request.name)
    except SyntaxError as error:
        reason = f"{request.name}:{error.lineno or 0}:{error.offset or 0}: error: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        reason = f"{request.name}: error: {error or 'nested too deeply'}"
    seconds = time.monotonic() - began
    return BuildFailure(reason, reason, seconds) if reason else ProcessResult(0, "", seconds, timed_out=False)


def _tidy(folder: Path, how: Recipe, output: str) -> None:
    """Leave only what an entry holds, and write its log."""
    report = folder / VECTOR_REPORT
    lines = vectorised(report.read_text(errors="replace"), how.source) if report.is_file() else ""
    kept = {how.source, how.binary, HEADER}
    for path in folder.iterdir():
        if path.name in kept and path.is_file() and not path.is_symlink():
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    log = output if not lines else f"{output.rstrip()}\n{lines}\n".lstrip()
    (folder / LOG).write_text(log, encoding="utf-8")
