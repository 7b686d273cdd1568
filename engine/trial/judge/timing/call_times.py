"""The times of one call, and the judge's work around it. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.trial.messages import ClaimedTimes


@dataclass(frozen=True, slots=True)
class Timing:
    """One call: the runner's claims, and the judge's clock, in microseconds."""

    claimed_us: float
    wall_us: float
    """By the judge's clock: from the order to run until the reply. A gated call: by its events (``gate``)."""
    idle_us: float
    """Time that the device stayed busy after the last event: a claim."""
    disturbed: bool = False
    """Whether other work used the processor meanwhile."""
    enqueue_us: float = 0.0
    """Time that the host took to enqueue the call: a claim."""
    held: bool = False
    """Whether the device was held meanwhile: the claimed time is then device time only."""
    late: bool = False
    """Whether a gated call was enqueued only after its gate had opened: it waits for the device, or does not fit its queue."""
    release_us: float = 0.0
    """The part of a gated call's ``wall_us`` in which its inputs were released and the caches flushed."""
    after_us: float = 0.0
    """Time of the judge's next operation on the device, right after the runner was stopped."""
    counted_us: float = -1.0
    """The time that counts (``pair_times.with_counted_times``); until that is known, the claim."""

    def __post_init__(self) -> None:
        if self.counted_us < 0:
            object.__setattr__(self, "counted_us", self.claimed_us)


class CallHook(Protocol):
    """The judge's work right before and after a call, while the runner is not frozen."""

    def before(self) -> None:
        """Right before the order to run."""

    def after(self) -> None:
        """Right after the reply, before anything is stopped. In a gated call: enqueued to follow its end."""


@dataclass(frozen=True, slots=True)
class During:
    """The judge's work while a burst of calls runs."""

    after_s: float
    """Seconds from the order until it is done, unless the reply arrives before."""
    act: Callable[[], None]


_LEAST_US = 1e-3
"""Shorter claims are impossible."""


def claim_flaw(claims: ClaimedTimes, wall_us: float, *, trusted: bool) -> str:
    """Why a runner's times are impossible; empty if they are not."""
    times = (claims.device_us, claims.idle_us, claims.enqueue_us)
    if not all(0 <= c < 1e12 for c in times) or not (trusted or claims.device_us >= _LEAST_US):
        return f"the kernel's process reports an impossible time ({claims.device_us} µs)"
    if claims.device_us > wall_us * 1.02 + 50:
        return f"the kernel's process reports {claims.device_us:.0f} µs, more than the {wall_us:.0f} µs of the judge's clock"
    return ""
