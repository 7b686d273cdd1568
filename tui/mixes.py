"""The instruction mix of built kernels: as the journal has it, else read from the build cache when a page first asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from engine.build.cache import Cache, cache_folder
from engine.build.confinement import detect
from engine.build.inspection import InstructionMix, inspect
from engine.domain.errors import EspalierError
from engine.domain.state import Kernel

Mix = Mapping[str, int]
Read = Callable[[str], Awaitable[Mix | None]]
"""Key of an artefact → its mix; ``None`` where it is not here or cannot be read."""
_KEPT = 512


class Mixes:
    """Answers at once with what is known; what is not is looked up, and ``told`` is called when it is there."""

    def __init__(self, read: Read | None = None) -> None:
        self._read = read or read_mix
        self._known: dict[str, Mix | None] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._one_at_a_time = asyncio.Lock()
        self.told: Callable[[], None] = lambda: None

    def of(self, kernel: Kernel) -> Mix | None:
        """The kernel's mix if it is known by now. Needs a running event loop."""
        if kernel.instructions:
            return kernel.instructions
        key = kernel.artefact
        if not key:
            return None
        if key not in self._known and key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._find(key))
        return self._known.get(key)

    async def _find(self, key: str) -> None:
        try:
            async with self._one_at_a_time:
                mix = await self._read(key)
        finally:
            self._tasks.pop(key, None)
        while len(self._known) >= _KEPT:
            del self._known[next(iter(self._known))]
        self._known[key] = mix
        if mix is not None:
            self.told()

    def close(self) -> None:
        """Look nothing further up."""
        for task in self._tasks.values():
            task.cancel()


async def read_mix(key: str) -> Mix | None:
    """Disassemble an artefact of this machine's build cache, confined like everything that reads a stranger's binary."""
    cache = Cache(cache_folder())
    try:
        entry = await asyncio.to_thread(cache.find, key)
        if entry is None:
            return None
        found = await inspect(cache.folder(key) / entry.binary, await detect())
    except EspalierError:
        return None
    return dict(found.counts) if isinstance(found, InstructionMix) else None
