"""Recorded verdicts are reused for the same kernels, and only for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import sessions
from support.sessions import TREE, opened, ports, tree, whole

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import work as w
from engine.domain.regimes import Regime
from engine.domain.state import Kernel, SessionState, Stage
from engine.journal import store
from engine.journal.blobs import Blobs
from engine.session.cached_verdicts import CachedVerdictBench, comparable
from engine.session.fake_bench import FAKE_CPU, FAKE_GPU, FakeBench
from engine.session.live import LiveSession
from engine.session.ports import Bench, Say


class Counting(FakeBench):
    """Records the kernels that it was asked to verify."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Blobs(folder).put)
        self.verified: list[str] = []
        self.measured: list[str] = []
        self.raced: list[tuple[str, str, int]] = []

    async def verify(self, kernel: Kernel, source: str, say: Say) -> w.Verified | w.Suspected | w.Failed | w.Impossible:
        self.verified.append(kernel.name)
        return await super().verify(kernel, source, say)

    async def race(
        self, kernel: Kernel, source: str, other: Kernel, other_source: str, effort: int, regime: Regime, say: Say
    ) -> w.Raced | w.Failed | w.Impossible:
        self.raced.append((kernel.id, other.id, effort))
        return await super().race(kernel, source, other, other_source, effort, regime, say)

    async def measure(self, kernel: Kernel, source: str, say: Say) -> w.Measured | w.Suspected | w.Failed | w.Impossible:
        self.measured.append(kernel.name)
        return await super().measure(kernel, source, say)


def again(folder: Path, recorded: SessionState, *act: c.Command) -> tuple[SessionState, Counting]:
    bench = Counting(folder)

    async def search() -> None:
        recalling = CachedVerdictBench(bench, recorded, "first")
        async with LiveSession.create(folder, opened(), ports(folder, TREE, recalling)) as live:
            await live.run()
            for command in act:
                await live.submit(command)
                await live.run()

    sessions.run(search)
    return store.state_of(folder), bench


@pytest.mark.slow
def test_the_same_kernels_get_the_same_verdicts_and_are_not_tried(tmp_path: Path) -> None:
    recorded = whole(tmp_path / "first")
    state, bench = again(tmp_path / "second", recorded)
    assert tree(state) == tree(recorded)
    lasting = {"crashed", "timed_out", "build_failed"}
    tried = {k.name for k in recorded.kernels.values() if k.failure is not None and k.failure.kind in lasting}
    assert set(bench.verified) <= tried, "what may go otherwise another time is tried again"
    assert bench.measured == []
    best = state.kernels["k2"].measurement
    assert best is not None
    assert best.conditions[-1] == "recorded in first"


@pytest.mark.slow
def test_recorded_races_are_reused_unless_more_effort_is_requested(tmp_path: Path) -> None:
    recorded = whole(tmp_path / "first")
    state, bench = again(tmp_path / "second", recorded, c.RaceKernel("k2"), c.RaceKernel("k2"))
    assert state.reigns == recorded.reigns
    assert [(r.kernel, r.against, r.outcome, r.ratio) for r in state.races[: len(recorded.races)]] == [
        (r.kernel, r.against, r.outcome, r.ratio) for r in recorded.races
    ]
    assert all("recorded in first" in r.note for r in state.races[: len(recorded.races)])
    assert bench.raced == [("k2", "k10", 0)] * 2, "that one nobody had run"


@pytest.mark.parametrize(("kernel", "other", "ratio"), [("k2", "k1", 1.8), ("k1", "k2", 1 / 1.8)])
def test_a_recorded_race_is_reused_in_either_order(tmp_path: Path, kernel: str, other: str, ratio: float) -> None:
    recorded = whole(tmp_path / "first")
    bench = Counting(tmp_path / "first")
    recalling = CachedVerdictBench(bench, recorded, "first")
    texts = [Blobs(tmp_path / "first").text(recorded.kernels[name].source) for name in (kernel, other)]

    async def race(effort: int, again: int) -> w.Raced | w.Failed | w.Impossible:
        one = replace(recorded.kernels[kernel], again=again)
        return await recalling.race(one, texts[0], recorded.kernels[other], texts[1], effort, Regime.SINGLE, lambda _: None)

    raced = sessions.run(lambda: race(0, 0))
    assert isinstance(raced, w.Raced)
    assert raced.ratio.value == pytest.approx(ratio)
    assert bench.raced == []
    for effort, again in ((1, 0), (0, 1)):
        sessions.run(lambda effort=effort, again=again: race(effort, again))
    assert bench.raced == [(kernel, other, 1), (kernel, other, 0)]


def test_a_remeasurement_is_not_answered_from_the_record(tmp_path: Path) -> None:
    recorded = whole(tmp_path / "first")
    state, bench = again(tmp_path / "second", recorded, c.Remeasure("k2"))
    assert "wide_a.cpp" in bench.measured
    fresh = state.kernels["k2"].measurement
    assert fresh is not None
    assert "recorded in first" not in fresh.conditions


def test_verdicts_of_another_device_are_not_reused(tmp_path: Path) -> None:
    recorded = whole(tmp_path / "first")
    moved = replace(recorded, epoch=recorded.epoch + 1)
    _, bench = again(tmp_path / "second", moved)
    assert "wide_a.cpp" in bench.verified


@pytest.mark.parametrize(
    ("what", "device", "same"),
    [
        (opened(), FAKE_CPU, True),
        (opened(), FAKE_GPU, False),
        (opened(), replace(FAKE_CPU, software="fake 2"), False),
        (opened(tolerance="crfm"), FAKE_CPU, False),
        (opened(workload="full"), FAKE_CPU, False),
        (opened(baseline="compile"), FAKE_CPU, False),
        (opened(cold=False), FAKE_CPU, False),
        (replace(opened(), problem=replace(opened().problem, digest="another")), FAKE_CPU, False),
    ],
)
def test_verdicts_are_reused_only_under_the_same_conditions(
    tmp_path: Path, what: e.SessionOpened, device: object, same: bool
) -> None:
    recorded = whole(tmp_path / "first")
    assert comparable(recorded, what, device) is same  # type: ignore[arg-type]


class Reading(FakeBench):
    """Reports an instruction mix if it has a disassembler."""

    def __init__(self, folder: Path, tool: bool) -> None:
        super().__init__(Blobs(folder).put)
        self.tool = tool

    async def build(self, kernel: Kernel, source: str, say: Say) -> w.Built | w.Failed | w.Impossible:
        built = await super().build(kernel, source, say)
        return (
            replace(built, instructions={"fma": len(source), "total": 900})
            if isinstance(built, w.Built) and self.tool
            else built
        )


@pytest.mark.parametrize("there", [True, False])
def test_the_recorded_instruction_mix_is_reused(tmp_path: Path, there: bool) -> None:
    """Prompts contain it, and recorded replies are looked up by prompt."""

    async def search(folder: Path, bench: Bench) -> SessionState:
        async with LiveSession.create(folder, opened(), ports(folder, TREE, bench)) as live:
            await live.run()
        return store.state_of(folder)

    def mixes(state: SessionState) -> dict[str, dict[str, int]]:
        return {k.id: dict(k.instructions) for k in state.kernels.values() if k.stage is Stage.MEASURED}

    first, second = tmp_path / "first", tmp_path / "second"
    recorded = sessions.run(lambda: search(first, Reading(first, there)))
    assert any(mixes(recorded).values()) is there
    recalling = CachedVerdictBench(Reading(second, not there), recorded, "first")
    assert mixes(sessions.run(lambda: search(second, recalling))) == mixes(recorded)
