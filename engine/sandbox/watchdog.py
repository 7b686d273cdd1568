"""Watches one command from outside: what all its processes use together, which no limit of a single process bounds.

A cgroup would do the same, but needs a delegated one, which few machines grant. Sampling lets a process overshoot its limit by
what it takes between two looks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

INTERVAL_S = 0.05
"""Seconds between two looks."""
_FOLDER_EVERY = 4
"""Looks at the processes for each look at the folder."""
_MOST_FILES = 1000
"""Files in the folder, at whatever size."""
_OOM_SCORE = b"500"
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Excess(StrEnum):
    """The limit for which a command was killed."""

    MEMORY = "memory"
    PROCESSES = "processes"
    FILES = "files"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """Limits of all processes of a command together; ``None`` is unlimited."""

    memory_bytes: int | None = None
    """Memory of its own; code and files that processes share do not count."""
    processes: int | None = None
    folder_bytes: int | None = None
    """Size of everything in its working folder."""
    printed_bytes: int | None = None
    """Output that is read, whether kept or not."""


async def watch(leader: int, folder: Path | None, limits: TreeLimits) -> Excess:
    """Return once the processes below ``leader`` exceed a limit; never otherwise: cancel it when the command has ended."""
    scored: set[int] = set()
    looks = 0
    while True:
        tree = descendants(leader)
        for pid in tree - scored:
            _kill_first(pid)
        scored = tree
        if limits.processes is not None and len(tree) > limits.processes:
            return Excess.PROCESSES
        if limits.memory_bytes is not None and sum(map(_memory, tree)) > limits.memory_bytes:
            return Excess.MEMORY
        if limits.folder_bytes is not None and folder is not None and looks % _FOLDER_EVERY == 0:
            sizes = list(_sizes(folder))
            if sum(sizes) > limits.folder_bytes or len(sizes) >= _MOST_FILES:
                return Excess.FILES
        looks += 1
        await asyncio.sleep(INTERVAL_S)


def descendants(leader: int) -> set[int]:
    """``leader`` and all processes below it."""
    tree: set[int] = set()
    found = {leader}
    children = _children if os.path.exists(f"/proc/self/task/{os.getpid()}/children") else _children_by_parent()
    while found:
        tree |= found
        found = {child for pid in found for child in children(pid)} - tree
    return tree


def _children_by_parent() -> Callable[[int], list[int]]:
    """For kernels that do not list children: every process with its parent."""
    by_parent: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
                by_parent.setdefault(int(file.read().rsplit(")", 1)[1].split()[1]), []).append(int(name))
    return lambda pid: by_parent.get(pid, [])


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                children += map(int, file.read().split())
    return children


def _memory(pid: int) -> int:
    """Bytes of a process's own memory; 0 once it has ended."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            _, resident, shared, *_ = file.read().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE


def _sizes(folder: Path) -> Iterator[int]:
    """The sizes of at most ``_MOST_FILES`` files below a folder, which may change meanwhile."""
    count = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                yield os.lstat(os.path.join(place, name)).st_blocks * 512
            count += 1
            if count >= _MOST_FILES:
                return


def _kill_first(pid: int) -> None:
    """If the machine's memory runs out, the system kills this process rather than the engine."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "wb") as file:
        file.write(_OOM_SCORE)
