"""A search whose ideas lead to no kernels ends, and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import builders as b

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import rules, stopping
from engine.domain.folds import advance
from engine.domain.settings import Limits
from engine.domain.state import SessionState
from engine.domain.stopping import MOST_WITHOUT_KERNELS

ENDLESS = Limits(rounds=None, kernels=None, plateau=None, light=None)
NOTE = "the reply contains no code"
WHY = f"no kernel in {MOST_WITHOUT_KERNELS} rounds: {NOTE}"


def fruitless(number: int, note: str = NOTE) -> tuple[e.Event, ...]:
    """A round whose only idea leads to no kernel."""
    idea = f"i{number + 1}"
    proposed = b.proposed(idea, round_number=number, parent="k1")
    return (
        e.RoundOpened(number, ("k1",)),
        proposed,
        e.IdeaSelected(idea),
        e.IdeaImplemented(idea, (), note),
        e.RoundClosed(number),
    )


def put_aside(number: int, decision: e.Event) -> tuple[e.Event, ...]:
    """A round whose only idea somebody decides against."""
    opened = (e.RoundOpened(number, ("k1",)), b.proposed(f"i{number + 1}", round_number=number, parent="k1"))
    return (*opened, decision, e.RoundClosed(number))


def searched(*rounds: tuple[e.Event, ...], limits: Limits = ENDLESS) -> SessionState:
    return b.fold(*b.first_round(strategy="adaptive", limits=limits), *(event for events in rounds for event in events))


def rows(count: int, first: int = 1) -> list[tuple[e.Event, ...]]:
    return [fruitless(number) for number in range(first, first + count)]


@pytest.mark.parametrize("limits", [ENDLESS, Limits(rounds=3, plateau=3)])
def test_rounds_in_a_row_without_a_kernel_end_a_search(limits: Limits) -> None:
    """The limits of the adaptive strategy count kernels: none of them would ever end this search."""
    assert stopping.stop_reason(searched(*rows(MOST_WITHOUT_KERNELS - 1), limits=limits)) is None
    assert stopping.stop_reason(searched(*rows(MOST_WITHOUT_KERNELS), limits=limits)) == WHY


def test_the_reason_is_one_short_line() -> None:
    state = searched(*rows(MOST_WITHOUT_KERNELS - 1), fruitless(MOST_WITHOUT_KERNELS, "line\n" * 1000))
    reason = stopping.stop_reason(state)
    assert reason is not None
    assert "\n" not in reason
    assert len(reason) < 300


def test_a_kernel_among_them_lets_the_search_go_on() -> None:
    made = fruitless(5)
    grown = (
        *made[:3],
        *b.measured_kernel("k2", 0.5, idea="i6", parent="k1", round_number=5),
        e.IdeaImplemented("i6", ("k2",)),
        made[-1],
    )
    state = searched(*rows(4), grown, *rows(MOST_WITHOUT_KERNELS - 1, first=6))
    assert stopping.stop_reason(state) is None


@pytest.mark.parametrize("decision", [e.IdeaRejected("i2", "no"), e.IdeaParked("i2")])
def test_rounds_that_the_engineer_turned_down_do_not_count(decision: e.IdeaRejected | e.IdeaParked) -> None:
    turned_down = [put_aside(number, replace(decision, idea=f"i{number + 1}")) for number in range(1, 30)]
    assert stopping.stop_reason(searched(*turned_down)) is None
    state = searched(*rows(4), *(put_aside(n, replace(decision, idea=f"i{n + 1}")) for n in range(5, 8)), *rows(6, first=8))
    assert stopping.stop_reason(state) == WHY


def test_ideas_that_only_the_engine_put_aside_count() -> None:
    kept = [put_aside(n, e.IdeaParked(f"i{n + 1}", "no expectation")) for n in range(1, MOST_WITHOUT_KERNELS + 1)]
    assert stopping.stop_reason(searched(*kept)) == f"no kernel in {MOST_WITHOUT_KERNELS} rounds: no expectation"


def test_rounds_that_only_tuned_do_not_count() -> None:
    """A kernel is tuned once, without a model: such rounds cost nothing."""

    def tuned(number: int) -> tuple[e.Event, ...]:
        opened, proposed, *rest = fruitless(number)
        assert isinstance(proposed, e.IdeasProposed)
        ideas = tuple(replace(one, text=replace(one.text, key=f"tune:k1:{number}")) for one in proposed.ideas)
        return (opened, replace(proposed, ideas=ideas), *rest)

    assert stopping.stop_reason(searched(*(tuned(number) for number in range(1, 30)))) is None


def test_an_open_round_does_not_count() -> None:
    state = searched(*rows(MOST_WITHOUT_KERNELS - 1), fruitless(MOST_WITHOUT_KERNELS)[:-1])
    assert stopping.stop_reason(state) is None


def test_new_limits_reopen_it_for_as_many_rounds_again() -> None:
    closed = searched(*rows(MOST_WITHOUT_KERNELS), (e.SessionClosed(WHY),))
    decided = rules.decide(closed, c.SetLimits(replace(ENDLESS, rounds=9)))
    assert decided[-1] == e.SessionReopened()
    again = advance(closed, b.entries(decided, start=closed.seq + 1))
    assert stopping.stop_reason(again) is None
    more = [event for events in rows(MOST_WITHOUT_KERNELS, first=MOST_WITHOUT_KERNELS + 1) for event in events]
    assert stopping.stop_reason(advance(again, b.entries(more, start=again.seq + 1))) == WHY
