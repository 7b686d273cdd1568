"""On a GPU eager and a module that is eager are timed alike: the same work around the call, the same kind of memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.trial.judge import interleaving
from engine.trial.judge.call_times import Timing
from engine.trial.messages import RunKernel
from engine.trial.runner import module_memory
from engine.trial.runner.module_memory import ModuleMemory
from engine.trial.runner.modules import ModuleLauncher


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


class Memory:
    """In place of ``ModuleMemory`` on a device."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.used = 0

    def in_use(self) -> Memory:
        self.used += 1
        return self

    def __enter__(self) -> None:
        """Nothing to switch."""

    def __exit__(self, *_: object) -> None:
        """Nothing to switch."""

    def held(self, value: torch.Tensor) -> torch.Tensor:
        self.made.append(value.data_ptr())
        return value


@pytest.mark.parametrize("contract", ["module", "baseline"])
def test_eager_allocates_in_the_same_kind_of_memory_as_a_module(contract: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, sends = Memory(), []
    monkeypatch.setattr(ModuleMemory, "of_process", lambda _, send: (sends.append(send), memory)[1])
    x = torch.ones(4)
    lent = SimpleNamespace(
        slots=[()], inputs=None, operands=lambda *_: [SimpleNamespace(name="out", shape=(4,), dtype="float32")],
        tensors=lambda *_: [x],
    )  # fmt: skip
    load = SimpleNamespace(
        contract=contract, device="cuda:0", scalars=((), (), [["tensor"]]), copies_outputs=False, stateful=False
    )
    reported: list[tuple[int, ...]] = []

    def timed(work: Any, order: RunKernel, outputs: Any) -> Any:
        work()
        reported.append(outputs())
        return None if contract == "baseline" else SimpleNamespace()

    launcher = ModuleLauncher(load, lent, lambda x: x + 1, timed, send := lambda *_: None)
    monkeypatch.setattr(launcher, "_delivered", lambda called, *_: called)
    launcher.call(RunKernel(0))
    assert memory.used == 1
    assert sends == [send if contract == "module" else None], "the judge reads no baseline's memory"
    assert reported == [tuple(memory.made) if contract == "module" else ()]


def test_memory_that_the_judge_does_not_read_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []

    class Arena:
        pointer, size = 1 << 40, 64

        @staticmethod
        def create(*_: object) -> Arena:
            return Arena()

        def close(self) -> None:
            closed.append(self.pointer)

    monkeypatch.setattr(module_memory, "LentArena", Arena)
    memory = ModuleMemory.__new__(ModuleMemory)
    memory._device, memory._send, memory._segments = 0, None, {}
    assert memory._new_segment(64, 0, 0) == Arena.pointer
    memory._drop_segment(Arena.pointer, 0, 0, 0)
    assert closed == [Arena.pointer]
