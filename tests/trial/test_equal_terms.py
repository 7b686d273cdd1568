"""On a GPU eager and a module that is eager are timed alike: the same work around the call, the same kind of memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.trial.judge import interleaving
from engine.trial.judge.call_times import Timing


@pytest.mark.parametrize("judged", [True, False])
def test_what_follows_a_gated_call_in_the_judge_s_stream_is_the_same_for_everyone(judged: bool) -> None:
    """A module's outputs were read there and eager's were not: A/A of 60 µs was 0.97 on an H200."""
    done: list[str] = []

    class Watch:
        def of_runner(self, _: object) -> Watch:
            return self

        def after(self) -> None:
            done.append("read")

        def outputs_changed(self) -> bool:
            return False

    def gated_call(_: int, release: Any, hook: Any) -> Timing:
        release()
        hook.after()
        return Timing(60.0, 400.0, 0.0)

    bed = SimpleNamespace(
        watch=lambda _: Watch(), withdraw=lambda _: done.append("withdrawn"), release_inputs=lambda _: done.append("released")
    )
    runner = SimpleNamespace(gated_call=gated_call, delivered=None, delivers=False)
    setup = SimpleNamespace(flush=SimpleNamespace(enqueue=lambda: done.append("flushed")))
    interleaving._gated(bed, runner, 0, setup, judged=judged)
    assert done == ["withdrawn", "released", "flushed", "read"]
