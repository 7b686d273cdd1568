"""``next_work``: the owed work, derived only from the state, in order of preference."""

from __future__ import annotations

from collections.abc import Iterator

from engine.domain import queries, races
from engine.domain import work as w
from engine.domain.model import AGENT
from engine.domain.rules import lifecycle
from engine.domain.state import Idea, IdeaStatus, Kernel, SessionState, Stage


def next_work(state: SessionState) -> tuple[w.Work, ...]:
    """Work that can start now, most useful first, without failed work until the session is resumed.

    Includes running work, which the scheduler skips. Once a cap is reached, work of models that an earlier process began still
    finishes with the replies that were paid for.
    """

    def idle(work: w.Work) -> bool:
        if not isinstance(work, w.Propose | w.Implement | w.Repair | w.ReadCounters):
            return False
        return state.paused is not None or (state.capped is not None and work.key not in state.started)

    return tuple(work for work in wanted_work(state) if not idle(work))


def wanted_work(state: SessionState) -> tuple[w.Work, ...]:
    """Work whose result still matters. A pause or an exhausted budget keeps it from starting, not from finishing."""
    if state.opened is None or state.closed is not None:
        return ()
    owed = (w.Prepare(),) if state.preparation is None else (*_device_work(state), *_model_work(state))
    return tuple(work for work in owed if work.key not in state.broken)


def _device_work(state: SessionState) -> Iterator[w.Work]:
    """Builds, measurements and races, later stages first.

    Races wait until all possible challengers are measured: after the best one has won, the others rarely need a race.
    """
    waiting = queries.unsettled(state)
    for stage in (Stage.MEASURE, Stage.VERIFY):
        yield from (_stage_work(k) for k in waiting if k.stage is stage)
    yield from races.pending_races(state)
    yield from (_stage_work(k) for k in waiting if k.stage is Stage.BUILD)
    yield from (w.Tune(kernel.id, kernel.attempt) for kernel in lifecycle.to_tune(state))
    leading = races.to_sustain(state)
    if leading is not None:
        yield w.Sustain(leading.id, leading.attempt)
    finalist = lifecycle.finalist(state)
    if finalist is not None:
        yield w.Sanitize(finalist.id, finalist.attempt)


def _stage_work(kernel: Kernel) -> w.Work:
    match kernel.stage:
        case Stage.MEASURE:
            return w.Measure(kernel.id, kernel.attempt)
        case Stage.VERIFY:
            return w.Verify(kernel.id, kernel.attempt)
        case _:
            return w.Build(kernel.id, kernel.attempt)


def _model_work(state: SessionState) -> Iterator[w.Work]:
    """Work of proposers and writers: repairs, then code, then ideas."""
    yield from (w.Repair(k.id, k.attempt) for k in queries.unsettled(state) if k.stage is Stage.REPAIR)
    unwritten = [i for i in state.ideas.values() if i.status is IdeaStatus.SELECTED and not i.implemented]
    selected = [i for i in unwritten if not queries.awaits_agent(state, i)]
    yield from (w.Implement(idea.id) for idea in sorted(selected, key=_place))
    current = queries.open_round(state)
    if current is not None and not current.answered:
        assert state.opened is not None
        if current.number and state.models.source == AGENT:
            return
        plan = current.plan
        count = 1 if state.opened.settings.strategy == "sequential" else state.opened.settings.ideas
        if plan is not None:
            count = plan.each * len(current.parents)
        ask = w.Propose(current.number, current.parents, count)
        unread = () if ask.key in state.started else tuple(queries.parents_without_counters(state, current))
        yield from (w.ReadCounters(kernel.id, kernel.attempt) for kernel in unread)
        if not unread:
            yield ask


def _place(idea: Idea) -> int:
    return idea.rank
