"""One problem opened in a judge: starts the judge, keeps what it may not keep itself, and completes what it reports. No torch.

The judge runs a reference that nobody may have read, in a sandbox that shows none of the user's files. The engine therefore
reads and writes the caches, hands over artefacts and files for inputs, and adds what the judge cannot know: how it is confined,
and who else uses the device. What all problems share (the device, its ceilings) comes from a judge that has run no reference.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from engine.domain import suite
from engine.domain.errors import EspalierError, ProblemError, SandboxError
from engine.domain.model import Device, Measurement, Signature, Workload
from engine.domain.preparation import Peaks, Preparation
from engine.sandbox import bubblewrap, trial_sandbox
from engine.toolchain.build_budget import memory_set_by
from engine.toolchain.cache import cache_folder
from engine.trial import protocol as p
from engine.trial.assignment import Assignment as Assignment
from engine.trial.client import JudgeClient, JudgeDied, StartHosts
from engine.trial.device_processes import DeviceProcesses
from engine.trial.judge.caches import baseline_cache, peaks_cache, preparation_cache
from engine.trial.judge.caches.preparation_cache import KeptPreparation
from engine.trial.lease import Lease

Say = Callable[[str], None]
MEMORY_LIMIT = "ESPALIER_MEMORY_GB"
"""Environment variable: most memory of the device that the judge plans with, in GB."""
OUTSIDE = "the reference runs outside the sandbox"


def silent(_: str) -> None:
    """No progress is shown."""


@dataclass(frozen=True, slots=True)
class Confined:
    """How a trial is confined: why kernels, the reference and system calls are not; empty where they are."""

    kernels: str = ""
    reference: str = ""
    calls: str = ""

    @property
    def sandbox(self) -> str:
        """``bubblewrap`` or ``limits``, for kernels."""
        return "limits" if self.kernels else "bubblewrap"

    @property
    def notes(self) -> tuple[str, ...]:
        """One line for each gap."""
        if self.kernels:
            return (f"no sandbox: {self.kernels}; only resource limits apply, also to the reference",)
        outside = f"{OUTSIDE}: {self.reference}" if self.reference else ""
        return tuple(filter(None, (self.calls, outside)))


async def confinement() -> Confined:
    """How trials are confined on this machine."""
    reason = await asyncio.to_thread(bubblewrap.bubblewrap_reason)
    if reason is not None:
        return Confined(reason, reason)
    filtered = await asyncio.to_thread(bubblewrap.filter_reason)
    return Confined("", await trial_sandbox.find_judge_reason() or "", filtered or "")


@dataclass(frozen=True, slots=True)
class OpenedProblem:
    """An opened problem. ``device`` was described before the reference ran."""

    device: Device
    workloads: tuple[p.WorkloadSignatures, ...]
    confined: Confined
    device_processes: DeviceProcesses | None = field(default=None, compare=False)
    """On a GPU, if the judge cannot name other processes."""

    @property
    def signature(self) -> Signature:
        """What a kernel is called with on the first workload."""
        return self.workloads[0].signature


class JudgeSession:
    """Starts the judge at first use, and again if it died or the device was given to another process. Close it when done.

    Whatever uses the device holds its lease, from the start of the judge on: an idle judge's memory is on the device too.
    """

    def __init__(self, assignment: Assignment, client: JudgeClient | None = None) -> None:
        """``client``: a judge that was started before and asked nothing."""
        self.assignment = assignment
        self._client = client or JudgeClient()
        self.lease = Lease(assignment.device, self._evict, assignment.cores)
        self._evicted = False
        self._opened: OpenedProblem | None = None
        self._opening = asyncio.Lock()
        self._peaks: Peaks | None = None
        self._kept: dict[str, KeptPreparation] = {}
        """Workload → its preparation by this bench, or by an earlier one with the same key."""

    @property
    def pid(self) -> int | None:
        """The process below which the trial runs, while it does."""
        return self._client.pid

    async def open(self, say: Say = silent, *, ceilings: bool = False) -> OpenedProblem:
        """Start the judge and load the problem. Raises ProblemError, DeviceError, SandboxError, JudgeDied.

        With ``ceilings``, unknown ones of the device are measured first, for ``prepare``.
        """
        if self.assignment.device != "cpu":  # torch is imported while others use the device
            async with self._opening:
                await self._start(hosts=ceilings)
        async with self.lease.held(say), self._opening:
            await self._start(hosts=ceilings)
            if self._opened is None:
                try:
                    self._opened = await self._open(say, ceilings=ceilings)
                except EspalierError:
                    await self._client.close()
                    raise
            return self._opened

    async def _start(self, *, hosts: bool) -> None:
        """Start the judge's process if it does not run. It takes nothing of the device before it is asked."""
        if self._evicted or not self._client.running:
            self._opened, self._evicted = None, False
            await self._client.start(self.assignment.device, StartHosts.WHEN_ASKED if hosts else StartHosts.LATER)

    def _evict(self) -> None:
        """End what occupies the device. Called by the lease, from any thread."""
        self._evicted = True
        self._client.kill()

    async def _open(self, say: Say, *, ceilings: bool) -> OpenedProblem:
        a = self.assignment
        found = await self._client.ask(p.DeviceRequest(a.device), silent)
        assert isinstance(found, p.DeviceReply)
        self._peaks = self._peaks or peaks_cache.load(_cache(), found.device)
        if self._peaks is None and ceilings:
            self._peaks = await _measure_peaks(self._client, found.device, say)
        confined = await confinement()
        self._kept = self._kept or self._cached_preparations(found.device, confined)
        first, *more = (self._member(workload, found.device) for workload in a.workloads)
        known = self._kept.get(a.workload.name)
        peaks = a.peaks or (known.preparation.peaks if known is not None else self._peaks)
        request = p.OpenRequest(
            a.problem, first.workload, first.holdouts, a.device, a.tolerance, a.baseline, a.further_baselines, a.cold,
            not confined.kernels, first.same, a.fresh, peaks, first.cached, first.calibrations, memory_set_by(MEMORY_LIMIT),
            tuple(more), ceilings or (known is not None and bool(known.calibrations)), a.contract,
        )  # fmt: skip
        with self._naming_the_reference():
            reply = await self._load(request, say)
        assert isinstance(reply, p.OpenReply)
        processes = DeviceProcesses.on(found.bus_id) if found.device.kind == "cuda" and not confined.reference else None
        return OpenedProblem(found.device, reply.workloads, confined, processes)

    @contextmanager
    def _naming_the_reference(self) -> Iterator[None]:
        """Within, the judge runs the reference before any kernel: its end is the reference's."""
        try:
            yield
        except JudgeDied as died:
            name = self.assignment.problem.name
            raise ProblemError(
                f"{name}: {died} while it ran the reference: correct the reference if it ends its process, crashes or needs "
                "more memory than there is"
            ) from died

    async def _load(self, request: p.OpenRequest, say: Say) -> p.Reply:
        """The reply to ``request``. The bounds may allow settings that the reference does not: then it is opened without."""
        try:
            return await self._client.ask(request, say)
        except ProblemError:
            if self.assignment.chance is None:
                raise
            self.assignment = replace(self.assignment, chance=None)
            return await self._client.ask(msgspec.structs.replace(request, holdouts=self.assignment.holdouts), say)

    def _member(self, workload: Workload, device: Device) -> p.SuiteMember:
        """What the judge needs to know of one workload."""
        a, kept = self.assignment, self._kept.get(workload.name)
        same = (a.sames.get(workload.name) if a.rest else a.same) or (kept.same if kept is not None and kept.complete else None)
        return p.SuiteMember(
            workload, a.holdouts_of(workload), same, baseline_cache.encode(self._record(workload, device).kept),
            kept.calibrations if kept is not None else b"",
        )  # fmt: skip

    def _cached_preparations(self, device: Device, confined: Confined) -> dict[str, KeptPreparation]:
        if not self.assignment.prepared or self.assignment.fresh:
            return {}
        found = {w.name: preparation_cache.load(_cache(), self._key(w, device, confined)) for w in self.assignment.workloads}
        return {name: kept for name, kept in found.items() if kept is not None}

    def _key(self, workload: Workload, device: Device, confined: Confined) -> preparation_cache.PreparationKey:
        a = self.assignment
        fixed = tuple(a.problem.holdouts.get(workload.name, ()))
        return preparation_cache.PreparationKey(
            replace(a.problem, suites={}), workload, fixed, device, a.tolerance, (a.baseline, *a.further_baselines), a.cold,
            (not confined.kernels, not confined.reference), a.unit,
        )  # fmt: skip

    def _record(self, workload: Workload, device: Device) -> baseline_cache.Record:
        """The cached baselines of one workload."""
        a = self.assignment
        wanted = baseline_cache.fingerprint(
            a.problem, workload, device, ranking=a.baseline, tolerance=a.tolerance, cold=a.cold,
            unit=a.unit,
        )  # fmt: skip
        return baseline_cache.load(_cache(), wanted)

    async def ask(self, request: p.Request, say: Say = silent) -> p.Reply:
        """The judge's reply, from an opened problem. Raises what ``JudgeClient.ask`` raises.

        Where the sandbox does not work any more, a new judge in a new one is asked again, once. A file that the sandbox shows
        can be replaced while it is up: an update of the system writes the loader's cache.
        """
        async with self.lease.held(say):
            try:
                return await self._ask(request, say)
            except SandboxError as error:
                say(f"starting the sandbox again: {error}")
                await self._client.close()
                return await self._ask(request, say)

    async def _ask(self, request: p.Request, say: Say) -> p.Reply:
        async with self.lease.held(say):
            opened = await self.open()
            if opened.device_processes is not None:
                opened.device_processes.observe(self._client.pid)
            reply = await self._client.ask(request, say)
            if opened.device_processes is not None:
                opened.device_processes.observe(self._client.pid)
            return _completed(reply, opened, self.lease.note)

    async def prepare(self, say: Say, *, measure: bool) -> tuple[OpenedProblem, Preparation]:
        """Calibrate the correctness check, try the trivial models, measure baselines; all with the device's ceilings."""
        async with self.lease.held(say):
            return await self._prepare(say, measure=measure)

    async def _prepare(self, say: Say, *, measure: bool) -> tuple[OpenedProblem, Preparation]:
        opened = await self.open(say, ceilings=True)
        workloads = self.assignment.workloads
        known = tuple(w.name for w in workloads if self._is_known(w, measure=measure))
        found = {name: self._kept[name].as_preparation() for name in known}
        notes = opened.confined.notes
        if len(known) < len(workloads):
            peaks = await self._ceilings(opened.device, say)
            records = {w.name: self._record(w, opened.device) for w in workloads}
            cached = {name: baseline_cache.encode(record.kept) for name, record in records.items()}
            with self._naming_the_reference():
                reply = await self.ask(p.PrepareRequest(peaks, cached, measure, known), say)
            assert isinstance(reply, p.PrepareReply)
            for workload in (w for w in workloads if w.name in reply.workloads):
                part = reply.workloads[workload.name]
                found[workload.name] = replace(part.preparation, peaks=peaks)
                self._keep(workload, records[workload.name], part, found[workload.name], opened)
            notes += tuple(record.note for record in records.values() if measure and record.note)
        whole = suite.preparation({w.name: found[w.name] for w in workloads})
        return opened, replace(whole, sandbox=opened.confined.sandbox, notes=(*notes, *whole.notes))

    def _is_known(self, workload: Workload, *, measure: bool) -> bool:
        kept = self._kept.get(workload.name)
        if kept is None or peaks_cache.are_outdone(kept.preparation.peaks, self._peaks):
            return False
        return self.assignment.prepared and (kept.complete or not measure)

    def _keep(
        self, workload: Workload, record: baseline_cache.Record, part: p.PreparedWorkload, found: Preparation,
        opened: OpenedProblem,
    ) -> None:  # fmt: skip
        """Cache what was prepared on one workload."""
        if part.cached:
            unused = {name: one for name, one in record.kept.items() if name not in self.assignment.further_baselines}
            record.keep({**unused, **baseline_cache.decode(part.cached, self.assignment.further_baselines)})
        key = self._key(workload, opened.device, opened.confined)
        self._kept[workload.name] = preparation_cache.keep(_cache(), key, found, part.calibrations)

    async def _ceilings(self, device: Device, say: Say) -> Peaks:
        """The device's ceilings, measured by a judge that runs no reference unless they are known."""
        if self._peaks is None:
            client = JudgeClient()
            try:
                await client.start(self.assignment.device)
                self._peaks = await _measure_peaks(client, device, say)
            finally:
                await client.close()
        return self._peaks

    @property
    def is_prepared(self) -> bool:
        """Whether baselines need no measurement any more. Known once the problem is open."""
        return all((kept := self._kept.get(w.name)) is not None and kept.complete for w in self.assignment.workloads)

    async def draw(self, workload: Workload, folder: Path, calls: int) -> list[Path]:
        """Fresh inputs in new files in ``folder``, one a call. Raises EspalierError if they cannot be written."""
        files = [folder / f"call{call}.bin" for call in range(calls)]
        with ExitStack() as stack:
            fds = []
            for path in files:
                try:
                    fds.append(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
                except OSError as error:
                    raise EspalierError(f"inputs cannot be written to {folder}: {error.strerror}") from error
                stack.callback(os.close, fds[-1])
            async with self.lease.held(silent):
                await self.open()
                await self._client.ask(p.DrawRequest(workload), silent, fds)
        return files

    async def scalars(self, workload: Workload) -> tuple[Any, ...]:
        """How a module is constructed and called."""
        reply = await self.ask(p.DrawRequest(workload, module=True))
        assert isinstance(reply, p.DrawReply)
        return reply.scalars

    async def close(self) -> None:
        """End the judge and everything it started, and give the device back; idempotent."""
        try:
            await self._client.close()
        finally:
            self.lease.close()


def with_contents(candidate: p.Candidate) -> p.Candidate:
    """``candidate`` with its artefacts' bytes. Raises EspalierError if one is gone from the cache."""
    return msgspec.structs.replace(
        candidate, built=_with_content(candidate.built), holdouts=tuple(map(_with_content, candidate.holdouts)),
        more=tuple(
            msgspec.structs.replace(
                one, built=_with_content(one.built), holdouts=tuple(map(_with_content, one.holdouts))
            ) for one in candidate.more
        ),
    )  # fmt: skip


def _with_content(built: p.WorkloadBinary) -> p.WorkloadBinary:
    if not built.binary:
        return built
    try:
        return msgspec.structs.replace(built, content=Path(built.binary).read_bytes())
    except OSError as error:
        raise EspalierError(f"a compiled kernel cannot be read from the cache: {built.binary}: {error.strerror}") from error


def _completed(reply: p.Reply, opened: OpenedProblem, no_lease: str) -> p.Reply:
    """A reply with the conditions that the judge cannot know; ``no_lease`` is why the device was used without one."""
    others = opened.device_processes.lines() if opened.device_processes is not None else ()
    lines = (*others, *([OUTSIDE] if _only_kernels(opened) else []), *([no_lease] if no_lease else []))
    if not lines:
        return reply
    match reply:
        case p.MeasureReply(measurement):
            return msgspec.structs.replace(reply, measurement=_under(measurement, lines))
        case p.SustainReply(sustained) if sustained is not None:
            return msgspec.structs.replace(reply, sustained=replace(sustained, conditions=(*sustained.conditions, *lines)))
        case p.VerifyReply(_, screen):
            return msgspec.structs.replace(reply, screen=_under(screen, lines))
        case p.PrepareReply(workloads):
            found = {
                name: msgspec.structs.replace(one, preparation=_prepared_under(one.preparation, lines))
                for name, one in workloads.items()
            }
            return msgspec.structs.replace(reply, workloads=found)
    return reply


def _only_kernels(opened: OpenedProblem) -> bool:
    return bool(opened.confined.reference) and not opened.confined.kernels


def _prepared_under(preparation: Preparation, lines: tuple[str, ...]) -> Preparation:
    baselines: Mapping[str, Measurement] = {name: _under(one, lines) for name, one in preparation.baselines.items()}
    return replace(preparation, baselines=baselines)


def _under(measurement: Measurement, lines: tuple[str, ...]) -> Measurement:
    return replace(measurement, conditions=(*measurement.conditions, *lines))


async def _measure_peaks(client: JudgeClient, device: Device, say: Say) -> Peaks:
    say("measuring the device's peak bandwidth and arithmetic rates")
    reply = await client.ask(p.PeaksRequest(device.label), say)
    assert isinstance(reply, p.PeaksReply)
    return peaks_cache.keep(_cache(), device, reply.peaks, quiet=reply.quiet)


def _cache() -> Path:
    return cache_folder().parent
