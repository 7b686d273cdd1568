"""What runs on a node of a Ray cluster: an actor that starts a worker's process and passes its frames on, unread.

The worker is a process of its own with an environment from an allow-list: no token, port or socket of Ray reaches it, nor what
runs below it. It ends when the actor does, and the actor ends with the engine that made it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engine.domain.errors import EspalierError
from engine.fleet.links import WORKER, LinkClosed, ProcessLink, worker_environment
from engine.fleet.places import BUILD, WorkerPlace, core_groups, cpu_places, gpu_place
from engine.sandbox.bubblewrap import without_devices

_BATCH_S = 20.0
"""Seconds after which a request for frames is answered, with none if there are none."""
CLOSED = b""
"""The last of the frames: the worker has ended."""


class WorkerActor:
    """One worker or builder. Its methods take and return bytes."""

    def __init__(self, name: str, device: str, share: tuple[int, int], command: Sequence[str] = WORKER) -> None:
        """``share``: for cores, which of how many workers of this node it is."""
        self._name, self._device, self._share, self._command = name, device, share, tuple(command)
        self._link: ProcessLink | None = None
        self._why = "the worker was closed"

    async def start(self) -> bytes:
        """Start the worker's process; why that failed, or nothing."""
        try:
            place, command = self._place(), self._command
            if place.builds:
                command = tuple(await asyncio.to_thread(without_devices, command))
            self._link = await ProcessLink.start(place, command, self._environment())
        except EspalierError as error:
            return str(error).encode()
        return b""

    def _place(self) -> WorkerPlace:
        if self._device == BUILD:
            return WorkerPlace(self._name, BUILD)
        if self._device != "cpu":
            return gpu_place(0, self._name)
        number, count = self._share
        return WorkerPlace(self._name, "cpu", cpu_places(core_groups(), count)[number].cores)

    def _environment(self) -> dict[str, str]:
        """Ray gives an actor one thread for OpenMP, which is not meant for what it starts."""
        found = worker_environment(self._place())
        found.pop("OMP_NUM_THREADS", None)
        return found

    async def send(self, frame: bytes) -> bytes:
        """Pass a frame to the worker; why that failed, or nothing."""
        if self._link is None:
            return self._why.encode()
        try:
            await self._link.send(frame)
        except LinkClosed as error:
            return str(error).encode()
        return b""

    async def receive(self) -> list[bytes]:
        """Frames of the worker. After the last one: ``CLOSED``, and why."""
        if self._link is None:
            return [CLOSED, self._why.encode()]
        frames: list[bytes] = []
        try:
            async with asyncio.timeout(_BATCH_S):
                frames.append(await self._link.receive())
        except TimeoutError:
            return []
        except LinkClosed as error:
            return [CLOSED, str(error).encode()]
        return frames

    async def close(self) -> None:
        """End the worker and what runs below it."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()
