"""Whether an event is valid in a state. The fold tolerates invalid events; the rules must never write them."""

from __future__ import annotations

from engine.domain import events as e
from engine.domain import queries, races
from engine.domain.state import IdeaStatus, SessionState, Stage
from engine.domain.work import WorkKind

_UNDECIDED = (IdeaStatus.PROPOSED, IdeaStatus.PARKED)


def misfit(state: SessionState, event: e.Event) -> str:
    """Why the event is invalid in this state; empty if it is valid."""
    if state.opened is None:
        return "" if isinstance(event, e.SessionOpened) else "before session.opened"
    return _of_session(state, event) or _of_idea(state, event) or _of_kernel(state, event)


def _of_session(state: SessionState, event: e.Event) -> str:
    match event:
        case e.SessionOpened():
            return "opened twice"
        case e.SessionClosed() if state.closed is not None:
            return "closed twice"
        case e.SessionReopened() if state.closed is None:
            return "reopened while open"
        case e.RoundOpened(number, parents):
            if number != queries.last_round(state) + 1 or queries.open_round(state) is not None:
                return "rounds do not follow each other"
            return "a parent that is not there" if set(parents) - set(state.kernels) else ""
        case e.RoundClosed(number):
            current = queries.open_round(state)
            return "" if current is not None and current.number == number else "no such round is open"
    return ""


def _of_idea(state: SessionState, event: e.Event) -> str:
    match event:
        case e.IdeasProposed():
            ids = [f"i{state.next_idea + n}" for n in range(len(event.ideas))]
            if [idea.id for idea in event.ideas] != ids:
                return "ideas are not numbered in order"
            if any(idea.parent is not None and idea.parent not in state.kernels for idea in event.ideas):
                return "an idea on a kernel that is not there"
            known = state.rounds.get(event.round)
            return "a round's question was answered twice" if event.from_source and (known is None or known.answered) else ""
        case e.IdeaEdited(idea) | e.IdeaSelected(idea) | e.IdeaRejected(idea):
            found = state.ideas.get(idea)
            return "" if found is not None and found.status in _UNDECIDED else "not undecided"
        case e.IdeaParked(idea):
            found = state.ideas.get(idea)
            waits = found is not None and found.status is not IdeaStatus.REJECTED and not found.implemented
            return "" if waits else "nothing to park"
        case e.IdeaImplemented(idea, kernels):
            found = state.ideas.get(idea)
            if found is None or found.implemented:
                return "implemented twice, or never proposed"
            return "" if set(kernels) <= set(found.kernels) else "it lists kernels that are not drafts of it"
    return ""


def _of_race(state: SessionState, event: e.KernelRaced | e.RaceAsked | e.IncumbentChanged) -> str:
    if isinstance(event, e.IncumbentChanged):
        if event.over != state.incumbent or event.kernel == event.over:
            return "it does not follow the one that led"
        leads = state.kernels.get(event.kernel)
        return "" if leads is not None and queries.may_lead(state, leads) else "it cannot lead"
    pair = [state.kernels.get(name) for name in (event.kernel, event.against)]
    if any(k is None or not races.may_race(state, k) for k in pair) or event.kernel == event.against:
        return "a race of what cannot race"
    if isinstance(event, e.KernelRaced):
        return "" if _races(state, event.kernel) and _races(state, event.against) else "a race that was never started"
    return ""


def _races(state: SessionState, kernel: str) -> bool:
    return any(key.kind == WorkKind.RACE and kernel in key.subjects for key in state.started)


def _is_raced_or_sustained(state: SessionState, kernel: str) -> bool:
    sustained = any(key.kind == WorkKind.SUSTAIN and kernel in key.subjects for key in state.started)
    return sustained or _races(state, kernel)


_WAY = {
    e.KernelBuilt: Stage.BUILD,
    e.KernelVerified: Stage.VERIFY,
    e.KernelMeasured: Stage.MEASURE,
    e.KernelSustained: Stage.MEASURED,
    e.AttemptRevised: Stage.REPAIR,
}


def _of_kernel(state: SessionState, event: e.Event) -> str:
    if isinstance(event, e.KernelDrafted):
        if event.kernel != f"k{state.next_kernel}":
            return "kernels are not numbered in order"
        if event.idea not in state.ideas or state.ideas[event.idea].status is IdeaStatus.REJECTED:
            return "a draft of no idea"
        return "" if event.parent is None or event.parent in state.kernels else "a draft on a kernel that is not there"
    kernel = state.kernels.get(getattr(event, "kernel", ""))
    if kernel is None:
        return "no such kernel" if hasattr(event, "kernel") else ""
    if isinstance(event, e.KernelRaced | e.RaceAsked | e.IncumbentChanged):
        return _of_race(state, event)
    if type(event) in _WAY:
        return "" if kernel.stage is _WAY[type(event)] else f"{type(event).__name__} in stage {kernel.stage.value}"
    match event:
        case e.KernelMatched(same_as=same_as):
            found = queries.twin(state, kernel) if kernel.stage is Stage.VERIFY else None
            return "" if found is not None and found.id == same_as else "the verdict of another kernel"
        case e.AttemptFailed(attempt=attempt) if kernel.stage.settled or attempt != kernel.attempt:
            return "a failure of another attempt"
        case e.KernelQuarantined() if kernel.stage not in (Stage.VERIFY, Stage.MEASURE, Stage.MEASURED):
            return f"put into quarantine when it was {kernel.stage.value}"
        case e.KernelAccepted() if kernel.stage is not Stage.QUARANTINED:
            return f"accepted when it was {kernel.stage.value}"
        case e.KernelFailed() if kernel.stage is Stage.QUARANTINED:
            return ""
        case e.KernelFailed() if kernel.stage is Stage.MEASURED and _is_raced_or_sustained(state, kernel.id):
            return ""
        case e.KernelFailed() | e.KernelCancelled() if kernel.stage.settled:
            return f"ended after it was {kernel.stage.value}"
    return ""
