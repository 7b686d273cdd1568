"""Near the session's end the adaptive strategy takes what improves the best most; before, the end changes nothing."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as b

from engine.domain import queries
from engine.domain.round_plan import Focus
from engine.domain.settings import Limits
from engine.domain.strategy import reasons
from engine.domain.strategy.belief import Constants, believed
from engine.domain.strategy.choice import decided
from engine.domain.strategy.evidence import TUNE, Evidence, OpenIdea, Predictions, Trial
from engine.domain.strategy.steps import (
    Ask,
    NextStep,
    Pair,
    belief_pair,
    candidates,
    improvement,
    repeatable,
    repeated_pair,
    ruled_out,
    tuning_pair,
)
from engine.domain.strategy.values import Parent

HORIZON = int(Constants().horizon)
ENDLESS = Limits(rounds=None, kernels=None, plateau=None, light=None)
STEMS = ("a", "b", "c", "d", "e", TUNE)


@st.composite
def evidences(draw: st.DrawFn) -> Evidence:
    """A search of some trials, with ideas that wait on any of its kernels."""
    kernels, trials = {"k0": Parent("k0", None, 0.0, 1e-4, tunable=draw(st.booleans()))}, []
    for number in range(1, draw(st.integers(1, 14)) + 1):
        parent, stem = draw(st.sampled_from(sorted(kernels))), draw(st.sampled_from(STEMS))
        child = f"k{number}" if draw(st.integers(0, 3)) else None
        predicted = draw(st.floats(-0.5, 0.8))
        if child is not None:
            value = kernels[parent].value + draw(st.floats(-0.4, 0.6))
            flags = {name: not draw(st.integers(0, 4)) for name in ("pinned", "tunable", "copy")}
            kernels[child] = Parent(child, parent, value, 1e-4, stem, **flags)
        trials.append(Trial(parent, stem, predicted, "ab"[number % 2], "memory access", child, not draw(st.integers(0, 2))))
    waiting = [
        OpenIdea(f"i{n}", draw(st.sampled_from(sorted(kernels))), draw(st.sampled_from((*STEMS, "new"))), predicted, "a", "")
        for n, predicted in enumerate(draw(st.lists(st.floats(-0.5, 0.8), max_size=6)))
    ]
    predictions = {
        stem: Predictions(len(own), fmean(own))
        for stem in STEMS
        if (own := [trial.predicted for trial in trials if trial.stem == stem])
    }
    rejected = frozenset(draw(st.sets(st.sampled_from(STEMS[:-1]), max_size=2)))
    return Evidence(draw(st.integers(0, 99)), 1, kernels, tuple(trials), tuple(waiting), {}, predictions, rejected=rejected)


def told(step: NextStep) -> object:
    return step.ask, step.pair, step.focus, step.ranked, step.last


def all_pairs(found: Evidence) -> list[Pair]:
    """Every idea that can be tried on every kernel, one by one."""
    belief = believed(found, Constants())
    parents = candidates(belief)
    waiting = {k: [idea for idea in found.open if idea.parent == k] for k in parents}
    pairs = [belief_pair(belief, idea) for idea in found.open if idea.parent in parents]
    pairs += [tuning_pair(belief, k) for k in parents if found.kernels[k].tunable and k not in found.tuned]
    for parent, (stem, predicted) in itertools.product(parents, repeatable(belief)):
        if stem not in ruled_out(belief, parent, waiting[parent]):
            pairs.append(repeated_pair(belief, parent, stem, predicted))
    return pairs


@pytest.mark.slow
@given(evidences(), st.none() | st.integers(HORIZON + 1, 1000), st.booleans())
def test_far_from_the_end_a_decision_is_what_it_is_without_one(found: Evidence, left: int | None, may_ask: bool) -> None:
    unlimited = decided(found, None, may_ask=may_ask)
    assert told(decided(replace(found, left=left), None, may_ask=may_ask)) == told(unlimited)
    assert unlimited.last is None


@pytest.mark.slow
@given(evidences(), st.integers(0, 1000), st.booleans())
def test_a_playbook_has_no_horizon(found: Evidence, left: int, may_ask: bool) -> None:
    found = replace(found, invents=False)
    assert told(decided(replace(found, left=left), None, may_ask=may_ask)) == told(decided(found, None, may_ask=may_ask))


@pytest.mark.slow
@given(evidences(), st.integers(0, HORIZON), st.booleans())
def test_near_the_end_nothing_at_hand_is_expected_to_improve_the_best_more(found: Evidence, left: int, may_ask: bool) -> None:
    focus = Focus("k0", 3.0, 0)
    step = decided(replace(found, left=left), focus, may_ask=may_ask)
    top = step.belief.parents[step.belief.best].value
    pairs = all_pairs(found)
    most = max((improvement(step.belief, pair, top) for pair in pairs), default=0.0)
    assert step.last is not None
    assert step.last.known == pytest.approx(most, abs=1e-12)
    assert (step.pair is not None) == bool(pairs)
    if step.pair is not None:
        assert improvement(step.belief, step.pair, top) == step.last.known
        assert not found.kernels[step.pair.parent].copy
    assert (step.ask is not None) == (step.last.new > step.last.known)
    assert may_ask or step.ask is None
    assert step.focus is None, "no search restarts"


@pytest.mark.slow
@given(evidences(), st.integers(0, HORIZON))
def test_near_the_end_nothing_is_drawn(found: Evidence, left: int) -> None:
    one, other = (decided(replace(found, left=left, seed=seed), None, may_ask=True) for seed in (1, 2))
    assert told(one) == told(other)


def grown(**more: object) -> Evidence:
    """k0, and k1 to k4 in a line above it; each step gained 1.2×."""
    kernels, trials = {"k0": Parent("k0", None, 0.0, 1e-4)}, []
    for number in range(1, 5):
        kernels[f"k{number}"] = Parent(f"k{number}", f"k{number - 1}", 0.18 * number, 1e-4, f"s{number}")
        trials.append(Trial(f"k{number - 1}", f"s{number}", 0.2, "a", "memory access", f"k{number}"))
    return replace(Evidence(0, 1, kernels, tuple(trials), (), {}, {}), **more)  # type: ignore[arg-type]


def test_the_end_makes_a_sure_small_gain_at_the_best_kernel_better_than_a_large_one_far_below() -> None:
    ideas = (OpenIdea("sure", "k4", "s8", 0.1, "a", ""), OpenIdea("large", "k0", "s9", 0.5, "a", ""))
    pair = decided(grown(open=ideas, left=3), None, may_ask=False).pair
    assert pair is not None
    assert pair.idea == "sure"


@pytest.mark.parametrize(("predicted", "asks"), [(-0.9, True), (0.9, False)])
def test_near_the_end_new_ideas_are_asked_for_where_they_promise_more(predicted: float, asks: bool) -> None:
    ideas = tuple(OpenIdea(f"i{n}", "k4", f"n{n}", predicted, "a", "") for n in range(2))
    found = grown(open=ideas, left=3, fixed=frozenset({"s1", "s2", "s3", "s4"}))
    step = decided(found, None, may_ask=True)
    assert step.ask == (Ask(("k4", "k3", "k2"), 3) if asks else None)
    pinned = replace(found, kernels={**found.kernels, "k0": replace(found.kernels["k0"], pinned=True)})
    assert decided(pinned, None, may_ask=True).ask == (Ask(("k4", "k3", "k2", "k0"), 3) if asks else None)


@pytest.mark.parametrize(
    ("predicted", "may_ask", "words"),
    [
        (None, True, "a new idea is expected to add {new}, and none is at hand"),
        (-0.9, True, "a new idea is expected to add {new}, the best at hand expected to add {known}"),
        (0.9, True, "the best idea at hand is expected to add {known}, a new one expected to add {new}"),
        (0.9, False, "the best idea at hand is expected to add {known}"),
    ],
)
def test_the_reason_says_what_each_alternative_adds(predicted: float | None, may_ask: bool, words: str) -> None:
    waiting = () if predicted is None else (OpenIdea("i9", "k4", "s9", predicted, "a", ""),)
    found = grown(open=waiting, left=1, fixed=frozenset({"s1", "s2", "s3", "s4"}))
    step = decided(found, None, may_ask=may_ask)
    assert step.last is not None
    known, new = (f"{math.exp(gain):.3f}×" for gain in (step.last.known, step.last.new))
    assert reasons.of_parents(step, step.ask).endswith(
        ". 1 kernel left before the session ends, so what counts is what the next one adds to the best: "
        + words.format(known=known, new=new)
    )


@pytest.mark.parametrize(
    ("limits", "strategy", "left"),
    [
        (ENDLESS, "adaptive", None),
        (replace(ENDLESS, kernels=30), "adaptive", 21),
        (replace(ENDLESS, kernels=9), "adaptive", 0),
        (replace(ENDLESS, kernels=4), "adaptive", 0),
        (replace(ENDLESS, rounds=5), "adaptive", 12),
        (replace(ENDLESS, rounds=5), "branching", None),
        (replace(ENDLESS, rounds=5, kernels=30), "adaptive", 12),
        (replace(ENDLESS, rounds=9, kernels=30), "adaptive", 21),
        (replace(ENDLESS, kernels=30, raised_later=True), "adaptive", None),
        (replace(ENDLESS, seconds=60.0), "adaptive", None),
    ],
)
def test_kernels_left_follow_from_the_limits(limits: Limits, strategy: str, left: int | None) -> None:
    """Of nine kernels one is the naive port; four kernels make a round of the adaptive strategy."""
    walk = b.walk(b.FakeBench(author=b.MODEL), strategy="adaptive", ideas=2, branch=2, limits=replace(ENDLESS, kernels=9))
    state = walk.state
    assert state.opened is not None
    assert len(state.kernels) == 9
    opened = replace(state.opened, settings=replace(state.opened.settings, strategy=strategy))
    assert queries.kernels_left(replace(state, opened=opened, limits=limits)) == left


def test_the_last_rounds_of_a_session_say_so_and_no_others() -> None:
    limits = replace(ENDLESS, kernels=HORIZON + 8)
    walk = b.walk(b.FakeBench(author=b.MODEL), strategy="adaptive", limits=limits, source="simulated")
    plans = [one.plan for one in walk.state.rounds.values() if one.plan is not None]
    said = ["left before the session ends" in plan.reason for plan in plans]
    assert any(said)
    assert not all(said)
    assert said == sorted(said), "only the last ones"
    assert all(plan.focus is None for plan, last in zip(plans, said, strict=True) if last)
