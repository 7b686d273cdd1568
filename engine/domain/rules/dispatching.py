"""Dispatches that the search makes by itself, where no single kernel is the best on every workload of a suite.

On autopilot, between two rounds, the kernels that are the best on some workloads are combined if they promise enough together:
once a round has found no better single kernel, since a better one would be combined again, before the session ends, and when
the limit leaves one kernel. The dispatch is verified, measured and raced like any other kernel. In mode ``ask`` the engineer
asks for one.
"""

from __future__ import annotations

import math

from engine.domain import columns, queries, stopping
from engine.domain import events as e
from engine.domain.columns import Combination
from engine.domain.model import CATEGORIES, ENGINE, IdeaText
from engine.domain.state import SessionState
from engine.domain.strategy.evidence import DISPATCH

_CATEGORY = CATEGORIES[5]


def owed(state: SessionState, *, ending: bool) -> tuple[e.Event, ...]:
    """The idea of the dispatch that is worth a verdict now, approved; empty if there is none, or it was tried already.

    ``ending``: whether no round follows.
    """
    if not state.mode.is_autopilot or state.paused is not None or state.capped is not None:
        return ()
    left = math.inf if state.limits.kernels is None else state.limits.kernels - len(state.kernels)
    base = columns.best_single(state)
    if left <= 0 or stopping.is_out_of_time(state) or base is None:
        return ()
    is_last = left == 1 and not state.limits.raised_later
    found = _untried(state) if ending or is_last or base.round < queries.last_round(state) else None
    if found is None:
        return ()
    idea = f"i{state.next_idea}"
    proposed = e.ProposedIdea(idea, _text(state, found), found.base.id, ENGINE, 1)
    return (e.IdeasProposed(queries.last_round(state), (proposed,), from_source=False), e.IdeaSelected(idea))


def reserved(state: SessionState) -> int:
    """Kernels of the session's limit that are kept for a dispatch: 1 while one is promised that will be made, else 0."""
    will_be_made = state.mode.is_autopilot and not state.limits.raised_later
    return 1 if will_be_made and _untried(state) is not None else 0


def _untried(state: SessionState) -> Combination | None:
    """What a dispatch would combine now, unless it was tried already."""
    found = columns.combination(state)
    tried = found is None or any(idea.text.key == _key(found) for idea in state.ideas.values())
    return None if tried else found


def _key(found: Combination) -> str:
    return f"{DISPATCH}:{','.join(found.names)}"


def _text(state: SessionState, found: Combination) -> IdeaText:
    base = found.base.id
    others = [workload.name for workload, kernel in found.chosen if kernel.id != base]
    return IdeaText(
        columns.dispatch_title(found.names),
        _CATEGORY,
        f"{base} is not the fastest on {len(others)} of {len(found.chosen)} workloads ({', '.join(others)}), by both "
        "intervals. One kernel that chooses by shape runs the fastest everywhere.",
        predicted=columns.promise(state, found.chosen, found.base),
        key=_key(found),
    )
