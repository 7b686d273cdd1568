"""The bench: builds kernels and has them judged, for one problem, workload and device. No torch.

It connects the toolchain (artefacts for the workload and every hold-out shape) to the judge (everything that uses the device).
Implements ``engine.session.ports.Bench`` without importing it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from engine.domain import work as w
from engine.domain.errors import EspalierError, KernelCodeError
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
from engine.domain.preparation import Peaks
from engine.domain.profile import Profile
from engine.domain.state import Kernel
from engine.problem import header
from engine.problem.graph_ir import Graph, Unsupported
from engine.sandbox.confinement import detect
from engine.toolchain import plan as launch_plan
from engine.toolchain import resolution
from engine.toolchain.build import Artefact, BuildFailure, BuildRequest, build
from engine.toolchain.cache import cache_folder
from engine.toolchain.elf import starts_threads
from engine.toolchain.inspection import InstructionMix, inspect
from engine.toolchain.static_scan import static_scan
from engine.trial import protocol as p
from engine.trial.client import JudgeClient
from engine.trial.tools import ncu, perf, sanitizers
from engine.trial.tools.kernel_case import KernelCase

Say = Callable[[str], None]
StoreBlob = Callable[[bytes], Blob]


@dataclass(frozen=True, slots=True)
class Assignment:
    """The problem, workload and device of a bench, and how it measures."""

    problem: Problem
    workload: Workload
    device: str
    tolerance: str = "class"
    baseline: str = "eager"
    others: tuple[str, ...] = ()
    """Further baselines."""
    cold: bool = True
    same: tuple[float, float, float] | None = None
    """The session's A/A interval (the ranking baseline against itself), if already measured."""
    fresh: bool = False
    """Measure every baseline again, even if it is cached."""
    peaks: Peaks | None = None
    """The session's device ceilings, if already measured: all its kernels are compared with the same ones."""

    @property
    def holdouts(self) -> tuple[Workload, ...]:
        return tuple(self.problem.holdouts.get(self.workload.name, ()))


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel's code, and how to build and launch it."""

    name: str
    text: str
    dialect: Dialect
    contract: Contract
    tunables: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A built kernel: what the judge needs, and the compiler's artefact."""

    candidate: p.Candidate
    artefact: Artefact


class TrialBench:
    """Starts the judge at first use, and again if it died. Close it when done."""

    def __init__(self, assignment: Assignment, store: StoreBlob) -> None:
        self._assignment = assignment
        self._store = store
        self._judge = JudgeClient()
        self._opened: p.OpenReply | None = None
        self._opening = asyncio.Lock()
        self._built: dict[tuple[str, str], BuiltKernel] = {}

    async def open(self) -> p.OpenReply:
        """Start the judge and load the problem. Raises ProblemError, DeviceError, SandboxError, JudgeDied."""
        async with self._opening:
            if self._opened is None or not self._judge.running:
                await self._judge.start()
                a = self._assignment
                request = p.OpenRequest(
                    a.problem, a.workload, a.holdouts, a.device, a.tolerance, a.baseline, a.others, a.cold,
                    str(cache_folder().parent), a.same, a.fresh, a.peaks,
                )  # fmt: skip
                try:
                    reply = await self._judge.ask(request, lambda _: None)
                except EspalierError:
                    await self._judge.close()
                    raise
                assert isinstance(reply, p.OpenReply)
                self._opened = reply
            return self._opened

    async def describe(self) -> tuple[Device, Signature]:
        """The device, and what a kernel is called with."""
        opened = await self.open()
        return opened.device, opened.signature

    async def graph(self) -> Graph | Unsupported:
        """The reference's graph, from which the naive port is generated."""
        await self.open()
        reply = await self._judge.ask(p.TraceRequest(), lambda _: None)
        assert isinstance(reply, p.TraceReply)
        return reply.graph

    async def prepare(self, say: Say, *, measure: bool = True) -> w.Prepared | w.Impossible:
        """Calibrate the correctness check, try the trivial models, measure baselines and ceilings."""
        opened = await self.open()
        reply = await self._judge.ask(p.PrepareRequest(measure), say)
        assert isinstance(reply, p.PrepareReply)
        signature = reply.preparation.signature
        dialect = Dialect.CUDA if opened.device.kind == "cuda" else Dialect.CPP
        text = header.render(signature, dialect, self._assignment.workload.name) if signature.scalar_only else ""
        return w.Prepared(opened.device, replace(reply.preparation, header=self._store(text.encode())))

    # engine.session.ports.Bench

    async def build(self, kernel: Kernel, code: str, say: Say) -> w.Built | w.Failed | w.Impossible:
        """Build for the workload and, ahead of the device, for every hold-out shape."""
        outcome = await self.build_candidate(_kernel_spec(kernel, code), say)
        match outcome:
            case BuildFailure():
                kind = FailureKind.TIMED_OUT if outcome.timed_out else FailureKind.BUILD_FAILED
                return w.Failed(Failure(kind, outcome.reason, self._store(outcome.log.encode())), outcome.seconds)
            case BuiltKernel(_, artefact):
                log = self._store(artefact.log.encode())
                return w.Built(artefact.key, artefact.seconds, artefact.resources, log, await _instructions(artefact))

    async def verify(self, kernel: Kernel, code: str, say: Say) -> w.Verified | w.Suspected | w.Failed | w.Impossible:
        return await self.verify_kernel(_kernel_spec(kernel, code), say)

    async def measure(self, kernel: Kernel, code: str, say: Say) -> w.Measured | w.Suspected | w.Failed | w.Impossible:
        return await self.measure_kernel(_kernel_spec(kernel, code), say)

    async def race(
        self, kernel: Kernel, code: str, other: Kernel, other_code: str, effort: int, say: Say
    ) -> w.Raced | w.Failed | w.Impossible:
        """Both in fresh processes, on the same fresh inputs, in A-B-B-A order."""
        outcome = await self.versus(_kernel_spec(kernel, code), _kernel_spec(other, other_code), say, effort)
        if isinstance(outcome, w.Failed):
            return replace(outcome, kernel=other.id if outcome.kernel else kernel.id)
        raced = outcome.measurement
        note = "; ".join(raced.conditions)
        return w.Raced(
            raced.speedup[p.OTHER], raced.processes, raced.samples, raced.corroborated, raced.raw, outcome.seconds, note
        )  # fmt: skip

    async def sanitize(self, kernel: Kernel, code: str, say: Say) -> w.Sanitized | w.Impossible:
        return await self.sanitize_kernel(_kernel_spec(kernel, code), say)

    # the same outside a session

    async def build_candidate(self, kernel: KernelSpec, say: Say) -> BuiltKernel | BuildFailure:
        """Build for the workload and its hold-out shapes, or return what an earlier call built."""
        key = (kernel.text, repr(sorted(kernel.tunables.items())))
        if key in self._built:
            known = self._built[key]
            return replace(known, candidate=msgspec.structs.replace(known.candidate, name=kernel.name))
        opened = await self.open()
        say(f"building {kernel.name}")
        jobs = [asyncio.create_task(self._build_for(kernel, *shape, opened.device)) for shape in self._shapes(opened)]
        try:
            main = await jobs[0]
            if isinstance(main, BuildFailure):
                return main
            others = await asyncio.gather(*jobs[1:])
        finally:
            await _cancel(jobs)
        built, artefact = main
        holdouts = tuple(o[0] for o in others if not isinstance(o, BuildFailure))
        candidate = p.Candidate(
            kernel.contract.value, kernel.name, kernel.text, dict(kernel.tunables), built, holdouts, len(others) - len(holdouts)
        )
        self._built[key] = BuiltKernel(candidate, artefact)
        return self._built[key]

    async def _build_for(
        self, kernel: KernelSpec, workload: Workload, signature: Signature, device: Device
    ) -> tuple[p.WorkloadBinary, Artefact] | BuildFailure:
        if kernel.dialect is not Dialect.PYTHON and not signature.scalar_only:
            reason = "this problem has arguments that are neither tensors nor numbers: only the python dialect can be used"
            return BuildFailure(reason, reason, 0.0)
        try:
            plan = self._resolve_plan(kernel, signature, device)
        except KernelCodeError as error:
            return BuildFailure(f"{kernel.name}: {error}", str(error), 0.0)
        outcome = await build(_request(kernel, workload, signature, device), await detect())
        if isinstance(outcome, BuildFailure):
            return outcome
        binary = "" if kernel.dialect is Dialect.PYTHON else str(outcome.binary)
        threads = device.kind == "cpu" and bool(binary) and starts_threads(outcome.binary)
        return p.WorkloadBinary(workload, binary, plan, threads), outcome

    def _shapes(self, opened: p.OpenReply) -> list[tuple[Workload, Signature]]:
        """The workload, then its hold-outs."""
        holdouts = zip(self._assignment.holdouts, opened.holdouts, strict=True)
        return [(self._assignment.workload, opened.signature), *holdouts]

    def _resolve_plan(self, kernel: KernelSpec, signature: Signature, device: Device) -> bytes:
        """The resolved launch plan, encoded; empty for other contracts. Raises KernelCodeError."""
        if kernel.contract is not Contract.PLAN:
            return b""
        names: dict[str, Number] = {**header.plan_names(signature, device.units), **kernel.tunables}
        return resolution.encode(resolution.resolve(launch_plan.parse_plan(kernel.text), names, signature.operands))

    async def verify_kernel(self, kernel: KernelSpec, say: Say) -> w.Verified | w.Suspected | w.Failed:
        """Correctness checks and a quick timed screen; code that passes is also scanned statically."""
        outcome = await self._request_verdict(kernel, say, p.VerifyRequest)
        assert not isinstance(outcome, w.Measured)
        if isinstance(outcome, w.Failed):
            return outcome
        suspect = tuple(one.describe(kernel.name) for one in static_scan(kernel.text, kernel.dialect))
        match outcome:
            case w.Verified(verification, screen, seconds) if suspect:
                uncorroborated = () if screen.corroborated else ("not corroborated by the judge's clock",)
                return w.Suspected((*uncorroborated, *suspect), verification, screen, seconds)
            case w.Suspected(evidence):
                return replace(outcome, evidence=(*evidence, *suspect))
        return outcome

    async def measure_kernel(self, kernel: KernelSpec, say: Say) -> w.Measured | w.Suspected | w.Failed:
        """A precise measurement."""
        outcome = await self._request_verdict(kernel, say, p.MeasureRequest)
        assert not isinstance(outcome, w.Verified)
        return outcome

    async def try_verify(self, kernel: KernelSpec, say: Say) -> w.Verified | w.Failed | w.Impossible:
        """``verify_kernel`` without anybody to review a quarantined kernel: it is rejected, with the evidence as reason."""
        outcome = await self.verify_kernel(kernel, say)
        return _rejected(outcome) if isinstance(outcome, w.Suspected) else outcome

    async def try_measure(self, kernel: KernelSpec, say: Say) -> w.Measured | w.Failed | w.Impossible:
        """``measure_kernel``, likewise."""
        outcome = await self.measure_kernel(kernel, say)
        return _rejected(outcome) if isinstance(outcome, w.Suspected) else outcome

    async def versus(self, kernel: KernelSpec, other: KernelSpec, say: Say, effort: int | None = None) -> w.Measured | w.Failed:
        """The speedup of ``kernel`` over ``other``, under the name ``protocol.OTHER``, which also marks a failure of ``other``.

        ``effort`` limits its cost like a race for the lead.
        """
        second = await self.build_candidate(other, say)
        if isinstance(second, BuildFailure):
            reason = f"{other.name}: {second.reason}"
            return w.Failed(Failure(FailureKind.BUILD_FAILED, reason), second.seconds, p.OTHER)
        outcome = await self._request_verdict(
            kernel, say, lambda candidate: p.CompareRequest(candidate, second.candidate, effort)
        )
        assert isinstance(outcome, w.Measured | w.Failed)
        return outcome

    async def sanitize_kernel(self, kernel: KernelSpec, say: Say) -> w.Sanitized:
        """Run a kernel under the sanitizers of its dialect, on fresh inputs of the workload and of a hold-out shape."""
        began = time.monotonic()
        opened = await self.open()
        main, *holdouts = [self._case(kernel, *shape, opened.device) for shape in self._shapes(opened)]
        cases = sanitizers.choose_cases(main, holdouts)
        say(f"running sanitizers on {kernel.name}")
        try:
            plan = self._resolve_plan(kernel, cases[0].signature, opened.device)
        except KernelCodeError as error:
            return w.Sanitized((), note=f"{kernel.name}: {error}")
        confinement = await detect()
        result = await sanitizers.sanitize(
            kernel.dialect, cases, plan, opened.device, self._dump_inputs, confinement, self._store
        )
        return replace(result, seconds=time.monotonic() - began)

    async def profile_kernel(self, kernel: KernelSpec, say: Say) -> Profile:
        """Hardware counters of a kernel's calls on fresh inputs of the workload: one call on a GPU, many on a CPU."""
        on_cpu = self._assignment.device == "cpu"
        support = await perf.perf_support() if on_cpu else None
        if isinstance(support, str):
            return Profile(0, note=support)
        opened = await self.open()
        workload = self._assignment.workload
        case = self._case(kernel, workload, opened.signature, opened.device)
        try:
            plan = self._resolve_plan(kernel, case.signature, opened.device)
        except KernelCodeError as error:
            return Profile(0, note=f"{kernel.name}: {error}")
        scalars = await self._scalars(workload) if kernel.contract is Contract.MODULE else ()
        subject = ncu.ProfiledKernel(case, opened.device, plan, scalars)
        say(f"profiling {'calls' if on_cpu else 'one call'} of {kernel.name}")
        common = (self._dump_inputs, await detect(), self._store)
        if support is not None:
            return await perf.profile_cpu(subject, support, *common, cold=self._assignment.cold)
        return await ncu.profile_gpu(subject, *common, cold=self._assignment.cold)

    async def _scalars(self, workload: Workload) -> tuple[Any, ...]:
        """How a module is constructed and called."""
        reply = await self._judge.ask(p.DrawRequest(workload, "", 0, module=True), lambda _: None)
        assert isinstance(reply, p.DrawReply)
        return reply.scalars

    def _case(self, kernel: KernelSpec, workload: Workload, signature: Signature, device: Device) -> KernelCase:
        return KernelCase(workload, signature, _request(kernel, workload, signature, device))

    async def _dump_inputs(self, workload: Workload, folder: Path, calls: int) -> list[Path]:
        await self.open()
        reply = await self._judge.ask(p.DrawRequest(workload, str(folder), calls), lambda _: None)
        assert isinstance(reply, p.DrawReply)
        return [Path(file) for file in reply.files]

    async def _request_verdict(
        self, kernel: KernelSpec, say: Say, request: Callable[[p.Candidate], p.Request]
    ) -> w.Verified | w.Measured | w.Suspected | w.Failed:
        loop = asyncio.get_running_loop()
        ready = await self.build_candidate(kernel, say)
        start = loop.time()
        if isinstance(ready, BuildFailure):
            return w.Failed(Failure(FailureKind.BUILD_FAILED, ready.reason, self._store(ready.log.encode())), ready.seconds)
        await self.open()
        reply = await self._judge.ask(request(ready.candidate), say)
        seconds = loop.time() - start
        match reply:
            case p.VerifyReply(verification, screen, raw, evidence):
                screen = replace(screen, raw=self._store(raw))
                if evidence:
                    return w.Suspected(evidence, verification, screen, seconds)
                return w.Verified(verification, screen, seconds)
            case p.MeasureReply(measurement, raw, evidence):
                measurement = replace(measurement, raw=self._store(raw))
                return w.Suspected(evidence, None, measurement, seconds) if evidence else w.Measured(measurement, seconds)
            case p.FailedVerdict(failure, log, other):
                kept = self._store(log.encode()) if log else ""
                return w.Failed(Failure(failure.kind, failure.reason, kept), seconds, p.OTHER if other else "")
        raise TypeError(f"the judge answered {type(reply).__name__}")

    async def close(self) -> None:
        await self._judge.close()


async def _instructions(artefact: Artefact) -> Mapping[str, int]:
    """The instruction mix of the machine code; empty if there is none, or no installed tool reads it.

    It is recorded with the build: later the artefact may be deleted, or the session on another machine.
    """
    try:
        outcome = await inspect(artefact.binary, await detect())
    except EspalierError:
        return {}
    return dict(sorted(outcome.counts.items())) if isinstance(outcome, InstructionMix) else {}


async def _cancel(jobs: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel the running ones of ``jobs`` and wait for them."""
    running = [job for job in jobs if not job.done()]
    for job in running:
        job.cancel()
    if running:
        await asyncio.wait(running)


def _request(kernel: KernelSpec, workload: Workload, signature: Signature, device: Device) -> BuildRequest:
    text = "" if kernel.dialect is Dialect.PYTHON else header.render(signature, kernel.dialect, workload.name)
    return BuildRequest(kernel.text, kernel.dialect, kernel.contract, text, kernel.tunables, device.arch, kernel.name)


def _rejected(outcome: w.Suspected) -> w.Failed:
    return w.Failed(Failure(FailureKind.REJECTED, f"quarantined: {'; '.join(outcome.evidence)}"), outcome.seconds)


def _kernel_spec(kernel: Kernel, text: str) -> KernelSpec:
    return KernelSpec(kernel.name, text, kernel.dialect, kernel.contract, kernel.tunables)
