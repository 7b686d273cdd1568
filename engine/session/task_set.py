"""Runs work as asyncio tasks: starts, abandons and collects them. Decides nothing about the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from engine.domain import work as w


class TaskSet:
    """Tasks by the key of their work.

    An abandoned task keeps its key until it has ended, and its result is dropped: a cancelled build and its repetition never
    run concurrently.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        """``on_end`` is called in the event loop whenever a task ends."""
        self._on_end = on_end
        self._tasks: dict[w.WorkKey, tuple[w.Work, asyncio.Task[w.Result]]] = {}
        self._abandoned: set[w.WorkKey] = set()

    @property
    def keys(self) -> frozenset[w.WorkKey]:
        return frozenset(self._tasks)

    @property
    def active(self) -> frozenset[w.WorkKey]:
        """Keys of work that is not abandoned."""
        return self.keys - self._abandoned

    def start(self, work: w.Work, effect: Coroutine[Any, Any, w.Result]) -> None:
        task = asyncio.create_task(effect, name=str(work.key))
        self._tasks[work.key] = (work, task)
        task.add_done_callback(lambda _: self._on_end())

    def abandon(self, keys: Iterable[w.WorkKey]) -> None:
        """Cancel this work and drop its results."""
        for key in set(keys) & self._tasks.keys() - self._abandoned:
            self._abandoned.add(key)
            self._tasks[key][1].cancel()

    def collect(self) -> list[tuple[w.Work, w.Result]]:
        """Work that has ended since the last call, with its results, in the order in which it started."""
        ended = [key for key, (_, task) in self._tasks.items() if task.done()]
        results: list[tuple[w.Work, w.Result]] = []
        for key in ended:
            work, task = self._tasks.pop(key)
            if key in self._abandoned:
                self._abandoned.discard(key)
            elif task.cancelled():
                results.append((work, w.Impossible("the task was cancelled")))
            else:
                results.append((work, task.result()))
        return results

    async def drop_all(self) -> None:
        """Cancel all tasks and wait until they have ended; drops results that were not collected."""
        self.abandon(self.keys)
        await asyncio.gather(*(task for _, task in self._tasks.values()), return_exceptions=True)
        self._tasks.clear()
        self._abandoned.clear()
