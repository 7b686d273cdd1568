"""A session in one object, computed from the state: what ``run --json`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.domain import corroboration, queries
from engine.domain.state import Kernel, SessionState


@dataclass(frozen=True, slots=True)
class SpeedupOver:
    """A speedup with its 95% interval and its baseline."""

    value: float
    low: float
    high: float
    baseline: str


@dataclass(frozen=True, slots=True)
class Best:
    """The incumbent."""

    kernel: str
    idea: str
    speedup: SpeedupOver
    corroborated: bool
    """Whether the judge's clock confirms its time. If not, the engineer accepted it."""
    quarantined: bool
    """Always ``false``: a quarantined kernel is never the incumbent."""
    accepted: str
    """Why the engineer accepted it; empty if not."""
    conditions: tuple[str, ...]
    doubts: tuple[str, ...]
    """The doubts that the engineer dismissed."""


@dataclass(frozen=True, slots=True)
class DoubtedKernel:
    """A correct kernel whose time is no result."""

    kernel: str
    status: str
    """``not_corroborated`` or ``quarantined``."""
    corroborated: bool
    quarantined: bool
    conditions: tuple[str, ...]
    doubts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SummaryDevice:
    """The session's device; name and architecture are ``None`` until it is prepared."""

    name: str | None
    arch: str | None
    label: str
    """``cpu`` or ``cuda:N``."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The object that ``run --json`` and ``replay --headless --json`` print. Scripts rely on it."""

    session: str
    """The session's folder."""
    problem: str
    device: SummaryDevice
    rounds: int
    """Rounds done after the naive port."""
    kernels: int
    """Kernels in the tree, failed ones included."""
    verified: int
    """Kernels whose outputs were right."""
    best: Best | None
    """The incumbent; ``null`` without one."""
    doubted: tuple[DoubtedKernel, ...]
    """Kernels that are not corroborated, or quarantined. None of them is the best."""


def summarise(state: SessionState, folder: Path) -> Summary:
    """The session as one object."""
    problem, _ = queries.problem_and_workload(state)
    rounds = sum(1 for r in state.rounds.values() if r.closed and r.number > 0)
    return Summary(
        str(folder.absolute()), problem, device_fields(state), rounds, len(state.kernels), len(queries.verified(state)),
        _best(state), tuple(_doubted(kernel) for kernel in corroboration.doubted(state)),
    )  # fmt: skip


def device_fields(state: SessionState) -> SummaryDevice:
    """The session's device, by its name."""
    found = state.device
    return SummaryDevice(found.name if found else None, found.arch if found else None, queries.device_label(state))


def _best(state: SessionState) -> Best | None:
    kernel = queries.incumbent(state)
    ratio = queries.speedup(state, kernel) if kernel else None
    if kernel is None or ratio is None:
        return None
    over = SpeedupOver(ratio.value, ratio.low, ratio.high, queries.ranking_baseline(state))
    return Best(
        kernel.id, queries.title(state, kernel), over, corroboration.is_corroborated(kernel),
        corroboration.is_quarantined(kernel), kernel.accepted, kernel.measurement.conditions if kernel.measurement else (),
        corroboration.of_kernel(kernel),
    )  # fmt: skip


def _doubted(kernel: Kernel) -> DoubtedKernel:
    return DoubtedKernel(
        kernel.id, corroboration.status(kernel), corroboration.is_corroborated(kernel), corroboration.is_quarantined(kernel),
        kernel.measurement.conditions if kernel.measurement else (), corroboration.of_kernel(kernel),
    )  # fmt: skip
