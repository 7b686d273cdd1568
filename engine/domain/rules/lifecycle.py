"""Automatic transitions: rounds open and close, the policy approves ideas, limits close the session."""

from __future__ import annotations

from engine.domain import events as e
from engine.domain import queries, races, stopping
from engine.domain import work as w
from engine.domain.model import AGENT, Device, Failure, FailureKind, RaceOutcome, Succession
from engine.domain.profile import Profile
from engine.domain.rules import adaptive, dispatching, tuning
from engine.domain.state import Idea, IdeaStatus, Kernel, Round, SessionState, Stage


def automatic(state: SessionState) -> tuple[e.Event, ...]:
    """The next transitions; call it again until it returns none."""
    if state.opened is None or state.closed is not None or state.preparation is None:
        return ()
    if not state.preparation.gate.verifiable and not state.opened.settings.accept_unverifiable:
        return (e.SessionClosed(f"not verifiable: {state.preparation.gate.fooled}"),)
    return _verdict_lost(state) or _verdict_known(state) or _race_won(state) or _transitions(state) or _succession(state)


def _verdict_known(state: SessionState) -> tuple[e.Event, ...]:
    """A built kernel with the machine code of a measured one takes over its verdict, unless its own trial has begun."""
    built = (k for k in queries.unsettled(state) if k.stage is Stage.VERIFY and k.machine_code)
    waiting = (k for k in built if w.Verify(k.id, k.attempt).key not in state.started)
    return tuple(e.KernelMatched(k.id, twin.id) for k in waiting if (twin := queries.twin(state, k)) is not None)


def _verdict_lost(state: SessionState) -> tuple[e.Event, ...]:
    """A kernel is measured after all once the kernel whose verdict it took over failed or is quarantined."""
    lost = (Stage.FAILED, Stage.QUARANTINED)
    copies = [k for k in state.kernels.values() if k.same_as and k.stage is Stage.MEASURED and k.epoch == state.epoch]
    return tuple(
        e.KernelReopened(k.id, f"{k.same_as} has the same machine code and its verdict no longer stands")
        for k in copies
        if k.same_as not in state.kernels or state.kernels[k.same_as].stage in lost
    )


def _transitions(state: SessionState) -> tuple[e.Event, ...]:
    if late := _time_limit_reached(state) or _budget_reached(state):
        return late
    if paused := _pause_due(state):
        return paused
    if selected := _approvals(state):
        return selected
    current = queries.open_round(state)
    if current is not None:
        return (e.RoundClosed(current.number),) if _is_settled(state, current) else ()
    return _between_rounds(state)


def _race_won(state: SessionState) -> tuple[e.Event, ...]:
    """The winner of a race against the incumbent becomes the incumbent."""
    winner = races.winner(state)
    return (e.IncumbentChanged(winner.id, state.incumbent, Succession.RACED),) if winner is not None else ()


def _succession(state: SessionState) -> tuple[e.Event, ...]:
    """Chooses an incumbent if there is none, or if the present one is no longer eligible.

    An incumbent that is being remeasured keeps its place. An eligible incumbent is replaced only after a race.
    """
    named = state.kernels.get(state.incumbent)
    if named is not None and (queries.may_lead(state, named) or not named.stage.settled):
        return ()
    best = queries.successor(state)
    if best is None or not queries.may_lead(state, best):
        return ()
    why = Succession.SUCCEEDED if state.incumbent else Succession.FIRST
    return (e.IncumbentChanged(best.id, state.incumbent, why),)


def _approvals(state: SessionState) -> tuple[e.Event, ...]:
    """On autopilot every idea is approved, or the one that the adaptive strategy chooses; the naive port always is."""
    if adaptive.is_adaptive(state) and not any(_is_naive_port(i) for i in queries.pending_ideas(state)):
        return adaptive.selection(state)
    chosen = [i for i in queries.pending_ideas(state) if state.mode.is_autopilot or _is_naive_port(i)]
    return tuple(e.IdeaSelected(i.id) for i in chosen)


def _is_naive_port(idea: Idea) -> bool:
    return idea.round == 0 and not (idea.author.decides or idea.author.is_agent)


def _time_limit_reached(state: SessionState) -> tuple[e.Event, ...]:
    """After the time limit no work starts: waiting kernels are cancelled, running work may finish."""
    seconds = state.limits.seconds
    if seconds is None or state.active_seconds < seconds:
        return ()
    waiting = [k for k in queries.unsettled(state) if not _is_under_way(state, k.id)]
    ideas = [i for i in state.ideas.values() if _is_open(state, i) and w.Implement(i.id).key not in state.started]
    cancelled = [e.KernelCancelled(k.id, f"time limit of {seconds:g} s reached") for k in waiting]
    parked = [e.IdeaParked(i.id) for i in ideas]
    return (*cancelled, *parked)


def _budget_reached(state: SessionState) -> tuple[e.Event, ...]:
    """After a hard cap no model is asked. The session closes once nothing else runs; its round stays open, with the ideas and
    the repairs that it owes, and goes on when the cap is raised."""
    if state.capped is None or _is_working(state) or queries.finalist(state) is not None:
        return ()
    return (e.SessionClosed(state.capped),)


def _is_working(state: SessionState) -> bool:
    """Whether something is running or owed that needs no model."""
    waiting = any(kernel.stage is not Stage.REPAIR for kernel in queries.unsettled(state))
    running = any(key.kind != w.WorkKind.SANITIZE for key in state.started)
    return waiting or running or bool(races.pending_races(state)) or races.to_sustain(state) is not None


def _pause_due(state: SessionState) -> tuple[e.Event, ...]:
    """The pause for one of the engineer's conditions that holds."""
    reason = queries.pause_reason(state)
    return (e.SessionPaused(reason),) if reason is not None and state.paused is None else ()


def finalist(state: SessionState) -> Kernel | None:
    """The incumbent of a session that is about to close, if the sanitizers have not run on it yet."""
    if state.closed is not None or _end_reason(state) is None or tuning.finalist(state) is not None:
        return None
    return queries.finalist(state)


def to_tune(state: SessionState) -> tuple[Kernel, ...]:
    """The kernels to tune on each workload: those requested, and the best single one of a session that is about to close."""
    if wanted := tuning.requested(state):
        return wanted
    best = tuning.finalist(state) if state.closed is None and _end_reason(state) is not None else None
    return (best,) if best is not None else ()


def _is_open(state: SessionState, idea: Idea) -> bool:
    """An approved idea that an agent has not written keeps nothing open where the session has other proposers."""
    if idea.status is IdeaStatus.PROPOSED:
        return True
    unwritten = idea.status is IdeaStatus.SELECTED and not idea.implemented
    return unwritten and (_by_agents(state) or not queries.awaits_agent(state, idea))


def _by_agents(state: SessionState) -> bool:
    """Whether coding agents are the session's only proposers."""
    return state.models.source == AGENT


def _is_under_way(state: SessionState, kernel: str) -> bool:
    return any(key.subjects == (kernel,) for key in state.started)


def _is_settled(state: SessionState, current: Round) -> bool:
    ideas = queries.ideas_of(state, current.number)
    out_of_time = stopping.is_out_of_time(state)
    by_hand = w.WorkKey(w.WorkKind.PROPOSE, (), current.number) in state.called_off and bool(ideas)
    return (
        (current.answered or by_hand or out_of_time or bool(current.number and _by_agents(state)))
        and not any(_is_open(state, i) for i in ideas)
        and all(k.stage.settled for k in queries.kernels_of(state, current.number))
        and not races.pending_races(state)
    )


def _end_reason(state: SessionState) -> str | None:
    """Why the session closes; ``None`` while work is unfinished or no limit is reached."""
    if state.capped is not None and not _is_working(state):
        return state.capped
    if queries.open_round(state) is not None or _is_busy(state):
        return None
    reason = stopping.stop_reason(state)
    if reason is None and queries.last_round(state) >= 0 and not queries.frontier(state):
        reason = "no verified kernel to build on"
    return reason


def _is_busy(state: SessionState) -> bool:
    """Whether a kernel, an idea, a race, a requested tuning or the incumbent's sustained measurement is unfinished."""
    ideas = any(_is_open(state, i) for i in state.ideas.values())
    measuring = bool(races.pending_races(state) or tuning.requested(state)) or races.to_sustain(state) is not None
    return bool(queries.unsettled(state)) or ideas or measuring


def _between_rounds(state: SessionState) -> tuple[e.Event, ...]:
    number = queries.last_round(state) + 1
    if number and _by_agents(state) and any(_is_open(state, i) for i in queries.ideas_of(state, number)):
        return (e.RoundOpened(number, parents(state)),)
    if _is_busy(state):
        return ()
    reason = _end_reason(state)
    if number and (combined := dispatching.owed(state, ending=reason is not None)):
        return combined
    if number and adaptive.is_adaptive(state) and (race := adaptive.race_due(state)):
        return race
    if reason is not None:
        last_work = queries.finalist(state) or tuning.finalist(state)
        return () if last_work is not None else (e.SessionClosed(reason),)
    if state.paused is not None or (number and _by_agents(state)):
        return ()
    if number and adaptive.is_adaptive(state):
        return (adaptive.opened_round(state, number),)
    return (e.RoundOpened(number, parents(state) if number else ()),)


def parents(state: SessionState) -> tuple[str, ...]:
    """Parents of the next round: the incumbent, the best of the beam, the pinned; with ``sequential`` the latest kernel."""
    assert state.opened is not None
    settings = state.opened.settings
    best = queries.incumbent(state)
    frontier = sorted(queries.frontier(state), key=lambda k: k is not best)
    if settings.strategy == "sequential":
        born = {kernel: place for place, kernel in enumerate(state.kernels)}
        latest = max(frontier, key=lambda k: (k.round, born[k.id]), default=None)
        return (latest.id,) if latest else ()
    pinned = [k.id for k in map(state.kernels.get, state.pinned) if k is not None and _may_be_parent(state, k)]
    beam = [k.id for k in frontier[: settings.beam]]
    return tuple(dict.fromkeys((*beam, *pinned)))


def _may_be_parent(state: SessionState, kernel: Kernel) -> bool:
    return kernel.stage is Stage.MEASURED and not kernel.members and not queries.is_pruned(state, kernel.id)


_MAX_CRASHES = 2
"""How many processes a work item may crash before it is given up."""
_ENGINE_CRASHED = "the engine crashed"


def resume_events(state: SessionState, repaired: str) -> tuple[e.Event, ...]:
    """The first events of a process: unfinished work is listed, work that crashed two processes is given up."""
    events: list[e.Event] = [e.SessionResumed(tuple(map(str, state.started)), repaired)]
    for key, count in state.started.items():
        if count < _MAX_CRASHES:
            continue
        reason = f"{_ENGINE_CRASHED} {count} times during this {key.kind} step"
        if key.subject in state.kernels and not state.kernels[key.subject].stage.settled:
            events.append(e.KernelFailed(key.subject, Failure(FailureKind.CRASHED, reason)))
        elif key.kind == w.WorkKind.IMPLEMENT and key.subject in state.ideas:
            events.append(e.IdeaImplemented(key.subject, (), reason))
        elif key.kind == w.WorkKind.RACE:
            events += [_undecided_race(race, reason) for race in races.pending_races(state) if race.key == key]
        elif key.kind == w.WorkKind.SUSTAIN and key.subject in state.kernels:
            events.append(e.KernelSustained(key.subject, key.number or 0, note=reason))
        elif key.kind == w.WorkKind.PROFILE and key.subject in state.kernels:
            events.append(e.KernelProfiled(key.subject, Profile(key.number or 0, note=reason)))
        elif key.kind == w.WorkKind.TUNE and key.subject in state.kernels:
            events.append(e.KernelTuned(key.subject, key.number or 0, note=reason))
        elif key.kind in (w.WorkKind.PREPARE, w.WorkKind.PROPOSE):
            events.append(e.WorkFailed(str(key), reason))
    return tuple(events)


def is_given_up(kernel: Kernel) -> bool:
    """Whether the kernel failed because its work ended several processes of the engine: it may be without fault, as where the
    user or the system killed them."""
    return kernel.failure is not None and kernel.failure.reason.startswith(_ENGINE_CRASHED)


def _undecided_race(race: w.Race, reason: str) -> e.Event:
    """It is unknown which of the two kernels crashed the engine: the race is undecided and the incumbent stays."""
    return e.KernelRaced(race.kernel, race.against, RaceOutcome.UNDECIDED, effort=race.effort, note=reason)


def prepared_again_events(state: SessionState, here: Device) -> tuple[e.Event, ...]:
    """After a further preparation the incumbent, the best, the pinned and the unfinished kernels start again from the build."""
    best = [k.id for k in sorted(_measured(state), key=_by_recorded_speed)[: _kept_count(state)]]
    halfway = [k.id for k in queries.unsettled(state) if k.stage in (Stage.VERIFY, Stage.MEASURE)]
    incumbent = [k.id for k in _measured(state) if k.id == state.incumbent]
    reopened = dict.fromkeys((*incumbent, *best, *(k for k in state.pinned if k in state.kernels), *halfway))
    moved = state.device is not None and not queries.same_device(state.device, here)
    reason = "the session moved to another device" if moved else "the baselines were measured again"
    return tuple(e.KernelReopened(k, reason) for k in reopened)


def _kept_count(state: SessionState) -> int:
    return (state.opened.settings.beam if state.opened else 2) + 1


def _measured(state: SessionState) -> list[Kernel]:
    return [k for k in state.kernels.values() if k.stage is Stage.MEASURED and k.measurement is not None]


def _by_recorded_speed(kernel: Kernel) -> float:
    return kernel.measurement.time_us.value if kernel.measurement else float("inf")
