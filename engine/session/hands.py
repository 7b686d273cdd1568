"""Work under way, as tasks: started, abandoned, collected. Knows nothing of what the work is or who decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from engine.domain import work as w


class Hands:
    """Tasks by the key of their work.

    A task that was abandoned keeps its key taken until it has really ended, and its result is dropped: a cancelled build
    that is asked for again does not meet its own former self.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        """``on_end`` is called, in the event loop, whenever a task ends."""
        self._on_end = on_end
        self._tasks: dict[str, tuple[w.Work, asyncio.Task[w.Result]]] = {}
        self._abandoned: set[str] = set()

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(self._tasks)

    @property
    def active(self) -> frozenset[str]:
        """Keys of the work whose result is still wanted."""
        return self.keys - self._abandoned

    def start(self, work: w.Work, effect: Coroutine[Any, Any, w.Result]) -> None:
        task = asyncio.create_task(effect, name=work.key)
        self._tasks[work.key] = (work, task)
        task.add_done_callback(lambda _: self._on_end())

    def abandon(self, keys: Iterable[str]) -> None:
        """Cancel this work and want nothing more of it."""
        for key in set(keys) & self._tasks.keys() - self._abandoned:
            self._abandoned.add(key)
            self._tasks[key][1].cancel()

    def collect(self) -> list[tuple[w.Work, w.Result]]:
        """Work that ended with a result since the last call, in the order in which it was started."""
        ended = [key for key, (_, task) in self._tasks.items() if task.done()]
        results: list[tuple[w.Work, w.Result]] = []
        for key in ended:
            work, task = self._tasks.pop(key)
            if key in self._abandoned:
                self._abandoned.discard(key)
            elif task.cancelled():
                results.append((work, w.Impossible("it was cancelled from outside")))
            else:
                results.append((work, task.result()))
        return results

    async def drop_all(self) -> None:
        """Cancel everything and wait until it has ended; results that were not collected are dropped."""
        self.abandon(self.keys)
        await asyncio.gather(*(task for _, task in self._tasks.values()), return_exceptions=True)
        self._tasks.clear()
        self._abandoned.clear()
