"""The reward of an attempt at a kernel: one number for training a model. Pure.

- A **measured** kernel: ln(its speedup ÷ its parent's), both over the ranking baseline on the same device. Without such a
  parent (the naive port, a seed, a parent measured on another device): ln(its speedup over the baseline). 0 is no change, 0.69
  is twice as fast. Never below -1: a slow verified kernel is worth more than a wrong one.
- A **failed** attempt: a constant by the kind of failure, see ``FAILURES``.
- **None** if unknown: cancelled, unsettled, quarantined, or not corroborated. A doubted parent counts as none.

The gain is the ratio of two speedups over the same baseline. It need not be significant: the intervals are exported with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from engine.domain import corroboration, queries
from engine.domain.model import FailureKind, Interval
from engine.domain.state import Kernel, SessionState, Stage

FAILURES: Mapping[FailureKind, float] = {
    FailureKind.UNSTABLE: -1.25,
    FailureKind.MISMATCH: -1.5,
    FailureKind.TIMED_OUT: -1.75,
    FailureKind.CRASHED: -2.0,
    FailureKind.BUILD_FAILED: -2.25,
    FailureKind.REJECTED: -3.0,
}
"""The further an attempt got, the higher its reward. Breaking a rule of the trial is worth least."""

LEAST_MEASURED = -1.0


class Basis(StrEnum):
    """What a reward was computed from."""

    PARENT = "parent"
    BASELINE = "baseline"
    FAILURE = "failure"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Reward:
    """One number, or ``None`` if unknown."""

    value: float | None
    basis: Basis


UNKNOWN = Reward(None, Basis.NONE)


def failure_reward(kind: FailureKind) -> Reward:
    """The reward of an attempt that failed with this kind of failure."""
    return Reward(FAILURES[kind], Basis.FAILURE)


def kernel_reward(state: SessionState, kernel: Kernel) -> Reward:
    """The reward of a kernel's last attempt."""
    if kernel.stage is Stage.FAILED and kernel.failure is not None:
        return failure_reward(kernel.failure.kind)
    mine = speedup(state, kernel)
    if kernel.stage is not Stage.MEASURED or corroboration.is_doubted(kernel) or mine is None or not 0 < mine.value < math.inf:
        return UNKNOWN
    parent = state.kernels.get(kernel.parent or "")
    usable = parent is not None and parent.epoch == kernel.epoch and not corroboration.is_doubted(parent)
    theirs = speedup(state, parent) if parent is not None and usable else None
    if theirs is None or not 0 < theirs.value < math.inf:
        return Reward(max(LEAST_MEASURED, math.log(mine.value)), Basis.BASELINE)
    return Reward(max(LEAST_MEASURED, math.log(mine.value / theirs.value)), Basis.PARENT)


def speedup(state: SessionState, kernel: Kernel) -> Interval | None:
    """A kernel's speedup over the ranking baseline on the device that it was measured on, current or earlier."""
    settled = kernel.stage in (Stage.MEASURED, Stage.QUARANTINED)
    return kernel.measurement.speedup.get(queries.ranking_baseline(state)) if settled and kernel.measurement else None
