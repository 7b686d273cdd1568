"""``decide``: what a command causes in this state, or why it may not."""

from __future__ import annotations

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain.errors import CommandRejected
from engine.domain.rules import on_ideas, on_kernels, on_races, on_session
from engine.domain.state import SessionState


def decide(state: SessionState, command: c.Command) -> tuple[e.Event, ...]:
    """Events that the command causes. Raises CommandRejected with one line for the person who asked."""
    if state.opened is None:
        raise CommandRejected("this session has not been opened yet")
    if isinstance(command, c.IdeaCommand):
        return on_ideas.decide(state, command)
    if isinstance(command, c.KernelCommand):
        return on_kernels.decide(state, command)
    if isinstance(command, c.RaceCommand):
        return on_races.decide(state, command)
    return on_session.decide(state, command)
