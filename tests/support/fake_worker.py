"""A worker and a builder without compiler or device: the real programs and messages around the fake bench.

Also as links within one process.

// FAKE: time_us = 250 ...          as in ``engine.session.fake_bench``
// LOSES 1                          the worker ends while it verifies this kernel, this many times
// BREAKS 1                         the builder ends while it builds this kernel, this many times
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from engine.domain import work as w
from engine.domain.errors import EspalierError
from engine.domain.model import Blob, Device, Signature
from engine.domain.state import Kernel
from engine.fleet import builder, worker
from engine.fleet import messages as m
from engine.fleet.builder import BuilderServer
from engine.fleet.links import Link, LinkClosed
from engine.fleet.places import BUILD, WorkerPlace
from engine.fleet.server import CallServer, SendFrame, store
from engine.problem.graph_ir import TracedShape, Unsupported
from engine.session.fake_bench import _SIGNATURE, FAKE_CPU, FakeBench
from engine.toolchain.adopted import adopt, adopted
from engine.trial.assignment import Assignment
from engine.trial.kernel_builds import Binaries, BuildTarget, KernelSpec, assemble

COMMAND = (sys.executable, "-P", str(Path(__file__).resolve()))
PAUSE, TRIES = "FAKE_PAUSE", "FAKE_TRIES"
"""Environment variables: seconds of each step, and the folder in which a worker notes that it is about to end."""
_LOSES, _BREAKS = re.compile(r"// LOSES (\d+)"), re.compile(r"// BREAKS (\d+)")


def binary(kernel: Kernel, code: str) -> bytes:
    """What the fake builder makes of a kernel."""
    return b"\x7fELF" + f"{kernel.name} {sorted(kernel.tunables.items())} {code}".encode()


def is_due(mark: re.Pattern[str], kernel: Kernel, code: str) -> bool:
    """Whether a process is to end at this mark, and has not done so as often as it says."""
    if (match := mark.search(code)) is None:
        return False
    folder = Path(os.environ[TRIES])
    tries = len(list(folder.glob(f"{kernel.id}-*")))
    if tries >= int(match[1]):
        return False
    (folder / f"{kernel.id}-{tries}").touch()
    return True


class DescribedFakeBench(FakeBench):
    """The fake bench as a worker needs it."""

    lost: Callable[[], None] = staticmethod(lambda: os.kill(os.getpid(), signal.SIGKILL))
    described: Device = FAKE_CPU

    def __init__(self, assignment: Assignment, store: Callable[[bytes], Blob]) -> None:
        super().__init__(store, FAKE_CPU, pause=float(os.environ.get(PAUSE, "0")))
        self._assignment = assignment

    async def describe(self, say: object, *, ceilings: bool) -> tuple[Device, Signature]:
        return self.described, _SIGNATURE

    async def traced(self) -> tuple[TracedShape, ...]:
        return (TracedShape(_SIGNATURE, Unsupported("a pretended problem", "")),)

    async def build_target(self) -> BuildTarget:
        return BuildTarget(self.described, (((self._assignment.workload, _SIGNATURE), ()),))

    async def adopt(self, kernel: Kernel, code: str, binaries: Binaries, say: worker.Say) -> None:
        ((name,),) = binaries
        found = adopted(name)
        if found is None or found.binary.read_bytes() != binary(kernel, code):
            raise EspalierError(f"not the binary of {kernel.name}")

    async def verify(self, kernel: Kernel, code: str, say: worker.Say) -> w.Verified | w.Failed | w.Impossible:
        if is_due(_LOSES, kernel, code):
            self.lost()
            await asyncio.sleep(60)
        return await super().verify(kernel, code, say)


class FakeBuilder(BuilderServer):
    """A builder whose binaries are the kernels' code."""

    lost: Callable[[], None] = staticmethod(lambda: os.kill(os.getpid(), signal.SIGKILL))

    async def compile(
        self, kernel: Kernel, code: str, target: BuildTarget, say: worker.Say
    ) -> m.CompiledKernel | w.Failed | w.Impossible:
        if is_due(_BREAKS, kernel, code):
            self.lost()
            await asyncio.sleep(60)
        found = await FakeBench(store, FAKE_CPU, pause=float(os.environ.get(PAUSE, "0"))).build(kernel, code, say)
        if not isinstance(found, w.Built):
            return found
        binaries = ((adopt(binary(kernel, code)),),)
        store(binary(kernel, code))
        spec = KernelSpec(kernel.name, code, kernel.dialect, kernel.contract, kernel.tunables)
        return m.CompiledKernel(replace(found, machine_code=assemble(spec, target, binaries).machine_code), binaries)


class MemoryLink:
    """A worker in this process; ``garble`` changes what it sends."""

    def __init__(
        self, place: WorkerPlace, garble: Callable[[bytes], bytes] = lambda frame: frame, device: Device = FAKE_CPU
    ) -> None:
        self._device = device
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.received: list[bytes] = []
        self.is_open = True
        self.server = self._server(place, lambda frame: self._frames.put_nowait(garble(frame)))
        self.server.greet()

    def _server(self, place: WorkerPlace, send: SendFrame) -> CallServer:
        if not place.builds:
            return worker.WorkerServer(send, self._bench, place.device, ())
        builder = FakeBuilder(send)
        builder.lost = self.kill
        return builder

    def _bench(self, assignment: Assignment, store: Callable[[bytes], Blob]) -> DescribedFakeBench:
        bench = DescribedFakeBench(assignment, store)
        bench.lost, bench.described = self.kill, self._device
        return bench

    async def send(self, frame: bytes) -> None:
        if not self.is_open:
            raise LinkClosed("its process ended")
        self.received.append(frame)
        self.server.take(frame)

    async def receive(self) -> bytes:
        frame = await self._frames.get()
        if frame is None:
            raise LinkClosed("its process was killed by signal 9")
        return frame

    def kill(self) -> None:
        self.is_open = False
        self._frames.put_nowait(None)

    async def close(self) -> None:
        self.is_open = False
        await self.server.close()


class MemoryLauncher:
    """Workers in this process."""

    def __init__(
        self, names: tuple[str, ...], garble: Mapping[str, Callable[[bytes], bytes]] | None = None,
        devices: Mapping[str, Device] | None = None, builders: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self._devices = devices or {}
        self.places = tuple(WorkerPlace(name, "cpu") for name in names)
        self.builders = tuple(WorkerPlace(name, BUILD) for name in builders)
        self._garble = garble or {}
        self.links: dict[str, list[MemoryLink]] = {name: [] for name in (*names, *builders)}

    async def start(self, place: WorkerPlace) -> Link:
        garble = self._garble.get(place.name, lambda frame: frame)
        link = MemoryLink(place, garble, self._devices.get(place.name, FAKE_CPU))
        self.links[place.name].append(link)
        return link

    async def close(self) -> None:
        """Nothing is shared."""


if __name__ == "__main__":
    if BUILD in sys.argv:
        builder.run(FakeBuilder, sys.argv[1:])
    else:
        worker.run(DescribedFakeBench, sys.argv[1:])
