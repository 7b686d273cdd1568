"""Builds, verifies and measures single kernels without a session.

Nothing is stored on disk except in the build cache.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from engine.domain import work as w
from engine.domain.errors import EspalierError, ProblemError
from engine.domain.model import Blob, Device, Failure, FailureKind, Measurement, Signature, Verification
from engine.domain.preparation import Preparation
from engine.session.ports import Say
from engine.session.requirements import check_requirements, sandbox_warning
from engine.trial.bench import Assignment, KernelSpec, TrialBench


@dataclass(frozen=True, slots=True)
class KernelTrial:
    """The result of one kernel and the duration of each stage in seconds; ``None`` for a stage that was not reached."""

    final: w.Measured | w.Failed
    verification: Verification | None
    build_s: float
    verify_s: float | None
    measure_s: float | None

    @property
    def measurement(self) -> Measurement | None:
        return self.final.measurement if isinstance(self.final, w.Measured) else None


@dataclass(frozen=True, slots=True)
class Workbench:
    """A prepared bench without a session."""

    bench: TrialBench
    device: Device
    signature: Signature
    preparation: Preparation
    say: Say

    async def attempt(self, kernel: KernelSpec) -> KernelTrial:
        """Build, verify and measure one kernel."""
        began = time.monotonic()
        ready = await self.bench.build_candidate(kernel, self.say)
        build_s = time.monotonic() - began
        if not hasattr(ready, "candidate"):
            kind = FailureKind.TIMED_OUT if ready.timed_out else FailureKind.BUILD_FAILED
            return KernelTrial(w.Failed(Failure(kind, ready.reason), ready.seconds), None, build_s, None, None)
        began = time.monotonic()
        verified = await self.bench.try_verify(kernel, self.say)
        verify_s = time.monotonic() - began
        if isinstance(verified, w.Impossible):
            raise EspalierError(verified.reason)
        if isinstance(verified, w.Failed):
            return KernelTrial(verified, None, build_s, verify_s, None)
        began = time.monotonic()
        measured = await self.bench.try_measure(kernel, self.say)
        if isinstance(measured, w.Impossible):
            raise EspalierError(measured.reason)
        return KernelTrial(measured, verified.verification, build_s, verify_s, time.monotonic() - began)


@asynccontextmanager
async def open_workbench(assignment: Assignment, say: Say, *, accept_unverifiable: bool) -> AsyncIterator[Workbench]:
    """A bench with measured baselines, closed on exit.

    Raises EspalierError if the problem cannot be read or judged here, or a compiler is missing; ProblemError if a trivial
    model passes the correctness check, unless that is accepted.
    """
    await check_requirements(assignment.device)
    bench = TrialBench(assignment, _forget)
    try:
        if warning := sandbox_warning():
            say(warning)
        say("loading torch and the problem")
        device, signature = await bench.describe()
        prepared = await bench.prepare(say)
        if isinstance(prepared, w.Impossible):
            raise EspalierError(prepared.reason)
        check = prepared.preparation.gate
        if not check.verifiable and not accept_unverifiable:
            passed = ", ".join(model.name for model in check.nulls if model.passed)
            raise ProblemError(
                f"{assignment.problem.name} is not verifiable: a trivial model passes the correctness check ({passed}); "
                "continue with --accept-unverifiable, which marks every verdict"
            )
        yield Workbench(bench, device, signature, prepared.preparation, say)
    finally:
        await bench.close()


def _forget(payload: bytes) -> Blob:
    """The name of a payload, without storing it."""
    return hashlib.sha256(payload).hexdigest()
