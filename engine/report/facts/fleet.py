"""The workers of a session: what each is, does and has done. Computed from the state, so a replay shows it too."""

from __future__ import annotations

from dataclasses import dataclass

from engine.domain import rules
from engine.domain import work as w
from engine.domain.state import SessionState, WorkerRecord

_WINDOW_S = 300.0
"""The last seconds over which verdicts a minute are counted."""
_MEASURED = frozenset(
    {w.WorkKind.BUILD, w.WorkKind.VERIFY, w.WorkKind.MEASURE, w.WorkKind.SUSTAIN, w.WorkKind.RACE, w.WorkKind.SANITIZE}
)


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker or builder."""

    name: str
    device: str
    """Empty: a builder."""
    host: str
    clock_mhz: int | None
    """When it began its latest work; ``null`` where unknown."""
    celsius: int | None
    doing: tuple[str, ...]
    """Keys of its running work."""
    verdicts: int
    """Verdicts and races since it joined."""
    per_minute: float
    """Verdicts a minute over the last five minutes."""
    lost: str
    """Why it is gone; empty while it works."""
    losses: int
    """How often it was lost."""
    notes: tuple[str, ...]
    """How what is installed there differs from the engine's."""


@dataclass(frozen=True, slots=True)
class FleetRows:
    """All workers, and the work that waits for one."""

    workers: tuple[WorkerRow, ...]
    queued: int


def fleet_rows(state: SessionState, now: float) -> FleetRows | None:
    """The fleet at a time in seconds since the epoch; ``None`` without one."""
    if not state.workers:
        return None
    owed = [work for work in rules.next_work(state) if work.key.kind in _MEASURED and work.key not in state.running]
    ordered = sorted(state.workers.values(), key=lambda worker: worker.device is None)  # builders last
    return FleetRows(tuple(_row(worker, state, now) for worker in ordered), len(owed))


def _row(worker: WorkerRecord, state: SessionState, now: float) -> WorkerRow:
    doing = tuple(str(key) for key in worker.assigned if key in state.running)
    device = worker.device.name if worker.device is not None else ""
    return WorkerRow(
        worker.name, device, worker.host, worker.clock_mhz, worker.celsius, doing, worker.verdicts,
        _per_minute(worker, now), worker.lost, worker.losses, worker.notes,
    )  # fmt: skip


def _per_minute(worker: WorkerRecord, now: float) -> float:
    recent = [at for at in worker.recent if now - _WINDOW_S <= at <= now]
    if not recent:
        return 0.0
    began = recent[0] if len(recent) < worker.verdicts else max(worker.joined_at, now - _WINDOW_S)
    return round(60.0 * len(recent) / max(1.0, now - began), 1)
