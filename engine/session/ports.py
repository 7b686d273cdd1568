"""The interfaces that a session uses: the bench and the clock.

The real bench is ``engine.trial.bench.TrialBench``; ``fake_bench`` passes the same contract suite (``tests/contracts``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from engine.domain import work as w
from engine.domain.events import Event
from engine.domain.model import Blob
from engine.domain.regimes import Regime
from engine.domain.state import Kernel

StoreBlob = Callable[[bytes], Blob]
"""Stores a payload as a blob of the session and returns its name."""

Say = Callable[[str], None]
"""Reports progress, which is displayed, never journalled, and may be dropped."""


class Bench(Protocol):
    """Builds, verifies and measures kernels for one problem, workload and device.

    Expected outcomes are values (``Failed``); ``Impossible`` means that the bench itself failed, ``Abandoned`` that
    a fleet lost workers during the work. Builds may run concurrently; work on a device runs one at a time.
    """

    async def prepare(self, say: Say) -> w.Prepared | w.Impossible: ...

    async def build(self, kernel: Kernel, code: str, say: Say) -> w.Built | w.Failed | w.NoVerdict: ...

    async def verify(self, kernel: Kernel, code: str, say: Say) -> w.Verified | w.Suspected | w.Failed | w.NoVerdict: ...

    async def measure(self, kernel: Kernel, code: str, say: Say) -> w.Measured | w.Suspected | w.Failed | w.NoVerdict: ...

    async def sustain(self, kernel: Kernel, code: str, say: Say) -> w.BackToBack | w.Failed | w.NoVerdict:
        """Measure a measured kernel back to back, against the ranking baseline."""
        ...

    async def race(
        self, kernel: Kernel, code: str, other: Kernel, other_code: str, effort: int, regime: Regime, say: Say
    ) -> w.Raced | w.Failed | w.NoVerdict:
        """Measure two kernels against each other, interleaved at least as evenly as A-B-B-A, in fresh processes.

        Each step of ``effort`` doubles the cost. ``Failed`` names the kernel at fault. Where calls cannot follow each other,
        single calls are compared, and the result says so.
        """
        ...

    async def sanitize(self, kernel: Kernel, code: str, say: Say) -> w.Sanitized | w.NoVerdict:
        """Run a measured kernel under the sanitizers of its dialect. The result lists findings, or why no sanitizer ran."""
        ...

    async def read_counters(self, kernel: Kernel, code: str, say: Say) -> w.Profiled | w.NoVerdict:
        """Read the hardware counters of a measured kernel. The result holds them, or why they could not be read."""
        ...

    async def close(self) -> None: ...


class Workers(Protocol):
    """The workers behind a bench, if it has several."""

    @property
    def workers(self) -> int:
        """How many work items can run at a time."""
        ...

    @property
    def builders(self) -> int:
        """How many builds can run at a time on builders."""
        ...

    @property
    def builds_alone(self) -> bool:
        """Whether a build needs a worker for itself."""
        ...

    def listen(self, listener: Callable[[Sequence[Event]], None]) -> None:
        """Tell what happens to workers, with what has happened so far."""
        ...


class Clock(Protocol):
    """Wall time in seconds since the epoch (UTC)."""

    def __call__(self) -> float: ...
