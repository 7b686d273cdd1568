"""Dispatches that the search makes by itself, where no single kernel is the best on every workload of a suite.

On autopilot, between two rounds, the kernels that are the best on some workloads are combined if they promise enough together:
once a round has found no better single kernel, since a better one would be combined anew, and before the session ends. The
dispatch is verified, measured and raced like any other kernel. In mode ``ask`` the engineer asks for one.
"""

from __future__ import annotations

from engine.domain import columns, queries, stopping
from engine.domain import events as e
from engine.domain.model import CATEGORIES, ENGINE, Contract, IdeaText
from engine.domain.state import SessionState
from engine.domain.strategy.evidence import DISPATCH

_CATEGORY = CATEGORIES[5]
LEAST_GAIN = 1.02
"""The least promise over the incumbent: about what a race over a suite can tell, for the price of one verdict."""


def owed(state: SessionState, *, ending: bool) -> tuple[e.Event, ...]:
    """The idea of the dispatch that is worth a verdict now, approved; empty if there is none, or it was tried already.

    ``ending``: whether no round follows.
    """
    if not state.mode.is_autopilot or state.paused is not None or state.capped is not None:
        return ()
    full = state.limits.kernels is not None and len(state.kernels) >= state.limits.kernels
    if full or stopping.is_out_of_time(state):
        return ()
    base, chosen = columns.best_single(state), columns.dispatched(state)
    if base is None or base.contract is Contract.MODULE or not chosen:
        return ()
    stands = base.round < queries.last_round(state)
    if not (stands or ending) or columns.promise(state, chosen) < LEAST_GAIN:
        return ()
    names = sorted({kernel.id for _, kernel in chosen}, key=lambda name: (len(name), name))
    key = f"{DISPATCH}:{','.join(names)}"
    if any(idea.text.key == key for idea in state.ideas.values()):
        return ()
    others = [workload.name for workload, kernel in chosen if kernel.id != base.id]
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    text = IdeaText(
        f"Dispatch of {listed}",
        _CATEGORY,
        f"{base.id} is not the fastest on {len(others)} of {len(chosen)} workloads ({', '.join(others)}), by both intervals. "
        "One kernel that chooses by shape runs the fastest everywhere.",
        predicted=columns.promise(state, chosen, base),
        key=key,
    )
    idea = f"i{state.next_idea}"
    proposed = e.ProposedIdea(idea, text, base.id, ENGINE, 1)
    return (e.IdeasProposed(queries.last_round(state), (proposed,), from_source=False), e.IdeaSelected(idea))
