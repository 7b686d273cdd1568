"""One worker of a fleet, through its restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from engine.domain.model import Blob, Device
from engine.domain.state import Kernel
from engine.fleet import messages as m
from engine.fleet.client import WorkerClient, WorkerGone
from engine.fleet.links import WorkerLauncher
from engine.fleet.places import WorkerPlace
from engine.fleet.versions import differences, versions
from engine.trial.assignment import Assignment

Say = Callable[[str], None]


class FleetMember:
    """A worker at a place. ``begin`` starts it, again after it was lost."""

    def __init__(self, place: WorkerPlace, launcher: WorkerLauncher) -> None:
        self.place = place
        self._launcher = launcher
        self._client: WorkerClient | None = None
        self.host = ""
        self.notes: tuple[str, ...] = ()
        """How what is installed there differs from here."""
        self.losses = 0
        """How often it was lost since its last result."""

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def pulse(self) -> m.Pulse:
        """Its latest sign of life."""
        return self._client.pulse if self._client is not None else m.Pulse()

    async def begin(self, assignment: Assignment, *, ceilings: bool) -> m.OpenedWorker:
        """Start the worker and open the problem there. Raises EspalierError."""
        self._client = client = WorkerClient(await self._launcher.start(self.place))
        ready = await client.start()
        self.host = m.one_line(ready.host)
        self.notes = tuple(map(m.one_line, differences(ready.versions, await asyncio.to_thread(versions))))
        own = replace(assignment, device=self.place.device, cores=self.place.cores)
        payload = m.encode_assignment(own)
        name = m.blob_name(payload)
        opened: m.OpenedWorker = await self.ask("open", lambda call: m.OpenProblem(call, name, ceilings), _silent, (payload,))
        return opened

    async def ask(
        self, kind: str, order: Callable[[int], m.Order], say: Say, payloads: Sequence[bytes] = (),
        store: Callable[[bytes], Blob] | None = None,
    ) -> Any:  # fmt: skip
        """The result of an order; the payloads that it names are stored. Raises WorkerGone, EspalierError."""
        if self._client is None:
            raise WorkerGone("it does not run")
        result, found = await self._client.call(order, m.ANSWERS[kind], say, payloads)
        if store is not None:
            for payload in found.values():
                store(payload)
        return result

    async def work(
        self, kind: str, kernels: Sequence[tuple[Kernel, str]], effort: int, say: Say, store: Callable[[bytes], Blob]
    ) -> Any:
        """The result of a work item. Raises WorkerGone, EspalierError."""
        codes = [code.encode("utf-8", "replace") for _, code in kernels]
        sent = tuple(_sent(kernel, m.blob_name(code)) for (kernel, _), code in zip(kernels, codes, strict=True))
        return await self.ask(kind, lambda call: m.DoWork(call, kind, sent, effort), say, codes, store)

    async def lost(self) -> WorkerGone:
        """Wait until it is lost; why."""
        if self._client is None:
            return WorkerGone("it does not run")
        return await asyncio.shield(self._client.gone)

    async def end(self) -> None:
        """End its process, if it runs; idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def _silent(_: str) -> None:
    """No progress is shown."""


def _sent(kernel: Kernel, source: Blob) -> m.SentKernel:
    return m.SentKernel(kernel.id, kernel.name, kernel.dialect, kernel.contract, source, dict(kernel.tunables))


def same_model(one: Device, other: Device) -> bool:
    """Whether two devices are of one model, so that one session may use both."""
    return (one.kind, one.name, one.arch, one.units) == (other.kind, other.name, other.arch, other.units)
