"""The builders of a session: compile kernels ahead of the devices, and keep what they built for whichever worker tries it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from engine.domain import events as e
from engine.domain import work as w
from engine.domain.errors import EspalierError
from engine.domain.model import Dialect
from engine.domain.state import Kernel
from engine.fleet.client import WorkerGone
from engine.fleet.member import Builder, KernelParcel, StoreBlob
from engine.fleet.pool import TRIES, MemberPool, Say, Tell, given_up, prefixed
from engine.toolchain.adopted import adopted
from engine.trial.kernel_builds import Binaries, BuildTarget

_Key = tuple[str, str]


def build_key(kernel: Kernel) -> w.WorkKey:
    """The work of building a kernel."""
    return w.WorkKey(w.WorkKind.BUILD, (kernel.id,), kernel.attempt)


class BuilderPool:
    """Builds on builders while there are any; a builder that dies or lies costs its own build."""

    def __init__(self, builders: Iterable[Builder], tell: Tell, store: StoreBlob) -> None:
        self._tell = tell
        self._store = store
        self._pool = MemberPool(builders, self._join, tell, "no builder is left")
        self._target: BuildTarget | None = None
        self._built: dict[_Key, Binaries] = {}

    @property
    def count(self) -> int:
        """How many are left."""
        return len(self._pool.queue.slots)

    async def open(self, target: BuildTarget) -> None:
        """Start them."""
        self._target = target
        await asyncio.gather(*(self._pool.begin(name) for name in self._pool.members))

    async def _join(self, builder: Builder) -> e.BuilderJoined:
        assert self._target is not None
        await builder.begin(self._target)
        return e.BuilderJoined(builder.name, builder.host, builder.notes)

    async def build(self, kernel: Kernel, code: str, say: Say) -> w.Built | w.Failed | w.Abandoned | None:
        """Build on a builder. ``None`` if none is left, or none can: modules are compiled on the device."""
        key, lost = build_key(kernel), list[str]()
        while self.count and kernel.dialect is not Dialect.PYTHON:
            try:
                async with self._pool.member(avoid=frozenset(lost)) as builder:
                    self._tell(e.WorkAssigned(str(key), builder.name))
                    try:
                        return await self._build_on(builder, kernel, code, say)
                    except WorkerGone as gone:
                        lost.append(builder.name)
                        if len(lost) >= TRIES:
                            return given_up(key, lost, gone)
                        self._pool.queue.set_ready(builder.name, ready=False)
                        self._tell(e.WorkRequeued(str(key), builder.name))
                    except EspalierError as error:
                        self._pool.queue.set_ready(builder.name, ready=False)
                        builder.disown(f"it cannot build: {error}")
            except EspalierError:  # the last builder has left, and the journal says why
                break
        return None

    async def _build_on(self, builder: Builder, kernel: Kernel, code: str, say: Say) -> w.Built | w.Failed | None:
        assert self._target is not None
        found = await builder.compile(KernelParcel(kernel, code), self._target, prefixed(say, builder.name), self._store)
        builder.losses = 0
        match found:
            case w.Impossible():
                return None
            case w.Failed():
                return found
        built, self._built[_key(kernel, code)] = found
        return built

    async def parcel(self, kernel: Kernel, code: str, say: Say) -> KernelParcel:
        """A kernel with its binaries, for a worker. In a resumed session it is built again, for the cache of a builder."""
        plain, key = KernelParcel(kernel, code), _key(kernel, code)
        if key not in self._built and not isinstance(await self.build(kernel, code, say), w.Built):
            return plain
        binaries = self._built[key]
        names = {name for row in binaries for name in row if name}
        files = [(name, found.binary) for name in names if (found := await asyncio.to_thread(adopted, name)) is not None]
        return KernelParcel(kernel, code, binaries, tuple(files)) if len(files) == len(names) else plain

    async def close(self) -> None:
        """End them; idempotent."""
        await self._pool.close()


def _key(kernel: Kernel, code: str) -> _Key:
    return code, repr((kernel.dialect, kernel.contract, sorted(kernel.tunables.items())))
