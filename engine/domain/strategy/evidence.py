"""What a session knows that decides where to search next, as plain values. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from engine.domain import queries
from engine.domain.model import AGENT, PLAYBOOK
from engine.domain.round_plan import CategoryRate
from engine.domain.state import Idea, IdeaStatus, SessionState, Stage
from engine.domain.strategy.values import WINDOW, Parent, variance, with_races

TUNE = "tune"
"""The stem of ideas that only change the values of tunables, and the beginning of their keys."""
DISPATCH = "dispatch"
"""The beginning of the keys of dispatches that the search makes: they combine kernels and say nothing of an idea's worth."""
_IDEAS = 2 * WINDOW
"""The latest ideas that are read: most are asked for and never tried."""
_BEST = 64
"""Incumbents that are considered as parents beside the latest kernels."""
_TRIED = tuple(stage for stage in Stage if stage.settled and stage is not Stage.CANCELLED)
"""How the kernels of an idea that was tried have ended."""
_LARGEST = 1.0
"""Predictions and gains are limited to a factor of e either way: one absurd prediction must not decide."""


@dataclass(frozen=True, slots=True)
class Trial:
    """An idea that was implemented on a parent; ``child`` is its best kernel, ``None`` if none was verified."""

    parent: str
    stem: str
    predicted: float
    """Logarithm of the predicted speedup over the parent; 0 without a prediction."""
    author: str
    category: str
    child: str | None
    repeated: bool = False
    """Whether the idea was taken over from another parent."""
    round: int = 0
    """The round that tried it."""


@dataclass(frozen=True, slots=True)
class OpenIdea:
    """An idea that awaits a decision, or was put aside."""

    id: str
    parent: str
    stem: str
    predicted: float
    author: str
    category: str


@dataclass(frozen=True, slots=True)
class Predictions:
    """The predictions of all ideas with one stem."""

    count: int
    mean: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a decision depends on."""

    seed: int
    step: int
    """A number that differs between decisions: the last round's."""
    kernels: Mapping[str, Parent]
    trials: tuple[Trial, ...]
    """In the order in which they were decided."""
    open: tuple[OpenIdea, ...]
    asked: Mapping[str, int]
    """Kernel → ideas proposed for it."""
    predictions: Mapping[str, Predictions]
    """By stem."""
    prior: tuple[CategoryRate, ...] = ()
    rejected: frozenset[str] = frozenset()
    """Stems of ideas that the engineer rejected."""
    tuned: frozenset[str] = frozenset()
    """Kernels that a tuning idea was proposed for, whatever became of it."""
    fixed: frozenset[str] = frozenset()
    """Stems of ideas that nobody can write for another parent: the playbook's, in a session without a writer."""
    count_earlier: Callable[[], int] = lambda: 0
    """Counts the trials of the session before those in ``trials``: only a restart needs it, and ideas may be ten thousand."""
    left: int | None = None
    """Kernels until the session's end; ``None`` where no limit counts kernels."""
    invents: bool = True
    """Whether anybody has new ideas for any kernel. A playbook has what is written in it, for the kernels that it names."""

    @property
    def tried(self) -> int:
        """All trials of the session."""
        return self.count_earlier() + len(self.trials)

    def since(self, tried: int) -> tuple[Trial, ...]:
        """The trials after the first ``tried`` of the session, as far as they are known."""
        return self.trials[max(0, tried - self.count_earlier()) :]


@dataclass(slots=True)
class _Tables:
    tried: list[tuple[Idea, str, float]] = field(default_factory=list)
    """Ideas whose kernels are settled, with their stems and predictions."""
    open: list[OpenIdea] = field(default_factory=list)
    asked: dict[str, int] = field(default_factory=dict)
    predictions: dict[str, list[float]] = field(default_factory=dict)
    rejected: set[str] = field(default_factory=set)
    tuned: set[str] = field(default_factory=set)
    fixed: set[str] = field(default_factory=set)


def stem_of(idea: Idea) -> str:
    """What makes two ideas on different parents the same: the key without its repetition, or the idea that it repeats.

    Tuning ideas are one idea: what tuning gains is learnt over all kernels.
    """
    if idea.text.key.startswith(f"{TUNE}:"):
        return TUNE
    return idea.text.key.partition("#")[0] or idea.repeats or idea.id


def combines(idea: Idea) -> bool:
    """Whether it is a dispatch of the search: another author's idea may have such a key."""
    return idea.author.is_engine and idea.text.key.startswith(f"{DISPATCH}:")


def evidence(state: SessionState) -> Evidence:
    """The evidence of a session, within its window."""
    assert state.opened is not None
    settings = state.opened.settings
    kernels = _candidates(state)
    tables = _Tables()
    latest = list(islice(queries.newest_first(state.ideas), _IDEAS))
    for idea in reversed(latest):
        if idea.parent is not None and not combines(idea):
            _add(state, kernels, tables, idea, idea.parent)
    tables.tried.sort(key=lambda one: one[0].round)  # an idea may be tried many rounds after it was proposed
    trials = tuple(_trial(kernels, *one) for one in tables.tried[-WINDOW:])
    predictions = {stem: Predictions(len(of_it), sum(of_it) / len(of_it)) for stem, of_it in tables.predictions.items()}
    return Evidence(
        settings.seed, max(queries.last_round(state), 0), kernels, trials, tuple(tables.open), tables.asked,
        predictions, _prior(state, settings.prior), frozenset(tables.rejected), frozenset(tables.tuned),
        frozenset(tables.fixed), partial(_earlier, state, len(tables.tried)),
        queries.kernels_left(state), state.models.source != PLAYBOOK,
    )  # fmt: skip


def _earlier(state: SessionState, latest: int) -> int:
    """The trials outside the window, of which ``latest`` are among the latest ideas."""
    if len(state.ideas) <= _IDEAS:
        return max(0, latest - WINDOW)
    tried = len([idea for idea in state.ideas.values() if idea.implemented and idea.parent is not None])
    return max(0, tried - min(WINDOW, latest))


def bottleneck(state: SessionState) -> str:
    """What bounds the session's problem by its roofline: ``bytes`` or ``operations``; empty before its preparation."""
    return state.preparation.bound.partition(" ")[0] if state.preparation is not None else ""


def _prior(state: SessionState, prior: tuple[CategoryRate, ...]) -> tuple[CategoryRate, ...]:
    """The rates of problems with the same bottleneck."""
    return tuple(rate for rate in prior if rate.bottleneck in ("", bottleneck(state)))


def _candidates(state: SessionState) -> dict[str, Parent]:
    """The latest kernels that can be parents; of earlier ones the incumbents with their lineages, and the pinned.

    Kernels whose time is not corroborated count only while there is no other.
    """
    baseline, epoch = queries.ranking_baseline(state), state.epoch
    latest = islice((k for k in queries.newest_first(state.kernels) if k.stage is Stage.MEASURED), _BEST + WINDOW)
    chosen = {kernel.id: kernel for kernel in latest}
    if len(chosen) == _BEST + WINDOW:
        for name in (*state.reigns[-_BEST:], *state.pinned):
            chosen |= {k.id: k for k in queries.lineage(state, name)[-_BEST:] if k.stage is Stage.MEASURED}
    order = sorted((k for k in chosen.values() if k.epoch == epoch), key=lambda k: (len(k.id), k.id))
    corroborated = any(queries.is_sound(kernel) for kernel in order)
    found: dict[str, Parent] = {}
    for kernel in order:
        ratio = kernel.measurement.speedup.get(baseline) if kernel.measurement is not None else None
        if ratio is None or not 0 < ratio.low <= ratio.value <= ratio.high < math.inf:
            continue
        if corroborated and not queries.is_sound(kernel):
            continue
        if state.pruned and queries.is_pruned(state, kernel.id):
            continue
        idea = state.ideas.get(kernel.idea)
        found[kernel.id] = Parent(
            kernel.id, kernel.parent, math.log(ratio.value), variance(ratio), stem_of(idea) if idea else "",
            kernel.id in state.pinned, bool(kernel.tunables) and state.models.source != AGENT, bool(kernel.same_as),
            bool(kernel.members),
        )  # fmt: skip
    return with_races(state, found)


def _add(state: SessionState, kernels: Mapping[str, Parent], tables: _Tables, idea: Idea, parent: str) -> None:
    stem, predicted = stem_of(idea), _predicted(idea)
    tables.asked[parent] = tables.asked.get(parent, 0) + (not idea.repeats)
    if idea.text.predicted is not None:
        tables.predictions.setdefault(stem, []).append(predicted)
    if stem == TUNE:
        tables.tuned.add(parent)
    elif idea.status is IdeaStatus.REJECTED:
        tables.rejected.add(stem)
    if idea.author.name == PLAYBOOK and state.models.writer in ("", PLAYBOOK):
        tables.fixed.add(stem)
    if is_open(idea):
        if parent in kernels:
            tables.open.append(open_idea(idea, parent))
    elif idea.implemented and all(state.kernels[name].stage in _TRIED for name in idea.kernels):
        tables.tried.append((idea, stem, predicted))


def _trial(kernels: Mapping[str, Parent], idea: Idea, stem: str, predicted: float) -> Trial:
    assert idea.parent is not None, "or it is no trial"
    verified = [name for name in idea.kernels if name in kernels]
    child = max(verified, key=lambda name: kernels[name].value, default=None)
    return Trial(idea.parent, stem, predicted, idea.author.name, idea.text.category, child, bool(idea.repeats), idea.round)


def open_idea(idea: Idea, parent: str) -> OpenIdea:
    return OpenIdea(idea.id, parent, stem_of(idea), _predicted(idea), idea.author.name, idea.text.category)


def is_open(idea: Idea) -> bool:
    """Whether the strategy may take it: it awaits a decision, or the engine put it aside. The engineer gives no reason."""
    kept = idea.status is IdeaStatus.PARKED and bool(idea.advice or idea.reason)
    return (idea.status is IdeaStatus.PROPOSED or kept) and not idea.implemented


def _predicted(idea: Idea) -> float:
    value = idea.text.predicted
    return clipped(math.log(value)) if value is not None and value > 0 else 0.0


def clipped(value: float, limit: float = _LARGEST) -> float:
    return -limit if value < -limit else min(value, limit)


def lineage_stems(kernels: Mapping[str, Parent], kernel: str) -> frozenset[str]:
    """The stems of the ideas in a kernel's lineage, as far as it is known."""
    return frozenset(kernels[at].stem for at in ancestors(kernels, kernel))


def ancestors(kernels: Mapping[str, Parent], kernel: str) -> Iterable[str]:
    """The kernel and its known ancestors, nearest first."""
    at: str | None = kernel
    while at is not None and at in kernels:
        yield at
        at = kernels[at].parent
