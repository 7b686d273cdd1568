"""Commands on kernels: pins, branches, quarantine, remeasurements, tuning, and races."""

from __future__ import annotations

from collections.abc import Sequence

from engine.domain import commands as c
from engine.domain import corroboration, queries, races
from engine.domain import events as e
from engine.domain.errors import CommandRejected
from engine.domain.model import Failure, FailureKind
from engine.domain.rules import tuning
from engine.domain.rules.lookup import kernel_of, reopen_events
from engine.domain.state import Kernel, SessionState, Stage


def decide(state: SessionState, command: c.KernelCommand) -> tuple[e.Event, ...]:
    """Raises CommandRejected."""
    kernel = kernel_of(state, command.kernel)
    match command:
        case c.PinKernel():
            return () if kernel.id in state.pinned else (e.KernelPinned(kernel.id),)
        case c.UnpinKernel():
            return (e.KernelUnpinned(kernel.id),) if kernel.id in state.pinned else ()
        case c.PruneBranch(reason=reason):
            return _prune(state, kernel, reason)
        case c.ReopenBranch():
            if kernel.id not in state.pruned:
                raise CommandRejected(f"{kernel.id} itself is not pruned: reopen the pruned ancestor")
            return (e.BranchReopened(kernel.id),)
        case c.CancelKernel(reason=reason):
            if kernel.stage.settled:
                raise CommandRejected(f"{kernel.id} has already settled: it is {kernel.stage.value}")
            return (e.KernelCancelled(kernel.id, reason.strip() or "cancelled by hand"),)
        case c.AcceptKernel() | c.DiscardKernel():
            return (_judge_quarantined(kernel, command),)
        case c.RecordProfile(profile=profile):
            return (e.KernelProfiled(kernel.id, profile),)
        case c.TuneKernel():
            return tuning.decide(state, kernel)
        case c.Remeasure():
            if not kernel.stage.settled:
                raise CommandRejected(f"{kernel.id} is still in stage {kernel.stage.value}: wait until it has settled")
            return (*reopen_events(state), e.KernelReopened(kernel.id, "remeasured on request"))


def _judge_quarantined(kernel: Kernel, command: c.AcceptKernel | c.DiscardKernel) -> e.Event:
    if kernel.stage is not Stage.QUARANTINED:
        doubted = corroboration.is_doubted(kernel)
        why = "its time is not corroborated, so remeasure it" if doubted else f"it is {kernel.stage.value}"
        raise CommandRejected(f"{kernel.id} is not quarantined: {why}")
    if isinstance(command, c.DiscardKernel):
        return e.KernelFailed(kernel.id, Failure(FailureKind.REJECTED, command.reason.strip() or "; ".join(kernel.evidence)))
    if kernel.measurement is None:
        raise CommandRejected(f"{kernel.id} has no measurement to accept: discard or remeasure it")
    if not command.note.strip():
        raise CommandRejected("accepting a quarantined kernel needs a note that says why")
    return e.KernelAccepted(kernel.id, command.note)


def _prune(state: SessionState, kernel: Kernel, reason: str) -> tuple[e.Event, ...]:
    if kernel.id in state.pruned:
        return ()
    below = queries.descendants(state, kernel.id)
    waiting = [k for k in below if not state.kernels[k].stage.settled]
    why = f"branch {kernel.id} pruned"
    return (e.BranchPruned(kernel.id, reason.strip()), *(e.KernelCancelled(k, why) for k in waiting))


def decide_race(state: SessionState, command: c.RaceCommand) -> tuple[e.Event, ...]:
    """Raises CommandRejected."""
    match command:
        case c.RaceKernel(kernel, against):
            pair = (kernel_of(state, kernel), kernel_of(state, against) if against is not None else _incumbent(state))
            return _race_events(state, [_checked_pair(state, *pair)])
        case c.RaceLeaders(count):
            if count < 1:
                raise CommandRejected("the number of kernels to race must be at least 1")
            best = _incumbent(state)
            rivals = races.runners_up(state, count)
            if not rivals:
                raise CommandRejected(f"only {best.id} has a precise measurement on this device: no kernel can race it")
            return _race_events(state, [(kernel.id, best.id) for kernel in rivals])
        case c.RaceUndecided():
            open_races = races.undecided_races(state)
            if not open_races:
                raise CommandRejected("no race against the incumbent is undecided")
            best = _incumbent(state)
            return _race_events(state, [(r.against if r.kernel == best.id else r.kernel, best.id) for r in open_races])


def _incumbent(state: SessionState) -> Kernel:
    best = queries.incumbent(state)
    if best is None or not queries.may_lead(state, best):
        raise CommandRejected("no incumbent yet: name the kernel to race against")
    return best


def _checked_pair(state: SessionState, kernel: Kernel, against: Kernel) -> tuple[str, str]:
    """The two ids; if one of them is the incumbent, it is the second."""
    if kernel.id == against.id:
        is_incumbent = queries.incumbent(state) is kernel
        reason = "is the incumbent: name the kernel to race it against" if is_incumbent else "cannot race itself"
        raise CommandRejected(f"{kernel.id} {reason}")
    for one in (kernel, against):
        if not races.may_race(state, one):
            raise CommandRejected(f"{one.id} has no precise measurement on this device: remeasure it before the race")
    return (against.id, kernel.id) if kernel is queries.incumbent(state) else (kernel.id, against.id)


def _race_events(state: SessionState, pairs: Sequence[tuple[str, str]]) -> tuple[e.Event, ...]:
    known = [set(pair) for pair in state.asked]
    new = [e.RaceAsked(*pair) for pair in pairs if set(pair) not in known]
    return (*reopen_events(state), *new) if new else ()
