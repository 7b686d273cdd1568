"""The adaptive strategy's transitions: which round opens, which idea is tried, what is kept for later. The policy is in
``domain.strategy``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from engine.domain import events as e
from engine.domain import queries, stopping
from engine.domain.model import ENGINE, IdeaText
from engine.domain.round_plan import RoundPlan
from engine.domain.settings import Mode
from engine.domain.state import Idea, IdeaStatus, SessionState
from engine.domain.strategy import reasons
from engine.domain.strategy.belief import Belief
from engine.domain.strategy.choice import decided
from engine.domain.strategy.evidence import TUNE, evidence, open_idea, stem_of
from engine.domain.strategy.racing import COST, is_spent, race_worth
from engine.domain.strategy.steps import NextStep, Pair, belief_pair
from engine.domain.strategy.worth import next_gain

NAME = "adaptive"
_OFTEN_FAILS = 0.4
"""Below this probability of a verified kernel, an idea gets two implementations at once."""

_TUNED_VARIANTS = 2
"""Variants of one tuning idea: a step in two directions."""
_TUNING_CATEGORY = "occupancy"
_NOT_NOW = "kept for later: its parent is not among the most promising now"


def is_adaptive(state: SessionState) -> bool:
    return state.opened is not None and state.opened.settings.strategy == NAME


@lru_cache(maxsize=2)  # a state's races and its next round follow from one decision
def decision(state: SessionState, *, may_ask: bool) -> NextStep:
    """The strategy's decision on the state, as a session would take it now."""
    assert state.opened is not None
    last = state.rounds.get(queries.last_round(state))
    focus = last.plan.focus if last is not None and last.plan is not None else None
    return decided(evidence(state), focus, may_ask=may_ask, ideas=state.opened.settings.ideas)


def race_due(state: SessionState) -> tuple[e.Event, ...]:
    """A race against the incumbent that is worth more than the next kernel or, where the session is to end, than nothing."""
    if state.paused is not None or (state.limits.seconds is not None and state.active_seconds >= state.limits.seconds):
        return ()
    if is_spent(state):
        return ()
    now = decision(state, may_ask=True)
    if not now.belief.parents:
        return ()
    found = race_worth(state, now.belief)
    instead = next_gain(now) if stopping.stop_reason(state) is None else None
    if found is None or (instead is not None and found.improvement <= COST * instead):
        return ()
    return (e.RaceAsked(found.kernel, found.against, reasons.of_race(found, instead)),)


def opened_round(state: SessionState, number: int) -> e.RoundOpened:
    """The next round: it asks for ideas, or tries one that is at hand."""
    decision_now = decision(state, may_ask=True)
    ask, pair = decision_now.ask, decision_now.pair
    reason = reasons.of_parents(decision_now, ask)
    if ask is not None:
        return e.RoundOpened(number, ask.parents, RoundPlan(reason, ask.each, decision_now.focus))
    if pair is not None:
        return e.RoundOpened(number, (pair.parent,), RoundPlan(reason, 0, decision_now.focus))
    return e.RoundOpened(number, decision_now.ranked[:1], RoundPlan(reason, 1, None))


def selection(state: SessionState) -> tuple[e.Event, ...]:
    """The next step towards an idea to try in the open round: on autopilot its approval, then the others are kept for later.

    In mode ``ask`` only an idea that the strategy takes over from another parent is proposed; the engineer decides. Each step
    is one event, so a search that is killed between two of them continues the same way.
    """
    current = queries.open_round(state)
    if current is None or current.number == 0 or not current.answered:
        return ()
    pending = queries.pending_ideas(state)
    chosen = any(idea.status is IdeaStatus.SELECTED for idea in queries.ideas_of(state, current.number))
    if state.mode.is_autopilot:
        return _kept(state, pending) if chosen else approval(state)
    if chosen or pending or current.plan is None or current.plan.each or queries.ideas_of(state, current.number):
        return ()
    now = decision(state, may_ask=False)
    return _offered(state, now, now.pair) if now.pair is not None and not now.pair.idea else ()


def approval_due(state: SessionState) -> tuple[e.Event, ...]:
    """The next event when the engineer's time for a decision is over: like ``selection`` on autopilot, until nothing pends."""
    if not is_adaptive(state) or not queries.pending_ideas(state):
        return ()
    return selection(replace(state, mode=Mode("autopilot")))


def approval(state: SessionState) -> tuple[e.Event, ...]:
    """The policy's approval of the best idea; an idea from another parent is proposed first."""
    pending = queries.pending_ideas(state)
    proposed = next((idea for idea in pending if idea.advice and (idea.repeats or idea.author.is_engine)), None)
    if proposed is not None:
        return (e.IdeaSelected(proposed.id, proposed.advice),)
    now = decision(state, may_ask=False)
    pair = now.pair
    if pair is None:
        return tuple(e.IdeaParked(idea.id, _NOT_NOW) for idea in pending)
    if not pair.idea:
        return _offered(state, now, pair)
    idea, number = state.ideas[pair.idea], queries.last_round(state)
    home = number if idea.round != number else None
    why = reasons.of_pair(now.belief, pair, idea.text.predicted, "")
    return (e.IdeaSelected(idea.id, why, home, _copies(idea.branch, pair)),)


def _copies(branch: int, pair: Pair) -> int | None:
    """Several implementations where attempts often fail, one where the idea's worth is in doubt."""
    wanted = min(branch, 2 if pair.success < _OFTEN_FAILS else 1)
    return wanted if wanted != branch else None


def _offered(state: SessionState, now: NextStep, pair: Pair) -> tuple[e.Event, ...]:
    """The strategy's own idea: other values of the parent's tunables, or an idea of another lineage."""
    return _tuning(state, now, pair) if pair.stem == TUNE else _repeated(state, now, pair)


def _tuning(state: SessionState, now: NextStep, pair: Pair) -> tuple[e.Event, ...]:
    """A tuning idea, which needs no model: its variants differ from the parent in one value each."""
    assert state.opened is not None
    values = "; ".join(f"{name} = {value}" for name, value in state.kernels[pair.parent].tunables.items())
    rationale = f"{pair.parent} has {values}. Variants with a neighbouring value of one tunable each; the code stays the same."
    text = IdeaText(f"Tune {pair.parent} around its values", _TUNING_CATEGORY, rationale, None, f"{TUNE}:{pair.parent}:1")
    branch = min(state.opened.settings.branch, _TUNED_VARIANTS)
    why = reasons.of_pair(now.belief, pair, None, "")
    proposed = e.ProposedIdea(f"i{state.next_idea}", text, pair.parent, ENGINE, branch, "", why)
    return (e.IdeasProposed(queries.last_round(state), (proposed,), from_source=False),)


def _repeated(state: SessionState, now: NextStep, pair: Pair) -> tuple[e.Event, ...]:
    """The idea of another lineage as a new idea on this parent; its rationale names a kernel that implements it."""
    origin = next(idea for idea in state.ideas.values() if stem_of(idea) == pair.stem and idea.implemented)
    kernels = [k for k in queries.ranked(state) if k.idea in state.ideas and stem_of(state.ideas[k.idea]) == pair.stem]
    elsewhere = kernels[0].id if kernels else ""
    key = f"{pair.stem}#{pair.parent}" if origin.text.key else ""
    rationale = (
        f"{origin.text.rationale} (Implemented in {elsewhere}: do the same here.)" if elsewhere else origin.text.rationale
    )
    text = replace(origin.text, key=key, predicted=math.exp(pair.expected), rationale=rationale)
    why = reasons.of_pair(now.belief, pair, None, elsewhere)
    source, shown = origin.repeats or origin.id, (elsewhere,) if elsewhere else ()
    proposed = e.ProposedIdea(f"i{state.next_idea}", text, pair.parent, origin.author, 1, source, why, shown)
    return (e.IdeasProposed(queries.last_round(state), (proposed,), from_source=False),)


def _kept(state: SessionState, pending: Sequence[Idea]) -> tuple[e.Event, ...]:
    """The ideas of this round that are not tried now."""
    if not pending:
        return ()
    belief = decision(state, may_ask=False).belief
    return tuple(e.IdeaParked(idea.id, f"kept for later: {_expected(belief, idea)}") for idea in pending)


def _expected(belief: Belief, idea: Idea) -> str:
    """What is expected of an open idea."""
    if idea.parent is None or idea.parent not in belief.parents:
        return "no expectation: its parent has no corroborated time"
    pair = belief_pair(belief, open_idea(idea, idea.parent))
    return reasons.of_pair(belief, pair, idea.text.predicted, "")


def advice(state: SessionState) -> Mapping[str, str]:
    """Idea → what the strategy expects of it, for each idea that awaits a decision: shown at the gate, recorded nowhere."""
    if not is_adaptive(state) or not queries.frontier(state):
        return {}
    now = decision(state, may_ask=False)
    lines: dict[str, str] = {}
    for idea in queries.pending_ideas(state):
        chosen = now.pair is not None and now.pair.idea == idea.id
        lines[idea.id] = ("next: " if chosen else "") + _expected(now.belief, idea)
    return lines
