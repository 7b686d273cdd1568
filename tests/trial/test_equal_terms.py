"""On a GPU eager and a module that is eager are timed alike: the same work around the call."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from trial.ground import OPERANDS

from engine.trial.judge import interleaving, judged_calls
from engine.trial.judge.timing.call_times import Timing
from engine.trial.messages import ClaimedTimes, LoadKernel, RunKernel
from engine.trial.runner import modules
from engine.trial.runner.calls import LentOperands
from engine.trial.shared import arena
from engine.trial.shared.layout import plan_layout


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


@pytest.mark.parametrize("delivers", [True, False])
def test_only_outputs_that_a_kernel_writes_in_lent_memory_are_poisoned(delivers: bool) -> None:
    """A module's are copied there whole from its own memory: the judge would write 6 GiB for nothing."""
    poisoned: list[int] = []
    judged_calls.poison_for(SimpleNamespace(poison=poisoned.append), SimpleNamespace(delivers=delivers), 3)
    assert poisoned == ([] if delivers else [3])


@pytest.mark.parametrize("names", [("kernel",), ("kernel", "other")])
def test_in_a_race_no_module_finds_its_rival_s_outputs_in_lent_memory(names: tuple[str, ...]) -> None:
    """Device memory is shared: a module that is called second would copy what the first one computed from the same inputs."""
    done: list[str] = []
    bed = SimpleNamespace(
        turn_to=lambda _: None,
        poison=lambda _: done.append("poisoned"),
        take_outputs=lambda *_, **__: [],
        trespass=lambda _: "",
    )
    runner = SimpleNamespace(delivers=True, process=None)
    contest = interleaving.Contestants(cast(Any, dict.fromkeys(names, runner)), {}, {}, dict.fromkeys(names, "module"))
    contention = SimpleNamespace(for_process=lambda _: SimpleNamespace(disturbed=lambda _: False, overuse=""))
    setup = SimpleNamespace(contention=contention, holds=True, probe=lambda: 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interleaving, "_gated", lambda *_, **__: done.append("called") or Timing(1.0, 1.0, 0.0))
        interleaving._sample(
            cast(Any, bed), contest, RunKernel(0), cast(Any, setup), interleaving.CallOrder(random.Random(0))
        )  # fmt: skip
    assert done == (["called"] if len(names) == 1 else ["poisoned", "called", "poisoned", "called"])


@pytest.mark.parametrize("contract", ["module", "baseline"])
def test_outputs_are_checked_before_everyone_s_reply(contract: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge's clock runs until the reply where a call waits for the device: one side's check would be its own time."""
    checked: list[Any] = []
    monkeypatch.setattr(modules, "checked_output", lambda value, *_: checked.append(value) or value)
    layout = plan_layout(OPERANDS, 1)
    inputs = arena.SharedArena(layout.input_bytes, writable=False)
    outputs = arena.SharedArena(layout.output_bytes, writable=True)
    handles = inputs.handle()[0], outputs.handle()[0]
    load = LoadKernel(contract, "cpu", layout.slots, *handles, threads=1)
    lent = LentOperands(layout.slots, inputs, outputs)
    launcher = modules.ModuleLauncher(load, lent, torch.exp, lambda work, *_: work() or ClaimedTimes(1.0, 0.0, 0.0))
    reply = launcher.call(RunKernel(0))
    assert isinstance(reply, ClaimedTimes)
    assert [tuple(value.shape) for value in checked] == [OPERANDS[1].shape]
    assert bool(reply.outputs) == (contract == "module")
