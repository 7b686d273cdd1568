"""Runs one compiler command within the budget of all builds, and says which limit ended it."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
from pathlib import Path

from engine.domain.errors import ToolchainError
from engine.sandbox.confinement import CommandLimits, Confinement, run_confined
from engine.sandbox.process import ProcessResult
from engine.sandbox.watchdog import Excess, TreeLimits
from engine.toolchain.build_budget import all_shares, build_budget, share
from engine.toolchain.cache import Cache
from engine.toolchain.recipe import Recipe

LARGEST_ARTEFACT = 64 << 20
"""Bytes of a binary. Real ones have kilobytes; templates for many shapes a few megabytes."""
_PROCESSES = 64
_FOLDER = 1 << 30
_FILE = 512 << 20
_PRINTED = 4 << 20
_ADDRESS_SPACE = 2
"""Address space of one process, as a multiple of the memory of all: much of it is reserved and never used."""
_MEMORY = re.compile(
    r"out of memory|memory exhausted|cannot allocate memory|memory allocation failure|std::bad_alloc|Killed signal"
    r"|died due to signal 9\b",
    re.IGNORECASE,
)
_FILE_SIZE = re.compile(r"File size limit exceeded|died due to signal 25\b|: file too (?:big|large)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CompilerRun:
    """How a compiler ended; ``limit`` says which limit it exceeded, as the end of "the compiler …"; else it is empty."""

    result: ProcessResult
    limit: str


async def run_compiler(recipe: Recipe, folder: Path, confinement: Confinement, cache: Cache) -> CompilerRun:
    """Compile in ``folder`` within a share of the memory; if that is too little, again alone within all of it.

    Waiting for a share does not count towards the time limit.

    Raises:
        ToolchainError: the compiler cannot be started.
        EspalierError: the cache folder cannot be written.
    """
    budget = build_budget()
    memory = budget.share_bytes
    with cache.disk_errors():
        async with share(cache.root, budget):
            result = await _run(recipe, folder, confinement, memory, confinement.limits.seconds)
        left = confinement.limits.seconds - result.seconds
        if _out_of_memory(result, recipe) and budget.alone_bytes > memory and left > 0:
            memory = budget.alone_bytes
            async with all_shares(cache.root, budget):
                again = await _run(recipe, folder, confinement, memory, left)
            result = replace(again, seconds=result.seconds + again.seconds)
    return CompilerRun(result, _limit(result, recipe, confinement.limits.seconds, memory))


async def _run(recipe: Recipe, folder: Path, confinement: Confinement, memory: int, seconds: float) -> ProcessResult:
    own = confinement.limits
    limits = CommandLimits(
        seconds,
        memory * _ADDRESS_SPACE,
        min(own.file_bytes, _FILE),
        own.processes,
        TreeLimits(memory, _PROCESSES, _FOLDER, _PRINTED),
    )
    try:
        return await run_confined(recipe.argv, confinement.within(limits), folder, recipe.readable, recipe.path)
    except OSError as error:
        raise ToolchainError(f"{recipe.argv[0]} cannot be started: {error.strerror}") from error


def _out_of_memory(result: ProcessResult, recipe: Recipe) -> bool:
    return result.exceeded is Excess.MEMORY or _says(_MEMORY, result, recipe)


def _limit(result: ProcessResult, recipe: Recipe, seconds: float, memory: int) -> str:
    if result.timed_out:
        return f"exceeded its time limit of {seconds:g} s"
    if _out_of_memory(result, recipe):
        return f"ran out of memory: {memory / (1 << 30):.1f} GiB"
    match result.exceeded:
        case Excess.PROCESSES:
            return f"started more than {_PROCESSES} processes"
        case Excess.FILES:
            return f"wrote too many files, or more than {_FOLDER >> 30} GiB"
        case Excess.OUTPUT:
            return f"printed more than {_PRINTED >> 20} MiB"
    if result.status in (-signal.SIGXFSZ, 128 + signal.SIGXFSZ) or _says(_FILE_SIZE, result, recipe):
        return f"wrote a file larger than {_FILE >> 20} MiB"
    return ""


def _says(pattern: re.Pattern[str], result: ProcessResult, recipe: Recipe) -> bool:
    """Whether the compiler itself says so, in a line that neither quotes the kernel nor points into it."""
    if result.status == 0:
        return False
    lines = result.output.splitlines()
    return any(pattern.search(line) for line in lines if line[:1].strip() and not line.startswith(recipe.code_file))
