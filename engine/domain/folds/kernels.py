"""Folds of kernels: drafts, attempts, results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from engine.domain import events as e
from engine.domain.folds.batch import Fold, StateBatch
from engine.domain.folds.workers import count_verdict
from engine.domain.state import Kernel, Sanitizing, Stage
from engine.domain.work import WorkKey, WorkKind

_WORK = frozenset(
    {
        WorkKind.BUILD, WorkKind.VERIFY, WorkKind.MEASURE, WorkKind.SUSTAIN, WorkKind.REPAIR, WorkKind.SANITIZE,
        WorkKind.PROFILE, WorkKind.TUNE,
    }
)  # fmt: skip


def _drafted(b: StateBatch, entry: e.Entry, ev: e.KernelDrafted) -> None:
    kernel = Kernel(
        ev.kernel, ev.idea, ev.parent, ev.round, ev.author, ev.name, ev.dialect, ev.contract, ev.source,
        MappingProxyType(dict(ev.tunables)), ev.seed, epoch=b.get("epoch"), form=ev.form,
        members=ev.members, choices=ev.choices,
    )  # fmt: skip
    b.add("kernels", ev.kernel, kernel)
    if ev.parent is not None and (parent := b.peek("kernels").get(ev.parent)) is not None:
        b.kernel(ev.parent, children=(*parent.children, ev.kernel))
    if ev.idea in b.peek("ideas"):
        b.idea(ev.idea, kernels=(*b.peek("ideas")[ev.idea].kernels, ev.kernel))


def _implemented(b: StateBatch, entry: e.Entry, ev: e.IdeaImplemented) -> None:
    b.finish(WorkKey(WorkKind.IMPLEMENT, (ev.idea,)))
    b.idea(ev.idea, implemented=True, note=ev.note)


def _attempt_failed(b: StateBatch, entry: e.Entry, ev: e.AttemptFailed) -> None:
    _finish_kernel(b, ev.kernel)
    count_verdict(b, entry, ev.worker)
    b.kernel(
        ev.kernel, stage=Stage.REPAIR, failure=ev.failure, verification=None, measurement=None,
        seconds=spent(b, ev.kernel, ev.seconds),
    )  # fmt: skip


def _revised(b: StateBatch, entry: e.Entry, ev: e.AttemptRevised) -> None:
    b.finish(WorkKey(WorkKind.REPAIR, (ev.kernel,), ev.attempt - 1))
    known = b.peek("kernels").get(ev.kernel)
    if known is not None:
        earlier = (*known.earlier, known.source)
        failures = (*known.failures, *((known.failure,) if known.failure is not None else ()))
        b.kernel(
            ev.kernel,
            source=ev.source,
            form="",
            attempt=ev.attempt,
            earlier=earlier,
            failures=failures,
            stage=Stage.BUILD,
            failure=None,
            profile=None,
        )


def _built(b: StateBatch, entry: e.Entry, ev: e.KernelBuilt) -> None:
    _finish_kernel(b, ev.kernel)
    known = b.peek("kernels").get(ev.kernel)
    read_before = known.instructions if known is not None and known.artefact == ev.artefact else MappingProxyType({})
    b.kernel(
        ev.kernel, stage=Stage.VERIFY, artefact=ev.artefact, resources=ev.resources, build_log=ev.log,
        instructions=MappingProxyType(dict(ev.instructions)) if ev.instructions else read_before,
        seconds=spent(b, ev.kernel, ev.seconds), machine_code=ev.machine_code,
    )  # fmt: skip


def _matched(b: StateBatch, entry: e.Entry, ev: e.KernelMatched) -> None:
    _finish_kernel(b, ev.kernel)
    twin = b.peek("kernels").get(ev.same_as)
    if twin is None or twin.measurement is None:
        return
    conditions = (*twin.measurement.conditions, f"same machine code as {ev.same_as}")
    b.kernel(
        ev.kernel, stage=Stage.MEASURED, verification=twin.verification,
        measurement=replace(twin.measurement, conditions=conditions), epoch=b.get("epoch"), same_as=ev.same_as,
    )  # fmt: skip


def _verified(b: StateBatch, entry: e.Entry, ev: e.KernelVerified) -> None:
    _finish_kernel(b, ev.kernel)
    b.kernel(
        ev.kernel, stage=Stage.MEASURE, verification=ev.verification, measurement=ev.screen,
        epoch=b.get("epoch"), seconds=spent(b, ev.kernel, ev.seconds), worker=ev.worker,
    )  # fmt: skip


def _measured(b: StateBatch, entry: e.Entry, ev: e.KernelMeasured) -> None:
    _finish_kernel(b, ev.kernel)
    count_verdict(b, entry, ev.worker)
    b.kernel(
        ev.kernel, stage=Stage.MEASURED, measurement=ev.measurement, epoch=b.get("epoch"),
        seconds=spent(b, ev.kernel, ev.seconds), worker=ev.worker,
    )  # fmt: skip


def _sustained(b: StateBatch, entry: e.Entry, ev: e.KernelSustained) -> None:
    b.finish(WorkKey(WorkKind.SUSTAIN, (ev.kernel,), ev.attempt))
    known = b.peek("kernels").get(ev.kernel)
    if known is not None and known.measurement is not None and known.attempt == ev.attempt:
        measured = replace(known.measurement, sustained=ev.times) if ev.times is not None else known.measurement
        b.kernel(ev.kernel, measurement=measured, unsustained=ev.note, seconds=spent(b, ev.kernel, ev.seconds))


def _failed(b: StateBatch, entry: e.Entry, ev: e.KernelFailed) -> None:
    _finish_kernel(b, ev.kernel)
    count_verdict(b, entry, ev.worker)
    b.kernel(ev.kernel, stage=Stage.FAILED, failure=ev.failure, seconds=spent(b, ev.kernel, ev.seconds))


def _quarantined(b: StateBatch, entry: e.Entry, ev: e.KernelQuarantined) -> None:
    _finish_kernel(b, ev.kernel)
    count_verdict(b, entry, ev.worker)
    known = b.peek("kernels").get(ev.kernel)
    if known is not None:
        b.kernel(
            ev.kernel, stage=Stage.QUARANTINED, evidence=ev.evidence, verification=ev.verification or known.verification,
            measurement=ev.measurement or known.measurement, epoch=b.get("epoch"), seconds=spent(b, ev.kernel, ev.seconds),
            worker=ev.worker or known.worker,
        )  # fmt: skip


def _accepted(b: StateBatch, entry: e.Entry, ev: e.KernelAccepted) -> None:
    b.kernel(ev.kernel, stage=Stage.MEASURED, accepted=ev.note)


def _sanitized(b: StateBatch, entry: e.Entry, ev: e.KernelSanitized) -> None:
    _finish_kernel(b, ev.kernel)
    b.kernel(
        ev.kernel, sanitizing=Sanitizing(ev.attempt, ev.tools, ev.findings, ev.note, ev.log),
        seconds=spent(b, ev.kernel, ev.seconds),
    )  # fmt: skip


def _profiled(b: StateBatch, entry: e.Entry, ev: e.KernelProfiled) -> None:
    b.finish(WorkKey(WorkKind.PROFILE, (ev.kernel,), ev.profile.attempt))
    known = b.peek("kernels").get(ev.kernel)
    if known is None or known.attempt != ev.profile.attempt:
        return
    if ev.profile.was_read or known.profile is None or not known.profile.was_read:
        b.kernel(ev.kernel, profile=ev.profile)


def _tuning_asked(b: StateBatch, entry: e.Entry, ev: e.TuningAsked) -> None:
    b.set(tunings=tuple(dict.fromkeys((*b.get("tunings"), ev.kernel))))


def _tuned(b: StateBatch, entry: e.Entry, ev: e.KernelTuned) -> None:
    b.finish(WorkKey(WorkKind.TUNE, (ev.kernel,), ev.attempt))
    b.set(tunings=tuple(name for name in b.get("tunings") if name != ev.kernel))
    b.kernel(ev.kernel, tuning=ev, seconds=spent(b, ev.kernel, ev.seconds))


def _cancelled(b: StateBatch, entry: e.Entry, ev: e.KernelCancelled) -> None:
    _finish_kernel(b, ev.kernel)
    b.kernel(ev.kernel, stage=Stage.CANCELLED, reason=ev.reason)


def _kernel_reopened(b: StateBatch, entry: e.Entry, ev: e.KernelReopened) -> None:
    known = b.peek("kernels").get(ev.kernel)
    if known is not None:
        b.kernel(
            ev.kernel, stage=Stage.BUILD, failure=None, verification=None, measurement=None, reason=ev.reason,
            again=known.again + 1, evidence=(), accepted="", sanitizing=None, same_as="", tuning=None, unsustained="",
        )  # fmt: skip
        b.drop_races(ev.kernel)


def _finish_kernel(b: StateBatch, kernel: str) -> None:
    known = b.peek("kernels").get(kernel)
    if known is not None and any(map(b.peek, StateBatch.WORK)):
        own = (work for name in StateBatch.WORK for work in b.peek(name) if work.subjects == (kernel,))
        if works := {work for work in own if work.kind in _WORK and work.number == known.attempt}:
            b.finish(*works)
        b.drop_races(kernel)


def spent(b: StateBatch, kernel: str, seconds: float) -> float:
    known = b.peek("kernels").get(kernel)
    return (known.seconds if known else 0.0) + seconds


FOLDS: Mapping[type, Fold] = {
    e.KernelDrafted: _drafted,
    e.IdeaImplemented: _implemented,
    e.AttemptFailed: _attempt_failed,
    e.AttemptRevised: _revised,
    e.KernelBuilt: _built,
    e.KernelMatched: _matched,
    e.KernelVerified: _verified,
    e.KernelMeasured: _measured,
    e.KernelSustained: _sustained,
    e.KernelFailed: _failed,
    e.KernelQuarantined: _quarantined,
    e.KernelAccepted: _accepted,
    e.KernelSanitized: _sanitized,
    e.KernelProfiled: _profiled,
    e.TuningAsked: _tuning_asked,
    e.KernelTuned: _tuned,
    e.KernelCancelled: _cancelled,
    e.KernelReopened: _kernel_reopened,
}
