"""The judge's side of a runner: replies are read in the order of what was sent."""

from __future__ import annotations

from types import SimpleNamespace

from engine.trial.judge.runner_client import RunnerClient


def test_a_baseline_that_is_loaded_for_another_workload_while_it_loads_is_waited_for() -> None:
    """Its replies for the first one stood in the channel, and the next call was refused as forged."""
    done: list[str] = []
    client = RunnerClient.__new__(RunnerClient)
    client._runner = SimpleNamespace(channel=SimpleNamespace(send_order=lambda _: done.append("called")))
    client._warming = False

    def stand_by() -> None:
        client._warming = False
        done.append("waited")

    client.stand_by, client.load = stand_by, lambda *_: done.append("loaded")
    for _ in range(2):
        client.warm(None, [])
    assert done == ["loaded", "called", "waited", "loaded", "called"]
