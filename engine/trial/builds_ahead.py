"""Builds of the kernels that are judged next, while one is on the device. No torch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Generic, TypeVar

Kernel = TypeVar("Kernel")
Outcome = TypeVar("Outcome")

AT_A_TIME = 2
"""Compilers that run beside a measurement, as many as in a session."""


class BuildsAhead(Generic[Kernel, Outcome]):
    """Starts builds in the order in which their results are taken, at most ``AT_A_TIME`` at once."""

    def __init__(self, build: Callable[[Kernel], Awaitable[Outcome]], key: Callable[[Kernel], Hashable]) -> None:
        """``key``: what two kernels with the same build have in common."""
        self._build = build
        self._key = key
        self._free = asyncio.Semaphore(AT_A_TIME)
        self._tasks: dict[Hashable, asyncio.Task[Outcome]] = {}

    def start(self, kernels: Iterable[Kernel]) -> None:
        """Build these, in this order."""
        for kernel in kernels:
            key = self._key(kernel)
            if key not in self._tasks:
                self._tasks[key] = asyncio.create_task(self._one(kernel))

    async def _one(self, kernel: Kernel) -> Outcome:
        async with self._free:
            return await self._build(kernel)

    async def take(self, kernel: Kernel) -> Outcome | None:
        """What a started build gives, once; ``None`` if none was started. Raises what the build raises."""
        task = self._tasks.pop(self._key(kernel), None)
        return None if task is None else await task

    async def close(self) -> None:
        """Cancel the builds that nobody has taken, and wait for them."""
        tasks = [*self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
