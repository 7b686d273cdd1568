"""Bayesian linear regression with a normal prior on the weights and an inverse-gamma prior on the noise. Pure.

The conjugate update of Gelman et al., "Bayesian Data Analysis", 3rd edition, section 14.8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from engine.domain.strategy.draws import Draws

Vector = Sequence[float]


@dataclass(frozen=True, slots=True)
class Prior:
    """Means and standard deviations of the weights; the noise's standard deviation, worth ``strength`` observations."""

    means: tuple[float, ...]
    deviations: tuple[float, ...]
    noise: float = 0.2
    strength: float = 4.0


@dataclass(frozen=True, slots=True)
class Posterior:
    """The weights' posterior mean, the noise's standard deviation, and the Cholesky factor of the precision."""

    means: tuple[float, ...]
    noise: float
    factor: tuple[tuple[float, ...], ...]

    def mean(self, features: Vector) -> float:
        return dot(self.means, features)

    def weights(self, draws: Draws, scale: float) -> tuple[float, ...]:
        """One draw of the weights, its deviation from the mean multiplied by ``scale``."""
        size = len(self.means)
        offset = [draws.normal() * scale * self.noise for _ in range(size)]
        for i in reversed(range(size)):
            offset[i] = (offset[i] - sum(self.factor[j][i] * offset[j] for j in range(i + 1, size))) / self.factor[i][i]
        return tuple(mean + off for mean, off in zip(self.means, offset, strict=True))


def dot(one: Vector, other: Vector) -> float:
    """The sum of the products."""
    return sum(map(mul, one, other), 0.0)


def fitted(prior: Prior, rows: Sequence[tuple[Vector, float]]) -> Posterior:
    """The posterior after ``rows`` of (features, outcome)."""
    size = len(prior.means)
    columns = list(zip(*(features for features, _ in rows), strict=True)) or [()] * size
    outcomes = [outcome for _, outcome in rows]
    known = [(prior.noise / deviation) ** 2 for deviation in prior.deviations]
    precision = [
        [sum(map(mul, columns[i], columns[j]), known[i] if i == j else 0.0) for j in range(i + 1)] for i in range(size)
    ]
    before = [weight * mean for weight, mean in zip(known, prior.means, strict=True)]
    moment = [sum(map(mul, column, outcomes), first) for column, first in zip(columns, before, strict=True)]
    squares = sum(map(mul, outcomes, outcomes), prior.strength * prior.noise**2 + dot(before, prior.means))
    factor = _cholesky(precision)
    means = _solved(factor, moment)
    rest = squares - dot(moment, means)
    return Posterior(tuple(means), math.sqrt(max(1e-6, rest / (prior.strength + len(rows)))), tuple(map(tuple, factor)))


def _cholesky(matrix: list[list[float]]) -> list[list[float]]:
    """The lower factor of a symmetric positive definite matrix, of which only the lower half is read."""
    factor = [[0.0] * len(matrix) for _ in matrix]
    for i in range(len(matrix)):
        for j in range(i + 1):
            rest = matrix[i][j] - sum(factor[i][k] * factor[j][k] for k in range(j))
            factor[i][j] = math.sqrt(rest) if i == j else rest / factor[j][j]
    return factor


def _solved(factor: list[list[float]], right: list[float]) -> list[float]:
    size = len(right)
    middle = [0.0] * size
    for i in range(size):
        middle[i] = (right[i] - sum(factor[i][k] * middle[k] for k in range(i))) / factor[i][i]
    solution = [0.0] * size
    for i in reversed(range(size)):
        solution[i] = (middle[i] - sum(factor[k][i] * solution[k] for k in range(i + 1, size))) / factor[i][i]
    return solution


def expected_improvement(mean: float, deviation: float, least: float = 0.0) -> float:
    """E[d; d > least] for d of N(mean, deviation): what taking the better one adds, where only more than ``least`` shows."""
    if deviation <= 0:
        return mean if mean > least else 0.0
    z = (mean - least) / deviation
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return deviation * density + mean * 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))
