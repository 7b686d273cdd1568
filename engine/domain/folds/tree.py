"""Folds of what is decided between kernels: races, the incumbent, pins and pruned branches."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from engine.domain import events as e
from engine.domain.folds.batch import Fold, StateBatch
from engine.domain.folds.kernels import spent
from engine.domain.folds.workers import count_verdict
from engine.domain.state import RaceRecord
from engine.domain.work import WorkKey, WorkKind


def _raced(b: StateBatch, entry: e.Entry, ev: e.KernelRaced) -> None:
    count_verdict(b, entry, ev.worker)
    known = b.peek("kernels")
    b.finish(WorkKey(WorkKind.RACE, (ev.kernel, ev.against), ev.effort))
    again = tuple(known[name].again if name in known else 0 for name in (ev.kernel, ev.against))
    race = RaceRecord(
        ev.kernel, ev.against, ev.outcome, ev.ratio, ev.effort, ev.pairs, ev.samples, ev.raw, ev.note, entry.at, b.get("epoch"),
        (again[0], again[1]), ev.doubts, ev.by_workload, ev.back_to_back, ev.seconds,
    )  # fmt: skip
    both = {ev.kernel, ev.against}
    b.set(races=(*b.get("races"), race), asked=tuple(pair for pair in b.get("asked") if set(pair) != both))
    b.kernel(ev.kernel, seconds=spent(b, ev.kernel, ev.seconds))


def _race_asked(b: StateBatch, entry: e.Entry, ev: e.RaceAsked) -> None:
    b.set(asked=tuple(dict.fromkeys((*b.get("asked"), (ev.kernel, ev.against)))))


def _incumbent(b: StateBatch, entry: e.Entry, ev: e.IncumbentChanged) -> None:
    if ev.over:
        b.drop_races(ev.over, asked=False)
    before = (k for k in b.get("reigns") if k != ev.kernel)
    b.set(incumbent=ev.kernel, reigns=(*before, ev.kernel), reign_began=len(b.get("races")))


def _pinned(b: StateBatch, entry: e.Entry, ev: e.KernelPinned) -> None:
    b.set(pinned=tuple(dict.fromkeys((*b.get("pinned"), ev.kernel))))


def _unpinned(b: StateBatch, entry: e.Entry, ev: e.KernelUnpinned) -> None:
    b.set(pinned=tuple(k for k in b.get("pinned") if k != ev.kernel))


def _pruned(b: StateBatch, entry: e.Entry, ev: e.BranchPruned) -> None:
    reasons = MappingProxyType({**b.get("prune_reasons"), ev.kernel: ev.reason})
    b.set(pruned=tuple(dict.fromkeys((*b.get("pruned"), ev.kernel))), prune_reasons=reasons)


def _branch_reopened(b: StateBatch, entry: e.Entry, ev: e.BranchReopened) -> None:
    b.set(pruned=tuple(k for k in b.get("pruned") if k != ev.kernel))


FOLDS: Mapping[type, Fold] = {
    e.KernelRaced: _raced,
    e.RaceAsked: _race_asked,
    e.IncumbentChanged: _incumbent,
    e.KernelPinned: _pinned,
    e.KernelUnpinned: _unpinned,
    e.BranchPruned: _pruned,
    e.BranchReopened: _branch_reopened,
}
