"""``record``: the events of a work item's result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.domain import columns, queries, races
from engine.domain import events as e
from engine.domain import work as w
from engine.domain.corroboration import UNEXPLAINED
from engine.domain.model import Blob, Contract, Failure, FailureKind, Measurement, RaceOutcome
from engine.domain.profile import Profile
from engine.domain.regimes import Regime
from engine.domain.rules import dispatching, lifecycle, tuning
from engine.domain.similarity import near_duplicate
from engine.domain.state import IdeaStatus, SessionState, Stage
from engine.domain.strategy.evidence import combines

_CONTENDER_SHARE = 0.85
"""A screened kernel is measured precisely when the upper end of its speedup interval reaches this share of the incumbent's."""

_KEPT = "the last kernel of the limit is kept for a dispatch"


def record(state: SessionState, work: w.Work, result: w.Result) -> tuple[e.Event, ...]:
    """The events of the result; none if it no longer matters, e.g. because the kernel was cancelled meanwhile."""
    match work, result:
        case ((w.Sanitize() | w.ReadCounters() | w.Tune() | w.Sustain()), _):
            return _of_measured_kernel(state, work, result)
        case w.Race(), w.Abandoned(reason):
            # It is unknown which of the two kernels is at fault, if any: the incumbent stays.
            undecided = e.KernelRaced(
                work.kernel, work.against, RaceOutcome.UNDECIDED, effort=work.effort, note=reason, worker=result.worker
            )  # fmt: skip
            return (undecided,) if work in races.pending_races(state) else ()
        case _, w.Impossible():
            return (e.WorkFailed(str(work.key), result.reason, result.called_off),)
        case ((w.Propose() | w.Implement() | w.Repair()), w.Unaffordable()):
            return (e.BudgetReached(str(work.key), result.reason),)
        case w.Prepare(), w.Prepared():
            return _prepared(state, result)
        case w.Propose(), w.Proposals():
            return _proposed(state, work, result)
        case w.Implement(), w.Drafts():
            return _implemented(state, work, result)
        case w.Repair(), w.Repaired():
            return _if_current(state, work, (e.AttemptRevised(work.kernel, work.attempt + 1, result.source),))
        case w.Repair(), w.Failed():
            failure = state.kernels[work.kernel].failure or result.failure
            return _if_current(state, work, (e.KernelFailed(work.kernel, failure, result.seconds),))
        case w.Race(), _:
            return _raced(state, work, result)
        case ((w.Build() | w.Verify() | w.Measure()), _):
            return _if_current(state, work, _kernel_result(state, work, result))
    raise TypeError(f"{type(result).__name__} is not a result of {work.key}")


def _of_measured_kernel(
    state: SessionState, work: w.Sanitize | w.ReadCounters | w.Tune | w.Sustain, result: w.Result
) -> tuple[e.Event, ...]:
    """Results beside the verdict of a kernel that has one."""
    match work:
        case w.Sanitize():
            return _sanitized(state, work, result)
        case w.ReadCounters():
            return _profiled(state, work, result)
        case w.Tune():
            return tuning.events_of(state, work, result)
        case w.Sustain():
            return _sustained(state, work, result)


def _prepared(state: SessionState, result: w.Prepared) -> tuple[e.Event, ...]:
    events: tuple[e.Event, ...] = (e.SessionPrepared(result.device, result.preparation),)
    return (*events, *lifecycle.prepared_again_events(state, result.device)) if state.epoch else events


_STAGE: Mapping[type[w.Work], Stage] = {
    w.Build: Stage.BUILD,
    w.Verify: Stage.VERIFY,
    w.Measure: Stage.MEASURE,
    w.Repair: Stage.REPAIR,
}
"""The stage in which a result of the work counts: the kernel may have been cancelled and reopened meanwhile."""


def _if_current(
    state: SessionState, work: w.Build | w.Verify | w.Measure | w.Repair, events: tuple[e.Event, ...]
) -> tuple[e.Event, ...]:
    kernel = state.kernels.get(work.kernel)
    if kernel is None or kernel.stage is not _STAGE[type(work)] or kernel.attempt != work.attempt:
        return ()
    return events


def _kernel_result(state: SessionState, work: w.Build | w.Verify | w.Measure, result: w.Result) -> tuple[e.Event, ...]:
    match result:
        case w.Built():
            return (
                e.KernelBuilt(
                    work.kernel, result.artefact, result.seconds, result.resources, result.log, result.instructions,
                    result.machine_code,
                ),
            )  # fmt: skip
        case w.Verified():
            return _verified(state, work.kernel, result)
        case w.Measured():
            return (e.KernelMeasured(work.kernel, result.measurement, result.seconds, result.worker),)
        case w.Suspected():
            return (
                e.KernelQuarantined(
                    work.kernel, result.evidence, result.verification, result.measurement, result.seconds, result.worker,
                ),
            )  # fmt: skip
        case w.Failed():
            return (_failed(state, work.kernel, work.attempt, result),)
        case w.Abandoned(reason, worker):
            return (e.KernelFailed(work.kernel, Failure(FailureKind.CRASHED, reason), worker=worker),)
    raise TypeError(f"{type(result).__name__} is not a result of {work.key}")


def _sanitized(state: SessionState, work: w.Sanitize, result: w.Result) -> tuple[e.Event, ...]:
    """Findings quarantine the finalist; sanitizers that failed to run are recorded and block nothing."""
    kernel = state.kernels.get(work.kernel)
    if kernel is None or kernel.stage is not Stage.MEASURED or kernel.attempt != work.attempt:
        return ()
    match result:
        case w.Sanitized(tools, findings, note, log, seconds, worker):
            sanitized = e.KernelSanitized(kernel.id, work.attempt, tools, findings, note, log, seconds, worker)
            return (sanitized, e.KernelQuarantined(kernel.id, findings)) if findings else (sanitized,)
        case w.Impossible(reason) | w.Abandoned(reason):
            return (e.KernelSanitized(kernel.id, work.attempt, (), (), reason),)
    raise TypeError(f"{type(result).__name__} is not a result of {work.key}")


def _sustained(state: SessionState, work: w.Sustain, result: w.Result) -> tuple[e.Event, ...]:
    """The times beside the kernel's measurement; doubts that noise cannot explain quarantine it. Without times, why."""
    kernel = state.kernels.get(work.kernel)
    if kernel is None or kernel.stage is not Stage.MEASURED or kernel.attempt != work.attempt:
        return ()
    match result:
        case w.BackToBack(times, seconds, note, evidence, worker):
            sustained = e.KernelSustained(kernel.id, work.attempt, times, note, seconds, worker)
            return (sustained, e.KernelQuarantined(kernel.id, evidence)) if evidence else (sustained,)
        case w.Failed(failure, seconds, _, worker):
            return (e.KernelFailed(kernel.id, failure, seconds, worker),)
        case w.Impossible(reason) | w.Abandoned(reason):
            return (e.KernelSustained(kernel.id, work.attempt, note=reason),)
    raise TypeError(f"{type(result).__name__} is not a result of {work.key}")


def _profiled(state: SessionState, work: w.ReadCounters, result: w.Result) -> tuple[e.Event, ...]:
    """Counters that could not be read are recorded with the reason and hold up nothing."""
    match result:
        case w.Profiled(profile):
            return (e.KernelProfiled(work.kernel, replace(profile, attempt=work.attempt)),)
        case w.Impossible(reason) | w.Abandoned(reason):
            return (e.KernelProfiled(work.kernel, Profile(work.attempt, note=reason)),)
    raise TypeError(f"{type(result).__name__} is not a result of {work.key}")


def _raced(state: SessionState, work: w.Race, result: w.Result) -> tuple[e.Event, ...]:
    """The race's outcome, or the failure of one of the two; nothing if the race is no longer pending.

    ``lifecycle`` then makes a winner the incumbent.
    """
    if work not in races.pending_races(state):
        return ()
    match result:
        case w.Raced():
            assert state.preparation is not None, "kernels are measured after the preparation"
            ratio = races.with_noise_floor(result.ratio, state.preparation.same)
            outcome = races.outcome(ratio, corroborated=result.corroborated)
            doubts = () if result.corroborated else result.doubts or (UNEXPLAINED,)
            raced = e.KernelRaced(
                work.kernel, work.against, outcome, ratio, work.effort, result.pairs, result.samples, result.raw, result.note,
                result.seconds, doubts, result.by_workload, result.worker, result.regime is Regime.SUSTAINED,
            )  # fmt: skip
            return (raced,)
        case w.Failed(failure, seconds, at_fault, worker):
            return (e.KernelFailed(at_fault or work.kernel, failure, seconds, worker),)
    raise TypeError(f"{type(result).__name__} is not a result of {work.key}")


def _failed(state: SessionState, kernel_id: str, attempt: int, result: w.Failed) -> e.Event:
    """Models repair their own kernels a limited number of times; other authors are not asked."""
    assert state.opened is not None
    kernel = state.kernels[kernel_id]
    repairable = result.failure.kind in (FailureKind.BUILD_FAILED, FailureKind.MISMATCH, FailureKind.CRASHED)
    if kernel.author.is_model and repairable and attempt < state.opened.settings.repairs:
        return e.AttemptFailed(kernel_id, attempt, result.failure, result.seconds, result.worker)
    return e.KernelFailed(kernel_id, result.failure, result.seconds, result.worker)


def _verified(state: SessionState, kernel_id: str, result: w.Verified) -> tuple[e.Event, ...]:
    verified = e.KernelVerified(kernel_id, result.verification, result.screen, result.seconds, result.worker)
    if wants_precision(state, kernel_id, result.screen):
        return (verified,)
    return (verified, e.KernelMeasured(kernel_id, result.screen, 0.0, result.worker))


def wants_precision(state: SessionState, kernel_id: str, screen: Measurement) -> bool:
    """Whether a screened kernel is measured precisely: it may beat the incumbent, on some workloads of a suite beats the best
    kernel by enough for a dispatch, or is a root, a seed, pinned or remeasured."""
    kernel = state.kernels[kernel_id]
    to_beat = races.kernel_to_beat(state)
    if kernel.seed or kernel.parent is None or kernel_id in state.pinned or kernel.again or to_beat is None:
        return True
    mine = screen.speedup.get(queries.ranking_baseline(state))
    leading = queries.speedup(state, to_beat)
    if mine is None or leading is None or mine.high >= _CONTENDER_SHARE * leading.value:
        return True
    return kernel.contract is not Contract.MODULE and columns.gain(state, screen) >= columns.LEAST_PROMISE


def _proposed(state: SessionState, work: w.Propose, result: w.Proposals) -> tuple[e.Event, ...]:
    assert state.opened is not None
    settings = state.opened.settings
    branch = 1 if settings.strategy == "sequential" or work.round == 0 else settings.branch
    kept: list[e.ProposedIdea] = []
    dropped: list[str] = []
    for proposal in sorted(result.ideas, key=lambda one: one.surplus):
        if _is_known(state, kept, proposal):
            dropped.append(proposal.text.title)
            continue
        identity = f"i{state.next_idea + len(kept)}"
        parent = proposal.parent if proposal.parent in state.kernels else None
        kept.append(e.ProposedIdea(identity, proposal.text, parent, proposal.author, branch))
    parked = [e.IdeaParked(idea.id, queries.SURPLUS) for idea in kept[max(work.count, 1) :]]
    return (e.IdeasProposed(work.round, tuple(kept), from_source=True, dropped=tuple(dropped)), *parked)


def _is_known(state: SessionState, kept: list[e.ProposedIdea], proposal: w.Proposal) -> bool:
    tried = (idea for idea in state.ideas.values() if not queries.is_surplus(idea))
    earlier = [(i.text, i.parent) for i in tried] + [(i.text, i.parent) for i in kept]
    return any(near_duplicate(text, proposal.text, same_parent=parent == proposal.parent) for text, parent in earlier)


_Variant = tuple[Blob, tuple[tuple[str, int], ...]]


def _tried_variants(state: SessionState) -> dict[_Variant, str]:
    """All code that was tried with its tunables, and its normal forms, including failed attempts → the kernel."""
    kernels = [k for k in state.kernels.values() if k.stage is not Stage.CANCELLED]
    return {(code, tuple(sorted(k.tunables.items()))): k.id for k in kernels for code in (*k.earlier, k.source, k.form) if code}


def _implemented(state: SessionState, work: w.Implement, result: w.Drafts) -> tuple[e.Event, ...]:
    idea = state.ideas[work.idea]
    if idea.implemented or idea.status is not IdeaStatus.SELECTED:
        return ()
    known = _tried_variants(state)
    most = state.limits.kernels
    kept = 0 if most is None or combines(idea) else dispatching.reserved(state)
    room = len(result.drafts) if most is None else most - len(state.kernels) - kept
    events: list[e.Event] = []
    ids: list[str] = []
    repeated = 0
    alike: list[str] = []
    for draft in result.drafts:
        values = tuple(sorted(draft.tunables.items()))
        if (draft.source, values) in known or len(ids) >= room:
            repeated += (draft.source, values) in known
            continue
        if draft.form and (draft.form, values) in known:
            alike.append(known[draft.form, values])
            continue
        kernel = f"k{state.next_kernel + len(ids)}"
        known |= {(code, values): kernel for code in (draft.source, draft.form) if code}
        ids.append(kernel)
        events.append(
            e.KernelDrafted(
                kernel, idea.id, idea.parent, idea.round, draft.author, draft.name, draft.dialect, draft.contract,
                draft.source, draft.tunables, form=draft.form, members=draft.members, choices=draft.choices,
            )
        )  # fmt: skip
    same = [f"the same code as {kernel} but for comments, layout and names" for kernel in dict.fromkeys(alike)]
    left_out = kept and len(result.drafts) > len(ids) + repeated + len(alike)
    why = [f"{repeated} already in the tree" if repeated else "", _KEPT if left_out else ""]
    note = "; ".join(filter(None, [result.note, *why, *same]))
    return (*events, e.IdeaImplemented(idea.id, tuple(ids), note))
