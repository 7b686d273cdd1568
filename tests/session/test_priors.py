"""The prior of the adaptive strategy: what categories of ideas gained in earlier sessions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support import builders as b

from engine.domain.round_plan import CategoryRate
from engine.domain.strategy.evidence import bottleneck, evidence
from engine.domain.strategy.rates import rates
from engine.session import priors


@pytest.mark.slow
def test_rates_count_ideas_by_category_and_bottleneck() -> None:
    state = b.walk(b.FakeBench(author=b.MODEL)).state
    found = rates([state, state])
    tried = [idea for idea in state.ideas.values() if idea.round > 0 and idea.kernels]
    assert 0 < sum(rate.tried for rate in found) <= 2 * len(tried)
    assert all(0 <= rate.gained <= rate.tried and rate.bottleneck == bottleneck(state) for rate in found)
    assert rates([]) == ()


@pytest.mark.slow
def test_only_the_rates_of_the_same_bottleneck_count() -> None:
    state = b.walk(b.FakeBench(author=b.MODEL), strategy="adaptive").state
    assert state.opened is not None
    mine = CategoryRate("occupancy", 4, 2, 0.1, bottleneck(state))
    other = replace(mine, bottleneck="something else")
    settings = replace(state.opened.settings, prior=(mine, other))
    assert evidence(replace(state, opened=replace(state.opened, settings=settings))).prior == (mine,)


def test_the_prior_is_said_in_one_line() -> None:
    line = priors.words([CategoryRate("occupancy", 4, 2, math.log(1.5), "bytes")])
    assert line == "prior of earlier sessions, ideas that gained: occupancy (bytes) 2 of 4, 1.50×"
    assert priors.words([]) == "no earlier session gives a prior"
