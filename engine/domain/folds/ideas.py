"""Folds of rounds and ideas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.domain import events as e
from engine.domain.folds.batch import Fold, StateBatch
from engine.domain.state import Idea, IdeaStatus, Round
from engine.domain.work import WorkKey, WorkKind


def _round_opened(b: StateBatch, entry: e.Entry, ev: e.RoundOpened) -> None:
    b.table("rounds")[ev.round] = Round(
        ev.round, ev.parents, entry.at, answered=ev.plan is not None and not ev.plan.each, plan=ev.plan
    )


def _round_closed(b: StateBatch, entry: e.Entry, ev: e.RoundClosed) -> None:
    rounds = b.table("rounds")
    if ev.round in rounds:
        rounds[ev.round] = replace(rounds[ev.round], closed=True)
    proposal = WorkKey(WorkKind.PROPOSE, (), ev.round)
    if proposal in b.peek("called_off"):
        b.finish(proposal)


def _proposed(b: StateBatch, entry: e.Entry, ev: e.IdeasProposed) -> None:
    for idea in ev.ideas:
        made = Idea(
            idea.id, ev.round, idea.text, idea.parent, idea.author, idea.branch, repeats=idea.repeats, advice=idea.advice,
            materials=idea.shown,
        )  # fmt: skip
        b.add("ideas", idea.id, made)
    if ev.from_source:
        b.finish(WorkKey(WorkKind.PROPOSE, (), ev.round))
        rounds = b.table("rounds")
        if ev.round in rounds:
            rounds[ev.round] = replace(rounds[ev.round], answered=True, dropped=ev.dropped)


def _edited(b: StateBatch, entry: e.Entry, ev: e.IdeaEdited) -> None:
    """Work of the idea's former writer that failed is owed again, to the new one."""
    known = b.peek("ideas").get(ev.idea)
    if known is not None and known.status is IdeaStatus.SELECTED:
        work = WorkKey(WorkKind.IMPLEMENT, (ev.idea,))
        for table in ("broken", "called_off"):
            if work in b.peek(table):
                del b.table(table)[work]
    b.idea(ev.idea, text=ev.text, parent=ev.parent, branch=ev.branch, writer=ev.writer, edited=True)


def _reordered(b: StateBatch, entry: e.Entry, ev: e.IdeasReordered) -> None:
    for place, idea in enumerate(ev.ideas):
        b.idea(idea, rank=place - len(ev.ideas))


def _attached(b: StateBatch, entry: e.Entry, ev: e.KernelAttached) -> None:
    known = b.peek("ideas").get(ev.idea)
    if known is not None:
        b.idea(ev.idea, materials=tuple(dict.fromkeys((*known.materials, ev.kernel))))


def _removed(b: StateBatch, entry: e.Entry, ev: e.KernelDetached) -> None:
    known = b.peek("ideas").get(ev.idea)
    if known is not None:
        b.idea(ev.idea, materials=tuple(k for k in known.materials if k != ev.kernel))


def _selected(b: StateBatch, entry: e.Entry, ev: e.IdeaSelected) -> None:
    known = b.peek("ideas").get(ev.idea)
    if known is not None:
        home = known.round if ev.into is None else ev.into
        branch = known.branch if ev.copies is None else ev.copies
        b.idea(ev.idea, status=IdeaStatus.SELECTED, advice=ev.advice, round=home, branch=branch)


def _rejected(b: StateBatch, entry: e.Entry, ev: e.IdeaRejected) -> None:
    b.idea(ev.idea, status=IdeaStatus.REJECTED, reason=ev.reason)


def _parked(b: StateBatch, entry: e.Entry, ev: e.IdeaParked) -> None:
    b.idea(ev.idea, status=IdeaStatus.PARKED, reason=ev.why, advice=ev.advice)


FOLDS: Mapping[type, Fold] = {
    e.RoundOpened: _round_opened,
    e.RoundClosed: _round_closed,
    e.IdeasProposed: _proposed,
    e.IdeaEdited: _edited,
    e.IdeasReordered: _reordered,
    e.KernelAttached: _attached,
    e.KernelDetached: _removed,
    e.IdeaSelected: _selected,
    e.IdeaRejected: _rejected,
    e.IdeaParked: _parked,
}
