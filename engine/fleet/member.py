"""One worker or builder of a fleet, through its restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.domain import work as w
from engine.domain.errors import EspalierError
from engine.domain.model import Blob, Device
from engine.domain.regimes import Regime
from engine.domain.state import Kernel
from engine.fleet import messages as m
from engine.fleet.client import NOTHING, Payloads, WorkerClient, WorkerGone
from engine.fleet.links import WorkerLauncher
from engine.fleet.places import WorkerPlace
from engine.fleet.versions import differences, versions
from engine.toolchain.adopted import adopt, is_binary
from engine.trial.assignment import Assignment
from engine.trial.kernel_builds import Binaries, BuildTarget, KernelSpec, assemble

Say = Callable[[str], None]
StoreBlob = Callable[[bytes], Blob]
Terms = tuple[int, Regime]
"""The effort and the regime of a race."""
ONCE: Terms = (0, Regime.SINGLE)
"""Of other work."""


@dataclass(frozen=True, slots=True)
class KernelParcel:
    """A kernel with all that a worker needs for it."""

    kernel: Kernel
    code: str
    binaries: Binaries = ()
    """What a builder built; empty: the worker builds it itself."""
    files: tuple[tuple[Blob, Path], ...] = ()
    """Where these binaries are."""

    def sent(self) -> tuple[m.SentKernel, Payloads]:
        """The kernel as an order names it, and the payloads that go with the order."""
        code = self.code.encode("utf-8", "replace")
        source, kernel = m.blob_name(code), self.kernel
        sent = m.SentKernel(
            kernel.id, kernel.name, kernel.dialect, kernel.contract, source, dict(kernel.tunables), self.binaries
        )  # fmt: skip
        return sent, {source: code, **dict(self.files)}


class FleetMember:
    """A process at a place. ``connect`` starts it, again after it was lost."""

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

    async def connect(self) -> None:
        """Start the process and hear where it is. Raises EspalierError."""
        self._client = client = WorkerClient(await self._launcher.start(self.place))
        ready = await client.start()
        self.host = m.one_line(ready.host)
        self.notes = tuple(map(m.one_line, differences(ready.versions, await asyncio.to_thread(versions))))

    async def ask(
        self, kind: str, order: Callable[[int], m.Order], say: Say, payloads: Payloads = NOTHING
    ) -> tuple[Any, Mapping[Blob, bytes]]:
        """The result of an order, and the payloads that it names. Raises WorkerGone, EspalierError."""
        if self._client is None:
            raise WorkerGone("it does not run")
        return await self._client.call(order, m.ANSWERS[kind], say, payloads)

    def disown(self, reason: str) -> WorkerGone:
        """Count it as lost, and do not start it again."""
        gone = WorkerGone(reason, final=True)
        return self._client.lose(gone) if self._client is not None else gone

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


class FleetWorker(FleetMember):
    """A worker: one device."""

    async def begin(self, assignment: Assignment, *, ceilings: bool) -> m.OpenedWorker:
        """Start the worker and open the problem there. Raises EspalierError."""
        await self.connect()
        own = replace(assignment, device=self.place.device, cores=self.place.cores)
        payload = m.encode_assignment(own)
        name = m.blob_name(payload)
        opened, _ = await self.ask("open", lambda call: m.OpenProblem(call, name, ceilings), _silent, {name: payload})
        return opened  # type: ignore[no-any-return]

    async def trace(self) -> m.TracedShapes:
        """The reference's graph on each workload. Raises WorkerGone, EspalierError."""
        traced, _ = await self.ask("trace", m.TraceProblem, _silent)
        return traced  # type: ignore[no-any-return]

    async def work(self, kind: str, kernels: Sequence[KernelParcel], how: Terms, say: Say, store: StoreBlob) -> Any:
        """The result of a work item. Raises WorkerGone, EspalierError."""
        sent = [parcel.sent() for parcel in kernels]
        payloads = {name: payload for _, found in sent for name, payload in found.items()}
        names = tuple(kernel for kernel, _ in sent)
        result, found = await self.ask(kind, lambda call: m.DoWork(call, kind, names, *how), say, payloads)
        for payload in found.values():
            store(payload)
        return result


class Builder(FleetMember):
    """A builder: compilers without a device."""

    async def begin(self, target: BuildTarget) -> None:
        """Start the builder and say what it builds for. Raises EspalierError."""
        await self.connect()
        payload = m.encode_target(target)
        name = m.blob_name(payload)
        opened, _ = await self.ask("open-builder", lambda call: m.OpenBuilder(call, name), _silent, {name: payload})
        if opened.sees_gpus:
            self.notes += ("its process sees GPUs: bubblewrap cannot hide them there",)

    async def compile(
        self, parcel: KernelParcel, target: BuildTarget, say: Say, store: StoreBlob
    ) -> tuple[w.Built, Binaries] | w.Failed | w.Impossible:
        """Build a kernel; its binaries are then in this machine's build cache. Raises WorkerGone, EspalierError."""
        sent, payloads = parcel.sent()
        result, found = await self.ask(m.COMPILE, lambda call: m.DoWork(call, m.COMPILE, (sent,)), say, payloads)
        if not isinstance(result, m.CompiledKernel):
            for payload in found.values():
                store(payload)
            return result  # type: ignore[no-any-return]
        binaries = {name for row in result.binaries for name in row if name}
        if reason := await asyncio.to_thread(_unfit, result, [found[name] for name in binaries], parcel, target):
            raise self.disown(reason)
        for name in found.keys() - binaries:
            store(found[name])
        return result.built, result.binaries


def _unfit(result: m.CompiledKernel, contents: Sequence[bytes], parcel: KernelParcel, target: BuildTarget) -> str:
    """Why a builder's binaries are not those of the kernel; empty if they are. Keeps them in the build cache."""
    kernel = parcel.kernel
    for content in contents:
        if not is_binary(content):
            return f"it sent {len(content)} bytes that are no binary"
        adopt(content)
    spec = KernelSpec(kernel.name, parcel.code, kernel.dialect, kernel.contract, kernel.tunables)
    try:
        assembled = assemble(spec, target, result.binaries)
    except EspalierError as error:
        return f"its build does not fit: {error}"
    if assembled.machine_code != result.built.machine_code:
        return "the digest of its machine code is not that of its binaries"
    return ""


def _silent(_: str) -> None:
    """No progress is shown."""


def same_model(one: Device, other: Device) -> bool:
    """Whether two devices are of one model, so that one session may use both."""
    return (one.kind, one.name, one.arch, one.units) == (other.kind, other.name, other.arch, other.units)
