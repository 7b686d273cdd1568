"""Taking back the latest decision of a person, as long as nothing has been spent on it."""

from __future__ import annotations

from collections.abc import Iterator

from engine.domain import events as e
from engine.domain.decisions import PersonDecision
from engine.domain.errors import CommandRejected
from engine.domain.model import ENGINEER, Author
from engine.domain.rules.lookup import reopen_events
from engine.domain.state import CallStatus, Idea, IdeaStatus, ModelCall, SessionState
from engine.domain.work import WorkKey, WorkKind


def decide(state: SessionState, by: Author = ENGINEER) -> tuple[e.Event, ...]:
    """The latest decision is undone; of several approved ideas, those that nothing was spent on. Raises CommandRejected."""
    if not state.decisions:
        raise CommandRejected("no decision to undo")
    decision = state.decisions[-1]
    if not by.is_engineer and decision.by != by:
        raise CommandRejected(f"the latest decision ({decision.words}) is not yours: {decision.by.name} made it")
    if decision.kind.instead:
        raise CommandRejected(f"{decision.words} cannot be undone: {decision.kind.instead}")
    if reason := next(_changed_since(state, decision), ""):
        raise CommandRejected(f"{decision.words} cannot be undone: {reason}")
    spent = {idea: reason for idea in decision.ideas if (reason := _spent(state, decision, idea))}
    ideas = tuple(idea for idea in decision.ideas if idea not in spent)
    if spent and not ideas:
        raise CommandRejected(f"{decision.words} cannot be undone: {next(iter(spent.values()))}")
    undone = e.DecisionUndone(decision.seq, decision.words, ideas, tuple(decision.kernels), "; ".join(spent.values()))
    prompts = [call for idea in ideas for call in _calls(state, decision, idea) if call.status is CallStatus.OPEN]
    cancelled = [e.CallFailed(call.id, f"{decision.words} was undone", cancelled=True) for call in prompts]
    only_settings = bool(decision.settings) and not (ideas or decision.kernels)
    return (*(() if only_settings else reopen_events(state)), *cancelled, undone)


def _changed_since(state: SessionState, decision: PersonDecision) -> Iterator[str]:
    """Why the settings and kernels of the decision can no longer be restored."""
    for name, (_, after) in decision.settings.items():
        if getattr(state, name) != after:
            yield f"{name.replace('_', ' ')} changed since"
    for name, (_, after) in decision.kernels.items():
        if state.kernels.get(name) != after:
            yield f"{name} changed since"
        if any(name in (race.kernel, race.against) and race.at >= decision.at for race in state.races):
            yield f"{name} has raced since"
        if any(name in key.subjects for key in state.started) or state.incumbent == name:
            yield f"{name} is in use"


def _spent(state: SessionState, decision: PersonDecision, idea: str) -> str:
    """Why the decision on an idea can no longer be undone; empty if nothing has been spent on it."""
    before, after = decision.ideas[idea]
    now = state.ideas.get(idea)
    if now is None or now.kernels != after.kernels or now.implemented != after.implemented:
        written = ", ".join(now.kernels) if now is not None else ""
        return f"{idea} is written already: cancel or prune {written}" if written else f"{idea} is written already"
    if now != after:
        return f"{idea} changed since"
    for call in _calls(state, decision, idea):
        if not _costs_nothing(call):
            return f"{call.model} has been asked to write {idea} ({call.id})"
    if _returns_to_gate(before, after) and state.mode.is_autopilot:
        return "autopilot would approve it again: change the mode first"
    return ""


def _returns_to_gate(before: Idea, after: Idea) -> bool:
    return before.status is IdeaStatus.PROPOSED and after.status is not IdeaStatus.PROPOSED


def _calls(state: SessionState, decision: PersonDecision, idea: str) -> list[ModelCall]:
    """The calls that ask for the idea's code since the decision."""
    work = WorkKey(WorkKind.IMPLEMENT, (idea,))
    return [call for call in state.calls.values() if call.work == work and call.asked_at >= decision.at]


def _costs_nothing(call: ModelCall) -> bool:
    """Whether it is a prompt that no person has answered."""
    return call.by_hand and call.status is not CallStatus.ANSWERED
