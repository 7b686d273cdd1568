"""Looks up the idea, kernel or call that a command names; rejects unknown ones."""

from __future__ import annotations

from engine.domain import events as e
from engine.domain.errors import CommandRejected
from engine.domain.state import Idea, IdeaStatus, Kernel, ModelCall, SessionState


def kernel_of(state: SessionState, kernel: str) -> Kernel:
    found = state.kernels.get(kernel)
    if found is None:
        raise CommandRejected(f"unknown kernel {kernel!r} in this session")
    return found


def idea_of(state: SessionState, idea: str) -> Idea:
    found = state.ideas.get(idea)
    if found is None:
        raise CommandRejected(f"unknown idea {idea!r} in this session")
    return found


def call_of(state: SessionState, call: str) -> ModelCall:
    found = state.calls.get(call)
    if found is None:
        raise CommandRejected(f"unknown call {call!r} in this session")
    return found


_DECISIONS = {IdeaStatus.SELECTED: "approved", IdeaStatus.REJECTED: "rejected"}


def undecided_idea(state: SessionState, idea: str) -> Idea:
    found = idea_of(state, idea)
    if found.status not in (IdeaStatus.PROPOSED, IdeaStatus.PARKED):
        raise CommandRejected(f"{idea} has already been {_DECISIONS[found.status]}")
    return found


def reopen_events(state: SessionState) -> tuple[e.Event, ...]:
    return (e.SessionReopened(),) if state.closed is not None else ()
