"""The fake bench honours the contract, and is the same every time."""

from __future__ import annotations

from typing import ClassVar

import pytest
from contracts.bench_contract import BenchContract, Stand
from support import sessions

from engine.domain.model import FailureKind
from engine.session.fake import FakeBench
from engine.session.ports import Bench, StoreBlob


class TestFakeBench(BenchContract):
    good = sessions.source("good")
    suspect = sessions.source("suspect", "suspicious")
    unsafe = sessions.source("unsafe", "unsafe")
    ends: ClassVar = {kind: sessions.source("bad", kind.value) for kind in FailureKind}

    @classmethod
    def bench(cls, store: StoreBlob) -> Bench:
        return FakeBench(store)

    def test_the_landscape_depends_on_source_and_tunables_alone(self, stand: Stand) -> None:
        def time_of(text: str, **tunables: int) -> float:
            return float(stand.whole_way(text, tunables=tunables)[-1].measurement.time_us.value)

        first, other = sessions.source("one"), sessions.source("two")
        assert time_of(first, BLOCK=1) == time_of(first, BLOCK=1)
        assert len({time_of(first, BLOCK=1), time_of(first, BLOCK=2), time_of(other, BLOCK=1)}) == 3

    @pytest.mark.parametrize("mark", ["time_us = 250", "time_us=250.0"])
    def test_a_time_can_be_planted(self, stand: Stand, mark: str) -> None:
        assert stand.whole_way(sessions.source("planted", mark))[-1].measurement.time_us.value == 250.0
