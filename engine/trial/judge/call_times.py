"""The times of one call, the judge's work around it, and how a runner ended in it. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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
    awake_us: float = 0.0
    """From its resumption until the order: time that it could use and that no clock of the call measures."""
    enqueue_us: float = 0.0
    """Time that the host took to enqueue the call: a claim."""
    held: bool = False
    """Whether the device was held meanwhile: the claimed time is then device time only."""
    after_us: float = 0.0
    """Time of the judge's next operation on the device, right after the runner was stopped."""
    counted_us: float = -1.0
    """The time that counts (``timing.with_counted_times``); until that is known, the claim."""

    def __post_init__(self) -> None:
        if self.counted_us < 0:
            object.__setattr__(self, "counted_us", self.claimed_us)


class CallHook(Protocol):
    """The judge's work right before and after a call, while the runner is not frozen."""

    def before(self) -> None:
        """Right before the order to run."""

    def after(self) -> None:
        """Right after the reply, before anything is stopped. In a gated call: enqueued to follow its end."""


_SIGNALS = {
    4: "illegal instruction", 6: "aborted", 7: "bus error", 8: "arithmetic error", 9: "killed", 11: "segmentation fault",
}  # fmt: skip


def killed_by(number: int, when: str) -> str:
    """The reason of a runner that a signal ended."""
    how = f"signal {number} ({_SIGNALS[number]})" if number in _SIGNALS else f"signal {number}"
    hint = ": a write to an input or past a buffer?" if number in (7, 11) else ""
    return f"terminated by {how} {when}{hint}"
