"""What a person decided, with what it changed: enough to take the latest decision back. Pure.

The fold of the state keeps each touched idea, kernel and setting as it was before and after. ``rules.on_undo`` decides whether
a decision may be undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine.domain import events as e
from engine.domain.model import Author

KEPT = 50
"""How many of the latest decisions can be undone, one after the other."""

Change = tuple[Any, Any]
"""(before, after)"""


@dataclass(frozen=True, slots=True)
class DecisionKind:
    """How one kind of event is undone."""

    verb: str
    """``approval of``; the subjects follow."""
    ideas: bool = False
    """It changes the ideas that it names."""
    kernels: bool = False
    settings: tuple[str, ...] = ()
    """Fields of the state that it changes."""
    instead: str = ""
    """Why it cannot be undone, and what to do instead; empty if it can be."""
    secondary: bool = False
    """Within a decision of several events, the others name it."""


KINDS: Mapping[type, DecisionKind] = {
    e.IdeaSelected: DecisionKind("approval of", ideas=True),
    e.IdeaRejected: DecisionKind("rejection of", ideas=True),
    e.IdeaParked: DecisionKind("parking of", ideas=True),
    e.IdeaEdited: DecisionKind("edit of", ideas=True),
    e.IdeasReordered: DecisionKind("order of", ideas=True),
    e.KernelAttached: DecisionKind("attached kernel of", ideas=True),
    e.KernelDetached: DecisionKind("detached kernel of", ideas=True),
    e.KernelPinned: DecisionKind("pin of", settings=("pinned",)),
    e.KernelUnpinned: DecisionKind("unpinning of", settings=("pinned",)),
    e.BranchPruned: DecisionKind("pruning of", settings=("pruned", "prune_reasons")),
    e.BranchReopened: DecisionKind("reopening of", settings=("pruned",)),
    e.KernelCancelled: DecisionKind("cancellation of", kernels=True, secondary=True),
    e.KernelAccepted: DecisionKind("acceptance of", kernels=True),
    e.KernelFailed: DecisionKind("discarding of", kernels=True),
    e.NoteAdded: DecisionKind("note on", settings=("notes",)),
    e.ModeChanged: DecisionKind("change of the mode", settings=("mode",)),
    e.LimitsChanged: DecisionKind("change of the limits", settings=("limits", "capped")),
    e.PausesChanged: DecisionKind("change of the pauses", settings=("pauses",)),
    e.InstructionsChanged: DecisionKind("change of the instructions", settings=("instructions",)),
    e.ModelsChanged: DecisionKind("change of the models", settings=("models",)),
    e.SessionPaused: DecisionKind("pause", settings=("paused",)),
    e.SessionContinued: DecisionKind("resumption", settings=("paused", "pauses")),
    e.SessionClosed: DecisionKind("end of the session"),
    e.IdeasProposed: DecisionKind("new idea", instead="reject or park the idea"),
    e.KernelDrafted: DecisionKind("new kernel", instead="cancel the kernel, or prune it"),
    e.KernelReopened: DecisionKind("remeasurement of", instead="cancel the kernel"),
    e.RaceAsked: DecisionKind("race of", instead="it changes nothing unless the kernel wins it"),
    e.TuningAsked: DecisionKind("tuning", instead="cancel the kernel that comes of it"),
    e.CallAnswered: DecisionKind("answer", instead="the reply is already in use: prune what came of it"),
    e.CallFailed: DecisionKind("cancellation", instead="a cancelled call is not repeated: retry its work"),
}
"""Events of a person that are decisions; others change nothing that could be undone."""


@dataclass(frozen=True, slots=True)
class PersonDecision:
    """The events of one command of a person."""

    seq: int
    """Sequence number of its first event, by which it is undone."""
    last: int
    """Sequence number of its last event."""
    at: float
    by: Author
    kind: DecisionKind
    subjects: tuple[str, ...]
    """The ideas or kernels that it names."""
    ideas: Mapping[str, Change] = field(default_factory=dict)
    kernels: Mapping[str, Change] = field(default_factory=dict)
    settings: Mapping[str, Change] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """``approval of i1, i2``."""
        return " ".join(filter(None, (self.kind.verb, ", ".join(self.subjects))))


def subjects(event: e.Event) -> tuple[str, ...]:
    """The ideas or kernels that an event is about."""
    if isinstance(event, e.IdeasProposed):
        return tuple(idea.id for idea in event.ideas)
    if isinstance(event, e.KernelDrafted):
        return (event.kernel,)
    if isinstance(event, e.NoteAdded):
        return (event.target or "the session",)
    for name in ("idea", "ideas", "kernel", "call"):
        found = getattr(event, name, None)
        if found:
            return (found,) if isinstance(found, str) else tuple(found)
    return ()


def extended(known: tuple[PersonDecision, ...], new: PersonDecision) -> tuple[PersonDecision, ...]:
    """The decisions with one more event: joined to the latest if one command caused both."""
    top = known[-1] if known else None
    if top is None or (top.last + 1, top.at, top.by) != (new.seq, new.at, new.by):
        return (*known[1 - KEPT :], new)
    joined = replace(
        top,
        last=new.last,
        ideas=_merged(top.ideas, new.ideas),
        kernels=_merged(top.kernels, new.kernels),
        settings=_merged(top.settings, new.settings),
    )
    if new.kind == top.kind:
        joined = replace(joined, subjects=(*top.subjects, *new.subjects))
    elif not new.kind.secondary:
        joined = replace(joined, kind=new.kind, subjects=new.subjects)
    return (*known[:-1], joined)


def _merged(first: Mapping[str, Change], then: Mapping[str, Change]) -> Mapping[str, Change]:
    """The changes of both: before the first, after the second."""
    return {**first, **{name: (first.get(name, change)[0], change[1]) for name, change in then.items()}}
