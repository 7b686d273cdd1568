"""Who gets which worker: requests in the order in which they came, each served by the first worker that suits it.

A trial needs a worker for itself. On a GPU a build needs none: compilers run beside the trial. On a CPU the compilers use the
measured cores, so a build needs a worker for itself too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.domain.errors import EspalierError


@dataclass(slots=True)
class WorkerSlot:
    """One worker as the queue sees it."""

    name: str
    ready: bool = False
    busy: bool = False
    """It has work that needs it for itself."""
    beside: int = 0
    """Builds that run beside that."""
    served: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    alone: bool
    prefer: str
    """The worker that it waits for while that exists; empty: any."""
    avoid: frozenset[str]
    """Workers that it takes only where there is no other."""
    granted: asyncio.Future[WorkerSlot] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class WorkerQueue:
    """Grants workers to requests."""

    def __init__(self, names: Iterable[str]) -> None:
        self.slots = {name: WorkerSlot(name) for name in names}
        self._waiting: list[_Request] = []
        self._closed = ""

    @property
    def waiting(self) -> int:
        """Requests that have no worker yet."""
        return len(self._waiting)

    async def take(self, *, alone: bool, prefer: str = "", avoid: frozenset[str] = frozenset()) -> WorkerSlot:
        """A worker, until ``give_back``. Raises EspalierError once there is none and none will come."""
        if self._closed:
            raise EspalierError(self._closed)
        request = _Request(alone, prefer, avoid)
        self._waiting.append(request)
        self.serve()
        try:
            return await request.granted
        except asyncio.CancelledError:
            if request.granted.done() and not request.granted.cancelled() and request.granted.exception() is None:
                self.give_back(request.granted.result(), alone=alone)
            raise
        finally:
            if request in self._waiting:
                self._waiting.remove(request)

    def give_back(self, slot: WorkerSlot, *, alone: bool) -> None:
        """The work on a worker has ended."""
        if alone:
            slot.busy = False
        else:
            slot.beside -= 1
        self.serve()

    def set_ready(self, name: str, *, ready: bool) -> None:
        """A worker has come or gone."""
        if name in self.slots:
            self.slots[name].ready = ready
            self.serve()

    def drop(self, name: str) -> None:
        """A worker will not come again."""
        self.slots.pop(name, None)
        self.serve()

    def fail(self, reason: str) -> None:
        """No worker will come again: every request fails."""
        self._closed = reason
        for request in self._waiting:
            if not request.granted.done():
                request.granted.set_exception(EspalierError(reason))
        self._waiting.clear()

    def serve(self) -> None:
        """Grant what can be granted, first come first served."""
        for request in tuple(self._waiting):
            if request.granted.done():
                continue
            slot = self._suitable(request)
            if slot is None:
                continue
            slot.served += 1
            if request.alone:
                slot.busy = True
            else:
                slot.beside += 1
            self._waiting.remove(request)
            request.granted.set_result(slot)

    def _suitable(self, request: _Request) -> WorkerSlot | None:
        if request.prefer in self.slots and request.prefer not in request.avoid:
            wanted = [self.slots[request.prefer]]
        else:
            others = [slot for name, slot in self.slots.items() if name not in request.avoid]
            wanted = others or list(self.slots.values())
        free = [slot for slot in wanted if slot.ready and not (request.alone and slot.busy)]
        return min(free, key=lambda slot: (slot.beside, slot.served), default=None)
