"""The bench: where the engine has kernels built and tried, for one problem, workload and device. No torch.

It joins the build room (artefacts for the workload and every hold-out shape) to the judge (everything that touches the device).
Implements ``engine.session.ports.Bench`` without importing it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.build import plan as launch_plan
from engine.build import resolution
from engine.build.build import Artefact, BuildFailure, BuildRequest, build
from engine.build.cache import cache_folder
from engine.build.confinement import detect
from engine.build.inspection import InstructionMix, inspect
from engine.build.look import look
from engine.domain import work as w
from engine.domain.errors import EspalierError, SourceError
from engine.domain.model import (
    Blob,
    Contract,
    Device,
    Dialect,
    Failure,
    FailureKind,
    Number,
    Problem,
    Signature,
    Workload,
)
from engine.domain.preparation import Peaks, Preparation
from engine.domain.profile import Profile
from engine.domain.state import Kernel
from engine.problem import header
from engine.trial import profiling, profiling_cpu, sanitizing, sanitizing_gpu
from engine.trial import protocol as p
from engine.trial.client import JudgeClient

Say = Callable[[str], None]
StoreBlob = Callable[[bytes], Blob]


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a bench is for."""

    problem: Problem
    workload: Workload
    device: str
    tolerance: str = "class"
    baseline: str = "eager"
    others: tuple[str, ...] = ()
    """Further baselines that every precise measurement is interleaved with."""
    cold: bool = True
    same: tuple[float, float, float] | None = None
    """The session's A/A interval, where it is known already."""
    fresh: bool = False
    """Measure every baseline anew, whatever is kept of them from earlier sessions."""
    peaks: Peaks | None = None
    """The session's ceilings, where they are known already: all its kernels are held against the same ones."""

    @property
    def holdouts(self) -> tuple[Workload, ...]:
        return tuple(self.problem.holdouts.get(self.workload.name, ()))


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel's text and how it is to be taken."""

    name: str
    text: str
    dialect: Dialect
    contract: Contract
    tunables: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ready:
    """A built kernel: what the judge needs, and what the compiler said."""

    candidate: p.Candidate
    artefact: Artefact


class TrialBench:
    """Opens the judge at first use and again after it died. Close it when done."""

    def __init__(self, assignment: Assignment, store: StoreBlob) -> None:
        self._assignment = assignment
        self._store = store
        self._judge = JudgeClient()
        self._opened: p.Opened | None = None
        self._opening = asyncio.Lock()
        self._ready: dict[tuple[str, str], Ready] = {}

    async def open(self) -> p.Opened:
        """Start the judge and have it read the problem. Raises ProblemError, DeviceError, SandboxError, JudgeDied."""
        async with self._opening:
            if self._opened is None or not self._judge.running:
                await self._judge.start()
                a = self._assignment
                request = p.Open(
                    a.problem, a.workload, a.holdouts, a.device, a.tolerance, a.baseline, a.others, a.cold,
                    str(cache_folder().parent), a.same, a.fresh, a.peaks,
                )  # fmt: skip
                try:
                    reply = await self._judge.ask(request, lambda _: None)
                except EspalierError:
                    await self._judge.close()
                    raise
                assert isinstance(reply, p.Opened)
                self._opened = reply
            return self._opened

    async def describe(self) -> tuple[Device, Signature]:
        """The device and what a kernel is called with."""
        opened = await self.open()
        return opened.device, opened.signature

    async def graph(self) -> str:
        """The reference's graph as JSON, for writing a naive kernel from it."""
        await self.open()
        reply = await self._judge.ask(p.Trace(), lambda _: None)
        assert isinstance(reply, p.Traced)
        return reply.graph

    async def prepare(self, say: Say, *, measure: bool = True) -> w.Prepared | w.Impossible:
        """Calibrate the gate, try the null models, measure baselines and ceilings."""
        opened = await self.open()
        reply = await self._judge.ask(p.Prepare(measure), say)
        assert isinstance(reply, p.Prepared)
        return w.Prepared(opened.device, self._with_header(reply.preparation, opened))

    def _with_header(self, found: Preparation, opened: p.Opened) -> Preparation:
        dialect = Dialect.CUDA if opened.device.kind == "cuda" else Dialect.CPP
        text = ""
        if found.signature.scalar_only:
            text = header.render(found.signature, dialect, self._assignment.workload.name)
        return Preparation(
            found.signature, found.gate, found.baselines, found.same, found.floor_us, found.bound, found.peaks,
            found.bytes_moved, found.sandbox, found.notes, self._store(text.encode()),
        )  # fmt: skip

    # the port

    async def build(self, kernel: Kernel, source: str, say: Say) -> w.Built | w.Failed | w.Impossible:
        """Build for the workload and, ahead of the device, for every hold-out shape."""
        found = await self.make(_source_of(kernel, source), say)
        match found:
            case BuildFailure():
                kind = FailureKind.TIMED_OUT if found.timed_out else FailureKind.BUILD_FAILED
                return w.Failed(Failure(kind, found.reason, self._store(found.log.encode())), found.seconds)
            case Ready(_, artefact):
                log = self._store(artefact.log.encode())
                return w.Built(artefact.key, artefact.seconds, artefact.resources, log, await _instructions(artefact))

    async def verify(self, kernel: Kernel, source: str, say: Say) -> w.Verified | w.Suspected | w.Failed | w.Impossible:
        return await self.verify_source(_source_of(kernel, source), say)

    async def measure(self, kernel: Kernel, source: str, say: Say) -> w.Measured | w.Suspected | w.Failed | w.Impossible:
        return await self.measure_source(_source_of(kernel, source), say)

    async def race(
        self, kernel: Kernel, source: str, other: Kernel, other_source: str, effort: int, say: Say
    ) -> w.Raced | w.Failed | w.Impossible:
        """Both in fresh processes of their own, on the same fresh inputs, in an order at least as balanced as A-B-B-A."""
        found = await self.versus(_source_of(kernel, source), _source_of(other, other_source), say, effort)
        if isinstance(found, w.Failed):
            return replace(found, kernel=other.id if found.kernel else kernel.id)
        raced = found.measurement
        note = "; ".join(raced.conditions)
        return w.Raced(
            raced.speedup[p.OTHER], raced.processes, raced.samples, raced.corroborated, raced.raw, found.seconds, note
        )  # fmt: skip

    async def sanitize(self, kernel: Kernel, source: str, say: Say) -> w.Sanitized | w.Impossible:
        return await self.sanitize_source(_source_of(kernel, source), say)

    # the same for a source without a session

    async def make(self, source: Source, say: Say) -> Ready | BuildFailure:
        """Source → artefacts for the workload and its hold-outs."""
        key = (source.text, repr(sorted(source.tunables.items())))
        if key in self._ready:
            return self._ready[key]
        opened = await self.open()
        say(f"building {source.name}")
        shapes = [(self._assignment.workload, opened.signature), *zip(self._assignment.holdouts, opened.holdouts, strict=True)]
        jobs = [asyncio.create_task(self._build_for(source, *shape, opened.device)) for shape in shapes]
        try:
            main = await jobs[0]
            if isinstance(main, BuildFailure):
                return main
            others = await asyncio.gather(*jobs[1:])
        finally:
            await _ended(jobs)
        built, artefact = main
        holdouts = tuple(o[0] for o in others if not isinstance(o, BuildFailure))
        candidate = p.Candidate(
            source.contract.value, source.name, source.text, dict(source.tunables), built, holdouts, len(others) - len(holdouts)
        )
        self._ready[key] = Ready(candidate, artefact)
        return self._ready[key]

    async def _build_for(
        self, source: Source, workload: Workload, signature: Signature, device: Device
    ) -> tuple[p.Built, Artefact] | BuildFailure:
        if source.dialect is not Dialect.PYTHON and not signature.scalar_only:
            reason = "this problem has arguments that are neither tensors nor numbers: only the python dialect can be used"
            return BuildFailure(reason, reason, 0.0)
        try:
            plan = self._resolved(source, signature, device) if source.contract is Contract.PLAN else b""
        except SourceError as error:
            return BuildFailure(f"{source.name}: {error}", str(error), 0.0)
        outcome = await build(_request(source, workload, signature, device), await detect())
        if isinstance(outcome, BuildFailure):
            return outcome
        binary = "" if source.dialect is Dialect.PYTHON else str(outcome.binary)
        return p.Built(workload, binary, plan), outcome

    def _resolved(self, source: Source, signature: Signature, device: Device) -> bytes:
        names: dict[str, Number] = {**header.plan_names(signature, device.units), **source.tunables}
        return resolution.encode(resolution.resolve(launch_plan.parse_plan(source.text), names, signature.operands))

    async def verify_source(self, source: Source, say: Say) -> w.Verified | w.Suspected | w.Failed:
        """Trials and a quick screen, and a look at the text of what passes."""
        found = await self._tried(source, say, p.Verify)
        assert not isinstance(found, w.Measured)
        if isinstance(found, w.Failed):
            return found
        seen = tuple(one.told(source.name) for one in look(source.text, source.dialect))
        match found:
            case w.Verified(verification, screen, seconds) if seen:
                unborne = () if screen.corroborated else ("not corroborated by the judge's clock",)
                return w.Suspected((*unborne, *seen), verification, screen, seconds)
            case w.Suspected(evidence):
                return replace(found, evidence=(*evidence, *seen))
        return found

    async def measure_source(self, source: Source, say: Say) -> w.Measured | w.Suspected | w.Failed:
        """A precise measurement."""
        found = await self._tried(source, say, p.Measure)
        assert not isinstance(found, w.Verified)
        return found

    async def try_verify(self, source: Source, say: Say) -> w.Verified | w.Failed | w.Impossible:
        """``verify_source`` where nobody is there to decide: what is not believed is rejected, with the evidence as reason."""
        found = await self.verify_source(source, say)
        return _rejected(found) if isinstance(found, w.Suspected) else found

    async def try_measure(self, source: Source, say: Say) -> w.Measured | w.Failed | w.Impossible:
        """``measure_source``, likewise."""
        found = await self.measure_source(source, say)
        return _rejected(found) if isinstance(found, w.Suspected) else found

    async def versus(self, source: Source, other: Source, say: Say, effort: int | None = None) -> w.Measured | w.Failed:
        """The speedup of ``source`` over ``other``, under the name ``other``; so is the failure of ``other`` marked.

        With an ``effort`` its cost is bounded as a race's for the lead is.
        """
        second = await self.make(other, say)
        if isinstance(second, BuildFailure):
            reason = f"{other.name}: {second.reason}"
            return w.Failed(Failure(FailureKind.BUILD_FAILED, reason), second.seconds, p.OTHER)
        found = await self._tried(source, say, lambda candidate: p.Versus(candidate, second.candidate, effort))
        assert isinstance(found, w.Measured | w.Failed)
        return found

    async def sanitize_source(self, source: Source, say: Say) -> w.Sanitized:
        """Run a kernel under the sanitizers of its dialect, on fresh inputs of the workload and of a hold-out shape."""
        began = time.monotonic()
        opened = await self.open()
        main = self._shape(source, self._assignment.workload, opened.signature, opened.device)
        pairs = zip(self._assignment.holdouts, opened.holdouts, strict=True)
        shapes = sanitizing.chosen(main, [self._shape(source, *pair, opened.device) for pair in pairs])
        say(f"looking for unsafe memory accesses in {source.name}")
        match source.dialect:
            case Dialect.CPP:
                found = await sanitizing.sanitize_cpp(shapes, self._draw, await detect(), self._store)
            case Dialect.CUDA:
                try:
                    plan = (
                        self._resolved(source, shapes[0].signature, opened.device) if source.contract is Contract.PLAN else b""
                    )
                except SourceError as error:
                    return w.Sanitized((), note=f"{source.name}: {error}")
                tool = sanitizing_gpu.find_tool()
                found = await sanitizing_gpu.sanitize_cuda(
                    shapes[0], plan, opened.device, tool, self._draw, await detect(), self._store
                )
            case Dialect.PYTHON:
                found = w.Sanitized((), note="no sanitizer reads Python: what a module's own extensions do was not looked at")
        return sanitizing.timed(found, time.monotonic() - began)

    async def profile_source(self, source: Source, say: Say) -> Profile:
        """A kernel's calls under the device's counters, on fresh inputs of the workload: one on a GPU, many on a CPU."""
        on_cpu = self._assignment.device == "cpu"
        offered = await profiling_cpu.offered() if on_cpu else None
        if isinstance(offered, str):
            return Profile(0, note=offered)
        opened = await self.open()
        workload = self._assignment.workload
        shape = self._shape(source, workload, opened.signature, opened.device)
        try:
            plan = self._resolved(source, shape.signature, opened.device) if source.contract is Contract.PLAN else b""
        except SourceError as error:
            return Profile(0, note=f"{source.name}: {error}")
        scalars = await self._scalars(workload) if source.contract is Contract.MODULE else ()
        subject = profiling.Subject(shape, opened.device, plan, scalars)
        say(f"reading the device's counters in {'calls' if on_cpu else 'one call'} of {source.name}")
        common = (self._draw, await detect(), self._store)
        if offered is not None:
            return await profiling_cpu.profile_cpu(subject, offered, *common, cold=self._assignment.cold)
        return await profiling.profile_gpu(subject, *common, cold=self._assignment.cold)

    async def _scalars(self, workload: Workload) -> tuple[Any, ...]:
        """How a module is made and called."""
        reply = await self._judge.ask(p.Draw(workload, "", 0, module=True), lambda _: None)
        assert isinstance(reply, p.Drawn)
        return reply.scalars

    def _shape(self, source: Source, workload: Workload, signature: Signature, device: Device) -> sanitizing.Shape:
        return sanitizing.Shape(workload, signature, _request(source, workload, signature, device))

    async def _draw(self, workload: Workload, folder: Path, calls: int) -> list[Path]:
        await self.open()
        reply = await self._judge.ask(p.Draw(workload, str(folder), calls), lambda _: None)
        assert isinstance(reply, p.Drawn)
        return [Path(file) for file in reply.files]

    async def _tried(
        self, source: Source, say: Say, request: Callable[[p.Candidate], p.Request]
    ) -> w.Verified | w.Measured | w.Suspected | w.Failed:
        loop = asyncio.get_running_loop()
        ready = await self.make(source, say)
        start = loop.time()
        if isinstance(ready, BuildFailure):
            return w.Failed(Failure(FailureKind.BUILD_FAILED, ready.reason, self._store(ready.log.encode())), ready.seconds)
        await self.open()
        reply = await self._judge.ask(request(ready.candidate), say)
        seconds = loop.time() - start
        match reply:
            case p.Verified(verification, screen, raw, evidence):
                screen = replace(screen, raw=self._store(raw))
                if evidence:
                    return w.Suspected(evidence, verification, screen, seconds)
                return w.Verified(verification, screen, seconds)
            case p.Measured(measurement, raw, evidence):
                measurement = replace(measurement, raw=self._store(raw))
                return w.Suspected(evidence, None, measurement, seconds) if evidence else w.Measured(measurement, seconds)
            case p.Refused(failure, log, other):
                kept = self._store(log.encode()) if log else ""
                return w.Failed(Failure(failure.kind, failure.reason, kept), seconds, p.OTHER if other else "")
        raise TypeError(f"the judge answered {type(reply).__name__}")

    async def close(self) -> None:
        await self._judge.close()


async def _instructions(artefact: Artefact) -> Mapping[str, int]:
    """The mix of the machine code, by family; empty where there is none, or nothing here can read it.

    It is recorded with the build, because the artefact may be gone when someone wants to know, and the tools another machine's.
    """
    try:
        found = await inspect(artefact.binary, await detect())
    except EspalierError:
        return {}
    return dict(sorted(found.counts.items())) if isinstance(found, InstructionMix) else {}


async def _ended(jobs: Sequence[asyncio.Task[Any]]) -> None:
    """Stop what still runs of ``jobs`` and wait until it has."""
    running = [job for job in jobs if not job.done()]
    for job in running:
        job.cancel()
    if running:
        await asyncio.wait(running)


def _request(source: Source, workload: Workload, signature: Signature, device: Device) -> BuildRequest:
    text = "" if source.dialect is Dialect.PYTHON else header.render(signature, source.dialect, workload.name)
    return BuildRequest(source.text, source.dialect, source.contract, text, source.tunables, device.arch, source.name)


def _rejected(found: w.Suspected) -> w.Failed:
    return w.Failed(Failure(FailureKind.REJECTED, f"not believed: {'; '.join(found.evidence)}"), found.seconds)


def _source_of(kernel: Kernel, text: str) -> Source:
    return Source(kernel.name, text, kernel.dialect, kernel.contract, kernel.tunables)
