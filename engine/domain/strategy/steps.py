"""What a decision chooses between: ideas at hand with their parents, and new ideas; with what is expected of each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.domain.round_plan import Focus
from engine.domain.strategy.belief import PREDICTION, Belief
from engine.domain.strategy.evidence import TUNE, OpenIdea, lineage_stems
from engine.domain.strategy.regression import expected_improvement

MOST_ASKED = 12
"""Ideas that are asked for one kernel in all."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An idea and the parent to try it on."""

    parent: str
    stem: str
    score: float
    """The value drawn for its kernel: a logarithm of a speedup over the baseline."""
    expected: float
    """The posterior mean of its gain over the parent."""
    deviation: float
    success: float
    idea: str = ""
    """The open idea; empty for one that is tried again on another parent."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the proposer for ``each`` ideas for each of these parents."""

    parents: tuple[str, ...]
    each: int


@dataclass(frozen=True, slots=True)
class LastKernels:
    """The figures of a decision near the session's end: logarithms, in which a failure adds nothing."""

    left: int
    """Kernels until the end."""
    known: float
    """What the best idea at hand is expected to add to the best speedup; 0 if there is none."""
    new: float
    """The same for a new idea; 0 if none can be asked for."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do next. Without an ``ask``, ``pair`` is tried at once."""

    belief: Belief
    ask: Ask | None
    pair: Pair | None
    focus: Focus | None
    ranked: tuple[str, ...]
    """The parents considered, best first."""
    last: LastKernels | None = None
    """Where the session's end is near."""
    from_latest: bool = False
    """Whether it goes on from the latest kernel, as sequential revision does."""


def candidates(belief: Belief) -> list[str]:
    """All kernels that can be parents."""
    known = belief.evidence.kernels
    return [k for k in belief.parents if not known[k].copy and not known[k].combined]


def open_ideas(belief: Belief) -> dict[str, list[OpenIdea]]:
    """Kernel → the ideas that wait on it."""
    found: dict[str, list[OpenIdea]] = {}
    for idea in belief.evidence.open:
        found.setdefault(idea.parent, []).append(idea)
    return found


def belief_pair(belief: Belief, idea: OpenIdea) -> Pair:
    """An open idea with what is expected of it."""
    if idea.stem == TUNE:
        return tuning_pair(belief, idea.parent, idea.id)
    adjustment = belief.adjustment(idea.author, idea.category, idea.predicted)
    expected = belief.posterior.mean(belief.features(idea.parent, idea.stem, idea.predicted)) + adjustment
    success = belief.success(idea.stem, repeated=False)
    return Pair(idea.parent, idea.stem, expected, expected, belief.deviation(idea.stem), success, idea.id)


def tuning_pair(belief: Belief, parent: str, idea: str = "") -> Pair:
    """Other values of a kernel's tunables with what is expected of them."""
    gain, spread, success = belief.tuning_gain()
    return Pair(parent, TUNE, gain, gain, spread, success, idea)


def repeated_pair(belief: Belief, parent: str, stem: str, predicted: float) -> Pair:
    """An idea that gained elsewhere with what is expected of it on this parent."""
    expected = belief.posterior.mean(belief.features(parent, stem, predicted))
    return Pair(parent, stem, expected, expected, belief.deviation(stem), belief.success(stem, repeated=True))


def repeatable(belief: Belief) -> Iterator[tuple[str, float]]:
    """The ideas that gained where they were tried, with the gain predicted of them."""
    for stem, record in belief.stems.items():
        if record.measured and record.gained > belief.constants.retarget:
            predictions = belief.evidence.predictions.get(stem)
            yield stem, predictions.mean if predictions is not None else record.gain


def ruled_out(belief: Belief, parent: str, own: Sequence[OpenIdea]) -> set[str]:
    """Ideas that are not repeated on a parent: known in its lineage, tried or waiting (``own``) on it, rejected, or fixed."""
    lineage, excluded = lineage_stems(belief.evidence.kernels, parent), belief.evidence.rejected | belief.evidence.fixed
    return {*lineage, *belief.parents[parent].tried, *excluded, *(idea.stem for idea in own), TUNE}


def short_of_ideas(belief: Belief, ranked: Sequence[str], waiting: dict[str, list[OpenIdea]], each: int) -> list[str]:
    """The parents on which fewer than ``each`` ideas wait, and for which more can be asked."""
    asked = belief.evidence.asked
    return [k for k in ranked if len(waiting.get(k, ())) < each and asked.get(k, 0) < MOST_ASKED]


def new_idea_gain(belief: Belief) -> float:
    """The gain expected of the best new idea: the mean over the latest ideas, before they were tried."""
    trials = belief.evidence.trials[-20:]
    gains = [belief.posterior.means[PREDICTION] * trial.predicted for trial in trials]
    return (sum(gains) + 0.15) / (len(gains) + 1)


def improvement(belief: Belief, pair: Pair, top: float) -> float:
    """What a kernel for the pair is expected to improve the best by, which is at ``top``; one that fails improves nothing."""
    value = belief.parents[pair.parent].value + pair.expected
    return pair.success * expected_improvement(value - top, pair.deviation)
