"""The fake bench fulfils the contract and is deterministic."""

from __future__ import annotations

import pytest
from contracts.bench_contract import ScriptedBenchContract, Stand
from support import sessions

from engine.domain import work as w
from engine.session.fake_bench import FakeBench
from engine.session.ports import Bench, StoreBlob


class TestFakeBench(ScriptedBenchContract):
    @classmethod
    def bench(cls, store: StoreBlob) -> Bench:
        return FakeBench(store)

    def test_the_landscape_depends_on_source_and_tunables_alone(self, stand: Stand) -> None:
        def time_of(text: str, **tunables: int) -> float:
            return float(stand.whole_way(text, tunables=tunables)[-1].measurement.time_us.value)

        first, other = sessions.source("one"), sessions.source("two")
        assert time_of(first, BLOCK=1) == time_of(first, BLOCK=1)
        assert len({time_of(first, BLOCK=1), time_of(first, BLOCK=2), time_of(other, BLOCK=1)}) == 3

    def test_more_effort_narrows_the_interval_and_adds_pairs(self, stand: Stand) -> None:
        races = [self._race(stand, self.good, self.slower, effort) for effort in (0, 1, 2)]
        assert [race.pairs for race in races] == [3, 6, 12]
        widths = [race.ratio.high / race.ratio.low for race in races]
        assert widths == sorted(widths, reverse=True)
        assert {race.ratio.value for race in races} == {4.5}

    def test_a_kernel_can_be_planted_that_fails_only_in_races(self, stand: Stand) -> None:
        tired = sessions.source("tired", "exhausted")
        assert isinstance(stand.whole_way(tired)[-1], w.Measured)
        assert self._race(stand, self.good, tired).kernel == "k32"

    @pytest.mark.parametrize("mark", ["time_us = 250", "time_us=250.0"])
    def test_a_time_can_be_planted(self, stand: Stand, mark: str) -> None:
        assert stand.whole_way(sessions.source("planted", mark))[-1].measurement.time_us.value == 250.0
