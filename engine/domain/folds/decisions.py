"""Folds of what people decide, and of what they undo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.domain import decisions as d
from engine.domain import events as e
from engine.domain.folds.batch import Fold, StateBatch
from engine.domain.work import WorkKey, WorkKind


def decide(b: StateBatch, entry: e.Entry, kind: d.DecisionKind, fold: Fold) -> None:
    """Fold the decision of a person by ``fold``, and keep what it changes."""
    named = d.subjects(entry.event)
    tables = [("ideas", named if kind.ideas else ()), ("kernels", named if kind.kernels else ())]
    before = [{name: b.kept(table, name) for name in names} for table, names in tables]
    values = {name: b.get(name) for name in kind.settings}
    fold(b, entry, entry.event)
    ideas, kernels = (
        {name: (was, b.kept(table, name)) for name, was in found.items() if was is not None}
        for (table, _), found in zip(tables, before, strict=True)
    )
    settings = {name: (was, b.get(name)) for name, was in values.items()}
    new = d.PersonDecision(entry.seq, entry.seq, entry.at, entry.by, kind, named, ideas, kernels, settings)
    b.set(decisions=d.extended(b.get("decisions"), new))


def _undone(b: StateBatch, entry: e.Entry, ev: e.DecisionUndone) -> None:
    known = b.get("decisions")
    top = next((decision for decision in known if decision.seq == ev.decision), None)
    if top is None:
        return
    b.set(decisions=known[: known.index(top)], **{name: before for name, (before, _) in top.settings.items()})
    for table, names, changes in (("ideas", ev.ideas, top.ideas), ("kernels", ev.kernels, top.kernels)):
        b.table(table).update({name: changes[name][0] for name in names if name in changes})
    work = [WorkKey(WorkKind.IMPLEMENT, (idea,)) for idea in ev.ideas]
    b.finish(*work)
    for call in [call for call in b.peek("calls").values() if call.cancelled and call.work in work]:
        b.table("calls")[call.id] = replace(call, cancelled=False)


FOLDS: Mapping[type, Fold] = {
    e.DecisionUndone: _undone,
}
