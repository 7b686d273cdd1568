"""The posterior over gains: what is known about each parent, of each idea wherever it was tried, and of each author. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from engine.domain.strategy.evidence import TUNE, Evidence, Trial, clipped
from engine.domain.strategy.regression import Posterior, Prior, dot, fitted
from engine.domain.strategy.values import Parent

_WEIGHTS = {
    "constant": (0.0, 0.1),
    "prediction": (0.7, 0.4),
    "prediction of a tried idea": (0.14, 0.4),
    "gain elsewhere": (0.6, 0.3),
    "shortfall of the parent": (0.2, 0.3),
    "kernels on the parent": (-0.05, 0.1),
    "recent gain of the lineage": (0.0, 0.2),
    "times proposed": (0.03, 0.05),
}
"""Feature, in the order of ``_features`` → prior mean and standard deviation of its weight."""
PREDICTION, SHORTFALL, RECENT = map(
    tuple(_WEIGHTS).index, ("prediction", "shortfall of the parent", "recent gain of the lineage")
)
"""Where these features are in the vector."""
_PRIOR = Prior(tuple(mean for mean, _ in _WEIGHTS.values()), tuple(deviation for _, deviation in _WEIGHTS.values()))


@dataclass(frozen=True, slots=True)
class Constants:
    """The constants of the strategy, fitted on simulated landscapes with seeds that the benchmark does not use."""

    weight_spread: float = 0.23
    """How far the weights are drawn from their mean, in standard deviations."""
    optimism: float = 1.0
    """How far above its expectation a gain is judged, in standard deviations: untried ideas are worth more."""
    outcome_spread: float = 0.21
    """How far a gain is drawn from its expectation, in standard deviations."""
    parents: float = 3.0
    """Parents considered in a decision."""
    ideas: float = 3.0
    """Open ideas wanted for each of them."""
    used: float = 0.15
    """What a parent loses for each kernel that was built on it: later ideas gain less."""
    stalled: float = 0.05
    """How much faster it loses with each kernel that did not improve the best."""
    used_by_noise: float = 0.7
    """How much less it loses where gains scatter: there several attempts on one parent pay."""
    momentum: float = 0.38
    """How much of a lineage's recent gain is expected to continue."""
    failure: float = 0.15
    """What an implementation that is sure to fail loses."""
    neutral: float = 0.0
    """What each step without a gain beyond the second loses."""
    certainty: float = 0.5
    """How fast the gain of an idea becomes certain with each trial of it."""
    scatter: float = 2.0
    """Trials of an idea after which the scatter of its own gains counts as much as the scatter of all."""
    ask: float = 0.1
    """By how much the ideas at hand must fall short of a new one before the proposer is asked."""
    retarget: float = 0.02
    """The gain from which an idea is tried on other parents too."""
    averaged: float = 0.5
    """The weight of the mean of an idea's predictions, against the latest."""
    regress: float = 0.8
    """The share of a lineage's gain that a second attempt is expected to reach."""
    grace: float = 3.0
    """Kernels that a restarted lineage may spend after each of its improvements."""
    tuned: float = 0.03
    """The gain expected of tuning a kernel, before any was tuned."""
    tuned_spread: float = 0.06
    """Its standard deviation."""
    tuned_trials: float = 3.0
    """Tuned kernels after which their own gains count as much as these two."""
    warm_up: float = 6.0
    """Kernels before the first restart."""
    horizon: float = 8.0
    """Kernels before the session's end from which only what improves the best counts, not what may lead further later."""
    prior: Prior = _PRIOR
    """The prior of the features' weights, in their order."""


_AUTHOR = 2.0
"""Squared predictions after which an author's own slope counts as much as the common one."""
_CATEGORY = 6.0
"""Trials after which a category's own mean counts as much as zero."""
GAINED = 0.02
"""The smallest gain that counts as progress: 2%."""
_LATEST = 8
"""Trials of a parent's own ideas among which one idea may prevail."""
_PREVAILS = 4
"""How many of them are enough."""
_APART = 0.25
"""Logarithm of the factor by which two gains of one idea must differ to show that they depend on the parent."""
_FAMILIAR = 3
"""Measured kernels from which an idea is familiar: another attempt on it is no new direction."""


@dataclass(slots=True)
class StemRecord:
    """What is known about one idea over all parents."""

    gained: float = 0.0
    squares: float = 0.0
    """The sum of its squared gains."""
    measured: int = 0
    failed: int = 0
    misfits: int = 0
    """Failures on a parent that it was not proposed for."""
    least: tuple[float, float] = (math.inf, 0.0)
    """Its smallest gain, with the variance of its measurement."""
    most: tuple[float, float] = (-math.inf, 0.0)
    """Its largest gain, with the variance of its measurement."""

    @property
    def differs(self) -> bool:
        """Whether it gained far more on one parent than on another, beyond what their measurements may err."""
        apart = self.most[0] - self.least[0]
        return self.measured > 1 and apart > math.sqrt(_APART**2 + 4.0 * (self.most[1] + self.least[1]))

    @property
    def gain(self) -> float:
        """Its mean gain, slightly shrunk towards none."""
        return self.gained / (self.measured + 0.3) if self.measured else 0.0

    @property
    def success(self) -> float:
        """The probability that an implementation of it is verified: Beta(3, 1) before any."""
        return (3.0 + self.measured) / (4.0 + self.measured + self.failed)

    def scatter(self, noise: float, strength: float) -> float:
        """The standard deviation of its gains: ``noise`` counts as ``strength`` trials, and it is at most that."""
        if self.measured < 2:
            return noise
        rest = max(0.0, self.squares - self.gained**2 / self.measured)
        return min(noise, math.sqrt((strength * noise**2 + rest) / (strength + self.measured - 1)))


@dataclass(slots=True)
class ParentRecord:
    """What is known about a kernel as a parent."""

    value: float
    """Logarithm of its speedup, shrunk towards what was expected of it by the noise of its measurement."""
    variance: float = 0.0
    shortfall: float = 0.0
    """How much less it gained than was expected."""
    kernels: int = 0
    """Verified kernels built on it."""
    recent: float = 0.0
    """Mean gain of its lineage, recent steps first."""
    neutral: int = 0
    """Steps of its lineage since the last gain."""
    top: float = 0.0
    """The best value in its lineage."""
    tried: set[str] = field(default_factory=set)
    """Stems of the ideas implemented on it."""


@dataclass(frozen=True, slots=True)
class Belief:
    """The posterior and the records that its features are read from."""

    evidence: Evidence
    constants: Constants
    posterior: Posterior
    parents: Mapping[str, ParentRecord]
    stems: Mapping[str, StemRecord]
    slopes: Mapping[str, float]
    """Author → deviation of the slope of their predictions from the common one."""
    categories: Mapping[str, float]
    """Category → mean gain beyond what else explains it."""
    rate: tuple[int, int]
    """Ideas with a verified kernel, and without."""
    repeated: tuple[int, int]
    """The same for ideas that were taken over from another parent."""
    stalled: int
    """Ideas tried since the best kernel improved."""
    gains: tuple[float, ...]

    @property
    def newly(self) -> float:
        """The probability that an implementation of a new idea is verified: Beta(3, 1) before any."""
        verified, failed = self.rate
        return (verified + 3.0) / (verified + failed + 4.0)

    @property
    def best(self) -> str:
        """The kernel with the highest shrunk value."""
        return max(self.parents, key=lambda k: self.parents[k].value)

    def features(self, parent: str, stem: str, predicted: float) -> tuple[float, ...]:
        return _features(self.constants, self.evidence, self.parents[parent], self.stems.get(stem), stem, predicted)

    def adjustment(self, author: str, category: str, predicted: float) -> float:
        """The part of the expected gain that its author and its category explain."""
        return self.slopes.get(author, 0.0) * clipped(predicted) + self.categories.get(category, 0.0)

    def deviation(self, stem: str) -> float:
        """The standard deviation of a gain; less for an idea that was tried before."""
        record = self.stems.get(stem)
        if record is None:
            return self.posterior.noise
        scatter = record.scatter(self.posterior.noise, self.constants.scatter)
        return scatter / math.sqrt(1.0 + self.constants.certainty * record.measured)

    def tuning_gain(self) -> tuple[float, float, float]:
        """What tuning a kernel is expected to gain, with the standard deviation, and its probability of a verified kernel."""
        known, constants = self.stems.get(TUNE, StemRecord()), self.constants
        count = constants.tuned_trials + known.measured
        mean = (constants.tuned_trials * constants.tuned + known.gained) / count
        rest = max(0.0, known.squares - known.gained**2 / known.measured) if known.measured else 0.0
        scatter = math.sqrt((constants.tuned_trials * constants.tuned_spread**2 + rest) / count)
        spread = scatter / math.sqrt(1.0 + constants.certainty * known.measured)
        return mean, spread, (9.0 + known.measured) / (10.0 + known.measured + known.failed)

    @property
    def exhausted(self) -> bool:
        """Whether one idea prevails among the latest trials: below the best kernels little else is left to try.

        An idea from another lineage says nothing about what is left here.
        """
        own = islice((trial.stem for trial in reversed(self.evidence.trials) if not trial.repeated), _LATEST)
        latest = Counter(own)
        return max(latest.values(), default=0) >= _PREVAILS

    def familiar(self, stem: str) -> bool:
        """Whether an idea was measured so often that another attempt on it is no new direction."""
        record = self.stems.get(stem)
        return record is not None and record.measured >= _FAMILIAR

    def success(self, stem: str, *, repeated: bool) -> float:
        """The probability that an implementation is verified; ``repeated``: of an idea from another parent, Beta(½, ¼) before
        any. That is little evidence, because in one session most such ideas fit or most do not."""
        record = self.stems.get(stem)
        if repeated:
            good, bad = self.repeated
            return (0.5 + good) / (0.75 + good + bad + (record.misfits if record is not None else 0))
        return record.success if record is not None else 0.75


def believed(evidence: Evidence, constants: Constants) -> Belief:
    """The belief after all trials, in their order: each row has the features that were known before its outcome."""
    learner = _Learner(evidence, constants)
    for trial in evidence.trials:
        learner.learn(trial)
    return learner.belief()


class _Learner:
    """What is known after some of the trials."""

    def __init__(self, evidence: Evidence, constants: Constants) -> None:
        self._evidence, self._constants = evidence, constants
        roots = [kernel for kernel in evidence.kernels.values() if kernel.parent not in evidence.kernels]
        self._parents = {root.id: _unexpected(root) for root in roots}
        self._pending = {kernel.id: kernel for kernel in evidence.kernels.values() if kernel.id not in self._parents}
        """Kernels that no trial has made yet."""
        self._stems: dict[str, StemRecord] = {}
        self._rows: list[tuple[tuple[float, ...], float]] = []
        """Features and gain of each trial that was verified, which ``_scored`` holds."""
        self._scored: list[Trial] = []
        self._failed = self._stalled = 0
        self._repeated = [0, 0]
        self._best = max((record.value for record in self._parents.values()), default=0.0)

    def learn(self, trial: Trial) -> None:
        """Take one more trial into account."""
        if (stem := self._stems.get(trial.stem)) is None:
            stem = self._stems[trial.stem] = StemRecord()
        self._stalled += 1
        if (sibling := self._pending.pop(trial.parent, None)) is not None:
            self._parents[sibling.id] = _unexpected(sibling)  # a trial has one child, its other kernels are parents too
        parent = self._parents.get(trial.parent)
        if parent is None:
            return
        parent.tried.add(trial.stem)
        if trial.repeated:
            self._repeated[trial.child is None] += 1
        if trial.child is None:
            self._failed += 1
            stem.failed += 1
            stem.misfits += trial.repeated
        else:
            self._gain(trial, self._evidence.kernels[trial.child], parent, stem)

    def _gain(self, trial: Trial, child: Parent, parent: ParentRecord, stem: StemRecord) -> None:
        """A trial that made a verified kernel."""
        features = _features(self._constants, self._evidence, parent, stem, trial.stem, trial.predicted)
        self._parents[child.id] = made = _child(self._constants.prior, parent, child, features)
        self._pending.pop(child.id, None)
        gain = made.value - parent.value
        self._rows.append((features, gain))
        self._scored.append(trial)
        parent.kernels += 1
        known = (gain, child.variance + parent.variance)
        stem.least, stem.most = min(stem.least, known), max(stem.most, known)
        stem.gained, stem.squares, stem.measured = stem.gained + gain, stem.squares + gain * gain, stem.measured + 1
        if made.value > self._best + GAINED:
            self._best, self._stalled = made.value, 0

    def belief(self) -> Belief:
        """What follows from all that was learnt."""
        parents = {**self._parents, **{one.id: _unexpected(one) for one in self._pending.values()}}
        posterior = fitted(self._constants.prior, self._rows)
        slopes, categories = _offsets(self._evidence, posterior, self._rows, self._scored)
        rate, repeated = (len(self._scored), self._failed), (self._repeated[0], self._repeated[1])
        gains = tuple(gain for _, gain in self._rows)
        return Belief(
            self._evidence, self._constants, posterior, parents, self._stems, slopes, categories, rate, repeated, self._stalled,
            gains,
        )  # fmt: skip


def _unexpected(kernel: Parent) -> ParentRecord:
    """A kernel of which nothing was expected: a root, or one that no known trial made."""
    return ParentRecord(kernel.value, kernel.variance, top=kernel.value)


def _child(prior: Prior, parent: ParentRecord, child: Parent, features: tuple[float, ...]) -> ParentRecord:
    expected = parent.value + dot(prior.means, features)
    noise = prior.noise**2
    value = (child.value * noise + expected * child.variance) / (noise + child.variance)
    variance = child.variance * noise / (noise + child.variance)
    return ParentRecord(
        value, variance, expected - value, 0, 0.5 * parent.recent + 0.5 * (value - parent.value),
        0 if value > parent.top + 0.5 * GAINED else parent.neutral + 1, max(parent.top, value),
    )  # fmt: skip


def _features(
    constants: Constants, evidence: Evidence, parent: ParentRecord, record: StemRecord | None, stem: str, predicted: float
) -> tuple[float, ...]:
    predictions = evidence.predictions.get(stem)
    again = predictions.count - 1 if predictions is not None else 0
    if predictions is not None and again:
        predicted = (1.0 - constants.averaged) * predicted + constants.averaged * predictions.mean
    predicted = clipped(predicted)
    known = record is not None and record.measured > 0
    gain = clipped(record.gain) if record is not None and known else 0.0
    return (
        1.0, 0.0 if known else predicted, predicted if known else 0.0, gain, clipped(parent.shortfall, 0.5),
        min(parent.kernels, 6) / 3.0, clipped(parent.recent), min(again, 4) / 2.0,
    )  # fmt: skip


def _offsets(
    evidence: Evidence, posterior: Posterior, rows: list[tuple[tuple[float, ...], float]], scored: list[Trial]
) -> tuple[dict[str, float], dict[str, float]]:
    """What authors and categories explain of the residuals, shrunk towards nothing; other sessions count as few trials."""
    slopes: dict[str, list[float]] = {}
    means: dict[str, list[float]] = {}
    for category, gain, weight in _elsewhere(evidence):
        means[category] = [gain * weight, weight]
    several = len({trial.author for trial in scored}) > 1
    for (features, gain), trial in zip(rows, scored, strict=True):
        rest = gain - posterior.mean(features)
        predicted = clipped(trial.predicted)
        slope = slopes.setdefault(trial.author, [0.0, 0.0])
        slope[0], slope[1] = slope[0] + rest * predicted, slope[1] + predicted * predicted
        mean = means.setdefault(trial.category, [0.0, 0.0])
        mean[0], mean[1] = mean[0] + rest, mean[1] + 1.0
    by_author = {author: s / (n + _AUTHOR) for author, (s, n) in slopes.items()} if several else {}
    by_category = {c: s / (n + _CATEGORY) for c, (s, n) in means.items()} if len(means) > 1 else {}
    return by_author, by_category


_PRIOR_TRIALS = 6.0
"""The most trials of this session that a category's record in other sessions counts as."""


def _elsewhere(evidence: Evidence) -> Iterator[tuple[str, float, float]]:
    """(category, mean gain against all categories, weight) of the prior."""
    total = sum(rate.tried for rate in evidence.prior)
    if not total:
        return
    mean = sum(_yield(r.gain, r.gained, r.tried) * r.tried for r in evidence.prior) / total
    for rate in evidence.prior:
        yield rate.category, _yield(rate.gain, rate.gained, rate.tried) - mean, min(_PRIOR_TRIALS, rate.tried / 2)


def _yield(gain: float, gained: int, tried: int) -> float:
    """The mean gain of an idea, those without a gain included: nobody builds on them."""
    return max(0.0, gain) * gained / tried if tried else 0.0
