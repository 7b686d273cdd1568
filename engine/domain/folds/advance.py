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
_IDLE_BEFORE = (e.SessionOpened, e.SessionResumed)


def advance(state: SessionState, entries: Iterable[e.Entry]) -> SessionState:
    """The state after ``entries``. ``advance(advance(s, a), b) == advance(s, a + b)`` field by field."""
    batch = StateBatch(state)
    seq, at, active = state.seq, state.at, state.active_seconds
    for entry in entries:
        event = entry.event
        if batch.peek("started") and not isinstance(event, _IDLE_BEFORE):
            active += max(0.0, entry.at - at)
        seq, at = entry.seq, entry.at
        fold, kind = _FOLDS[type(event)], d.KINDS.get(type(event))
        if kind is None or not entry.by.decides:
            fold(batch, entry, event)
        else:
            decisions.decide(batch, entry, kind, fold)
    batch.set(seq=seq, at=at, active_seconds=active)
    return batch.frozen()
