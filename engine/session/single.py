"""Kernels tried without a session: a bench whose payloads stay in memory, and one kernel through all stages.

Knows the order of the stages and what each took; keeps nothing on disk but the build cache.
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
from engine.session import assembly
from engine.session.ports import Say
from engine.trial.bench import Assignment, Source, TrialBench


@dataclass(frozen=True, slots=True)
class Tried:
    """One kernel's way through the stages; seconds are ``None`` for a stage that was not reached."""

    final: w.Measured | w.Failed
    verification: Verification | None
    build_s: float
    verify_s: float | None
    measure_s: float | None

    @property
    def measurement(self) -> Measurement | None:
        return self.final.measurement if isinstance(self.final, w.Measured) else None


@dataclass(frozen=True, slots=True)
class Table:
    """A bench that is prepared, for kernels without a session."""

    bench: TrialBench
    device: Device
    signature: Signature
    preparation: Preparation
    say: Say

    async def attempt(self, source: Source) -> Tried:
        """Build, verify and measure one kernel."""
        began = time.monotonic()
        ready = await self.bench.make(source, self.say)
        build_s = time.monotonic() - began
        if not hasattr(ready, "candidate"):
            kind = FailureKind.TIMED_OUT if ready.timed_out else FailureKind.BUILD_FAILED
            return Tried(w.Failed(Failure(kind, ready.reason), ready.seconds), None, build_s, None, None)
        began = time.monotonic()
        verified = await self.bench.try_verify(source, self.say)
        verify_s = time.monotonic() - began
        if isinstance(verified, w.Impossible):
            raise EspalierError(verified.reason)
        if isinstance(verified, w.Failed):
            return Tried(verified, None, build_s, verify_s, None)
        began = time.monotonic()
        measured = await self.bench.try_measure(source, self.say)
        if isinstance(measured, w.Impossible):
            raise EspalierError(measured.reason)
        return Tried(measured, verified.verification, build_s, verify_s, time.monotonic() - began)


@asynccontextmanager
async def table(assignment: Assignment, say: Say, *, accept_unverifiable: bool) -> AsyncIterator[Table]:
    """A prepared bench, its baselines measured and the ranking one against itself; closed afterwards.

    Raises EspalierError when the problem cannot be read or judged here, or a compiler is missing; ProblemError when a model
    that computes nothing passes the gate, unless that is accepted.
    """
    await assembly.check_compiler(assignment.device)
    bench = TrialBench(assignment, _forget)
    try:
        say("reading the problem")
        device, signature = await bench.describe()
        prepared = await bench.prepare(say)
        if isinstance(prepared, w.Impossible):
            raise EspalierError(prepared.reason)
        gate = prepared.preparation.gate
        if not gate.verifiable and not accept_unverifiable:
            passed = ", ".join(null.name for null in gate.nulls if null.passed)
            raise ProblemError(
                f"{assignment.problem.name} is not verifiable: a model that computes nothing passes the gate ({passed}); "
                "--accept-unverifiable goes on all the same, and every verdict then says so"
            )
        yield Table(bench, device, signature, prepared.preparation, say)
    finally:
        await bench.close()


def _forget(payload: bytes) -> Blob:
    """A payload's name; nobody asks for it again."""
    return hashlib.sha256(payload).hexdigest()
