"""The committed simulations: deterministic, at equal budget, with the real rules; interval coverage under quiet noise."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from support import sessions

from benchmarks import fleet_speed
from benchmarks import interval_coverage as coverage
from benchmarks import search_quality as quality
from benchmarks.landscapes import MemoryBlobs, Walker, code_of, families, family, search
from engine.domain.model import Interval
from engine.domain.state import SessionState
from engine.journal.blobs import Blobs
from engine.session.fake_bench import FakeBench
from engine.session.live import LiveSession, Ports

FAMILIES = families()
KERNELS = 14
TWO_BY_TWO = quality.Strategy("branching", 2, 2, 2)
BUDGETS = (quality.Budget("verdicts", KERNELS), quality.Budget("calls", 20), quality.Budget("dollars", 0.5))


def compare(family: str, seeds: int = 2) -> list[quality.Row]:
    strategies = (quality.ADAPTIVE, quality.SEQUENTIAL, TWO_BY_TWO)
    return asyncio.run(quality.compare(FAMILIES[family], strategies, BUDGETS, range(seeds)))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_comparison_is_deterministic_and_at_equal_budget(family: str) -> None:
    rows = compare(family, 1)
    assert [row.budget for row in rows] == ["verdicts", "calls", "dollars"]
    assert all(end.kernels == KERNELS for ends in rows[0].ends.values() for end in ends)
    assert all(18 <= end.calls <= 20 for ends in rows[1].ends.values() for end in ends)
    for row in rows:
        found = row.against(["sequential", "2x2x2"])
        assert found.ratio.low <= found.ratio.value <= found.ratio.high
        assert sum(found.better) <= 1
        assert found.rival == max(("sequential", "2x2x2"), key=row.mean)


def test_of_branching_the_shape_counts_that_is_best_over_the_families() -> None:
    def row(family: str, **logs: float) -> quality.Row:
        return quality.Row(family, "verdicts", {name: [quality.SearchEnd(log, 1, 1)] for name, log in logs.items()})

    strategies = (quality.ADAPTIVE, quality.SEQUENTIAL, *quality.SHAPES[:2])
    rows = [
        row("a", **{"adaptive": 1.0, "sequential": 0.5, "3x3x2": 0.9, "3x1x3": 0.7}),
        row("b", **{"adaptive": 1.0, "sequential": 0.6, "3x3x2": 0.1, "3x1x3": 0.8}),
    ]
    chosen = quality.rivals(rows, strategies)
    assert chosen == ["sequential", "3x1x3"]
    assert [one.against(chosen).rival for one in rows] == ["3x1x3", "3x1x3"]
    lines = "\n".join(quality.table_lines(rows, BUDGETS[0], strategies))
    assert "over the better of sequential, 3x1x3: geometric mean 1.284x" in lines
    assert "over the best of all: geometric mean 1.162x" in lines


@pytest.mark.slow
def test_the_same_seeds_give_the_same_comparison() -> None:
    assert compare("noisy") == compare("noisy")


@pytest.mark.slow
def test_searches_that_run_side_by_side_end_as_one_after_the_other() -> None:
    budgets, strategies = BUDGETS[:1], (quality.ADAPTIVE, quality.SEQUENTIAL)
    with ProcessPoolExecutor(2) as pool:
        rows = asyncio.run(quality.compare(FAMILIES["noisy"], strategies, budgets, range(2), pool))
    assert rows == asyncio.run(quality.compare(FAMILIES["noisy"], strategies, budgets, range(2)))


def test_a_budget_counts_calls_and_verdicts_by_their_prices() -> None:
    budget = quality.Budget("dollars", 1.0, call_usd=0.05, verdict_usd=0.02)
    assert budget.spent(10, 4) == pytest.approx(0.4)
    assert quality.Budget("calls", 9).spent(10, 4) == 4
    assert quality.Budget("verdicts", 9).spent(10, 4) == 10


def test_an_exceeded_budget_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality.Budget, "affords", lambda self, state, work, calls: len(state.kernels) < 20)
    with pytest.raises(RuntimeError, match="20 calls spent"):
        asyncio.run(quality.run(FAMILIES["traps"], 0, quality.SEQUENTIAL, quality.Budget("calls", 20)))


def test_a_family_file_with_an_unknown_key_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text('words = "odd"\nkind = "net"\nluck = 3\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"odd\.toml: unknown key 'luck'"):
        family(path)


def test_an_author_can_be_inverted_and_failures_can_drift() -> None:
    world = FAMILIES["drifting"].world
    walker = Walker(FAMILIES["drifting"].make(random.Random(0)), world, "0")
    assert walker._failures() == pytest.approx(0.1)
    walker.drafts = 46
    assert walker._failures() == pytest.approx(0.8)
    assert FAMILIES["inverted"].world.sight == -1.0


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [TWO_BY_TWO, quality.ADAPTIVE], ids=str)
def test_a_live_session_grows_the_same_tree(strategy: quality.Strategy, tmp_path: Path) -> None:
    world, make = FAMILIES["dead ends"].world, FAMILIES["dead ends"].make

    async def in_memory() -> SessionState:
        blobs = MemoryBlobs()
        walker = Walker(make(random.Random(1)), world, "1")
        return await search(quality.opened(strategy, BUDGETS[0]), FakeBench(blobs.put), walker, blobs)

    async def on_disk() -> SessionState:
        blobs = Blobs(tmp_path / "s")
        ports = Ports(FakeBench(blobs.put), Walker(make(random.Random(1)), world, "1"))
        async with LiveSession.create(tmp_path / "s", quality.opened(strategy, BUDGETS[0]), ports) as live:
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
    make = FAMILIES[family].make
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
    make = FAMILIES["traps"].make
    landscape = make(random.Random(0))
    late = frozenset(range(4, 16))
    for trap in range(4):
        alone = landscape.structure(frozenset({trap}))
        assert alone > 0.2
        assert landscape.structure(late | {trap}) < landscape.structure(late) + alone


def test_the_code_encodes_the_moves() -> None:
    world, make = FAMILIES["rugged"].world, FAMILIES["rugged"].make
    draft = Walker(make(random.Random(0)), world, "0")._draft(code_of('// {"moves": [3, 1], "polish": -0.25}'), "x", "")
    assert code_of(draft.source).moves == {1, 3}
    assert code_of(draft.source).polish == -0.25


def test_a_bootstrap_interval_contains_the_mean() -> None:
    found = quality.bootstrap([0.1, 0.2, 0.3, 0.15])
    assert found == quality.bootstrap([0.1, 0.2, 0.3, 0.15])
    assert found.low < found.value < found.high


@pytest.mark.slow
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


def test_runs_side_by_side_share_neither_gpus_nor_cores() -> None:
    gpus, cores = ["4", "5", "6", "7"], range(16)
    runs = [fleet_speed.Run(problem, count) for problem in ("softmax", "layernorm") for count in (1, 2, 4)]
    groups = list(fleet_speed.side_by_side(runs, gpus, cores))
    assert [[(run.problem, run.workers) for run in group] for group in groups] == [
        [("softmax", 1), ("layernorm", 1), ("softmax", 2)], [("layernorm", 2)], [("softmax", 4)], [("layernorm", 4)],
    ]  # fmt: skip
    assert [run.part.gpus for run in (*groups[0], *groups[1], *groups[2])] == [
        ("4",), ("5",), ("6", "7"), ("4", "5"), ("4", "5", "6", "7"),
    ]  # fmt: skip
    one, other, two = (run.part for run in groups[0])
    assert set(one.cores).isdisjoint(other.cores)
    assert set(two.cores).isdisjoint({*one.cores, *other.cores})
    assert [len(part.cores) for part in (one, other, two)] == [4, 4, 8]
    assert one.environment() == {"CUDA_VISIBLE_DEVICES": "4"}
    assert fleet_speed.Part().command() == []
