"""A what-if: kernels that were tried before get their recorded verdicts, and nobody else's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import sessions
from support.sessions import TREE, opened, ports, tree, whole

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import work as w
from engine.domain.state import Kernel, SessionState
from engine.journal import store
from engine.journal.blobs import Blobs
from engine.session.fake import FAKE_CPU, FAKE_GPU, FakeBench
from engine.session.live import LiveSession
from engine.session.ports import Say
from engine.session.recalling import RecallingBench, comparable


class Counting(FakeBench):
    """Says which kernels it was asked to try."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Blobs(folder).put)
        self.verified: list[str] = []
        self.measured: list[str] = []

    async def verify(self, kernel: Kernel, source: str, say: Say) -> w.Verified | w.Suspected | w.Failed | w.Impossible:
        self.verified.append(kernel.name)
        return await super().verify(kernel, source, say)

    async def measure(self, kernel: Kernel, source: str, say: Say) -> w.Measured | w.Suspected | w.Failed | w.Impossible:
        self.measured.append(kernel.name)
        return await super().measure(kernel, source, say)


def again(folder: Path, recorded: SessionState, *act: c.Command) -> tuple[SessionState, Counting]:
    bench = Counting(folder)

    async def search() -> None:
        recalling = RecallingBench(bench, recorded, "first")
        async with LiveSession.create(folder, opened(), ports(folder, TREE, recalling)) as live:
            await live.run()
            for command in act:
                await live.submit(command)
                await live.run()

    sessions.run(search)
    return store.state_of(folder), bench


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


def test_measuring_again_is_measuring(tmp_path: Path) -> None:
    recorded = whole(tmp_path / "first")
    state, bench = again(tmp_path / "second", recorded, c.MeasureAgain("k2"))
    assert "wide_a.cpp" in bench.measured
    fresh = state.kernels["k2"].measurement
    assert fresh is not None
    assert "recorded in first" not in fresh.conditions


def test_what_was_measured_on_another_device_is_not_given_again(tmp_path: Path) -> None:
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
def test_verdicts_hold_where_they_mean_the_same(tmp_path: Path, what: e.SessionOpened, device: object, same: bool) -> None:
    recorded = whole(tmp_path / "first")
    assert comparable(recorded, what, device) is same  # type: ignore[arg-type]
