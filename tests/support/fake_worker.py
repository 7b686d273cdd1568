"""A worker without compiler or device: the real program and messages around the fake bench. Also as a link within one process.

// FAKE: time_us = 250 ...          as in ``engine.session.fake_bench``
// LOSES 1                          the worker ends while it verifies this kernel, this many times
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from engine.domain import work as w
from engine.domain.model import Blob, Device, Signature
from engine.domain.state import Kernel
from engine.fleet import worker
from engine.fleet.links import Link, LinkClosed
from engine.fleet.places import WorkerPlace
from engine.problem.graph_ir import Graph, Unsupported
from engine.session.fake_bench import _SIGNATURE, FAKE_CPU, FakeBench
from engine.trial.assignment import Assignment

COMMAND = (sys.executable, "-P", str(Path(__file__).resolve()))
PAUSE, TRIES = "FAKE_PAUSE", "FAKE_TRIES"
"""Environment variables: seconds of each step, and the folder in which a worker notes that it is about to end."""
_LOSES = re.compile(r"// LOSES (\d+)")


class DescribedFakeBench(FakeBench):
    """The fake bench as a worker needs it."""

    lost: Callable[[], None] = staticmethod(lambda: os.kill(os.getpid(), signal.SIGKILL))
    described: Device = FAKE_CPU

    def __init__(self, assignment: Assignment, store: Callable[[bytes], Blob]) -> None:
        super().__init__(store, FAKE_CPU, pause=float(os.environ.get(PAUSE, "0")))

    async def describe(self, say: object, *, ceilings: bool) -> tuple[Device, Signature]:
        return self.described, _SIGNATURE

    async def graph(self) -> Graph | Unsupported:
        return Unsupported("a pretended problem", "")

    async def verify(self, kernel: Kernel, code: str, say: worker.Say) -> w.Verified | w.Failed | w.Impossible:
        if match := _LOSES.search(code):
            folder = Path(os.environ[TRIES])
            tries = len(list(folder.glob(f"{kernel.id}-*")))
            if tries < int(match[1]):
                (folder / f"{kernel.id}-{tries}").touch()
                self.lost()
                await asyncio.sleep(60)
        return await super().verify(kernel, code, say)


class MemoryLink:
    """A worker in this process; ``garble`` changes what it sends."""

    def __init__(
        self, place: WorkerPlace, garble: Callable[[bytes], bytes] = lambda frame: frame, device: Device = FAKE_CPU
    ) -> None:
        self._device = device
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.received: list[bytes] = []
        self._open = True
        self.server = worker.WorkerServer(lambda frame: self._frames.put_nowait(garble(frame)), self._bench, place.device, ())
        self.server.greet()

    def _bench(self, assignment: Assignment, store: Callable[[bytes], Blob]) -> DescribedFakeBench:
        bench = DescribedFakeBench(assignment, store)
        bench.lost, bench.described = self.kill, self._device
        return bench

    async def send(self, frame: bytes) -> None:
        if not self._open:
            raise LinkClosed("its process ended")
        self.received.append(frame)
        self.server.take(frame)

    async def receive(self) -> bytes:
        frame = await self._frames.get()
        if frame is None:
            raise LinkClosed("its process was killed by signal 9")
        return frame

    def kill(self) -> None:
        self._open = False
        self._frames.put_nowait(None)

    async def close(self) -> None:
        self._open = False
        await self.server.close()


class MemoryLauncher:
    """Workers in this process."""

    def __init__(
        self, names: tuple[str, ...], garble: Mapping[str, Callable[[bytes], bytes]] | None = None,
        devices: Mapping[str, Device] | None = None,
    ) -> None:  # fmt: skip
        self._devices = devices or {}
        self.places = tuple(WorkerPlace(name, "cpu") for name in names)
        self._garble = garble or {}
        self.links: dict[str, list[MemoryLink]] = {name: [] for name in names}

    async def start(self, place: WorkerPlace) -> Link:
        garble = self._garble.get(place.name, lambda frame: frame)
        link = MemoryLink(place, garble, self._devices.get(place.name, FAKE_CPU))
        self.links[place.name].append(link)
        return link

    async def close(self) -> None:
        """Nothing is shared."""


if __name__ == "__main__":
    worker.run(DescribedFakeBench, sys.argv[1:])
