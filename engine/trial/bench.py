"""The bench: builds kernels and has them judged, for one problem, workload and device. No torch.

It connects the toolchain (artefacts for the workload and every hold-out shape) to the judge (everything that uses the device).
Implements ``engine.session.ports.Bench`` without importing it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from engine.codegen.naive import abi
from engine.domain import work as w
from engine.domain.errors import KernelCodeError
from engine.domain.hot_code import HotCode, NoHotCode
from engine.domain.memory_plan import WorkloadMemory
from engine.domain.model import (
    Blob,
    Contract,
    Device,
    Dialect,
    Failure,
    FailureKind,
    Signature,
    WorkloadRatio,
)
from engine.domain.profile import Profile
from engine.domain.regimes import Regime
from engine.domain.state import Kernel
from engine.problem import header
from engine.problem.graph_ir import TracedShape
from engine.sandbox.confinement import detect
from engine.toolchain.build import BuildFailure
from engine.toolchain.inspection import instruction_counts
from engine.toolchain.kernel_file import launch_parameters
from engine.toolchain.static_hot_code import static_hot_code
from engine.toolchain.static_scan import static_scan
from engine.trial import protocol as p
from engine.trial.client import JudgeClient
from engine.trial.judge_session import Assignment as Assignment
from engine.trial.judge_session import JudgeSession, OpenedProblem, silent, with_contents
from engine.trial.kernel_builds import Binaries, BuildTarget, KernelBuilds, case_of, kernel_build
from engine.trial.kernel_builds import BuiltKernel as BuiltKernel
from engine.trial.kernel_builds import KernelSpec as KernelSpec
from engine.trial.tools import ncu, pc_sampling, perf, sanitizers

Say = Callable[[str], None]
StoreBlob = Callable[[bytes], Blob]


class TrialBench:
    """Starts the judge at first use, and again if it died. Close it when done."""

    def __init__(self, assignment: Assignment, store: StoreBlob, judge: JudgeClient | None = None) -> None:
        """``judge``: one that was started before and asked nothing."""
        self._assignment = assignment.with_chance()
        self._store = store
        self._judge = JudgeSession(self._assignment, judge)
        self._builds = KernelBuilds(self._assignment, self._judge)

    async def open(self, say: Say = silent) -> OpenedProblem:
        """Start the judge and load the problem. Raises ProblemError, DeviceError, SandboxError, JudgeDied."""
        return await self._judge.open(say)

    async def describe(self, say: Say = silent, *, ceilings: bool = False) -> tuple[Device, Signature]:
        """The device, and what a kernel is called with. With ``ceilings``, those that ``prepare`` needs are measured first."""
        opened = await self._judge.open(say, ceilings=ceilings)
        return opened.device, opened.signature

    async def build_target(self, say: Say = silent) -> BuildTarget:
        """What kernels are built for."""
        return await self._builds.target(say)

    async def traced(self) -> tuple[TracedShape, ...]:
        """The reference's graph on each workload, from which the naive port is generated."""
        reply = await self._judge.ask(p.TraceRequest())
        assert isinstance(reply, p.TraceReply)
        return reply.shapes

    async def memory(self) -> tuple[WorkloadMemory, ...]:
        """The memory plans of all workloads, the bench's own first."""
        reply = await self._judge.ask(p.PlanRequest())
        assert isinstance(reply, p.PlanReply)
        return reply.workloads

    async def prepare(self, say: Say, *, measure: bool = True) -> w.Prepared | w.Impossible:
        """Calibrate the correctness check, try the trivial models, measure baselines and ceilings."""
        opened, preparation = await self._judge.prepare(say, measure=measure)
        signature = preparation.signature
        dialect = Dialect.CUDA if opened.device.kind == "cuda" else Dialect.CPP
        text = header.render(signature, dialect, self._assignment.workload.name) if signature.scalar_only else ""
        return w.Prepared(opened.device, replace(preparation, header=self._store(text.encode())))

    # engine.session.ports.Bench

    async def build(self, kernel: Kernel, code: str, say: Say) -> w.Built | w.Failed | w.Impossible:
        """Build for the workload and, ahead of the device, for every hold-out shape."""
        outcome = await self.build_candidate(_kernel_spec(kernel, code), say)
        return await built(outcome, self._store) if isinstance(outcome, BuiltKernel) else build_failed(outcome, self._store)

    async def adopt(self, kernel: Kernel, code: str, binaries: Binaries, say: Say) -> None:
        """Use what a builder built, from this machine's build cache. Raises EspalierError."""
        await self._builds.adopt(_kernel_spec(kernel, code), binaries, say)

    async def verify(self, kernel: Kernel, code: str, say: Say) -> w.Verified | w.Suspected | w.Failed | w.Impossible:
        return await self.verify_kernel(_kernel_spec(kernel, code), say)

    async def measure(self, kernel: Kernel, code: str, say: Say) -> w.Measured | w.Suspected | w.Failed | w.Impossible:
        return await self.measure_kernel(_kernel_spec(kernel, code), say)

    async def sustain(self, kernel: Kernel, code: str, say: Say) -> w.BackToBack | w.Failed | w.Impossible:
        return await self.sustain_kernel(_kernel_spec(kernel, code), say)

    async def race(
        self, kernel: Kernel, code: str, other: Kernel, other_code: str, effort: int, regime: Regime, say: Say
    ) -> w.Raced | w.Failed | w.Impossible:
        """Both in fresh processes, on the same fresh inputs, in A-B-B-A order."""
        outcome = await self.versus(_kernel_spec(kernel, code), _kernel_spec(other, other_code), say, effort, regime)
        if isinstance(outcome, w.Failed):
            return replace(outcome, kernel=other.id if outcome.kernel else kernel.id)
        raced = outcome.measurement
        note = "; ".join(raced.conditions)
        return w.Raced(
            raced.speedup[p.OTHER], raced.processes, raced.samples, raced.corroborated, raced.raw, outcome.seconds, note,
            raced.doubts, tuple(WorkloadRatio(one.workload, one.speedup[p.OTHER]) for one in raced.by_workload),
            regime=outcome.regime,
        )  # fmt: skip

    async def sanitize(self, kernel: Kernel, code: str, say: Say) -> w.Sanitized | w.Impossible:
        return await self.sanitize_kernel(_kernel_spec(kernel, code), say)

    async def read_counters(self, kernel: Kernel, code: str, say: Say) -> w.Profiled | w.Impossible:
        return w.Profiled(await self.profile_kernel(_kernel_spec(kernel, code), say))

    # the same outside a session

    async def build_candidate(self, kernel: KernelSpec, say: Say) -> BuiltKernel | BuildFailure:
        """Build for the workload and its hold-out shapes, or return what an earlier call built."""
        return await self._builds.build(kernel, say)

    def build_ahead(self, kernels: Iterable[KernelSpec]) -> None:
        """Build these in this order while others are judged, if the compilers do not take what is measured."""
        self._builds.start(kernels)

    @property
    def is_prepared(self) -> bool:
        """Whether the baselines are measured, here or in an earlier evaluation whose preparation is used. Once it is open."""
        return self._judge.is_prepared

    async def check_kernel(self, kernel: KernelSpec, say: Say) -> w.Failed | None:
        """Why the kernel is wrong, found without baselines; ``None`` if it is right."""
        ready = await self.build_candidate(kernel, say)
        if isinstance(ready, BuildFailure):
            return build_failed(ready, self._store)
        start = time.monotonic()
        reply = await self._judge.ask(p.CheckRequest(with_contents(ready.candidate)), say)
        if isinstance(reply, p.CheckReply):
            return None
        return await self._with_hint(kernel, self._failed(reply, time.monotonic() - start))

    async def verify_kernel(self, kernel: KernelSpec, say: Say) -> w.Verified | w.Suspected | w.Failed:
        """Correctness checks and a quick timed screen; code that passes is also scanned statically."""
        outcome = await self._request_verdict(kernel, say, p.VerifyRequest)
        assert isinstance(outcome, w.Verified | w.Suspected | w.Failed)
        if isinstance(outcome, w.Failed):
            return await self._with_hint(kernel, outcome)
        found = static_scan(kernel.text, kernel.dialect, self._task_files())
        suspect = tuple(one.describe(kernel.name) for one in found)
        match outcome:
            case w.Verified(verification, screen, seconds) if suspect:
                return w.Suspected((*screen.doubts, *suspect), verification, screen, seconds)
            case w.Suspected(evidence):
                return replace(outcome, evidence=(*evidence, *suspect))
        return outcome

    async def _with_hint(self, kernel: KernelSpec, failed: w.Failed) -> w.Failed:
        """``failed``; names the parameters of ``launch`` if the kernel's differ in number, which no compiler sees."""
        has = launch_parameters(kernel.text) if kernel.contract is Contract.HOST and not kernel.dialect.in_python else None
        if has is None or failed.failure.kind is FailureKind.BUILD_FAILED:
            return failed
        signature = (await self.open()).signature
        needed = " ".join(abi(signature, kernel.dialect, plain=True).split())
        if len(signature.operands) <= has <= needed.count(",") + 1:
            return failed  # workspace and stream may be left out
        hint = f"launch() has {has} parameter{'' if has == 1 else 's'}, this problem's is launch({needed})"
        return replace(failed, failure=replace(failed.failure, reason=f"{failed.failure.reason}; {hint}"))

    def _task_files(self) -> tuple[str, ...]:
        """The Python files of a task in another project's format: its kernels import them, and contain what they import."""
        problem = self._assignment.problem
        if problem.origin_format is None:
            return ()
        return (problem.reference, *(text for name, text in problem.attachments.items() if name.endswith(".py")))

    async def measure_kernel(self, kernel: KernelSpec, say: Say) -> w.Measured | w.Suspected | w.Failed:
        """A precise measurement."""
        outcome = await self._request_verdict(kernel, say, p.MeasureRequest)
        assert isinstance(outcome, w.Measured | w.Suspected | w.Failed)
        return outcome

    async def sustain_kernel(self, kernel: KernelSpec, say: Say) -> w.BackToBack | w.Failed:
        """A measurement in the sustained regime."""
        outcome = await self._request_verdict(kernel, say, p.SustainRequest)
        assert isinstance(outcome, w.BackToBack | w.Failed)
        return outcome

    async def try_verify(self, kernel: KernelSpec, say: Say) -> w.Verified | w.Failed | w.Impossible:
        """``verify_kernel`` without anybody to review a quarantined kernel: it is rejected, with the evidence as reason."""
        outcome = await self.verify_kernel(kernel, say)
        return _rejected(outcome) if isinstance(outcome, w.Suspected) else outcome

    async def try_measure(self, kernel: KernelSpec, say: Say) -> w.Measured | w.Failed | w.Impossible:
        """``measure_kernel``, where a quarantined kernel is rejected too."""
        outcome = await self.measure_kernel(kernel, say)
        return _rejected(outcome) if isinstance(outcome, w.Suspected) else outcome

    async def versus(
        self, kernel: KernelSpec, other: KernelSpec, say: Say, effort: int | None = None, regime: Regime = Regime.SINGLE
    ) -> w.Measured | w.Failed:
        """The speedup of ``kernel`` over ``other``, under the name ``protocol.OTHER``, which also marks a failure of ``other``.

        ``effort`` limits its cost like a race for the lead. Where calls cannot follow each other, single calls are compared.
        """
        second = await self.build_candidate(other, say)
        if isinstance(second, BuildFailure):
            reason = f"{other.name}: {second.reason}"
            return w.Failed(Failure(FailureKind.BUILD_FAILED, reason), second.seconds, p.OTHER)
        outcome = await self._request_verdict(
            kernel, say, lambda candidate: p.CompareRequest(candidate, with_contents(second.candidate), effort, regime)
        )
        assert isinstance(outcome, w.Measured | w.Failed)
        return outcome

    async def sanitize_kernel(self, kernel: KernelSpec, say: Say) -> w.Sanitized:
        """Run a kernel under the sanitizers of its dialect, on fresh inputs of the workload and of a hold-out shape."""
        async with self.device_held(say):
            return await self._sanitize(kernel, say)

    async def _sanitize(self, kernel: KernelSpec, say: Say) -> w.Sanitized:
        began = time.monotonic()
        opened = await self.open()
        say(f"running sanitizers on {kernel.name}")
        try:
            (own, holdouts), *_ = self._builds.shapes(opened)
            main, *others = [case_of(kernel, *shape, opened.device) for shape in (own, *holdouts)]
            cases = sanitizers.choose_cases(main, others)
            plan = kernel_build(kernel, cases[0].workload, cases[0].signature, opened.device).plan()
        except KernelCodeError as error:
            return w.Sanitized((), note=f"{kernel.name}: {error}")
        confinement = await detect()
        result = await sanitizers.sanitize(
            kernel.dialect, cases, plan, opened.device, self._judge.draw, confinement, self._store
        )
        return replace(result, seconds=time.monotonic() - began)

    async def profile_kernel(self, kernel: KernelSpec, say: Say) -> Profile:
        """Hardware counters of a kernel's calls on fresh inputs of the workload, and its hot code.

        On a CPU many calls are counted and others sampled. On a GPU one call is counted; the hot code is that of its loops.
        """
        async with self.device_held(say):
            counters = await self._profile(kernel, say)
            device, signature = await self.describe()
        if device.kind == "cpu" or kernel.dialect is Dialect.PYTHON:
            return counters
        try:
            case = case_of(kernel, self._assignment.workload, signature, device)
        except KernelCodeError:
            return counters
        return _with_hot_code(counters, await static_hot_code(case.request, await detect(), self._store), device)

    async def _profile(self, kernel: KernelSpec, say: Say) -> Profile:
        on_cpu = self._assignment.device == "cpu"
        support = await perf.perf_support() if on_cpu else None
        opened = await self.open()
        workload = self._assignment.workload
        try:
            case = case_of(kernel, workload, opened.signature, opened.device)
            plan = kernel_build(kernel, workload, case.signature, opened.device).plan()
        except KernelCodeError as error:
            return Profile(0, note=f"{kernel.name}: {error}")
        scalars = await self._judge.scalars(workload) if kernel.contract is Contract.MODULE else ()
        subject = ncu.ProfiledKernel(case, opened.device, plan, scalars)
        say(f"profiling {'calls' if on_cpu else 'one call'} of {kernel.name}")
        common = (self._judge.draw, await detect(), self._store)
        cold = self._assignment.cold
        if support is None:
            return await ncu.profile_gpu(subject, *common, cold=cold)
        if isinstance(support, perf.NoCounters):
            counters = Profile(0, note=support.reason)
        else:
            counters = await perf.profile_cpu(subject, support, *common, cold=cold)
        if kernel.dialect is Dialect.PYTHON:
            return counters
        return _with_hot_code(counters, await pc_sampling.sample_cpu(subject, *common, cold=cold), opened.device)

    async def _request_verdict(
        self, kernel: KernelSpec, say: Say, request: Callable[[p.Candidate], p.Request]
    ) -> w.Verified | w.Measured | w.BackToBack | w.Suspected | w.Failed:
        loop = asyncio.get_running_loop()
        ready = await self.build_candidate(kernel, say)
        start = loop.time()
        if isinstance(ready, BuildFailure):
            return build_failed(ready, self._store)
        reply = await self._judge.ask(request(with_contents(ready.candidate)), say)
        seconds = loop.time() - start
        match reply:
            case p.VerifyReply(verification, screen, raw, evidence):
                screen = replace(screen, raw=self._store(raw))
                if evidence:
                    return w.Suspected(evidence, verification, screen, seconds)
                return w.Verified(verification, screen, seconds)
            case p.MeasureReply(measurement, raw, evidence, regime):
                measurement = replace(measurement, raw=self._store(raw))
                if evidence:
                    return w.Suspected(evidence, None, measurement, seconds)
                return w.Measured(measurement, seconds, regime=regime)
            case p.SustainReply(None, note=note):
                return w.BackToBack(None, seconds, note)
            case p.SustainReply(sustained, raw, evidence) if sustained is not None:
                return w.BackToBack(replace(sustained, raw=self._store(raw)), seconds, evidence=evidence)
        return self._failed(reply, seconds)

    def _failed(self, reply: p.Reply, seconds: float) -> w.Failed:
        if not isinstance(reply, p.FailedVerdict):
            raise TypeError(f"the judge answered {type(reply).__name__}")
        kept = self._store(reply.log.encode()) if reply.log else ""
        return w.Failed(replace(reply.failure, log=kept), seconds, p.OTHER if reply.other else "")

    @property
    def waited_s(self) -> float:
        """Seconds that this bench has waited for its device so far."""
        return self._judge.lease.waited_s

    def device_held(self, say: Say) -> AbstractAsyncContextManager[None]:
        """Hold the device for several steps: none of them waits for another process."""
        return self._judge.lease.held(say)

    async def close(self) -> None:
        try:
            await self._builds.close()
        finally:
            await self._judge.close()


def _with_hot_code(counters: Profile, hot: HotCode | NoHotCode, device: Device) -> Profile:
    """The profile with the kernel's hot code, or with the reason why it is not known."""
    if isinstance(hot, NoHotCode):
        return replace(counters, note="; ".join(filter(None, (counters.note, f"hot code unknown: {hot.reason}"))))
    return replace(counters, hot=hot, device=device.name)


async def built(kernel: BuiltKernel, store: StoreBlob) -> w.Built:
    """The result of a build work item."""
    artefact = kernel.artefact
    log = store(artefact.log.encode())
    mix = await instruction_counts(artefact.binary)
    return w.Built(artefact.key, artefact.seconds, artefact.resources, log, mix, kernel.machine_code)


def build_failed(found: BuildFailure, store: StoreBlob) -> w.Failed:
    """The result of a build work item whose kernel did not build."""
    kind = FailureKind.TIMED_OUT if found.timed_out else FailureKind.BUILD_FAILED
    return w.Failed(Failure(kind, found.reason, store(found.log.encode())), found.seconds)


def _rejected(outcome: w.Suspected) -> w.Failed:
    return w.Failed(Failure(FailureKind.REJECTED, f"quarantined: {'; '.join(outcome.evidence)}"), outcome.seconds)


def _kernel_spec(kernel: Kernel, text: str) -> KernelSpec:
    return KernelSpec(kernel.name, text, kernel.dialect, kernel.contract, kernel.tunables)
