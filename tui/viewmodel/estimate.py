"""How long the work of the open round still takes, by what such work took so far. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from engine.domain import queries
from engine.domain.state import IdeaStatus, SessionState, Stage
from engine.domain.work import WorkKey, WorkKind

_STEPS: Mapping[Stage, tuple[WorkKind, ...]] = {
    Stage.REPAIR: (WorkKind.REPAIR, WorkKind.BUILD, WorkKind.VERIFY, WorkKind.MEASURE),
    Stage.BUILD: (WorkKind.BUILD, WorkKind.VERIFY, WorkKind.MEASURE),
    Stage.VERIFY: (WorkKind.VERIFY, WorkKind.MEASURE),
    Stage.MEASURE: (WorkKind.MEASURE,),
}
_ON_DEVICE = frozenset({WorkKind.VERIFY, WorkKind.MEASURE})


def round_left(state: SessionState, means: Mapping[str, float], ages: Mapping[WorkKey, float]) -> float | None:
    """Seconds until the kernels of the open round are measured; ``None`` if that is not known.

    The device takes one kernel at a time; builds and writers work beside it, so the longest of them counts once. ``means``: the
    mean seconds of finished work by kind. ``ages``: the seconds that running work has taken.
    """
    if queries.open_round(state) is None or state.paused is not None or not means.keys() >= _ON_DEVICE:
        return None
    steps = [_STEPS[kernel.stage] for kernel in queries.unsettled(state)]
    written = (WorkKind.IMPLEMENT, *_STEPS[Stage.BUILD])
    for idea in state.ideas.values():
        if idea.status is IdeaStatus.SELECTED and not idea.implemented and not queries.awaits_agent(state, idea):
            steps += [written] * idea.branch
    if not steps:
        return None
    device = sum(means[kind] for own in steps for kind in own if kind in _ON_DEVICE)
    beside = max(sum(means.get(kind, 0.0) for kind in own if kind not in _ON_DEVICE) for own in steps)
    spent = sum(min(age, means[work.kind]) for work, age in ages.items() if work.kind in _ON_DEVICE)
    return max(0.0, device + beside - spent)
