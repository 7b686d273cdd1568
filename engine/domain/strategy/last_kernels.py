"""The decision near the session's end: only what improves the best still counts. Pure.

Before, a kernel is also worth what it teaches and where it may lead; with few kernels left, neither pays. So the next step is
the one of greatest expected improvement of the best kernel, among all ideas on all kernels. Nothing is drawn, and no search
restarts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from engine.domain.strategy.belief import Belief
from engine.domain.strategy.evidence import OpenIdea
from engine.domain.strategy.regression import expected_improvement
from engine.domain.strategy.steps import (
    Ask,
    LastKernels,
    NextStep,
    Pair,
    belief_pair,
    candidates,
    improvement,
    new_idea_gain,
    open_ideas,
    repeatable,
    repeated_pair,
    ruled_out,
    short_of_ideas,
    tuning_pair,
)

Waiting = Mapping[str, Sequence[OpenIdea]]


def near_end(belief: Belief) -> bool:
    """Whether so few kernels are left. A playbook has its ideas from the start: there the order of trials teaches little."""
    left = belief.evidence.left
    return left is not None and left <= belief.constants.horizon and belief.evidence.invents and bool(belief.parents)


def last_step(belief: Belief, each: int, *, may_ask: bool) -> NextStep:
    """The idea at hand, or ``each`` new ones for the best kernels, whichever is expected to improve the best more."""
    top, waiting = belief.parents[belief.best].value, open_ideas(belief)
    ranked = sorted(candidates(belief), key=lambda k: belief.parents[k].value, reverse=True)
    best = max(_pairs(belief, ranked, waiting), key=lambda pair: improvement(belief, pair, top), default=None)
    known = improvement(belief, best, top) if best is not None else 0.0
    short = short_of_ideas(belief, ranked, waiting, each) if may_ask else []
    new = _new_idea(belief, short[0], top) if short else 0.0
    first = round(belief.constants.parents)
    asked = [*short[:first], *(k for k in short[first:] if belief.evidence.kernels[k].pinned)]
    ask = Ask(tuple(asked), each) if new > known else None
    return NextStep(belief, ask, best, None, tuple(ranked), LastKernels(belief.evidence.left or 0, known, new))


def _new_idea(belief: Belief, parent: str, top: float) -> float:
    """What a new idea for the parent is expected to improve the best by."""
    gain = belief.parents[parent].value - top + new_idea_gain(belief)
    return belief.newly * expected_improvement(gain, belief.posterior.noise)


def _pairs(belief: Belief, ranked: Sequence[str], waiting: Waiting) -> Iterator[Pair]:
    """The open ideas; tuning, and each idea that gained, on the kernel where it is expected to lead furthest."""
    kernels, tuned = belief.evidence.kernels, belief.evidence.tuned
    for parent in ranked:
        yield from (belief_pair(belief, idea) for idea in waiting.get(parent, ()))
    yield from (tuning_pair(belief, k) for k in [k for k in ranked if kernels[k].tunable and k not in tuned][:1])
    yield from _repeated(belief, ranked, waiting)


def _repeated(belief: Belief, ranked: Sequence[str], waiting: Waiting) -> Iterator[Pair]:
    """Parent and idea add up in what is expected of a kernel, so one order of the parents serves all ideas."""

    def reach(parent: str) -> float:
        return belief.parents[parent].value + belief.posterior.mean(belief.features(parent, "", 0.0))

    furthest = sorted(ranked, key=reach, reverse=True)
    out: dict[str, set[str]] = {}
    for stem, predicted in repeatable(belief):
        for parent in furthest:
            if parent not in out:
                out[parent] = ruled_out(belief, parent, waiting.get(parent, ()))
            if stem not in out[parent]:
                yield repeated_pair(belief, parent, stem, predicted)
                break
