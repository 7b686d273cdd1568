"""``decide``: what a command causes in this state, or why it may not."""

from __future__ import annotations

from dataclasses import replace

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import queries
from engine.domain.errors import CommandRejected
from engine.domain.model import CATEGORIES, Author, IdeaText
from engine.domain.state import Idea, IdeaStatus, Kernel, SessionState

ENGINEER = Author("engineer")


def decide(state: SessionState, command: c.Command) -> tuple[e.Event, ...]:
    """Events that the command causes. Raises CommandRejected with one line for the person who asked."""
    if state.opened is None:
        raise CommandRejected("this session has not been opened yet")
    match command:
        case c.WriteIdea():
            return _write(state, command)
        case c.EditIdea():
            return (_edit(state, command),)
        case c.SelectIdeas():
            return _select(state, command)
        case c.RejectIdea(idea, reason):
            return (e.IdeaRejected(_undecided(state, idea).id, reason),)
        case c.ParkIdea(idea):
            return (e.IdeaParked(_undecided(state, idea).id),)
        case c.SeedKernel():
            return _seed(state, command)
        case c.AddNote(target, text):
            return (_note(state, target, text),)
        case c.SetMode(mode):
            return (e.ModeChanged(checked_mode(mode)),)
        case c.SetLimits(limits):
            return _limits(state, e.LimitsChanged(limits))
        case c.Instruct(text):
            return (e.InstructionsChanged(text),)
        case c.CloseSession(reason):
            return _close(state, reason)
        case _:
            return _decide_on_kernel(state, command)


def _decide_on_kernel(
    state: SessionState,
    command: c.PinKernel | c.UnpinKernel | c.PruneBranch | c.ReopenBranch | c.CancelKernel | c.MeasureAgain,
) -> tuple[e.Event, ...]:
    kernel = _kernel(state, command.kernel)
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
        case c.MeasureAgain():
            if not kernel.stage.settled:
                raise CommandRejected(f"{kernel.id} is still in stage {kernel.stage.value}; wait until it has settled")
            return (*_reopen(state), e.KernelReopened(kernel.id, "measured again on request"))


def checked_mode(mode: str) -> str:
    """``ask``, ``ask:SECONDS`` or ``autopilot``; anything else is rejected."""
    name, _, seconds = mode.partition(":")
    if mode == "autopilot" or mode == "ask" or (name == "ask" and seconds.isdecimal() and int(seconds) > 0):
        return mode
    raise CommandRejected(f"unknown mode {mode!r}: use ask, ask:SECONDS or autopilot")


def _kernel(state: SessionState, kernel: str) -> Kernel:
    found = state.kernels.get(kernel)
    if found is None:
        raise CommandRejected(f"there is no kernel {kernel!r} in this session")
    return found


def _idea(state: SessionState, idea: str) -> Idea:
    found = state.ideas.get(idea)
    if found is None:
        raise CommandRejected(f"there is no idea {idea!r} in this session")
    return found


def _undecided(state: SessionState, idea: str) -> Idea:
    found = _idea(state, idea)
    if found.status not in (IdeaStatus.PROPOSED, IdeaStatus.PARKED):
        raise CommandRejected(f"{idea} has already been {found.status.value}")
    return found


def _reopen(state: SessionState) -> tuple[e.Event, ...]:
    return (e.SessionReopened(),) if state.closed is not None else ()


def _home_round(state: SessionState) -> int:
    """Where an idea or a kernel brought in by hand belongs: the open round, or the one to come."""
    current = queries.open_round(state)
    return current.number if current else queries.last_round(state) + 1


def _checked_text(text: IdeaText) -> IdeaText:
    if not text.title.strip():
        raise CommandRejected("an idea needs a title")
    if text.category not in CATEGORIES:
        raise CommandRejected(f"unknown category {text.category!r}: use one of {', '.join(CATEGORIES)}")
    if text.predicted is not None and not 0 < text.predicted < 1e6:
        raise CommandRejected(f"a predicted speedup of {text.predicted:g} makes no sense; 1.0 is no change")
    return text


def _checked_branch(branch: int) -> int:
    if not 1 <= branch <= 64:
        raise CommandRejected(f"{branch} implementations of one idea: use 1 to 64")
    return branch


def _parent(state: SessionState, parent: str | None) -> str | None:
    if parent is None:
        best = queries.incumbent(state)
        return best.id if best else None
    return _kernel(state, parent).id


def _write(state: SessionState, command: c.WriteIdea) -> tuple[e.Event, ...]:
    assert state.opened is not None
    text = _checked_text(command.text)
    branch = _checked_branch(command.branch or state.opened.settings.branch)
    idea = e.ProposedIdea(f"i{state.next_idea}", text, _parent(state, command.parent), ENGINEER, branch)
    proposed = e.IdeasProposed(_home_round(state), (idea,), from_source=False)
    selected = (e.IdeaSelected(idea.id),) if command.select else ()
    return (*_reopen(state), proposed, *selected)


def _edit(state: SessionState, command: c.EditIdea) -> e.Event:
    idea = _undecided(state, command.idea)
    text = replace(
        idea.text,
        title=idea.text.title if command.title is None else command.title,
        rationale=idea.text.rationale if command.rationale is None else command.rationale,
        category=idea.text.category if command.category is None else command.category,
    )
    parent = idea.parent if command.parent is None else _kernel(state, command.parent).id
    branch = idea.branch if command.branch is None else _checked_branch(command.branch)
    return e.IdeaEdited(idea.id, _checked_text(text), parent, branch)


def _select(state: SessionState, command: c.SelectIdeas) -> tuple[e.Event, ...]:
    wanted = command.ideas or tuple(i.id for i in queries.pending_ideas(state))
    if not wanted:
        raise CommandRejected("no idea awaits a decision")
    return (*_reopen(state), *(e.IdeaSelected(_undecided(state, i).id) for i in dict.fromkeys(wanted)))


def _seed(state: SessionState, command: c.SeedKernel) -> tuple[e.Event, ...]:
    """A kernel by hand: with an idea it is that idea's implementation, else it brings an idea of its own."""
    round_number = max(_home_round(state), 0)
    kernel = f"k{state.next_kernel}"
    if command.idea is not None:
        return (*_reopen(state), *_seed_for_idea(state, command, kernel))
    title = command.title or f"Seed: {command.name}"
    parent = _kernel(state, command.parent).id if command.parent is not None else None
    text = IdeaText(title, CATEGORIES[0], f"Brought in by hand from {command.name}.", key=f"seed:{kernel}")
    idea = e.ProposedIdea(f"i{state.next_idea}", text, parent, ENGINEER, 1)
    return (
        *_reopen(state),
        e.IdeasProposed(round_number, (idea,), from_source=False),
        e.IdeaSelected(idea.id),
        _drafted(command, kernel, idea.id, parent, round_number),
        e.IdeaImplemented(idea.id, (kernel,)),
    )


def _seed_for_idea(state: SessionState, command: c.SeedKernel, kernel: str) -> tuple[e.Event, ...]:
    assert command.idea is not None
    idea = _idea(state, command.idea)
    if idea.status is IdeaStatus.REJECTED:
        raise CommandRejected(f"{idea.id} was rejected; seed the kernel without it or write a new idea")
    parent = _kernel(state, command.parent).id if command.parent is not None else idea.parent
    drafted = _drafted(command, kernel, idea.id, parent, idea.round)
    if idea.implemented:
        return (drafted,)
    selected = () if idea.status is IdeaStatus.SELECTED else (e.IdeaSelected(idea.id),)
    return (*selected, drafted, e.IdeaImplemented(idea.id, (kernel,), "written by hand"))


def _drafted(command: c.SeedKernel, kernel: str, idea: str, parent: str | None, round_number: int) -> e.KernelDrafted:
    return e.KernelDrafted(
        kernel, idea, parent, round_number, ENGINEER, command.name, command.dialect, command.contract, command.source,
        command.tunables, seed=True,
    )  # fmt: skip


def _prune(state: SessionState, kernel: Kernel, reason: str) -> tuple[e.Event, ...]:
    if kernel.id in state.pruned:
        return ()
    below = queries.descendants(state, kernel.id)
    waiting = [k for k in below if not state.kernels[k].stage.settled]
    why = f"branch {kernel.id} pruned"
    return (e.BranchPruned(kernel.id, reason), *(e.KernelCancelled(k, why) for k in waiting))


def _note(state: SessionState, target: str, text: str) -> e.Event:
    if not text.strip():
        raise CommandRejected("a note needs words")
    known = not target or target in state.kernels or target in state.ideas
    if not known and not (target.startswith("r") and target[1:].isdecimal() and int(target[1:]) in state.rounds):
        raise CommandRejected(f"there is no {target!r} to put a note on: name a kernel (k3), an idea (i2) or a round (r1)")
    return e.NoteAdded(target, text)


def _limits(state: SessionState, changed: e.LimitsChanged) -> tuple[e.Event, ...]:
    if state.closed is None:
        return (changed,)
    still = queries.stop_reason(replace(state, limits=changed.limits))
    return (changed,) if still is not None else (changed, e.SessionReopened())


def _close(state: SessionState, reason: str) -> tuple[e.Event, ...]:
    if state.closed is not None:
        raise CommandRejected(f"this session is closed already ({state.closed})")
    cancelled = [e.KernelCancelled(k.id, "session closed") for k in queries.unsettled(state)]
    return (*cancelled, e.SessionClosed(reason or "closed by hand"))
