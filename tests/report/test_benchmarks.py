"""The committed simulations: deterministic, at equal budget, with the real rules; interval coverage under quiet noise."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from support import sessions

from benchmarks import interval_coverage as coverage
from benchmarks import search_quality as quality
from benchmarks.landscapes import MemoryBlobs, Walker, code_of, search
from engine.domain.model import Interval
from engine.domain.state import SessionState
from engine.journal.blobs import Blobs
from engine.session.fake_bench import FakeBench
from engine.session.live import LiveSession, Ports

FAMILIES = {world.name: (world, make) for world, make in quality.FAMILIES}
KERNELS = 14


def compare(family: str, seeds: int = 2) -> list[quality.Comparison]:
    world, make = FAMILIES[family]
    return asyncio.run(quality.compare(world, make, KERNELS, seeds, [quality.Shape(2, 2, 2)]))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_comparison_is_deterministic_and_at_equal_budget(family: str) -> None:
    rows = compare(family)
    assert rows == compare(family)
    by_kernels, by_calls = rows
    assert by_kernels.kernels == (KERNELS, KERNELS)
    assert by_kernels.calls[1] > by_kernels.calls[0], "a sequential search asks for ideas once per kernel"
    assert 0 <= by_calls.calls[0] - by_calls.calls[1] <= 1
    for row in rows:
        assert all(one.low <= one.value <= one.high for one in (row.branching, row.sequential, row.ratio))
        assert sum(row.better) <= 2


def test_unequal_budgets_are_rejected() -> None:
    world, _ = FAMILIES["traps"]
    spent = (quality.SearchEnd(0.1, 14, 20, 3), quality.SearchEnd(0.2, 13, 20, 12))
    with pytest.raises(RuntimeError, match="unequal budgets"):
        quality.comparison(world, quality.Shape(2, 2, 2), "kernels", [spent])
    assert quality.comparison(world, quality.Shape(2, 2, 2), "calls", [spent]).better == (0, 1)


def test_a_live_session_grows_the_same_tree(tmp_path: Path) -> None:
    world, make = FAMILIES["dead ends"]

    async def in_memory() -> SessionState:
        blobs = MemoryBlobs()
        walker = Walker(make(random.Random(1)), world, "1")
        return await search(quality.opened(quality.Shape(2, 2, 2), KERNELS), FakeBench(blobs.put), walker, blobs)

    async def on_disk() -> SessionState:
        blobs = Blobs(tmp_path / "s")
        ports = Ports(FakeBench(blobs.put), Walker(make(random.Random(1)), world, "1"))
        async with LiveSession.create(tmp_path / "s", quality.opened(quality.Shape(2, 2, 2), KERNELS), ports) as live:
            await live.run()
            return live.state

    def tree(state: SessionState) -> list[object]:
        return [(k.id, k.idea, k.parent, k.round, k.name, k.stage, k.measurement and k.measurement.time_us.value)
                for k in state.kernels.values()]  # fmt: skip

    one, other = sessions.run(in_memory), sessions.run(on_disk)
    assert tree(one) == tree(other)
    assert one.closed == other.closed == f"limit of {KERNELS} kernels reached"


@pytest.mark.parametrize("family", FAMILIES)
def test_each_move_opens_new_moves(family: str) -> None:
    _, make = FAMILIES[family]
    landscape = make(random.Random(3))
    moves: frozenset[int] = frozenset()
    assert landscape.structure(moves) == pytest.approx(0.0)
    for _ in range(4):
        options = landscape.open(moves)
        assert options
        assert not moves & set(options)
        moves |= {options[0]}
        if not landscape.open(moves):
            break
    assert landscape.structure(moves) == make(random.Random(3)).structure(moves)


def test_a_trap_helps_first_and_blocks_later() -> None:
    _, make = FAMILIES["traps"]
    landscape = make(random.Random(0))
    late = frozenset(range(4, 16))
    for trap in range(4):
        alone = landscape.structure(frozenset({trap}))
        assert alone > 0.2
        assert landscape.structure(late | {trap}) < landscape.structure(late) + alone


def test_the_code_encodes_the_moves() -> None:
    world, make = FAMILIES["rugged"]
    draft = Walker(make(random.Random(0)), world, "0")._draft(code_of('// {"moves": [3, 1], "polish": -0.25}'), "x", "")
    assert code_of(draft.source).moves == {1, 3}
    assert code_of(draft.source).polish == -0.25


def test_a_bootstrap_interval_contains_the_mean() -> None:
    found = quality.bootstrap([0.1, 0.2, 0.3, 0.15])
    assert found == quality.bootstrap([0.1, 0.2, 0.3, 0.15])
    assert found.low < found.value < found.high


def test_intervals_cover_on_a_quiet_machine() -> None:
    quiet = coverage.MODELS[0]
    found = coverage.coverage(quiet, 1.25, 60, 0)
    assert found == coverage.coverage(quiet, 1.25, 60, 0)
    assert found.hits >= 54
    assert found.long_run == pytest.approx(1.25, rel=0.002)


def test_a_proportion_has_an_interval() -> None:
    low, high = coverage.wilson(90, 100)
    assert 0.82 < low < 0.9 < high < 0.95
    assert coverage.claimable(Interval(1.0, 0.99, 1.02)) == pytest.approx(0.0198, rel=0.01)
