"""Why a search ends: a limit is reached, nobody has ideas, or ideas lead to no kernels. Pure."""

from __future__ import annotations

from dataclasses import replace

from engine.domain import queries
from engine.domain.errors import head_and_tail
from engine.domain.settings import Limits
from engine.domain.state import Idea, IdeaStatus, SessionState
from engine.domain.strategy.evidence import TUNE, stem_of

_SOL_HOLDS = 1.25
"""Fraction of SOL above which the floor is no bound: operands in a core's own cache move faster than the device copies."""

MOST_WITHOUT_KERNELS = 10
"""Rounds in a row without a kernel that end a search: the proposer or the writer gives nothing that can be built."""
_MOST_REASON = 160
"""Characters of the reason of the latest of these rounds."""
_NO_LIMITS = Limits(rounds=None, plateau=None, light=None)


def stop_reason(state: SessionState) -> str | None:
    """The limit that is reached, as text; ``None`` if there is none. Round 0 (the naive port) does not count."""
    limits = state.limits
    best = queries.incumbent(state)
    sol = best.measurement.light if best and best.measurement else None
    if limits.rounds is not None and (done := queries.rounds_done(state)) >= limits.rounds:
        return f"{done} of {limits.rounds} rounds done"
    if limits.seconds is not None and is_out_of_time(state):
        return f"time limit of {limits.seconds:g} s reached"
    if limits.kernels is not None and len(state.kernels) >= limits.kernels:
        return f"limit of {limits.kernels} kernels reached"
    if state.capped is not None:
        return state.capped
    if sol is not None and limits.light is not None and limits.light <= sol.fraction <= _SOL_HOLDS:
        return f"{sol.fraction * 100:.0f}% of SOL reached"
    if limits.plateau and queries.stalled_rounds(state) >= limits.plateau:
        return f"no new incumbent in {queries.stalled_rounds(state)} rounds"
    return _exhausted(state) or _without_kernels(state)


def is_out_of_time(state: SessionState) -> bool:
    """Whether the session's time limit is reached."""
    return state.limits.seconds is not None and state.active_seconds >= state.limits.seconds


def may_go_on(state: SessionState) -> bool:
    """Whether an ended session would go on if its limits were raised: there are ideas, and a kernel to build on."""
    return reopened_stop(state, _NO_LIMITS) is None and bool(queries.frontier(state))


def reopened_stop(state: SessionState, limits: Limits) -> str | None:
    """Why an ended session would stay ended with these limits; ``None`` if it would go on."""
    return stop_reason(replace(state, limits=limits, capped=None, reopened_after=queries.last_round(state)))


def limits_reached(state: SessionState) -> tuple[str, ...]:
    """The fields of ``Limits`` that each keep an ended session from going on, but for its rounds and its budget."""
    names = ("seconds", "kernels", "plateau", "light")
    return tuple(
        name for name in names if reopened_stop(state, replace(_NO_LIMITS, **{name: getattr(state.limits, name)})) is not None
    )


def _exhausted(state: SessionState) -> str | None:
    last = state.rounds.get(queries.last_round(state))
    if last is None or not last.closed or last.number == 0:
        return None
    return None if queries.ideas_of(state, last.number) else "no further ideas"


def _without_kernels(state: SessionState) -> str | None:
    """Many rounds in a row without a kernel, with the reason of the latest. Rounds are counted from the last reopening on.

    The limits of rounds and of the plateau do not see them: the adaptive strategy counts kernels. A round of which the engineer
    rejected or put aside an idea does not count, and neither does one that only tuned: it costs nothing, and ends by itself.
    """
    count, why = 0, ""
    for current in queries.newest_first(state.rounds):
        if current.number <= max(0, state.reopened_after) or queries.kernels_of(state, current.number):
            return None
        ideas = queries.ideas_of(state, current.number)
        if not current.closed or any(map(_is_put_aside, ideas)) or all(stem_of(idea) == TUNE for idea in ideas):
            continue
        count, why = count + 1, why or next((idea.note or idea.reason for idea in ideas if idea.note or idea.reason), "")
        if count == MOST_WITHOUT_KERNELS:
            told = f": {head_and_tail(' '.join(why.split()), _MOST_REASON)}" if why else ""
            return f"no kernel in {count} rounds{told}"
    return None


def _is_put_aside(idea: Idea) -> bool:
    """Whether the engineer decided against it: the engine gives a reason when it parks an idea."""
    return idea.status is IdeaStatus.REJECTED or (idea.status is IdeaStatus.PARKED and not idea.reason)
