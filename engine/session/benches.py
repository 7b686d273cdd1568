"""Opens the bench of a session: on one device, or a fleet of workers."""

from __future__ import annotations

import asyncio

from engine.domain.errors import EspalierError
from engine.fleet.bench import FleetBench
from engine.fleet.links import LocalLauncher, WorkerLauncher
from engine.fleet.places import local_builders, local_count, local_places
from engine.fleet.ray_cluster import RayLauncher
from engine.fleet.ray_start import check_installed
from engine.session.devices import gpu_names
from engine.session.ports import StoreBlob
from engine.trial.bench import Assignment, TrialBench

SessionBench = TrialBench | FleetBench


async def open_bench(assignment: Assignment, store: StoreBlob, fleet: str = "", model: str = "") -> SessionBench:
    """The bench for a session. ``fleet``: as ``--fleet`` takes it; empty for one device. ``model``: of the session's device.

    Raises EspalierError.
    """
    if not fleet:
        return TrialBench(assignment, store)
    return FleetBench(assignment, store, await asyncio.to_thread(launcher, fleet, assignment.device, model))


def launcher(fleet: str, device: str, model: str = "") -> WorkerLauncher:
    """What starts the workers of a fleet, on devices of ``model`` if there are any. Blocks. Raises EspalierError."""
    count = local_count(fleet)
    if count is not None:
        return LocalLauncher(local_places(device, count, len(gpu_names())), local_builders(device))
    check_fleet(fleet)
    return RayLauncher.connect(fleet, device, model=model)


def check_fleet(fleet: str) -> None:
    """Raises EspalierError for what names no fleet, or needs what is not installed."""
    if not fleet or local_count(fleet) is not None:
        return
    if fleet not in ("ray", "auto") and ":" not in fleet.removeprefix("local:"):
        raise EspalierError(f"unknown fleet {fleet!r}: use local, local:N, ray, or a Ray cluster's HOST:PORT")
    check_installed()
