"""``next_work``: the effects still owed, derived from the state alone. Order is preference; lanes decide what starts."""

from __future__ import annotations

from collections.abc import Iterator

from engine.domain import queries, races
from engine.domain import work as w
from engine.domain.rules import lifecycle
from engine.domain.state import Idea, IdeaStatus, Kernel, SessionState, Stage


def next_work(state: SessionState) -> tuple[w.Work, ...]:
    """Everything that could be begun now, most useful first; never what is broken until the session is resumed.

    Work already under way in this process is still listed: the scheduler knows what it has in hand.
    """
    idle = state.paused is not None or state.capped is not None
    return tuple(work for work in wanted(state) if not (idle and isinstance(work, w.Propose | w.Implement | w.Repair)))


def wanted(state: SessionState) -> tuple[w.Work, ...]:
    """Work whose result still matters, a pause or a spent budget notwithstanding: what is under way may finish."""
    if state.opened is None or state.closed is not None:
        return ()
    owed = (w.Prepare(),) if state.preparation is None else (*_device_work(state), *_thought(state))
    return tuple(work for work in owed if work.key not in state.broken)


def _device_work(state: SessionState) -> Iterator[w.Work]:
    """Later stages first: a verdict frees a place, a build takes one.

    Races wait until all that could lead is measured: the best of several challengers mostly spares the others theirs.
    """
    waiting = queries.unsettled(state)
    for stage in (Stage.MEASURE, Stage.VERIFY):
        yield from (_owed(k) for k in waiting if k.stage is stage)
    yield from races.owed(state)
    yield from (_owed(k) for k in waiting if k.stage is Stage.BUILD)
    finalist = lifecycle.finalist(state)
    if finalist is not None:
        yield w.Sanitize(finalist.id, finalist.attempt)


def _owed(kernel: Kernel) -> w.Work:
    match kernel.stage:
        case Stage.MEASURE:
            return w.Measure(kernel.id, kernel.attempt)
        case Stage.VERIFY:
            return w.Verify(kernel.id, kernel.attempt)
        case _:
            return w.Build(kernel.id, kernel.attempt)


def _thought(state: SessionState) -> Iterator[w.Work]:
    """What a source of ideas and code is to be asked."""
    yield from (w.Repair(k.id, k.attempt) for k in queries.unsettled(state) if k.stage is Stage.REPAIR)
    selected = [i for i in state.ideas.values() if i.status is IdeaStatus.SELECTED and not i.implemented]
    yield from (w.Implement(idea.id) for idea in sorted(selected, key=_place))
    current = queries.open_round(state)
    if current is not None and not current.answered:
        assert state.opened is not None
        count = 1 if state.opened.settings.strategy == "sequential" else state.opened.settings.ideas
        yield w.Propose(current.number, current.parents, count)


def _place(idea: Idea) -> int:
    return idea.rank
