"""The memory and the processes that all builds on this machine share.

Half of the memory that this machine or container has is divided into equal shares, at most one a core. A build takes a share by
locking a file in the build cache, so every process that uses the cache takes from the same shares. A build that needs more than
its share takes all of them and runs alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.domain.errors import EspalierError

MEMORY = "ESPALIER_BUILD_GB"
"""Environment variable: the memory of all builds together, in GB."""
_LEAST, _MOST, _MOST_ALONE = 2 << 30, 8 << 30, 16 << 30
"""A share, unless the whole budget is less; the largest share; the most for a build that runs alone."""
_WAIT_S = 0.02
_SLOTS = "slots"
_ALONE = "alone"
_UNLIMITED = 1 << 60
"""Control groups write \\"no limit\\" as \\"max\\" or as a number above this."""


@dataclass(frozen=True, slots=True)
class BuildBudget:
    """How many builds run at once, and their memory."""

    slots: int
    share_bytes: int
    """Memory of one of several builds."""
    alone_bytes: int
    """Memory of a build that runs alone."""


def divide(memory_bytes: int, cores: int) -> BuildBudget:
    """The budget for ``memory_bytes`` in all."""
    slots = max(1, min(cores, memory_bytes // _LEAST))
    return BuildBudget(slots, min(memory_bytes // slots, _MOST), min(memory_bytes, _MOST_ALONE))


def build_budget() -> BuildBudget:
    """The budget of this machine, or by ESPALIER_BUILD_GB. Raises EspalierError for a value that is not a number."""
    return divide(memory_set_by(MEMORY) or machine_memory() // 2, len(os.sched_getaffinity(0)))


def memory_set_by(variable: str) -> int:
    """Bytes by an environment variable that is a number of GB; 0 if it is not set. Raises EspalierError for another text."""
    text = os.environ.get(variable, "")
    try:
        value = float(text) if text else 0.0
    except ValueError:
        value = math.nan
    if text and not 0.1 <= value < math.inf:
        raise EspalierError(f"{variable} is {text[:80]!r}: set it to a number of GB, such as 8")
    return int(value * 1e9)


def machine_memory() -> int:
    """Bytes of memory of this machine, or of the container if that has less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(physical, *group_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")), _UNLIMITED)


def group_limits(groups: Path, mounted: Path) -> Iterator[int]:
    """The memory limits of this process's control groups and their parents (versions 1 and 2)."""
    with contextlib.suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            root, name = (mounted / "memory", "memory.limit_in_bytes") if controllers else (mounted, "memory.max")
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(root):
                    with contextlib.suppress(
                        OSError, ValueError
                    ):  # in a container the path may not exist, and "max" is not a number
                        yield int((folder / name).read_text())


@contextlib.asynccontextmanager
async def share(cache: Path, budget: BuildBudget) -> AsyncIterator[None]:
    """Wait for a share of the budget and hold it. Raises OSError if the cache cannot be written."""
    with contextlib.ExitStack() as held:
        files = [held.enter_context(file.open("w")) for file in _slot_files(cache, budget)]
        while not any(_take(file.fileno()) for file in files):
            await asyncio.sleep(_WAIT_S)
        yield


@contextlib.asynccontextmanager
async def all_shares(cache: Path, budget: BuildBudget) -> AsyncIterator[None]:
    """Wait until no other build runs, and let none start. Raises OSError if the cache cannot be written."""
    with contextlib.ExitStack() as held:
        first, *slots = [cache / _SLOTS / _ALONE, *_slot_files(cache, budget)]
        for path in (first, *slots):  # in one order, so that two never wait for each other
            file = held.enter_context(path.open("w"))
            while not _take(file.fileno()):
                await asyncio.sleep(_WAIT_S)
        yield


def _slot_files(cache: Path, budget: BuildBudget) -> list[Path]:
    folder = cache / _SLOTS
    folder.mkdir(parents=True, exist_ok=True)
    return [folder / str(number) for number in range(budget.slots)]


def _take(descriptor: int) -> bool:
    """Lock a file until it is closed; whether no other build held it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
