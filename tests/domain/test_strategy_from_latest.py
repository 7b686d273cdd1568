"""Going on from the latest kernel: only where gains depend on the kernel and losses are recovered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.domain.round_plan import Focus
from engine.domain.strategy import reasons
from engine.domain.strategy.belief import Belief, Constants, believed
from engine.domain.strategy.choice import decided
from engine.domain.strategy.evidence import TUNE, Evidence, OpenIdea, Trial
from engine.domain.strategy.from_latest import interacting, recovery, step_from_latest
from engine.domain.strategy.steps import MOST_ASKED, Ask
from engine.domain.strategy.values import Parent

Step = tuple[str, str, float]
"""Parent, idea and gain; the kernels are k1, k2, …"""
RUGGED: tuple[Step, ...] = (("k0", "a", 0.4), ("k1", "b", -0.3), ("k2", "c", 0.28), ("k0", "b", 0.2))
"""Idea b loses on k1, from which c recovers, and gains on k0. The best, k1, has not improved for three ideas."""


def grown(*steps: Step, variance: float = 1e-6) -> Evidence:
    kernels = {"k0": Parent("k0", None, 0.0, variance)}
    trials: list[Trial] = []
    for number, (parent, stem, gain) in enumerate(steps, start=1):
        kernels[f"k{number}"] = Parent(f"k{number}", parent, kernels[parent].value + gain, variance, stem)
        trials.append(Trial(parent, stem, 0.1, "a", "memory access", f"k{number}"))
    return Evidence(0, 1, kernels, tuple(trials), (), {}, {})


def belief(evidence: Evidence) -> Belief:
    return believed(evidence, Constants())


def test_it_asks_for_one_idea_for_the_latest_kernel_and_says_why() -> None:
    found = decided(grown(*RUGGED), None, may_ask=True)
    assert (found.ask, found.ranked, found.focus) == (Ask(("k4",), 1), ("k4",), None)
    assert reasons.of_parents(found, found.ask).endswith(
        "3 ideas did not improve the best, and what an idea gains depends on the kernel, so its author's first idea for the "
        "latest kernel is tried"
    )


def test_the_newest_idea_of_the_latest_kernel_is_tried_and_no_other() -> None:
    ideas = tuple(
        OpenIdea(*one, "a", "occupancy") for one in (("i1", "k4", "d", 0.9), ("i2", "k4", "e", 0.1), ("i3", "k1", "f", 0.9))
    )
    found = decided(replace(grown(*RUGGED), open=ideas), None, may_ask=False)
    assert found.from_latest
    assert found.pair is not None
    assert found.pair.idea == "i2"
    assert not decided(replace(grown(*RUGGED), open=ideas[2:]), None, may_ask=False).from_latest, "no idea came for it"


@pytest.mark.parametrize(
    ("steps", "why_not"),
    [
        (RUGGED[:3], "two ideas since the best improved"),
        ((*RUGGED[:3], ("k0", "b", -0.29)), "b loses the same on both"),
        ((*RUGGED[:3], ("k0", TUNE, 0.2), ("k2", TUNE, -0.2)), "only what tuning gains differs"),
        ((*RUGGED, *((f"k{n}", f"d{n}", -0.2) for n in range(4, 9))), "losses are not recovered"),
        ((*RUGGED, *((f"k{n}", "polish", 0.0) for n in range(4, 8))), "one idea prevails: the search restarts"),
    ],
)
def test_it_does_not_go_on_where_that_does_not_pay(steps: tuple[Step, ...], why_not: str) -> None:
    assert step_from_latest(belief(grown(*RUGGED)), None, may_ask=True) is not None
    assert step_from_latest(belief(grown(*steps)), None, may_ask=True) is None, why_not


@pytest.mark.parametrize(
    "changed",
    [
        lambda found: replace(found, invents=False),
        lambda found: replace(found, asked={"k4": MOST_ASKED}),
        lambda found: replace(found, kernels={**found.kernels, "k4": replace(found.kernels["k4"], copy=True)}),
        lambda found: replace(found, kernels={**found.kernels, "k0": replace(found.kernels["k0"], pinned=True)}),
        lambda found: grown(*RUGGED, variance=0.05),
    ],
    ids=("a playbook", "asked often", "a copy", "a pinned kernel", "measurements err as much as gains differ"),
)
def test_it_does_not_go_on_without_new_ideas_for_a_kernel_that_is_known(changed: Callable[[Evidence], Evidence]) -> None:
    assert step_from_latest(belief(changed(grown(*RUGGED))), None, may_ask=True) is None


def test_a_restart_is_not_interrupted() -> None:
    assert step_from_latest(belief(grown(*RUGGED)), Focus("k0", 3.0), may_ask=True) is None


@pytest.mark.parametrize(
    ("steps", "share"),
    [
        ((), 1 / 2),
        (RUGGED[:2], 1 / 2),
        (RUGGED[:3], 2 / 3),
        ((*RUGGED, ("k2", "d", -0.1)), 2 / 4),
        ((*RUGGED, ("k2", "d", 0.1)), 2 / 4),
    ],
)
def test_the_share_of_losses_that_are_recovered(steps: tuple[Step, ...], share: float) -> None:
    assert recovery(belief(grown(*steps))) == pytest.approx(share)


@pytest.mark.parametrize(("gain", "found"), [(0.2, "b"), (0.0, "b"), (-0.1, None), (-0.3, None), (-0.6, "b")])
def test_an_idea_interacts_whose_gains_differ_by_more_than_a_quarter(gain: float, found: str | None) -> None:
    assert interacting(belief(grown(*RUGGED[:3], ("k0", "b", gain)))) == found
