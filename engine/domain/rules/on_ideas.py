"""Commands on ideas: write, edit, order, approve, reject, park, attach kernels; and seeding a kernel."""

from __future__ import annotations

from dataclasses import replace

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import queries
from engine.domain.errors import CommandRejected
from engine.domain.model import CATEGORIES, ENGINEER, Author, IdeaText
from engine.domain.rules.lookup import idea_of, kernel_of, reopen_events, undecided_idea
from engine.domain.state import Idea, IdeaStatus, SessionState
from engine.domain.work import WorkKey, WorkKind


def decide(state: SessionState, command: c.IdeaCommand, by: Author = ENGINEER) -> tuple[e.Event, ...]:
    """Raises CommandRejected."""
    match command:
        case c.WriteIdea():
            return _write(state, command, by)
        case c.EditIdea():
            return _edit(state, command)
        case c.ReorderIdeas(ideas):
            return _reorder(state, ideas)
        case c.AttachKernel(idea, kernel):
            return (e.KernelAttached(_unwritten(state, idea).id, kernel_of(state, kernel).id),)
        case c.DetachKernel(idea, kernel):
            return (_remove_material(_unwritten(state, idea), kernel),)
        case c.SelectIdeas():
            return _select(state, command)
        case c.RejectIdea(idea, reason):
            return (e.IdeaRejected(_withdrawable(state, idea).id, reason),)
        case c.ParkIdea(idea):
            return (e.IdeaParked(_withdrawable(state, idea).id),)
        case c.SeedKernel():
            return _seed(state, command, by)


def _withdrawable(state: SessionState, idea: str) -> Idea:
    """An undecided idea, or an approved one that its agent has not written: the agent may be gone."""
    found = idea_of(state, idea)
    return found if queries.awaits_agent(state, found) else undecided_idea(state, idea)


def _write(state: SessionState, command: c.WriteIdea, by: Author) -> tuple[e.Event, ...]:
    assert state.opened is not None
    text = _checked_text(command.text)
    branch = _checked_branch(command.branch or state.opened.settings.branch)
    idea = e.ProposedIdea(f"i{state.next_idea}", text, _parent(state, command.parent), by, branch)
    proposed = e.IdeasProposed(_home_round(state), (idea,), from_source=False)
    attached = tuple(e.KernelAttached(idea.id, kernel_of(state, k).id) for k in dict.fromkeys(command.materials))
    selected = (e.IdeaSelected(idea.id),) if command.select else ()
    return (*reopen_events(state), proposed, *attached, *selected)


def _edit(state: SessionState, command: c.EditIdea) -> tuple[e.Event, ...]:
    """Nothing if everything stays as it is: an idea that was only looked at is not edited."""
    idea = _editable(state, command)
    text = replace(
        idea.text,
        title=idea.text.title if command.title is None else command.title,
        rationale=idea.text.rationale if command.rationale is None else command.rationale,
        category=idea.text.category if command.category is None else command.category,
        predicted=idea.text.predicted if command.predicted is None else command.predicted,
    )
    parent = idea.parent if command.parent is None else kernel_of(state, command.parent).id
    branch = idea.branch if command.branch is None else _checked_branch(command.branch)
    writer = idea.writer if command.writer is None else command.writer
    kept = (text, parent, branch, writer) == (idea.text, idea.parent, idea.branch, idea.writer)
    return () if kept else (e.IdeaEdited(idea.id, _checked_text(text), parent, branch, writer),)


def _editable(state: SessionState, command: c.EditIdea) -> Idea:
    """An undecided idea, or an approved one that is not written if only its writer changes: the former may have failed."""
    found = idea_of(state, command.idea)
    only_writer = command.writer is not None and command == c.EditIdea(found.id, writer=command.writer)
    if not only_writer or found.status is not IdeaStatus.SELECTED or found.implemented:
        return undecided_idea(state, command.idea)
    if WorkKey(WorkKind.IMPLEMENT, (found.id,)) in state.started:
        raise CommandRejected(f"{found.id} is being written: cancel its model call first")
    return found


def _reorder(state: SessionState, wanted: tuple[str, ...]) -> tuple[e.Event, ...]:
    first = tuple(dict.fromkeys(undecided_idea(state, idea).id for idea in wanted))
    if not first:
        raise CommandRejected("name the ideas in the order in which they should be implemented")
    rest = tuple(i.id for i in queries.pending_ideas(state) if i.id not in first)
    return (e.IdeasReordered((*first, *rest)),)


def _remove_material(idea: Idea, kernel: str) -> e.Event:
    if kernel not in idea.materials:
        raise CommandRejected(f"{kernel} is not attached to {idea.id}")
    return e.KernelDetached(idea.id, kernel)


def _unwritten(state: SessionState, idea: str) -> Idea:
    found = idea_of(state, idea)
    if found.implemented or found.status is IdeaStatus.REJECTED:
        raise CommandRejected(f"{idea} has already been {'implemented' if found.implemented else 'rejected'}")
    return found


def _select(state: SessionState, command: c.SelectIdeas) -> tuple[e.Event, ...]:
    wanted = command.ideas or tuple(i.id for i in queries.pending_ideas(state))
    if not wanted:
        raise CommandRejected("no idea awaits approval")
    return (*reopen_events(state), *(e.IdeaSelected(undecided_idea(state, i).id) for i in dict.fromkeys(wanted)))


def _home_round(state: SessionState) -> int:
    """The round of an idea or a kernel of the engineer: the open round, or the next one."""
    current = queries.open_round(state)
    return current.number if current else queries.last_round(state) + 1


def _checked_text(text: IdeaText) -> IdeaText:
    if not text.title.strip():
        raise CommandRejected("an idea needs a title")
    if text.category not in CATEGORIES:
        raise CommandRejected(f"unknown category {text.category!r}: use one of {', '.join(CATEGORIES)}")
    if text.predicted is not None and not 0 < text.predicted < 1e6:
        raise CommandRejected(f"invalid predicted speedup {text.predicted:g}: use a positive factor; 1.0 is no change")
    return text


def _checked_branch(branch: int) -> int:
    if not 1 <= branch <= 64:
        raise CommandRejected(f"{branch} implementations of one idea: use 1 to 64")
    return branch


def _parent(state: SessionState, parent: str | None) -> str | None:
    if parent is None:
        return queries.default_parent(state)
    return kernel_of(state, parent).id


def _seed(state: SessionState, command: c.SeedKernel, by: Author) -> tuple[e.Event, ...]:
    """Seeds a kernel: as the implementation of ``command.idea``, or of a new idea made for it."""
    round_number = max(_home_round(state), 0)
    kernel = f"k{state.next_kernel}"
    if command.idea is not None:
        return (*reopen_events(state), *_seed_for_idea(state, command, kernel, by))
    title = command.title or f"Seed: {command.name}"
    parent = kernel_of(state, command.parent).id if command.parent is not None else None
    text = IdeaText(title, CATEGORIES[0], f"Seeded by {_person(by)} from {command.name}.", key=f"seed:{kernel}")
    idea = e.ProposedIdea(f"i{state.next_idea}", text, parent, by, 1)
    return (
        *reopen_events(state),
        e.IdeasProposed(round_number, (idea,), from_source=False),
        e.IdeaSelected(idea.id),
        _drafted(command, kernel, idea.id, parent, round_number, by),
        e.IdeaImplemented(idea.id, (kernel,)),
    )


def _person(by: Author) -> str:
    return "the engineer" if by.is_engineer else by.name


def _seed_for_idea(state: SessionState, command: c.SeedKernel, kernel: str, by: Author) -> tuple[e.Event, ...]:
    assert command.idea is not None
    idea = idea_of(state, command.idea)
    if idea.status is IdeaStatus.REJECTED:
        raise CommandRejected(f"{idea.id} was rejected: seed the kernel without an idea, or write a new one")
    parent = kernel_of(state, command.parent).id if command.parent is not None else idea.parent
    drafted = _drafted(command, kernel, idea.id, parent, idea.round, by)
    if idea.implemented:
        return (drafted,)
    selected = () if idea.status is IdeaStatus.SELECTED else (e.IdeaSelected(idea.id),)
    return (*selected, drafted, e.IdeaImplemented(idea.id, (kernel,), "" if by.is_agent else "written by hand"))


def _drafted(
    command: c.SeedKernel, kernel: str, idea: str, parent: str | None, round_number: int, by: Author
) -> e.KernelDrafted:
    return e.KernelDrafted(
        kernel, idea, parent, round_number, by, command.name, command.dialect, command.contract, command.source,
        command.tunables, seed=True, members=command.members, choices=command.choices,
    )  # fmt: skip
