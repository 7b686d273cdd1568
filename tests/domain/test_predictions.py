"""Predictions against measurements: single scores and authors' records."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support import builders as b

from engine.domain import events as e
from engine.domain.folds import advance
from engine.domain.model import Author, FailureKind, IdeaText, Interval
from engine.domain.predictions import (
    PredictionRecord,
    ScoredPrediction,
    best_gain,
    best_kernel,
    gain,
    is_dead,
    record_of,
    records,
    scored_predictions,
)
from engine.domain.state import SessionState

A, B = Author("openai:a"), Author("gemini:b")


def _idea(name: str, predicted: float | None, author: Author = A) -> tuple[e.Event, ...]:
    text = IdeaText(f"Idea {name}", "occupancy", "Because.", predicted)
    proposed = e.IdeasProposed(1, (e.ProposedIdea(name, text, "k1", author, 2),), True)
    return (proposed, e.IdeaSelected(name))


def _tried(name: str, predicted: float | None, *speedups: float | None, author: Author = A) -> tuple[e.Event, ...]:
    """An idea with a kernel for each speedup; ``None`` is a build failure."""
    events = [*_idea(name, predicted, author)]
    kernels = tuple(f"k{10 * int(name[1:]) + n}" for n in range(len(speedups)))
    for kernel, speedup in zip(kernels, speedups, strict=True):
        if speedup is None:
            events += [b.drafted(kernel, idea=name, parent="k1", round_number=1), e.KernelFailed(kernel, b.failure())]
        else:
            events += b.measured_kernel(kernel, speedup, idea=name, parent="k1", round_number=1)
    return (*events, e.IdeaImplemented(name, kernels))


def _state(*ideas: tuple[e.Event, ...], root: float = 2.0) -> SessionState:
    return b.fold(*b.first_round(root), e.RoundOpened(1, ("k1",)), *(event for idea in ideas for event in idea))


def test_a_gain_is_over_the_parent_with_both_errors_in_its_interval() -> None:
    state = _state(_tried("i2", 1.5, 3.0))
    brought = gain(state, state.kernels["k20"])
    assert brought is not None
    assert brought.value == pytest.approx(1.5)
    assert math.log(brought.high / brought.value) == pytest.approx(math.hypot(math.log(1.02), math.log(1 / 0.98)))
    assert brought.low < 1.5 < brought.high


def test_no_gain_without_two_measurements() -> None:
    state = _state(_tried("i2", 1.5, 3.0), _tried("i3", 1.5, None))
    assert gain(state, state.kernels["k1"]) is None
    assert gain(state, state.kernels["k30"]) is None
    screened = _state(_idea("i2", 1.5), b.measured_kernel("k20", 3.0, idea="i2", parent="k1", round_number=1)[:3])
    assert gain(screened, screened.kernels["k20"]) is None


@pytest.mark.parametrize("ends", [(1.5, 5e-324), (1e-320, 1.6), (2.0, 1.9), (1.4, math.inf)])
def test_an_interval_that_no_measurement_gives_is_no_gain(ends: tuple[float, float]) -> None:
    state = _state(_tried("i2", 1.5, 3.0))
    kernel = state.kernels["k20"]
    assert kernel.measurement is not None
    odd = {name: Interval(1.6, *ends) for name in kernel.measurement.speedup}
    assert gain(state, replace(kernel, measurement=replace(kernel.measurement, speedup=odd))) is None


def test_the_best_kernel_of_an_idea_counts() -> None:
    state = _state(_tried("i2", 1.5, 2.5, None, 3.0))
    best = best_kernel(state, state.ideas["i2"])
    assert best is not None
    assert best.id == "k22"
    found = best_gain(state, state.ideas["i2"])
    assert found is not None
    assert found.value == pytest.approx(1.5)


def test_what_an_idea_gained_stays_known_with_fresh_baselines() -> None:
    """Only ratios across them mean nothing. Prompts said of such ideas that no kernel of theirs was verified."""
    before = _state(_tried("i2", 1.5, 2.5, 3.0), _tried("i3", 1.5, 2.0))
    state = advance(before, b.entries([e.SessionPrepared(b.device(), b.preparation())], start=before.seq + 1))
    assert (before.epoch, state.epoch) == (1, 2)
    idea = state.ideas["i2"]
    assert gain(state, state.kernels["k21"]) == gain(before, before.kernels["k21"]) is not None
    assert best_kernel(state, idea) == state.kernels["k21"]
    assert best_gain(state, idea) == best_gain(before, before.ideas["i2"])
    assert not is_dead(state, idea)
    again = replace(state, kernels={**state.kernels, "k1": replace(state.kernels["k1"], epoch=2)})
    assert gain(again, again.kernels["k21"]) is None


@pytest.mark.parametrize(
    ("predicted", "measured", "hit"),
    [
        (1.5, Interval(1.2, 1.1, 1.3), True),
        (1.5, Interval(0.9, 0.8, 0.95), False),
        (1.5, Interval(1.01, 0.99, 1.03), False),
        (0.8, Interval(0.9, 0.8, 0.95), True),
        (0.8, Interval(1.2, 1.1, 1.3), False),
        (1.0, Interval(1.01, 0.99, 1.03), True),
        (1.0, Interval(1.2, 1.1, 1.3), False),
    ],
)
def test_a_direction_is_scored_only_for_decided_measurements(predicted: float, measured: Interval, hit: bool) -> None:
    assert ScoredPrediction("i1", "a", predicted, measured).hit is hit


def test_records_are_by_author_in_factors() -> None:
    state = _state(
        _tried("i2", 3.0, 3.0),  # measured 1.5 over the parent: a factor of 2 too high
        _tried("i3", 1.0, 4.0),  # measured 2: a factor of 2 too low
        _tried("i4", 8.0, 4.0),  # measured 2: a factor of 4 too high
        _tried("i5", 0.5, 1.0, author=B),
        _tried("i6", 2.0, None, author=B),
        _tried("i7", None, 3.0),
    )
    a, bee = record_of(state, A.name), record_of(state, B.name)
    assert a is not None
    assert bee is not None
    assert [r.author for r in records(state)] == ["gemini:b", "openai:a"]
    assert a.count == 3
    assert a.error == pytest.approx(2.0)
    assert a.bias == pytest.approx(2.0)
    assert (a.hits, a.fruitless) == (2, 0)
    assert (bee.count, bee.hits, bee.fruitless) == (1, 1, 1)
    assert bee.error == pytest.approx(1.0)
    assert record_of(state, "nobody") is None


def test_fruitless_predictions_give_a_record_without_a_score() -> None:
    state = _state(_tried("i2", 2.0, None, None))
    assert records(state) == (PredictionRecord(A.name, 0, 1.0, 1.0, 0, 1),)


def test_edited_ideas_are_not_scored() -> None:
    tried = _tried("i2", 2.0, 3.0)
    state = _state(tried)
    edited = e.IdeaEdited("i2", replace(state.ideas["i2"].text, predicted=1.5), "k1", 2)
    assert len(scored_predictions(state)) == 1
    assert scored_predictions(_state((*tried, edited))) == ()


@pytest.mark.parametrize(
    ("speedups", "dead"),
    [((None, None), True), ((1.0, None), True), ((2.0, None), False), ((4.0, 1.0), False), ((), False)],
)
def test_ideas_without_a_gain_are_dead(speedups: tuple[float | None, ...], dead: bool) -> None:
    state = _state(_tried("i2", 2.0, *speedups))
    assert is_dead(state, state.ideas["i2"]) is dead


def test_unfinished_cancelled_and_quarantined_ideas_are_not_dead() -> None:
    waiting = _state((*_idea("i2", 2.0), b.drafted("k20", idea="i2", parent="k1"), e.IdeaImplemented("i2", ("k20",))))
    assert not is_dead(waiting, waiting.ideas["i2"])
    cancelled = b.fold(*_events(), e.KernelCancelled("k20", "by hand"))
    assert not is_dead(cancelled, cancelled.ideas["i2"])
    doubted = b.fold(*_events(), b.built("k20"), e.KernelQuarantined("k20", ("too good",), None, None))
    assert not is_dead(doubted, doubted.ideas["i2"])
    failed = b.fold(*_events(), e.KernelFailed("k20", b.failure(FailureKind.MISMATCH)))
    assert is_dead(failed, failed.ideas["i2"])


def _events() -> tuple[e.Event, ...]:
    return (
        *b.first_round(2.0), e.RoundOpened(1, ("k1",)), *_idea("i2", 2.0), b.drafted("k20", idea="i2", parent="k1"),
        e.IdeaImplemented("i2", ("k20",)),
    )  # fmt: skip


def test_non_positive_speedups_give_no_gain() -> None:
    state = _state(_tried("i2", 2.0, 3.0))
    kernel = state.kernels["k20"]
    assert kernel.measurement is not None
    odd = replace(kernel.measurement, speedup={"eager": Interval(3.0, 0.0, math.inf)})
    assert gain(state, replace(kernel, measurement=odd)) is None
