"""What every bench must do for a session, whatever it builds and runs with. Subclass and say how the sources look.

A subclass gives ``bench`` (a fresh one with the folder's blob store) and the sources; the suite knows no other thing of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from engine.domain import work as w
from engine.domain.model import Author, Contract, Dialect, FailureKind
from engine.domain.state import Kernel, Stage
from engine.journal.blobs import Blobs
from engine.session.ports import Bench, StoreBlob

LIMIT_SECONDS = 120


class BenchContract:
    """Collected through its subclasses."""

    dialect: ClassVar[Dialect] = Dialect.CPP
    contract: ClassVar[Contract] = Contract.HOST
    good: ClassVar[str]
    """A source that builds, verifies and can be measured."""
    tunables: ClassVar[Mapping[str, int]] = {}
    ends: ClassVar[Mapping[FailureKind, str]]
    """Sources that must end so."""

    def bench(self, store: StoreBlob) -> Bench:
        raise NotImplementedError

    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Blobs:
        return Blobs(tmp_path)

    def kernel(self, blobs: Blobs, source: str, number: int = 1) -> Kernel:
        name = f"k{number}{'.cu' if self.dialect is Dialect.CUDA else f'.{self.dialect.value}'}"
        return Kernel(
            f"k{number}", "i1", None, 0, Author("script"), name, self.dialect, self.contract, blobs.put(source.encode()),
            self.tunables, seed=False,
        )  # fmt: skip

    def using(self, blobs: Blobs, act: Callable[[Bench], Awaitable[Any]]) -> Any:
        async def limited() -> Any:
            bench = self.bench(blobs.put)
            try:
                return await act(bench)
            finally:
                await bench.close()

        return asyncio.run(asyncio.wait_for(limited(), LIMIT_SECONDS))

    async def whole_way(self, bench: Bench, kernel: Kernel, source: str) -> list[w.Result]:
        """Prepare, build, verify, measure, as far as it goes."""
        results: list[w.Result] = [await bench.prepare(_say)]
        for stage in (bench.build, bench.verify, bench.measure):
            result: w.Result = await stage(kernel, source, _say)
            results.append(result)
            kernel = _next(kernel, result)
            if isinstance(result, w.Failed | w.Impossible):
                break
        return results

    def test_a_good_kernel_goes_the_whole_way(self, blobs: Blobs) -> None:
        kernel = self.kernel(blobs, self.good)
        results = self.using(blobs, lambda bench: self.whole_way(bench, kernel, self.good))
        assert [type(r) for r in results] == [w.Prepared, w.Built, w.Verified, w.Measured]

    def test_preparing_names_a_baseline_a_gate_and_a_header(self, blobs: Blobs) -> None:
        prepared = self.using(blobs, lambda bench: bench.prepare(_say))
        assert isinstance(prepared, w.Prepared)
        preparation = prepared.preparation
        assert "eager" in preparation.baselines
        assert preparation.gate.verifiable
        assert preparation.floor_us > 0
        assert preparation.same.low <= 1.0 <= preparation.same.high
        assert preparation.sandbox in ("bubblewrap", "limits")
        assert blobs.get(preparation.header)

    def test_times_and_speedups_are_intervals_around_their_values(self, blobs: Blobs) -> None:
        kernel = self.kernel(blobs, self.good)
        _, _, verified, measured = self.using(blobs, lambda bench: self.whole_way(bench, kernel, self.good))
        assert verified.screen.depth == "screen"
        assert measured.measurement.depth == "precise"
        for measurement in (verified.screen, measured.measurement):
            assert "eager" in measurement.speedup
            for interval in (measurement.time_us, *measurement.speedup.values()):
                assert 0 <= interval.low <= interval.value <= interval.high
                assert interval.value > 0

    def test_verification_stays_within_its_own_limits(self, blobs: Blobs) -> None:
        kernel = self.kernel(blobs, self.good)
        _, _, verified, _ = self.using(blobs, lambda bench: self.whole_way(bench, kernel, self.good))
        found = verified.verification
        assert found.trials >= 2
        assert found.rel_fro <= found.rel_fro_limit
        assert found.max_scaled <= found.max_scaled_limit

    def test_blobs_that_are_named_are_there(self, blobs: Blobs) -> None:
        kernel = self.kernel(blobs, self.good)
        _, built, verified, measured = self.using(blobs, lambda bench: self.whole_way(bench, kernel, self.good))
        for name in (built.log, verified.screen.raw, measured.measurement.raw):
            assert not name or blobs.get(name)

    def test_what_must_fail_fails_as_what_it_is(self, blobs: Blobs) -> None:
        for number, (kind, source) in enumerate(self.ends.items(), 1):
            kernel = self.kernel(blobs, source, number)
            last = self.using(blobs, lambda bench, k=kernel, s=source: self.whole_way(bench, k, s))[-1]
            assert isinstance(last, w.Failed), kind
            assert last.failure.kind is kind
            assert last.failure.reason
            assert "\n" not in last.failure.reason
            assert not last.failure.log or blobs.get(last.failure.log)

    def test_a_bench_goes_on_after_a_failure(self, blobs: Blobs) -> None:
        async def act(bench: Bench) -> w.Result:
            for number, source in enumerate(self.ends.values(), 2):
                await self.whole_way(bench, self.kernel(blobs, source, number), source)
            return (await self.whole_way(bench, self.kernel(blobs, self.good), self.good))[-1]

        assert isinstance(self.using(blobs, act), w.Measured)

    def test_kernels_are_built_side_by_side(self, blobs: Blobs) -> None:
        async def act(bench: Bench) -> list[w.Result]:
            await bench.prepare(_say)
            kernels = [self.kernel(blobs, self.good, n) for n in (1, 2, 3)]
            return list(await asyncio.gather(*(bench.build(k, self.good, _say) for k in kernels)))

        built = self.using(blobs, act)
        assert all(isinstance(result, w.Built) for result in built)
        assert len({result.artefact for result in built}) == 1

    def test_a_bench_that_was_interrupted_is_good_for_the_next_kernel(self, blobs: Blobs) -> None:
        async def act(bench: Bench) -> w.Result:
            await bench.prepare(_say)
            interrupted = asyncio.create_task(bench.build(self.kernel(blobs, self.good), self.good, _say))
            await asyncio.sleep(0)
            interrupted.cancel()
            await asyncio.gather(interrupted, return_exceptions=True)
            return (await self.whole_way(bench, self.kernel(blobs, self.good), self.good))[-1]

        assert isinstance(self.using(blobs, act), w.Measured)

    def test_closing_twice_is_closing_once(self, blobs: Blobs) -> None:
        async def act(bench: Bench) -> None:
            await bench.prepare(_say)
            await bench.close()

        self.using(blobs, act)


def _say(text: str) -> None:
    assert text


def _next(kernel: Kernel, result: w.Result) -> Kernel:
    """The kernel as the session would hold it after this result."""
    match result:
        case w.Built():
            return replace(kernel, stage=Stage.VERIFY, artefact=result.artefact, resources=result.resources)
        case w.Verified():
            return replace(kernel, stage=Stage.MEASURE, verification=result.verification, measurement=result.screen)
    return kernel
