"""The decisions in a journal, in order: who decided what, when, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from engine.domain import events as e
from engine.report.text.lines import one_line

POLICY = "policy"
RULES = "rules"


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision. Consecutive decisions of the same kind are joined."""

    seconds: float
    """Since the session opened."""
    who: str
    """``engineer``; ``policy`` if autopilot chose; ``rules`` if the rules left no choice."""
    what: str
    about: tuple[str, ...]
    """Ideas or kernels."""
    reason: str


def decisions(entries: Iterable[e.Entry]) -> tuple[Decision, ...]:
    """Every decision in the journal. Work and its results are not decisions."""
    began: float | None = None
    found: list[Decision] = []
    for entry in entries:
        began = entry.at if began is None else began
        by_person = entry.by.decides or entry.by.is_agent
        words = _decision(entry.event, by_person)
        if words is None:
            continue
        what, about, reason = words
        who = entry.by.name if by_person else POLICY if isinstance(entry.event, e.IdeaSelected) else RULES
        one = Decision(max(0.0, entry.at - began), who, what, about, one_line(reason))
        last = found[-1] if found else None
        if last is not None and about and (last.who, last.what, last.reason) == (one.who, one.what, one.reason):
            found[-1] = replace(last, about=(*last.about, *about))
        else:
            found.append(one)
    return tuple(found)


_Parts = tuple[str, tuple[str, ...], str]
"""(what, about which ideas or kernels, reason)"""


def _on_rounds(event: e.Event) -> _Parts | None:
    match event:
        case e.RoundOpened(number, parents, plan) if plan is not None:
            return (f"opened round {number} on", parents, plan.reason)
    return None


def _decision(event: e.Event, by_engineer: bool) -> _Parts | None:
    return _on_ideas(event) or _on_rounds(event) or _on_kernels(event, by_engineer) or _on_session(event)


def _on_ideas(event: e.Event) -> _Parts | None:
    match event:
        case e.IdeaSelected(idea, advice):
            return ("approved", (idea,), advice)
        case e.IdeaRejected(idea, reason):
            return ("rejected", (idea,), reason)
        case e.IdeaParked(idea, advice=advice):
            return ("parked", (idea,), advice)
        case e.IdeaEdited(idea, text):
            return ("edited", (idea,), f"now: {text.title}")
        case e.IdeasReordered(ideas):
            return ("reordered", ideas, "")
        case e.KernelAttached(idea, kernel):
            return (f"attached {kernel} to", (idea,), "")
        case e.KernelDetached(idea, kernel):
            return (f"detached {kernel} from", (idea,), "")
        case e.IdeasProposed(_, ideas, False):
            return ("wrote", tuple(idea.id for idea in ideas), "; ".join(idea.text.title for idea in ideas))
        case e.IdeasProposed(number, _, True, dropped) if dropped:
            return (f"dropped as duplicate or surplus, round {number}", (), "; ".join(dropped))
    return None


def _on_kernels(event: e.Event, by_engineer: bool) -> _Parts | None:
    match event:
        case e.KernelDrafted(kernel, name=name, seed=True):
            return ("seeded", (kernel,), f"from {name}")
        case e.KernelPinned(kernel):
            return ("pinned", (kernel,), "")
        case e.KernelUnpinned(kernel):
            return ("unpinned", (kernel,), "")
        case e.BranchPruned(kernel, reason):
            return ("pruned", (kernel,), reason)
        case e.BranchReopened(kernel):
            return ("reopened", (kernel,), "")
        case e.KernelCancelled(kernel, reason):
            return ("cancelled", (kernel,), reason)
        case e.KernelReopened(kernel, reason):
            return ("rebuilt", (kernel,), reason)
        case e.KernelQuarantined(kernel, evidence):
            return ("quarantined", (kernel,), "; ".join(evidence))
        case e.RaceAsked(kernel, against):
            return (f"requested a race against {against} for", (kernel,), "")
        case e.TuningAsked(kernel):
            return ("requested tuning on each workload of", (kernel,), "")
        case e.KernelAccepted(kernel, note):
            return ("accepted", (kernel,), note)
        case e.KernelFailed(kernel, failure) if by_engineer:
            return ("discarded", (kernel,), failure.reason)
    return None


def _on_session(event: e.Event) -> _Parts | None:
    match event:
        case e.NoteAdded(target, text):
            return (f"noted on {target or 'the session'}", (), text)
        case e.ModeChanged(mode):
            return (f"changed the mode to {mode}", (), "")
        case e.LimitsChanged():
            return ("changed the limits", (), "")
        case e.PausesChanged():
            return ("changed the automatic pauses", (), "")
        case e.InstructionsChanged(text):
            return ("changed the standing instructions", (), text)
        case e.SessionPaused(reason):
            return ("paused", (), reason)
        case e.SessionContinued():
            return ("resumed", (), "")
        case e.BudgetReached(_, reason):
            return ("stopped calling models", (), reason)
        case e.SessionReopened():
            return ("reopened the session", (), "")
        case e.SessionClosed(reason):
            return ("ended the session", (), reason)
        case e.DecisionUndone(_, what, kept=kept):
            return (f"undid the {what}", (), kept)
    return None
