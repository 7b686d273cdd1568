"""Where another strategy would have gone its own way."""

from __future__ import annotations

from support import builders as b

from engine.domain.events import RoundOpened
from engine.domain.settings import Limits
from engine.report.facts.strategy_replay import replayed

LIMITS = Limits(rounds=None, kernels=12, plateau=None, light=None)


def test_the_same_strategy_never_differs() -> None:
    for strategy in ("adaptive", "branching", "sequential"):
        walk = b.walk(b.FakeBench(author=b.MODEL), strategy=strategy, limits=LIMITS)
        rounds = list(replayed(walk.log, strategy))
        opened = [entry.event for entry in walk.log if isinstance(entry.event, RoundOpened) and entry.event.round > 0]
        assert [one.round for one in rounds] == [event.round for event in opened]
        assert not any(one.differs for one in rounds), strategy


def test_another_strategy_differs_where_it_would_have_chosen_other_parents() -> None:
    walk = b.walk(b.FakeBench(author=b.MODEL), beam=3, limits=LIMITS)
    rounds = list(replayed(walk.log, "sequential"))
    assert any(one.differs for one in rounds)
    assert all(len(one.instead) == 1 for one in rounds)
    assert all(one.reason for one in replayed(walk.log, "adaptive"))
