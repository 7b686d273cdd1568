"""Who may ask for what. The engineer may ask for everything; other people may not name programs; agents never decide."""

from __future__ import annotations

from engine.domain import commands as c
from engine.domain.errors import CommandRejected
from engine.domain.model import Author
from engine.domain.rules.lookup import idea_of, kernel_of
from engine.domain.state import IdeaStatus, SessionState

_OF_AGENTS = (
    c.WriteIdea | c.EditIdea | c.ParkIdea | c.AttachKernel | c.DetachKernel | c.SeedKernel | c.CancelKernel | c.Remeasure
    | c.RecordProfile | c.RaceKernel | c.AddNote
)  # fmt: skip


def check(state: SessionState, command: c.Command, by: Author) -> None:
    """Raises CommandRejected if ``by`` may not ask for this."""
    if by.is_engineer or by.is_engine:
        return
    if isinstance(command, c.EditIdea) and command.writer is not None:
        raise CommandRejected(f"{by} may not name a writer: only the engineer may, because a writer can be a program")
    if isinstance(command, c.SetModels) and not by.is_agent:
        raise CommandRejected(f"{by} may not choose models: only the engineer may, because a model can be a program")
    if by.decides:
        return
    if not by.is_agent:
        raise CommandRejected(f"{by.name[:80]!r} may not steer this session")
    if not isinstance(command, _OF_AGENTS):
        raise CommandRejected(f"{by} may not {_verb(command)}: the engineer decides that")
    match command:
        case c.WriteIdea(select=True):
            raise CommandRejected(f"{by} may not approve an idea: the engineer decides that")
        case c.EditIdea(idea=idea) | c.ParkIdea(idea) | c.AttachKernel(idea) | c.DetachKernel(idea):
            if idea_of(state, idea).author != by:
                raise CommandRejected(f"{idea} is not an idea of {by}")
        case c.CancelKernel(kernel) | c.Remeasure(kernel):
            if kernel_of(state, kernel).author != by:
                raise CommandRejected(f"{kernel} is not a kernel of {by}")
        case c.SeedKernel():
            _check_seed(state, command, by)
        case _:
            pass


def _check_seed(state: SessionState, command: c.SeedKernel, by: Author) -> None:
    """An agent's kernel is evaluated only for an idea that was approved, except on autopilot."""
    if command.idea is None:
        if not state.mode.is_autopilot:
            raise CommandRejected(f"{by} must propose an idea first: the engineer approves ideas in this session")
        return
    idea = idea_of(state, command.idea)
    if idea.status is not IdeaStatus.SELECTED:
        waits = "awaits approval" if idea.status is IdeaStatus.PROPOSED else f"was {idea.status.value}"
        raise CommandRejected(f"{idea.id} {waits}: {by} may write a kernel only for an approved idea")
    if idea.author != by and not idea.author.decides:
        raise CommandRejected(f"{idea.id} is an idea of {idea.author}: {by} may write its own ideas and those of people")


def _verb(command: c.Command) -> str:
    return {
        c.SelectIdeas: "approve an idea", c.RejectIdea: "reject an idea", c.ReorderIdeas: "order ideas",
        c.AcceptKernel: "accept a quarantined kernel", c.DiscardKernel: "discard a kernel", c.SetMode: "set the approval mode",
        c.SetLimits: "change limits", c.SetPauses: "change pauses", c.PauseSearch: "pause the search",
        c.ResumeSearch: "resume the search", c.EndSession: "end the session", c.Instruct: "set instructions",
        c.AnswerCall: "answer a prompt", c.CancelCall: "cancel a call", c.RaceLeaders: "race other kernels",
        c.RaceUndecided: "race other kernels", c.PinKernel: "pin a kernel", c.UnpinKernel: "unpin a kernel",
        c.PruneBranch: "prune a branch", c.ReopenBranch: "reopen a branch", c.SetModels: "choose models",
        c.UndoDecision: "undo a decision", c.TuneKernel: "tune a kernel",
    }.get(type(command), type(command).__name__)  # fmt: skip
