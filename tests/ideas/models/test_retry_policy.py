"""How long one question is asked again: by the clock where that is free, a few times where it may have cost something."""

from __future__ import annotations

import pytest

from engine.ideas.models.model import ModelError, Retry, Spent, Trouble
from engine.ideas.models.retry_policy import DEFAULT_POLICY, Persistence

HOUR = 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def overloaded(after: float | None = None) -> ModelError:
    return ModelError(Trouble.UNREACHABLE, "overloaded", retry=Retry(after))


def cut() -> ModelError:
    return ModelError(Trouble.UNREACHABLE, "cut off", spent=Spent.UNKNOWN, retry=Retry())


def waited(persistence: Persistence, clock: Clock, error: ModelError, until: float) -> bool:
    """Whether the question was still asked at ``until``, with this failure each time."""
    while clock.now < until:
        wait = persistence.wait_after(error)
        if wait is None:
            return False
        clock.now += wait
    return True


def test_patience_begins_anew_once_the_provider_was_reached() -> None:
    """Two outages of 40 minutes, with a reply that the second one cut: each is shorter than the patience of an hour."""
    clock = Clock()
    persistence = Persistence(HOUR, clock=clock)
    assert waited(persistence, clock, overloaded(20.0), 2400.0)
    clock.now += 300.0
    assert persistence.wait_after(cut()) is not None
    assert waited(persistence, clock, overloaded(20.0), clock.now + 2400.0)
    assert not waited(persistence, clock, overloaded(20.0), clock.now + HOUR)


def test_one_long_outage_ends_the_patience_to_the_second() -> None:
    clock = Clock()
    assert not waited(Persistence(HOUR, clock=clock), clock, overloaded(), 2 * HOUR)
    assert clock.now == HOUR


def test_attempts_that_may_have_cost_something_are_few_and_spread_over_minutes() -> None:
    clock = Clock()
    assert not waited(Persistence(HOUR, clock=clock), clock, cut(), HOUR)
    assert 5 * 60.0 < clock.now < 15 * 60.0


@pytest.mark.parametrize("after", [HOUR + 1.0, 7 * HOUR])
def test_a_requested_wait_that_is_longer_than_the_patience_gives_up_at_once(after: float) -> None:
    assert Persistence(HOUR, DEFAULT_POLICY, Clock()).wait_after(overloaded(after)) is None
