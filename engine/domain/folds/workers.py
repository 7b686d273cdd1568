"""Folds of a fleet's workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from engine.domain import events as e
from engine.domain.folds.batch import Fold, StateBatch
from engine.domain.state import WorkerRecord
from engine.domain.work import WorkKey

_KEPT_VERDICTS = 32
_KEPT_ASSIGNED = 8


def _worker_joined(b: StateBatch, entry: e.Entry, ev: e.WorkerJoined) -> None:
    _set_joined(b, WorkerRecord(ev.name, ev.device, ev.host, entry.at, ev.notes))


def _builder_joined(b: StateBatch, entry: e.Entry, ev: e.BuilderJoined) -> None:
    _set_joined(b, WorkerRecord(ev.name, None, ev.host, entry.at, ev.notes))


def _set_joined(b: StateBatch, new: WorkerRecord) -> None:
    known: WorkerRecord | None = b.get("workers").get(new.name)
    _set_worker(b, replace(known, device=new.device, notes=new.notes, lost="", assigned=()) if known is not None else new)


def _worker_prepared(b: StateBatch, entry: e.Entry, ev: e.WorkerPrepared) -> None:
    if known := b.get("workers").get(ev.name):
        _set_worker(b, replace(known, baselines_us=MappingProxyType(dict(ev.baselines_us))))


def _work_assigned(b: StateBatch, entry: e.Entry, ev: e.WorkAssigned) -> None:
    if known := b.get("workers").get(ev.to):
        assigned = (*known.assigned, WorkKey.parse(ev.work))[-_KEPT_ASSIGNED:]
        _set_worker(b, replace(known, assigned=assigned, clock_mhz=ev.clock_mhz, celsius=ev.celsius))


def _work_requeued(b: StateBatch, entry: e.Entry, ev: e.WorkRequeued) -> None:
    if known := b.get("workers").get(ev.lost):
        key = WorkKey.parse(ev.work)
        _set_worker(b, replace(known, assigned=tuple(one for one in known.assigned if one != key)))


def _worker_lost(b: StateBatch, entry: e.Entry, ev: e.WorkerLost) -> None:
    if known := b.get("workers").get(ev.name):
        _set_worker(b, replace(known, lost=ev.reason, losses=known.losses + 1, assigned=()))


def count_verdict(b: StateBatch, entry: e.Entry, worker: str) -> None:
    """A verdict or a race of this worker has ended."""
    if known := b.get("workers").get(worker):
        recent = (*known.recent, entry.at)[-_KEPT_VERDICTS:]
        _set_worker(b, replace(known, verdicts=known.verdicts + 1, recent=recent))


def _set_worker(b: StateBatch, record: WorkerRecord) -> None:
    b.set(workers=MappingProxyType({**b.get("workers"), record.name: record}))


FOLDS: Mapping[type, Fold] = {
    e.WorkerJoined: _worker_joined,
    e.BuilderJoined: _builder_joined,
    e.WorkerPrepared: _worker_prepared,
    e.WorkAssigned: _work_assigned,
    e.WorkRequeued: _work_requeued,
    e.WorkerLost: _worker_lost,
}
