"""Bursts of keys, clicks, resizes and toasts over every screen: no freeze, no exception, no damaged journal."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from support import storm
from support.stalls import LoopWatch

ACTS = 12
FAST = ("home", "autopilot")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("opening", "seed"),
    [
        pytest.param(opening, seed, marks=[] if opening in FAST and seed == 1 else pytest.mark.slow)
        for opening in storm.OPENINGS for seed in (1, 2, 3)
    ],
)  # fmt: skip
def test_a_storm_leaves_screen_and_journal_whole(opening: str, seed: int, tmp_path: Path) -> None:
    assert storm.run(opening, tmp_path, seed, ACTS).acts == ACTS


def test_a_watch_tells_how_long_a_callback_kept_the_loop_and_what_it_ran() -> None:
    watch = LoopWatch()

    def work_long() -> None:
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass

    async def act() -> None:
        with watch.watching():
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(work_long)
            await asyncio.sleep(0.3)
            await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=watch.loop) as runner:
        runner.run(act())
    longest = max(watch.stretches, key=lambda one: one.work)
    assert longest.wall >= longest.work >= 0.2
    assert longest.own <= longest.wall
    assert any("work_long" in stack[-1] for stack in longest.stacks)
