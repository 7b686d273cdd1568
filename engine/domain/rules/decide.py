"""``decide``: the events of a command, or its rejection. Commands on ideas and kernels are in ``on_ideas`` and
``on_kernels``."""

from __future__ import annotations

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import queries, stopping
from engine.domain.errors import CommandRejected
from engine.domain.model import ENGINEER, Author, Blob
from engine.domain.rules import on_ideas, on_kernels, on_undo, permissions
from engine.domain.rules.lookup import call_of
from engine.domain.settings import LARGEST_COUNT, LARGEST_LIMIT, Mode, ModelSettings, Pauses
from engine.domain.state import CallStatus, SessionState


def decide(state: SessionState, command: c.Command, by: Author = ENGINEER) -> tuple[e.Event, ...]:
    """The events of the command of ``by``. Raises CommandRejected with a one-line reason."""
    if state.opened is None:
        raise CommandRejected("this session is not open yet")
    permissions.check(state, command, by)
    if isinstance(command, c.IdeaCommand):
        return on_ideas.decide(state, command, by)
    if isinstance(command, c.KernelCommand):
        return on_kernels.decide(state, command)
    if isinstance(command, c.RaceCommand):
        return on_kernels.decide_race(state, command)
    if isinstance(command, c.UndoDecision):
        return on_undo.decide(state, by)
    return _decide_session(state, command)


def _decide_session(state: SessionState, command: c.SettingCommand) -> tuple[e.Event, ...]:
    match command:
        case c.AddNote(target, text):
            return (_note(state, target, text),)
        case c.SetMode(mode):
            if Mode.parse(mode) is None:
                raise CommandRejected(f"unknown mode {mode!r}: use ask, ask:SECONDS or autopilot")
            return (e.ModeChanged(mode),)
        case c.SetLimits(limits):
            return _limits(state, e.LimitsChanged(limits))
        case c.SetModels(models):
            return () if models == state.models else (_models(models),)
        case c.SetPauses() | c.PauseSearch() | c.ResumeSearch():
            return _pausing(state, command)
        case c.AnswerCall(call, reply):
            return (_answer(state, call, reply),)
        case c.CancelCall(call, reason):
            return (_cancel(state, call, reason),)
        case c.Instruct(text):
            return (e.InstructionsChanged(text),)
        case c.EndSession(reason):
            return _close(state, reason)


def _note(state: SessionState, target: str, text: str) -> e.Event:
    if not text.strip():
        raise CommandRejected("a note needs text")
    known = not target or target in state.kernels or target in state.ideas
    if not known and target not in {f"r{number}" for number in state.rounds}:
        raise CommandRejected(f"unknown target {target!r} for a note: name a kernel (k3), an idea (i2) or a round (r1)")
    return e.NoteAdded(target, text)


def _limits(state: SessionState, changed: e.LimitsChanged) -> tuple[e.Event, ...]:
    limits = changed.limits
    _bounded(time=limits.seconds, tokens=limits.tokens, dollars=limits.usd, SOL=limits.light)
    _bounded(LARGEST_COUNT, rounds=limits.rounds, kernels=limits.kernels, plateau=limits.plateau)
    if state.closed is None:
        return (changed,)
    still = stopping.reopened_stop(state, limits)
    return (changed,) if still is not None else (changed, e.SessionReopened())


def _bounded(most: int = LARGEST_LIMIT, **figures: float | None) -> None:
    """Raises CommandRejected for NaN, infinity and huge numbers, by name: nothing exceeds them, so the limit would be none."""
    for name, figure in figures.items():
        if figure is not None and not abs(figure) <= most:
            raise CommandRejected(f"invalid limit of {name}, {figure}: give a number up to {most:,}, or none")


def _models(models: ModelSettings) -> e.Event:
    _bounded(patience=models.patience)
    for options in models.options.values():
        _bounded(temperature=options.temperature, timeout=options.timeout)
    if models.patience < 0 or models.concurrency < 1:
        raise CommandRejected("patience cannot be negative, and at least one call must be allowed at a time")
    return e.ModelsChanged(models)


def _pausing(state: SessionState, command: c.SetPauses | c.PauseSearch | c.ResumeSearch) -> tuple[e.Event, ...]:
    match command:
        case c.SetPauses(pauses):
            _bounded(tokens=pauses.tokens, dollars=pauses.usd)
            _bounded(LARGEST_COUNT, rounds=pauses.round)
            _require_ahead(state, pauses.round)
            return (e.PausesChanged(pauses),)
        case c.PauseSearch(reason):
            if state.paused is not None or state.closed is not None:
                how = "is already paused" if state.paused is not None else "has already ended"
                raise CommandRejected(f"this session {how}")
            return (e.SessionPaused(reason.strip() or "by hand"),)
        case c.ResumeSearch():
            if state.paused is None:
                raise CommandRejected("this session is not paused")
            return (e.SessionContinued(_still_ahead(state)),)


def _require_ahead(state: SessionState, number: int | None) -> None:
    """Raises CommandRejected for a pause before a round that has begun: the search would never stop there."""
    coming = queries.last_round(state) + 1
    if number is not None and number < coming and number != state.pauses.round:
        raise CommandRejected(f"round {number} has already begun: the next one is round {coming}")


def _still_ahead(state: SessionState) -> Pauses:
    """The pause conditions that do not hold yet."""
    pauses = state.pauses
    spent, (dollars, _) = queries.total_usage(state).total, queries.total_usd(state)
    coming = queries.last_round(state) + (queries.open_round(state) is None)
    return Pauses(
        pauses.tokens if pauses.tokens is not None and spent <= pauses.tokens else None,
        pauses.usd if pauses.usd is not None and dollars <= pauses.usd else None,
        pauses.round if pauses.round is not None and pauses.round > coming else None,
    )


def _cancel(state: SessionState, call: str, reason: str) -> e.Event:
    """Ends only the call; its work continues with the replies that it has. A provider may bill it in full."""
    found = call_of(state, call)
    if found.status is not CallStatus.OPEN:
        how = "been answered" if found.status is CallStatus.ANSWERED else f"failed ({found.reason})"
        raise CommandRejected(f"{call} has already {how}: only open calls can be cancelled")
    text = f"cancelled by hand: {reason}" if reason.strip() else "cancelled by hand"
    return e.CallFailed(call, text, found.highest, cancelled=True, estimated=found.ceiling > 0)


def _answer(state: SessionState, call: str, reply: Blob) -> e.Event:
    found = call_of(state, call)
    if found.status is not CallStatus.OPEN:
        raise CommandRejected(f"{call} has already been answered")
    if not found.by_hand:
        raise CommandRejected(f"{call} was sent to {found.model}: only calls to 'paste' are answered by hand")
    return e.CallAnswered(call, reply, finish="pasted", seconds=max(0.0, state.at - found.asked_at))


def _close(state: SessionState, reason: str) -> tuple[e.Event, ...]:
    if state.closed is not None:
        raise CommandRejected(f"this session has already ended ({state.closed})")
    cancelled = [e.KernelCancelled(k.id, "session closed") for k in queries.unsettled(state)]
    return (*cancelled, e.SessionClosed(reason.strip() or "ended by hand"))
