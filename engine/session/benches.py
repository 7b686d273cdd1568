"""Opens the bench of a session: on one device, or a fleet of workers."""

from __future__ import annotations

from engine.domain.errors import EspalierError
from engine.fleet.bench import FleetBench
from engine.fleet.links import LocalLauncher, WorkerLauncher
from engine.fleet.places import local_count, local_places
from engine.session.devices import gpu_names
from engine.session.ports import StoreBlob
from engine.trial.bench import Assignment, TrialBench

SessionBench = TrialBench | FleetBench


def open_bench(assignment: Assignment, store: StoreBlob, fleet: str = "") -> SessionBench:
    """The bench for a session. ``fleet``: as ``--fleet`` takes it; empty for one device. Raises EspalierError."""
    return FleetBench(assignment, store, launcher(fleet, assignment.device)) if fleet else TrialBench(assignment, store)


def launcher(fleet: str, device: str) -> WorkerLauncher:
    """What starts the workers of a fleet. Raises EspalierError."""
    count = local_count(fleet)
    if count is None:
        raise EspalierError(f"unknown fleet {fleet!r}: use local or local:N")
    return LocalLauncher(local_places(device, count, len(gpu_names())))
