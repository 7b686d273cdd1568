"""The next decision: try an idea on a parent, ask for new ideas, or restart from a kernel left behind. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import pstdev

from engine.domain.round_plan import Focus
from engine.domain.strategy.belief import GAINED, RECENT, SHORTFALL, Belief, Constants, believed
from engine.domain.strategy.draws import Draws
from engine.domain.strategy.evidence import TUNE, Evidence, OpenIdea, ancestors, clipped
from engine.domain.strategy.from_latest import step_from_latest
from engine.domain.strategy.last_kernels import last_step, near_end
from engine.domain.strategy.regression import dot, expected_improvement
from engine.domain.strategy.steps import (
    Ask,
    NextStep,
    Pair,
    belief_pair,
    candidates,
    new_idea_gain,
    open_ideas,
    repeatable,
    ruled_out,
    short_of_ideas,
    tuning_pair,
)

CONSTANTS = Constants()


def decided(
    evidence: Evidence, focus: Focus | None, *, may_ask: bool, ideas: int = 3, constants: Constants = CONSTANTS
) -> NextStep:
    """The decision. ``may_ask``: the round has not asked yet; ``ideas`` limits the ideas asked for one parent."""
    belief = believed(evidence, constants)
    each = max(1, min(ideas, round(constants.ideas)))
    if (from_latest := step_from_latest(belief, focus, may_ask=may_ask)) is not None:
        return from_latest
    if near_end(belief):
        return last_step(belief, each, may_ask=may_ask)
    draws = Draws(evidence.seed, f"{evidence.step}:{len(evidence.trials)}:{may_ask}")
    return _Search(belief, draws, each).decided(focus, may_ask)


class _Search:
    """One decision: one draw of the weights, and the scores that follow from it."""

    def __init__(self, belief: Belief, draws: Draws, each: int) -> None:
        self.belief, self.draws, self.each = belief, draws, each
        self.weights = belief.posterior.weights(draws, belief.constants.weight_spread)
        constants = belief.constants
        scatter: float = (0.15 / max(belief.posterior.noise, 0.03)) ** constants.used_by_noise
        self.used: float = constants.used * (1.0 + constants.stalled * belief.stalled) * scatter
        self.open = open_ideas(belief)

    def decided(self, focus: Focus | None, may_ask: bool) -> NextStep:
        focus = self._continued(focus)
        ranked = self._ranked(focus)
        pairs = self._pairs(ranked, focus.root if focus is not None else "")
        if focus is not None and not pairs and not may_ask:  # the restarted lineage has no idea left
            focus = None
            ranked = self._ranked(focus)
            pairs = self._pairs(ranked)
        elif focus is None and (restarted := self._restart()) is not None:
            focus = restarted
            ranked = self._ranked(focus)
            pairs = self._pairs(ranked, focus.root)
        if not self.belief.evidence.invents or not (pairs or may_ask):  # what waits elsewhere is all that is left
            pairs += [pair for parent in candidates(self.belief) if parent not in ranked for pair in self._own_pairs(parent)]
        best = max(pairs, key=lambda p: p.score, default=None)
        ask = self._ask(ranked, best) if may_ask else None
        return NextStep(self.belief, ask, best, focus, ranked)

    def _continued(self, focus: Focus | None) -> Focus | None:
        """The focus while its lineage has budget, of which a failure spends half; an improvement extends it.

        One by a familiar idea does not: polish of a lineage is no sign that it leads further.
        """
        if focus is None or focus.root not in self.belief.parents:
            return None
        own = self._lineage(focus)
        tried = self.belief.evidence.tried
        left = focus.left - sum(1.0 if trial.child else 0.5 for trial in self.belief.evidence.since(focus.tried))
        top = max(own, key=lambda k: self.belief.parents[k].value, default="")
        best = self.belief.parents[top].value if top else -math.inf
        before = -math.inf if focus.best is None else focus.best
        if best > before + GAINED and not self.belief.familiar(self.belief.evidence.kernels[top].stem):
            left = max(left, self.belief.constants.grace)
        return Focus(focus.root, left, tried, max(best, before) if own else focus.best) if left > 0 else None

    def _lineage(self, focus: Focus) -> list[str]:
        """The kernels under the latest child of the restart's root, if there is one since the restart."""
        kernels = self.belief.evidence.kernels
        child = next((t.child for t in reversed(self.belief.evidence.trials) if t.child and t.parent == focus.root), None)
        if child is None or (focus.best is None and not self._since(focus, child)):
            return []
        return [k for k in kernels if child in ancestors(kernels, k)]

    def _since(self, focus: Focus, child: str) -> bool:
        return any(t.child == child for t in self.belief.evidence.since(focus.tried))

    def _ranked(self, focus: Focus | None) -> tuple[str, ...]:
        among: Sequence[str] = candidates(self.belief) if focus is None else self._lineage(focus) or [focus.root]
        limit = round(self.belief.constants.parents)
        ranked = sorted(among, key=self._prospect, reverse=True)[:limit]
        pinned = [k for k, c in self.belief.evidence.kernels.items() if c.pinned and not c.combined and k not in ranked]
        return (*ranked, *pinned)

    def _value(self, parent: str) -> float:
        """The value of a parent, less what was already drawn from it."""
        record, constants = self.belief.parents[parent], self.belief.constants
        return (
            record.value
            - self.used * record.kernels
            + constants.momentum * record.recent
            - constants.neutral * max(0, record.neutral - 2)
        )

    def _prospect(self, parent: str) -> float:
        record, weights = self.belief.parents[parent], self.weights
        shortfall, recent = clipped(record.shortfall, 0.5), clipped(record.recent)
        return self._value(parent) + weights[SHORTFALL] * shortfall + weights[RECENT] * recent

    def _pairs(self, ranked: Sequence[str], restarted: str = "") -> list[Pair]:
        """The open ideas of the ranked parents, and ideas that gained elsewhere; a restart begins with an idea of its own."""
        pairs: list[Pair] = []
        for parent in ranked:
            pairs += self._own_pairs(parent, restarts=parent == restarted)
            if parent != restarted:
                pairs += self._repeated_pairs(parent)
        return pairs

    def _own_pairs(self, parent: str, *, restarts: bool = False) -> list[Pair]:
        """The open ideas of a parent, and other values of its tunables."""
        belief, own = self.belief, self.open.get(parent, [])
        if restarts and belief.exhausted:
            own = [idea for idea in own if idea.stem not in belief.parents[parent].tried] or own
        pairs = [self._open_pair(idea) for idea in own]
        if not restarts and belief.evidence.kernels[parent].tunable and parent not in belief.evidence.tuned:
            pairs.append(self._tuning_pair(parent, ""))
        return pairs

    def _open_pair(self, idea: OpenIdea) -> Pair:
        if idea.stem == TUNE:
            return self._tuning_pair(idea.parent, idea.id)
        adjustment = self.belief.adjustment(idea.author, idea.category, idea.predicted)
        return self._pair(idea.parent, idea.stem, idea.predicted, adjustment, idea.id)

    def _repeated_pairs(self, parent: str) -> list[Pair]:
        """The ideas that gained elsewhere and are new to the parent and its lineage."""
        belief = self.belief
        known = ruled_out(belief, parent, self.open.get(parent, ()))
        return [self._pair(parent, stem, predicted, 0.0, "") for stem, predicted in repeatable(belief) if stem not in known]

    def _pair(self, parent: str, stem: str, predicted: float, adjustment: float, idea: str) -> Pair:
        belief = self.belief
        features = belief.features(parent, stem, predicted)
        deviation, success = belief.deviation(stem), belief.success(stem, repeated=not idea)
        drawn = dot(self.weights, features) + adjustment
        drawn += self._spread() * deviation
        if not idea and drawn > 0:  # an idea that does not fit this parent gains nothing
            drawn *= success
        score = self._score(parent, drawn, success)
        return Pair(parent, stem, score, belief.posterior.mean(features) + adjustment, deviation, success, idea)

    def _tuning_pair(self, parent: str, idea: str) -> Pair:
        """Other values of the parent's tunables; it needs no new code and rarely fails."""
        pair = tuning_pair(self.belief, parent, idea)
        drawn = pair.expected + self._spread() * pair.deviation
        return replace(pair, score=self._score(parent, drawn, pair.success))

    def _score(self, parent: str, drawn: float, success: float) -> float:
        """What a pair is worth: the parent's value and the gain drawn for it, less what a likely failure loses."""
        return self._value(parent) + drawn - self.belief.constants.failure * (1.0 - success) / 0.75

    def _spread(self) -> float:
        """Standard deviations above its expectation at which a gain is judged this time."""
        return self.belief.constants.optimism + self.draws.normal() * self.belief.constants.outcome_spread

    def _ask(self, ranked: Sequence[str], best: Pair | None) -> Ask | None:
        """Whether a new idea promises more than the best at hand."""
        belief, short = self.belief, short_of_ideas(self.belief, ranked, self.open, self.each)
        if not short:
            return None
        new = max(self._value(k) for k in short) + new_idea_gain(self.belief) + self._spread() * belief.posterior.noise
        if best is not None and new - best.score <= belief.constants.ask:
            return None
        return Ask(tuple(short), self.each)

    def _restart(self) -> Focus | None:
        """A restart from an ancestor of the best kernel, where one idea prevails among the latest trials.

        It goes back behind an idea that is not familiar, to where it promises the most improvement per kernel. Where nobody has
        new ideas, nothing else can be tried there.
        """
        belief = self.belief
        if not belief.exhausted or len(belief.gains) < belief.constants.warm_up or not belief.evidence.invents:
            return None
        kernels, best = belief.evidence.kernels, belief.best
        top = belief.parents[best].value
        spread, steps = pstdev(belief.gains), 0
        found: tuple[float, str, int] | None = None
        for below, at in pairwise(ancestors(kernels, best)):
            if belief.familiar(kernels[below].stem):
                continue
            steps += belief.parents[below].value > belief.parents[at].value + GAINED
            if not steps:
                continue
            mean = self._regained(at, below, top)
            gain = expected_improvement(mean, spread * math.sqrt(steps)) / steps / (1 + self._restarts(at))
            if gain > (found[0] if found is not None else 0.0):
                found = (gain, at, steps)
        return Focus(found[1], found[2] / belief.newly + 1, belief.evidence.tried) if found is not None else None

    def _regained(self, at: str, below: str, top: float) -> float:
        """How far above the best a restart from ``at`` is expected to lead; ``below`` is its child towards the best.

        A second attempt reaches a share of what the first one gained. Its first step is the best idea at hand that ``at`` has
        not tried and that is not familiar, if there is one.
        """
        belief, regress = self.belief, self.belief.constants.regress
        value, tried = belief.parents[at].value, belief.parents[at].tried
        new = [i for i in self.open.get(at, ()) if i.stem not in tried and not belief.familiar(i.stem)]
        if new:
            first = max(belief_pair(belief, idea).expected for idea in new)
            return value + first + regress * (top - belief.parents[below].value) - top
        return (1.0 - regress) * (value - top)

    def _restarts(self, parent: str) -> int:
        """Kernels on a parent beyond the first, which stand for earlier restarts from it."""
        return max(0, self.belief.parents[parent].kernels - 1)
