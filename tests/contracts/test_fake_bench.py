"""The fake bench honours the contract, and is the same every time."""

from __future__ import annotations

from pathlib import Path

import pytest
from contracts.bench_contract import BenchContract
from support import sessions

from engine.domain.model import FailureKind
from engine.journal.blobs import Blobs
from engine.session.fake import FakeBench
from engine.session.ports import Bench, StoreBlob


class TestFakeBench(BenchContract):
    good = sessions.source("good")
    ends = {kind: sessions.source("bad", kind.value) for kind in FailureKind}  # noqa: RUF012

    def bench(self, store: StoreBlob) -> Bench:
        return FakeBench(store)

    def test_the_landscape_depends_on_source_and_tunables_alone(self, blobs: Blobs) -> None:
        def time_of(text: str, **tunables: int) -> float:
            kernel = sessions.builders.replace(self.kernel(blobs, text), tunables=tunables)
            results = self.using(blobs, lambda bench: self.whole_way(bench, kernel, text))
            return float(results[-1].measurement.time_us.value)

        first, other = sessions.source("one"), sessions.source("two")
        assert time_of(first, BLOCK=1) == time_of(first, BLOCK=1)
        assert len({time_of(first, BLOCK=1), time_of(first, BLOCK=2), time_of(other, BLOCK=1)}) == 3

    @pytest.mark.parametrize("mark", ["time_us = 250", "time_us=250.0"])
    def test_a_time_can_be_planted(self, tmp_path: Path, blobs: Blobs, mark: str) -> None:
        text = sessions.source("planted", mark)
        results = self.using(blobs, lambda bench: self.whole_way(bench, self.kernel(blobs, text), text))
        assert results[-1].measurement.time_us.value == 250.0
