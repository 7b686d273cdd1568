"""A kernel outside a session: when the device is held, and when instructions are read, also if the trial fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support import builders as b

from engine.domain import work as w
from engine.domain.errors import EspalierError
from engine.domain.model import Contract, Device, Dialect, Failure, FailureKind
from engine.session import workbench
from engine.session.fake_bench import FAKE_CPU, FAKE_GPU
from engine.session.workbench import Workbench
from engine.trial.kernel_builds import BuiltKernel, KernelSpec

KERNEL = KernelSpec("k.cu", "text", Dialect.CUDA, Contract.PLAN)
WRONG = w.Failed(Failure(FailureKind.MISMATCH, "wrong"))
RIGHT = w.Verified(b.verification(), b.measurement(1.5), 0.1)


class Trials:
    """A bench whose kernel is built, and verified with the given result."""

    def __init__(self, happened: list[str], verified: w.Verified | w.Failed | Exception) -> None:
        self._happened = happened
        self._verified = verified
        self.waited_s = 0.0

    @asynccontextmanager
    async def device_held(self, say: object) -> AsyncIterator[None]:
        self._happened.append("held")
        yield
        self._happened.append("free")

    async def build_candidate(self, kernel: KernelSpec, say: object) -> BuiltKernel:
        self._happened.append("built")
        artefact = cast(Any, SimpleNamespace(binary=Path("k.cubin"), included=()))
        return BuiltKernel(cast(Any, None), artefact)

    async def verify_kernel(self, kernel: KernelSpec, say: object) -> w.Verified | w.Failed:
        await asyncio.sleep(0)
        self._happened.append("verified")
        if isinstance(self._verified, Exception):
            raise self._verified
        return self._verified

    async def measure_kernel(self, kernel: KernelSpec, say: object) -> w.Measured:
        self._happened.append("measured")
        return w.Measured(b.measurement(1.5), 0.1)


def tried(
    device: Device, verified: w.Verified | w.Failed | Exception, monkeypatch: pytest.MonkeyPatch, *, steps: bool = False
) -> list[str]:
    happened: list[str] = []

    async def counts(binary: Path) -> Mapping[str, int]:
        happened.append("reading")
        try:
            await asyncio.sleep(0 if isinstance(verified, w.Verified) else 60)
        except asyncio.CancelledError:
            happened.append("cancelled")
            raise
        return {"FFMA": 1}

    monkeypatch.setattr(workbench, "instruction_counts", counts)
    bench = cast(Any, Trials(happened, verified))
    with suppress(EspalierError):
        asyncio.run(Workbench(bench, device, b.signature(), b.preparation(), lambda _: None).attempt(KERNEL))
    return [one for one in happened if one not in ("built", "held", "free")] if not steps else happened


def test_others_may_use_a_gpu_while_a_kernel_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules with inline CUDA compile for half a minute, and held the device meanwhile."""
    steps = ["built", "held", "reading", "verified", "measured", "free"]
    assert tried(FAKE_GPU, RIGHT, monkeypatch, steps=True) == steps


def test_compilers_run_under_the_lease_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ["held", "built", "verified", "measured", "reading", "free"]
    assert tried(FAKE_CPU, RIGHT, monkeypatch, steps=True) == steps


def test_instructions_are_read_beside_a_trial_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(FAKE_GPU, RIGHT, monkeypatch) == ["reading", "verified", "measured"]


def test_on_a_cpu_they_are_read_after_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(FAKE_CPU, RIGHT, monkeypatch) == ["verified", "measured", "reading"]
    assert tried(FAKE_CPU, WRONG, monkeypatch) == ["verified"]


@pytest.mark.parametrize("failure", [WRONG, EspalierError("the judge's process ended")])
def test_reading_ends_with_a_trial_that_fails(failure: w.Failed | Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(FAKE_GPU, failure, monkeypatch) == ["reading", "verified", "cancelled"]
