"""Reads the hardware counters of a recorded kernel, as ``espalier kernel profile`` does."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from engine.domain.commands import RecordProfile
from engine.domain.model import Blob
from engine.domain.profile import Profile
from engine.domain.state import Kernel, SessionState
from engine.session import factory
from engine.session.seeds import device_for, recorded_spec
from engine.session.steer import Steering
from engine.trial.bench import TrialBench


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """The counters of one kernel, and the payloads that they name."""

    kernel: Kernel
    profile: Profile
    payloads: dict[Blob, bytes]

    def command(self, view: Steering) -> RecordProfile:
        """The command that keeps the counters in the session."""
        for name in self.profile.blobs:
            view.store_blob(self.payloads[name])
        return RecordProfile(self.kernel.id, self.profile)


async def profile_kernel(
    folder: Path, state: SessionState, kernel: Kernel, device: str, say: Callable[[str], None]
) -> KernelProfile:
    """Profile a kernel on ``device``. Records nothing.

    Raises EspalierError; UntrustedError if the session may not run here.
    """
    label = device_for((kernel,), device)
    assignment = factory.assignment(folder, state, label)
    source = recorded_spec(folder, kernel, label)
    payloads: dict[Blob, bytes] = {}

    def put(payload: bytes) -> Blob:
        name = hashlib.sha256(payload).hexdigest()
        payloads[name] = payload
        return name

    bench = TrialBench(assignment, put)
    try:
        found = await bench.profile_kernel(source, say)
    finally:
        await bench.close()
    return KernelProfile(kernel, replace(found, attempt=kernel.attempt), payloads)
