"""Which of several searches is next."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support import builders as b

from engine.domain.model import SpeedOfLight
from engine.domain.settings import Limits
from engine.domain.state import SessionState
from engine.domain.strategy.worth import LONGEST_WAIT, NextTurn, Standing, next_turn, worth

LIMITS = Limits(rounds=None, kernels=14, plateau=None, light=None)


def searched(**settings: object) -> SessionState:
    return b.walk(b.FakeBench(author=b.MODEL), **{"limits": LIMITS, **settings}).state


@pytest.mark.parametrize("strategy", ["adaptive", "branching", "sequential"])
def test_a_search_of_every_strategy_has_a_finite_worth(strategy: str) -> None:
    assert math.isinf(worth(SessionState()))
    assert math.isinf(worth(b.fold(b.opened(), b.prepared())))
    found = worth(searched(strategy=strategy))
    assert 0.0 < found < 1.0
    assert worth(searched(strategy=strategy)) == found


def test_it_is_at_most_what_the_speed_of_light_leaves() -> None:
    state = searched()
    best = state.kernels[state.incumbent]
    assert best.measurement is not None
    for fraction, most in ((0.99, -math.log(0.99)), (1.0, 0.0), (1.1, 0.0)):
        measured = replace(best.measurement, light=SpeedOfLight("bytes", 1.0, fraction))
        near = replace(state, kernels={**state.kernels, best.id: replace(best, measurement=measured)})
        assert worth(near) == pytest.approx(min(most, worth(state)))


def test_a_search_without_a_verified_kernel_is_worth_nothing() -> None:
    assert worth(b.fold(*b.first_round()[:-4])) == 0.0


A, B, C = Standing("a", 10, 0.1), Standing("b", 4, 0.3), Standing("c", 20, 0.2)


@pytest.mark.parametrize(
    ("standings", "number", "position"),
    [
        ((A, B, C), 0, 1),
        ((A, replace(B, worth=0.0), C), 0, 2),
        ((A, B, C), LONGEST_WAIT - 1, 1),
        ((replace(A, kernels=1), B, C), LONGEST_WAIT - 1, 0),
        ((A, B, replace(C, worth=math.inf)), LONGEST_WAIT - 1, 2),
        ((replace(A, worth=math.inf), B, replace(C, worth=math.inf)), 0, 0),
        ((A, replace(B, ended="done"), C), 0, 2),
    ],
)
def test_each_search_begins_then_the_worth_decides_and_none_waits_long(
    standings: tuple[Standing, ...], number: int, position: int
) -> None:
    turn = next_turn(standings, number)
    assert turn is not None
    assert turn.position == position


def test_a_turn_names_the_figures_behind_it() -> None:
    assert next_turn((A, B, C), 0) == NextTurn(1, "its next kernel is expected to gain 1.350×, the next best 1.221×")
    assert next_turn((A,), 0) == NextTurn(0, "its next kernel is expected to gain 1.105×")
    assert next_turn((replace(A, ended="done"),), 0) is None
