"""Builds, verifies and measures single kernels without a session.

Nothing is stored on disk except in the build cache.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from engine.domain import instruction_mix
from engine.domain import work as w
from engine.domain.errors import EspalierError, ProblemError
from engine.domain.model import Blob, Device, Failure, FailureKind, Measurement, Signature, Verification
from engine.domain.preparation import Preparation
from engine.session.ports import Say
from engine.session.requirements import check_requirements, sandbox_warning
from engine.toolchain.build import BuildFailure
from engine.toolchain.inspection import instruction_counts
from engine.trial.bench import Assignment, BuiltKernel, KernelSpec, TrialBench
from engine.trial.client import JudgeClient


@dataclass(frozen=True, slots=True)
class KernelTrial:
    """The result of one kernel and the duration of each stage in seconds; ``None`` for a stage that was not reached."""

    final: w.Measured | w.Suspected | w.Failed
    """Measured, corroborated or not; quarantined; or failed."""
    verification: Verification | None
    build_s: float
    verify_s: float | None
    measure_s: float | None
    sustain_s: float | None = None
    wait_s: float = 0.0
    """Seconds that the bench waited for its device since the kernel before; in no stage."""
    included: tuple[str, ...] = ()
    """What its build read of the user's header trees, a line each."""
    limit: str = ""
    """What limits the measured kernel, by its speed of light and its instructions."""

    @property
    def measurement(self) -> Measurement | None:
        """The measurement; none of a quarantined kernel."""
        return self.final.measurement if isinstance(self.final, w.Measured) else None

    @property
    def timed(self) -> Measurement | None:
        """The measurement, or what a quarantined kernel claims."""
        return self.final.measurement if not isinstance(self.final, w.Failed) else None


@dataclass(slots=True)
class Workbench:
    """A bench without a session. Its baselines are measured for the first right kernel, or before in another evaluation."""

    bench: TrialBench
    device: Device
    signature: Signature
    preparation: Preparation
    """Without baselines until they are measured."""
    say: Say
    complete: bool = True
    """Whether the baselines are measured."""
    waited_s: float = 0.0
    """Seconds of waiting that earlier trials have reported."""
    included: tuple[str, ...] = ()
    """What the last build read of the user's header trees."""

    async def attempt(self, kernel: KernelSpec) -> KernelTrial:
        """Build, verify and measure one kernel. Raises EspalierError if the baselines cannot be measured.

        Other processes may use a GPU while compilers run, which can take a minute.
        """
        self.included = ()
        async with AsyncExitStack() as stack:
            hold = partial(stack.enter_async_context, self.bench.device_held(self.say))
            if self.device.kind == "cpu":
                await hold()
            began, waited = time.monotonic(), self.bench.waited_s
            ready = await self.bench.build_candidate(kernel, self.say)
            build_s = time.monotonic() - began - (self.bench.waited_s - waited)
            if self.device.kind != "cpu":
                await hold()
            trial = await self._tried(kernel, ready, build_s)
            waited, self.waited_s = self.bench.waited_s - self.waited_s, self.bench.waited_s
            return replace(trial, wait_s=waited, included=self.included)

    async def check(self, kernel: KernelSpec) -> w.Failed | None:
        """Build one kernel and check its outputs; ``None`` if they are right. Nothing is timed. Raises EspalierError."""
        async with self.bench.device_held(self.say):
            return await self.bench.check_kernel(kernel, self.say)

    async def _tried(self, kernel: KernelSpec, ready: BuiltKernel | BuildFailure, build_s: float) -> KernelTrial:
        if not hasattr(ready, "candidate"):
            kind = FailureKind.TIMED_OUT if ready.timed_out else FailureKind.BUILD_FAILED
            return KernelTrial(w.Failed(Failure(kind, ready.reason), ready.seconds), None, build_s, None, None)
        if not isinstance(ready, BuiltKernel):
            return await self._judged(kernel, build_s)
        self.included = ready.artefact.included
        async with self._counting(ready.artefact.binary) as counted:
            trial = await self._judged(kernel, build_s)
            if trial.timed is None:
                return trial
            return replace(trial, limit=instruction_mix.limit(trial.timed.light, await counted()))

    @asynccontextmanager
    async def _counting(self, binary: Path) -> AsyncIterator[Callable[[], Awaitable[Mapping[str, int]]]]:
        """The instruction mix of a kernel: read beside its trial, or, where that would use what is measured, when asked for."""
        if self.device.kind == "cpu":
            yield lambda: instruction_counts(binary)
            return
        reading = asyncio.create_task(instruction_counts(binary))
        try:
            yield lambda: reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _judged(self, kernel: KernelSpec, build_s: float) -> KernelTrial:
        """The trial of a kernel that is built."""
        began = time.monotonic()
        if not self.complete:
            self.say(f"checking {kernel.name}")
            wrong = await self.bench.check_kernel(kernel, self.say)
            if wrong is not None:
                return KernelTrial(wrong, None, build_s, time.monotonic() - began, None)
            await self.complete_preparation()
            began = time.monotonic()
        verified = await self.bench.verify_kernel(kernel, self.say)
        verify_s = time.monotonic() - began
        if not isinstance(verified, w.Verified):
            proven = verified.verification if isinstance(verified, w.Suspected) else None
            return KernelTrial(verified, proven, build_s, verify_s, None)
        began = time.monotonic()
        measured = await self.bench.measure_kernel(kernel, self.say)
        return KernelTrial(measured, verified.verification, build_s, verify_s, time.monotonic() - began)

    async def sustain(self, kernel: KernelSpec, tried: KernelTrial) -> KernelTrial:
        """``tried`` with the sustained regime too, if the kernel is measured. A kernel that fails back to back has failed."""
        if not isinstance(tried.final, w.Measured):
            return tried
        async with self.bench.device_held(self.say):
            self.say(f"measuring {kernel.name} back to back")
            began = time.monotonic()
            found = await self.bench.sustain_kernel(kernel, self.say)
            return replace(tried, final=_with_sustained(tried.final, found), sustain_s=time.monotonic() - began)

    async def complete_preparation(self) -> None:
        """Measure the baselines, if that has not been done. Raises EspalierError."""
        if not self.complete:
            self.preparation = await _prepared(self.bench, self.say, measure=True)
            self.complete = True


def _with_sustained(single: w.Measured, found: w.BackToBack | w.Failed) -> w.Measured | w.Suspected | w.Failed:
    if isinstance(found, w.Failed):
        return replace(found, failure=replace(found.failure, reason=f"called back to back: {found.failure.reason}"))
    measured = single.measurement
    if found.times is None:
        note = f"sustained regime not measured: {found.note}"
        return replace(single, measurement=replace(measured, conditions=(*measured.conditions, note)))
    both = replace(measured, sustained=found.times)
    if found.evidence:
        return w.Suspected(found.evidence, None, both, single.seconds + found.seconds)
    return replace(single, measurement=both)


@asynccontextmanager
async def open_workbench(
    assignment: Assignment, say: Say, *, accept_unverifiable: bool, judge: JudgeClient | None = None,
    ahead: Callable[[Device, Signature], Iterable[KernelSpec]] = lambda device, signature: (),
) -> AsyncIterator[Workbench]:  # fmt: skip
    """A bench with a tested correctness check, closed on exit. ``judge``: one that was started before and asked nothing.

    ``ahead``: kernels to build meanwhile.

    Its baselines are measured; where ``assignment.prepared``, not before a right kernel needs them, and those of an earlier
    evaluation are used.

    Raises EspalierError if the problem cannot be read or judged here, or a compiler is missing; ProblemError if a trivial
    model passes the correctness check, unless that is accepted.
    """
    await check_requirements(assignment.device)
    bench = TrialBench(assignment, _forget, judge)
    try:
        if warning := sandbox_warning():
            say(warning)
        async with bench.device_held(say):
            say("loading torch and the problem")  # after a wait for the device: what takes long now
            device, signature = await bench.describe(say, ceilings=True)
            bench.build_ahead(ahead(device, signature))
            complete = bench.is_prepared or not assignment.prepared
            preparation = await _prepared(bench, say, measure=complete)
        check = preparation.gate
        if not check.verifiable and not accept_unverifiable:
            raise ProblemError(
                f"{assignment.problem.name} is not verifiable: {check.fooled}; "
                "continue with --accept-unverifiable, which marks every verdict"
            )
        yield Workbench(bench, device, signature, preparation, say, complete)
    finally:
        await bench.close()


async def _prepared(bench: TrialBench, say: Say, *, measure: bool) -> Preparation:
    found = await bench.prepare(say, measure=measure)
    if isinstance(found, w.Impossible):
        raise EspalierError(found.reason)
    return found.preparation


def _forget(payload: bytes) -> Blob:
    """The name of a payload, without storing it."""
    return hashlib.sha256(payload).hexdigest()
