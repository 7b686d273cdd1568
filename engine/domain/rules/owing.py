"""``next_work``: the effects still owed, derived from the state alone. Order is preference; lanes decide what starts."""

from __future__ import annotations

from collections.abc import Iterator

from engine.domain import queries
from engine.domain import work as w
from engine.domain.state import IdeaStatus, Kernel, SessionState, Stage


def next_work(state: SessionState) -> tuple[w.Work, ...]:
    """Everything that could be done now, most useful first; never what is broken until the session is resumed.

    Work already under way in this process is still listed: the scheduler knows what it has in hand.
    """
    if state.opened is None or state.closed is not None:
        return ()
    if state.preparation is None:
        return tuple(work for work in (w.Prepare(),) if work.key not in state.broken)
    owed = (*_kernel_work(state), *_idea_work(state))
    return tuple(work for work in owed if work.key not in state.broken)


def _kernel_work(state: SessionState) -> Iterator[w.Work]:
    """Later stages first: a verdict frees a place, a build takes one."""
    waiting = queries.unsettled(state)
    for stage in (Stage.MEASURE, Stage.VERIFY, Stage.BUILD, Stage.REPAIR):
        yield from (_owed(k) for k in waiting if k.stage is stage)


def _owed(kernel: Kernel) -> w.Work:
    match kernel.stage:
        case Stage.MEASURE:
            return w.Measure(kernel.id, kernel.attempt)
        case Stage.VERIFY:
            return w.Verify(kernel.id, kernel.attempt)
        case Stage.REPAIR:
            return w.Repair(kernel.id, kernel.attempt)
        case _:
            return w.Build(kernel.id, kernel.attempt)


def _idea_work(state: SessionState) -> Iterator[w.Work]:
    for idea in state.ideas.values():
        if idea.status is IdeaStatus.SELECTED and not idea.implemented:
            yield w.Implement(idea.id)
    current = queries.open_round(state)
    if current is not None and not current.answered:
        assert state.opened is not None
        count = 1 if state.opened.settings.strategy == "sequential" else state.opened.settings.ideas
        yield w.Propose(current.number, current.parents, count)
