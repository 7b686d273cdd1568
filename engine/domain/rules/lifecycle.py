"""Transitions that nobody asks for: rounds open and close, the policy decides in autopilot, limits end the session."""

from __future__ import annotations

from engine.domain import events as e
from engine.domain import queries, races
from engine.domain import work as w
from engine.domain.model import Failure, FailureKind, RaceOutcome, Succession
from engine.domain.state import Idea, IdeaStatus, Kernel, Round, SessionState, Stage


def automatic(state: SessionState) -> tuple[e.Event, ...]:
    """The next transitions owed by the rules alone; call again until it returns nothing."""
    if state.opened is None or state.closed is not None or state.preparation is None:
        return ()
    if not state.preparation.gate.verifiable and not state.opened.settings.accept_unverifiable:
        passed = ", ".join(n.name for n in state.preparation.gate.nulls if n.passed)
        return (e.SessionClosed(f"not verifiable: a model that computes nothing passes the gate ({passed})"),)
    return _won(state) or _moves(state) or _succession(state)


def _moves(state: SessionState) -> tuple[e.Event, ...]:
    if late := (*_out_of_time(state), *_out_of_budget(state)):
        return late
    if paused := _pause(state):
        return paused
    if selected := _policy(state):
        return selected
    current = queries.open_round(state)
    if current is not None:
        return (e.RoundClosed(current.number),) if _is_settled(state, current) else ()
    return _between_rounds(state)


def _won(state: SessionState) -> tuple[e.Event, ...]:
    """The lead passes to a kernel that has beaten the incumbent since it leads, if its own measurement lets it lead."""
    winner = races.winner(state)
    return (e.IncumbentChanged(winner.id, state.incumbent, Succession.RACED),) if winner is not None else ()


def _succession(state: SessionState) -> tuple[e.Event, ...]:
    """Says who leads where nobody is said to, or who was can no longer; one who is being measured anew keeps the place.

    This is not how a kernel wins the lead from one that has it: that takes a race.
    """
    named = state.kernels.get(state.incumbent)
    if named is not None and (queries.may_lead(state, named) or not named.stage.settled):
        return ()
    best = queries.successor(state)
    if best is None or not queries.may_lead(state, best):
        return ()
    why = Succession.SUCCEEDED if state.incumbent else Succession.FIRST
    return (e.IncumbentChanged(best.id, state.incumbent, why),)


def _policy(state: SessionState) -> tuple[e.Event, ...]:
    """In autopilot every idea is worth compute; the first port, which nobody chooses, always is."""
    chosen = [i for i in queries.pending_ideas(state) if state.mode == "autopilot" or _is_first_port(i)]
    return tuple(e.IdeaSelected(i.id) for i in chosen)


def _is_first_port(idea: Idea) -> bool:
    return idea.round == 0 and not idea.author.is_engineer


def _out_of_time(state: SessionState) -> tuple[e.Event, ...]:
    """Past the time limit nothing new is started: what waits is cancelled, what is under way may finish."""
    seconds = state.limits.seconds
    if seconds is None or state.active_seconds < seconds:
        return ()
    waiting = [k for k in queries.unsettled(state) if not _under_way(state, k.id)]
    ideas = [i for i in state.ideas.values() if _open_idea(i) and f"implement:{i.id}" not in state.started]
    cancelled = [e.KernelCancelled(k.id, f"time limit of {seconds:g} s reached") for k in waiting]
    parked = [e.IdeaParked(i.id) for i in ideas]
    return (*cancelled, *parked)


def _out_of_budget(state: SessionState) -> tuple[e.Event, ...]:
    """Past a hard cap no model is asked: ideas without code are parked, kernels that wait for a repair end as they failed."""
    if state.capped is None:
        return ()
    parked = [e.IdeaParked(i.id) for i in state.ideas.values() if _open_idea(i) and f"implement:{i.id}" not in state.started]
    failed = [
        e.KernelFailed(k.id, k.failure or Failure(FailureKind.BUILD_FAILED, "not repaired"))
        for k in queries.unsettled(state)
        if k.stage is Stage.REPAIR and f"repair:{k.id}:{k.attempt}" not in state.started
    ]
    return (*parked, *failed)


def _pause(state: SessionState) -> tuple[e.Event, ...]:
    """A soft condition of the engineer's holds: said once, until they go on."""
    reason = queries.pause_reason(state)
    return (e.SessionPaused(reason),) if reason is not None and state.paused is None else ()


def finalist(state: SessionState) -> Kernel | None:
    """The kernel that the session would end with and that the sanitizers have not seen: owed before the end."""
    if state.closed is not None or _ending(state) is None:
        return None
    return queries.finalist(state)


def _open_idea(idea: Idea) -> bool:
    return idea.status is IdeaStatus.PROPOSED or (idea.status is IdeaStatus.SELECTED and not idea.implemented)


def _under_way(state: SessionState, kernel: str) -> bool:
    return any(work.split(":")[1] == kernel for work in state.started if work.count(":") == 2)


def _is_settled(state: SessionState, current: Round) -> bool:
    ideas = queries.ideas_of(state, current.number)
    out_of_time = state.limits.seconds is not None and state.active_seconds >= state.limits.seconds
    by_hand = f"propose:{current.number}" in state.called_off and bool(ideas)
    return (
        (current.answered or by_hand or out_of_time or state.capped is not None)
        and not any(_open_idea(i) for i in ideas)
        and all(k.stage.settled for k in queries.kernels_of(state, current.number))
        and not races.owed(state)
    )


def _ending(state: SessionState) -> str | None:
    """Why nothing further is to be begun, once everything begun has settled."""
    if queries.open_round(state) is not None or _is_busy(state):
        return None
    reason = queries.stop_reason(state)
    if reason is None and queries.last_round(state) >= 0 and not queries.frontier(state):
        reason = "no verified kernel to build on"
    return reason


def _is_busy(state: SessionState) -> bool:
    """Whether something that was begun is not through: a kernel, an idea, a race."""
    ideas = any(_open_idea(i) for i in state.ideas.values())
    return bool(queries.unsettled(state)) or ideas or bool(races.owed(state))


def _between_rounds(state: SessionState) -> tuple[e.Event, ...]:
    if _is_busy(state):
        return ()
    reason = _ending(state)
    if reason is not None:
        return () if queries.finalist(state) is not None else (e.SessionClosed(reason),)
    if state.paused is not None:
        return ()
    number = queries.last_round(state) + 1
    return (e.RoundOpened(number, parents(state) if number else ()),)


def parents(state: SessionState) -> tuple[str, ...]:
    """Kernels that the next round starts from: the incumbent, the beam's best, the pinned; in ``sequential`` the latest one."""
    assert state.opened is not None
    settings = state.opened.settings
    best = queries.incumbent(state)
    frontier = sorted(queries.frontier(state), key=lambda k: k is not best)
    if settings.strategy == "sequential":
        latest = max(frontier, key=lambda k: (k.round, int(k.id[1:])), default=None)
        return (latest.id,) if latest else ()
    pinned = [k.id for k in map(state.kernels.get, state.pinned) if k is not None and _can_be_a_parent(state, k)]
    beam = [k.id for k in frontier[: settings.beam]]
    return tuple(dict.fromkeys((*beam, *pinned)))


def _can_be_a_parent(state: SessionState, kernel: Kernel) -> bool:
    return kernel.stage is Stage.MEASURED and not queries.is_pruned(state, kernel.id)


_DEADLY = 2
"""Processes that one piece of work may take down before it is given up."""


def resumed(state: SessionState, repaired: str) -> tuple[e.Event, ...]:
    """What a process writes when it takes a session up: unfinished work named, work that killed twice given up."""
    unfinished = tuple(state.started)
    events: list[e.Event] = [e.SessionResumed(unfinished, repaired)]
    for work, count in state.started.items():
        stage, _, rest = work.partition(":")
        target = rest.partition(":")[0]
        if count < _DEADLY:
            continue
        reason = f"the engine died {count} times while it was to {stage} this"
        if target in state.kernels and not state.kernels[target].stage.settled:
            events.append(e.KernelFailed(target, Failure(FailureKind.CRASHED, reason)))
        elif stage == "implement" and target in state.ideas:
            events.append(e.IdeaImplemented(target, (), reason))
        elif stage == "race":
            given_up = next((one for one in races.owed(state) if one.key == work), None)
            events += [_given_up(given_up, reason)] if given_up is not None else []
        elif stage in ("prepare", "propose"):
            events.append(e.WorkFailed(work, reason))
    return tuple(events)


def _given_up(race: w.Race, reason: str) -> e.Event:
    """Which of the two it was nobody can tell: that is undecided, and the incumbent stays."""
    return e.KernelRaced(race.kernel, race.against, RaceOutcome.UNDECIDED, effort=race.effort, note=reason)


def moved(state: SessionState) -> tuple[e.Event, ...]:
    """After the session moved to another device: its leaders, its pinned kernels and those halfway are built there again."""
    leaders = [k.id for k in sorted(_measured_elsewhere(state), key=_by_recorded_speed)[: _leaders(state)]]
    halfway = [k.id for k in queries.unsettled(state) if k.stage in (Stage.VERIFY, Stage.MEASURE)]
    led = [k.id for k in _measured_elsewhere(state) if k.id == state.incumbent]
    wanted = dict.fromkeys((*led, *leaders, *(k for k in state.pinned if k in state.kernels), *halfway))
    return tuple(e.KernelReopened(k, "the session moved to another device") for k in wanted)


def _leaders(state: SessionState) -> int:
    return (state.opened.settings.beam if state.opened else 2) + 1


def _measured_elsewhere(state: SessionState) -> list[Kernel]:
    return [k for k in state.kernels.values() if k.stage is Stage.MEASURED and k.measurement is not None]


def _by_recorded_speed(kernel: Kernel) -> float:
    return kernel.measurement.time_us.value if kernel.measurement else float("inf")
