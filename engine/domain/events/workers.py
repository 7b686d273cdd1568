"""Events of a fleet's workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from engine.domain.model import Device, Interval


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker of the session's fleet is ready: one device with its own judge, hosts and sandbox."""

    KIND: ClassVar[str] = "worker.joined"
    name: str
    """Where it is: ``cuda:1``, ``cpu:0-3``, or with its machine ``node7/cuda:1``."""
    device: Device
    host: str
    """Its machine's name."""
    notes: tuple[str, ...] = ()
    """How its environment differs from the engine's."""


@dataclass(frozen=True, slots=True)
class BuilderJoined:
    """A builder of the session's fleet is ready: compilers in a process without a device."""

    KIND: ClassVar[str] = "builder.joined"
    name: str
    host: str
    """Its machine's name."""
    notes: tuple[str, ...] = ()
    """How its environment differs from the engine's."""


@dataclass(frozen=True, slots=True)
class WorkerPrepared:
    """A worker has calibrated the correctness check and measured the baselines on its own device."""

    KIND: ClassVar[str] = "worker.prepared"
    name: str
    baselines_us: Mapping[str, Interval]
    same: Interval
    """The A/A interval there: the ranking baseline against itself."""


@dataclass(frozen=True, slots=True)
class WorkAssigned:
    """A worker or a builder began this work."""

    KIND: ClassVar[str] = "work.assigned"
    work: str
    to: str
    """Who."""
    clock_mhz: int | None = None
    """The device's clock then; ``None`` where unknown."""
    celsius: int | None = None
    """Its temperature then."""


@dataclass(frozen=True, slots=True)
class WorkRequeued:
    """A worker or a builder was lost during this work, which another one does again."""

    KIND: ClassVar[str] = "work.requeued"
    work: str
    lost: str
    """Who."""


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker or a builder died, stopped answering, or sent what it may not send."""

    KIND: ClassVar[str] = "worker.lost"
    name: str
    reason: str


WorkerEvent = WorkerJoined | BuilderJoined | WorkerPrepared | WorkAssigned | WorkRequeued | WorkerLost
