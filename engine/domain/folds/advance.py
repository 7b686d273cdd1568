"""The fold of a session's events: each is folded by the function that ``FOLDS`` of its subject's module names for its kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.domain import decisions as d
from engine.domain import events as e
from engine.domain.folds import calls, decisions, ideas, kernels, session, tree, workers
from engine.domain.folds.batch import Fold, StateBatch
from engine.domain.state import SessionState

_FOLDS: Mapping[type, Fold] = {
    **session.FOLDS,
    **ideas.FOLDS,
    **kernels.FOLDS,
    **tree.FOLDS,
    **calls.FOLDS,
    **workers.FOLDS,
    **decisions.FOLDS,
}


def advance(state: SessionState, entries: Iterable[e.Entry]) -> SessionState:
    """The state after ``entries``. ``advance(advance(s, a), b) == advance(s, a + b)`` field by field."""
    batch = StateBatch(state)
    for entry in entries:
        before = batch.get("at")
        idle = isinstance(entry.event, e.SessionOpened | e.SessionResumed) or not batch.peek("started")
        gap = 0.0 if idle else max(0.0, entry.at - before)
        batch.set(seq=entry.seq, at=entry.at, active_seconds=batch.get("active_seconds") + gap)
        kind = d.KINDS.get(type(entry.event)) if entry.by.decides else None
        fold = _FOLDS[type(entry.event)]
        if kind is None:
            fold(batch, entry, entry.event)
        else:
            decisions.decide(batch, entry, kind, fold)
    return batch.frozen()
