"""The contract of every bench. Subclasses provide the kernels.

    class TestMine(BenchContract):
        good = "..."
        ends = {FailureKind.MISMATCH: "..."}

        @classmethod
        def bench(cls, store):
            return MyBench(store)

One bench is made and prepared for a whole class, as a session does; the suite knows nothing else of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from support import sessions

from engine.domain import work as w
from engine.domain.model import Author, Contract, Dialect, FailureKind
from engine.domain.regimes import Regime
from engine.domain.state import Kernel, Stage
from engine.journal.blobs import Blobs
from engine.session.ports import Bench, StoreBlob

LIMIT_SECONDS = 150


class Stand:
    """A prepared bench with its own blob store and event loop."""

    def __init__(self, suite: type[BenchContract], blobs: Blobs) -> None:
        self.suite = suite
        self.blobs = blobs
        self.bench = suite.bench(blobs.put)
        self._runner = asyncio.Runner()
        self.prepared = self.run(self.bench.prepare(say))

    def run(self, effect: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(asyncio.wait_for(effect, LIMIT_SECONDS))

    def kernel(self, source: str, number: int = 1) -> Kernel:
        suffix = "cu" if self.suite.dialect is Dialect.CUDA else self.suite.dialect.value
        return Kernel(
            f"k{number}", "i1", None, 0, Author("script"), f"k{number}.{suffix}", self.suite.dialect, self.suite.contract,
            self.blobs.put(source.encode()), self.suite.tunables, seed=False,
        )  # fmt: skip

    def whole_way(self, source: str, number: int = 1, **changes: Any) -> list[w.Result]:
        """Build, verify and measure, until a stage fails."""
        return list(self.run(self._whole_way(replace(self.kernel(source, number), **changes), source)))

    async def _whole_way(self, kernel: Kernel, source: str) -> list[w.Result]:
        results: list[w.Result] = []
        for stage in (self.bench.build, self.bench.verify, self.bench.measure):
            result: w.Result = await stage(kernel, source, say)
            results.append(result)
            kernel = _next(kernel, result)
            if isinstance(result, w.Failed | w.Suspected | w.Impossible):
                break
        return results

    def close(self) -> None:
        """Closing twice is allowed."""
        self.run(self.bench.close())
        self.run(self.bench.close())
        self._runner.close()


class BenchContract:
    """Collected through its subclasses."""

    dialect: ClassVar[Dialect] = Dialect.CPP
    contract: ClassVar[Contract] = Contract.HOST
    tunables: ClassVar[Mapping[str, int]] = {}
    good: ClassVar[str]
    """A kernel that builds, verifies and can be measured."""
    slower: ClassVar[str]
    """Another correct kernel with many times the work."""
    ends: ClassVar[Mapping[FailureKind, str]]
    """Kernels by the failure that they must end with."""
    suspect: ClassVar[str]
    """A correct kernel that must be suspected."""
    unsafe: ClassVar[str]
    """A correct kernel with sanitizer findings."""

    @classmethod
    def bench(cls, store: StoreBlob) -> Bench:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def stand(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
        stand = Stand(cls, Blobs(tmp_path_factory.mktemp("bench")))
        yield stand
        stand.close()

    @pytest.fixture(scope="class")
    @classmethod
    def good_results(cls, stand: Stand) -> list[Any]:
        return stand.whole_way(cls.good)

    def test_preparing_returns_a_baseline_a_tolerance_and_a_header(self, stand: Stand) -> None:
        assert isinstance(stand.prepared, w.Prepared), stand.prepared
        preparation = stand.prepared.preparation
        assert "eager" in preparation.baselines
        assert preparation.gate.verifiable
        assert preparation.floor_us > 0
        assert preparation.same.low <= preparation.same.value <= preparation.same.high
        assert preparation.sandbox in ("bubblewrap", "limits")
        assert stand.blobs.get(preparation.header)

    def test_a_correct_kernel_passes_all_stages(self, good_results: list[Any]) -> None:
        assert [type(r) for r in good_results] == [w.Built, w.Verified, w.Measured], good_results[-1]

    def test_times_and_speedups_are_intervals_around_their_values(self, good_results: list[Any]) -> None:
        _, verified, measured = good_results
        assert verified.screen.depth == "screen"
        assert measured.measurement.depth == "precise"
        for measurement in (verified.screen, measured.measurement):
            assert "eager" in measurement.speedup
            for interval in (measurement.time_us, *measurement.speedup.values()):
                assert 0 <= interval.low <= interval.value <= interval.high
                assert interval.value > 0

    def test_verification_stays_within_its_own_limits(self, good_results: list[Any]) -> None:
        found = good_results[1].verification
        assert found.trials >= 2
        assert found.rel_fro <= found.rel_fro_limit
        assert found.max_scaled <= found.max_scaled_limit

    def test_stages_report_their_duration(self, good_results: list[Any]) -> None:
        assert all(result.seconds > 0 for result in good_results)

    def test_named_blobs_exist(self, stand: Stand, good_results: list[Any]) -> None:
        built, verified, measured = good_results
        for name in (built.log, verified.screen.raw, measured.measurement.raw):
            assert not name or stand.blobs.get(name)

    def test_failures_have_their_kind_and_the_bench_continues(self, stand: Stand) -> None:
        for number, (kind, source) in enumerate(self.ends.items(), 2):
            last = stand.whole_way(source, number)[-1]
            assert isinstance(last, w.Failed), (kind, last)
            assert last.failure.kind is kind
            assert last.failure.reason
            assert "\n" not in last.failure.reason
            assert not last.failure.log or stand.blobs.get(last.failure.log)
        assert isinstance(stand.whole_way(self.good)[-1], w.Measured)

    def test_an_implausible_kernel_is_quarantined_with_its_times(self, stand: Stand) -> None:
        last = stand.whole_way(self.suspect, 20)[-1]
        assert isinstance(last, w.Suspected), last
        assert last.evidence
        assert not any("\n" in line for line in last.evidence)
        assert last.measurement is not None
        assert last.measurement.time_us.value > 0

    def test_a_finalist_runs_under_the_sanitizers(self, stand: Stand) -> None:
        clean = stand.run(stand.bench.sanitize(stand.kernel(self.good, 21), self.good, say))
        assert isinstance(clean, w.Sanitized), clean
        assert clean.tools
        assert clean.findings == ()
        assert clean.seconds > 0
        found = stand.run(stand.bench.sanitize(stand.kernel(self.unsafe, 22), self.unsafe, say))
        assert isinstance(found, w.Sanitized), found
        assert found.findings
        assert not any("\n" in line for line in found.findings)
        assert not found.log or stand.blobs.get(found.log)

    def test_two_kernels_race_and_the_ratio_is_first_over_second(self, stand: Stand) -> None:
        for slower_first in (False, True):
            pair = (self.slower, self.good) if slower_first else (self.good, self.slower)
            raced = self._race(stand, *pair)
            assert isinstance(raced, w.Raced), raced
            assert 0 < raced.ratio.low <= raced.ratio.value <= raced.ratio.high
            assert (raced.ratio.value < 1) is slower_first
            assert raced.pairs >= 3
            assert raced.samples >= 2 * raced.pairs
            assert raced.seconds > 0
            assert not raced.raw or stand.blobs.get(raced.raw)

    def test_a_failed_race_names_the_kernel_at_fault(self, stand: Stand) -> None:
        for kind in set(self.ends) & {FailureKind.MISMATCH, FailureKind.CRASHED, FailureKind.REJECTED}:
            for place, pair in enumerate(((self.ends[kind], self.good), (self.good, self.ends[kind]))):
                failed = self._race(stand, *pair)
                assert isinstance(failed, w.Failed), (kind, failed)
                assert failed.failure.kind is kind
                assert failed.kernel == ("k31", "k32")[place]
        assert isinstance(self._race(stand, self.good, self.good), w.Raced)

    def test_a_kernel_is_measured_back_to_back_beside_its_baseline(self, stand: Stand) -> None:
        found = stand.run(stand.bench.sustain(stand.kernel(self.good), self.good, say))
        assert isinstance(found, w.BackToBack), found
        assert found.times is not None, found.note
        for interval in (found.times.time_us, found.times.speedup["eager"]):
            assert 0 < interval.low <= interval.value <= interval.high
        assert found.times.calls > found.times.processes >= 3
        assert found.seconds > 0
        assert not found.times.raw or stand.blobs.get(found.times.raw)

    def test_a_wrong_kernel_fails_back_to_back_too(self, stand: Stand) -> None:
        source = self.ends[FailureKind.MISMATCH]
        found = stand.run(stand.bench.sustain(stand.kernel(source), source, say))
        assert isinstance(found, w.Failed), found
        assert found.failure.kind is FailureKind.MISMATCH

    def test_two_kernels_race_back_to_back(self, stand: Stand) -> None:
        raced = self._race(stand, self.slower, self.good, regime=Regime.SUSTAINED)
        assert isinstance(raced, w.Raced), raced
        assert raced.regime is Regime.SUSTAINED
        assert raced.ratio.value < 1
        assert raced.pairs >= 3

    def _race(self, stand: Stand, one: str, other: str, effort: int = 0, regime: Regime = Regime.SINGLE) -> Any:
        return stand.run(stand.bench.race(stand.kernel(one, 31), one, stand.kernel(other, 32), other, effort, regime, say))

    def test_counters_are_read_or_the_reason_is_said(self, stand: Stand) -> None:
        read = stand.run(stand.bench.read_counters(stand.kernel(self.good), self.good, say_anything))
        assert isinstance(read, w.Profiled)
        assert read.profile.metrics if read.profile.tool else read.profile.note

    def test_kernels_are_built_concurrently(self, stand: Stand) -> None:
        async def act() -> list[w.Result]:
            kernels = [stand.kernel(self.good, number) for number in (1, 2, 3)]
            return list(await asyncio.gather(*(stand.bench.build(k, self.good, say) for k in kernels)))

        built = stand.run(act())
        assert all(isinstance(result, w.Built) for result in built)
        assert len({result.artefact for result in built}) == 1

    @pytest.mark.slow
    def test_an_interrupted_bench_works_for_the_next_kernel(self, stand: Stand) -> None:
        async def act() -> None:
            built = await stand.bench.build(stand.kernel(self.good), self.good, say)
            interrupted = asyncio.create_task(stand.bench.verify(_next(stand.kernel(self.good), built), self.good, say))
            await asyncio.sleep(0.05)
            interrupted.cancel()
            await asyncio.gather(interrupted, return_exceptions=True)

        stand.run(act())
        assert isinstance(stand.whole_way(self.good)[-1], w.Measured)


def say(text: str) -> None:
    """A listener that must receive at least one message."""
    assert text


def say_anything(text: str) -> None:
    """A listener that may hear nothing."""


def _next(kernel: Kernel, result: w.Result) -> Kernel:
    """The kernel as the session holds it after this result."""
    match result:
        case w.Built():
            return replace(kernel, stage=Stage.VERIFY, artefact=result.artefact, resources=result.resources)
        case w.Verified():
            return replace(kernel, stage=Stage.MEASURE, verification=result.verification, measurement=result.screen)
    return kernel


class ScriptedBenchContract(BenchContract):
    """The kernels of benches that read the verdict from the code."""

    good = sessions.source("good", "time_us = 200")
    slower = sessions.source("slower", "time_us = 900")
    suspect = sessions.source("suspect", "suspicious")
    unsafe = sessions.source("unsafe", "unsafe")
    ends: ClassVar = {kind: sessions.source("bad", kind.value) for kind in FailureKind}
