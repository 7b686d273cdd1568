"""What a command about a kernel causes: pins, branches, quarantine, measuring again."""

from __future__ import annotations

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import queries
from engine.domain.errors import CommandRejected
from engine.domain.model import Failure, FailureKind
from engine.domain.rules.naming import kernel_of, reopening
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
                raise CommandRejected(f"{kernel.id} is not pruned itself; reopen the kernel that was pruned")
            return (e.BranchReopened(kernel.id),)
        case c.CancelKernel(reason=reason):
            if kernel.stage.settled:
                raise CommandRejected(f"{kernel.id} has already ended as {kernel.stage.value}")
            return (e.KernelCancelled(kernel.id, reason or "cancelled by hand"),)
        case c.AcceptKernel() | c.DiscardKernel():
            return (_judge_quarantined(kernel, command),)
        case c.RecordProfile(profile=profile):
            return (e.KernelProfiled(kernel.id, profile),)
        case c.MeasureAgain():
            if not kernel.stage.settled:
                raise CommandRejected(f"{kernel.id} is still in stage {kernel.stage.value}; wait until it has settled")
            return (*reopening(state), e.KernelReopened(kernel.id, "measured again on request"))


def _judge_quarantined(kernel: Kernel, command: c.AcceptKernel | c.DiscardKernel) -> e.Event:
    if kernel.stage is not Stage.QUARANTINED:
        raise CommandRejected(f"{kernel.id} is not in quarantine: it is {kernel.stage.value}")
    if isinstance(command, c.DiscardKernel):
        return e.KernelFailed(kernel.id, Failure(FailureKind.REJECTED, command.reason or "; ".join(kernel.evidence)))
    if kernel.measurement is None:
        raise CommandRejected(f"{kernel.id} has no measurement to accept: discard it or measure it again")
    if not command.note.strip():
        raise CommandRejected("accepting a kernel out of quarantine needs a note: why do you believe it?")
    return e.KernelAccepted(kernel.id, command.note)


def _prune(state: SessionState, kernel: Kernel, reason: str) -> tuple[e.Event, ...]:
    if kernel.id in state.pruned:
        return ()
    below = queries.descendants(state, kernel.id)
    waiting = [k for k in below if not state.kernels[k].stage.settled]
    why = f"branch {kernel.id} pruned"
    return (e.BranchPruned(kernel.id, reason), *(e.KernelCancelled(k, why) for k in waiting))
