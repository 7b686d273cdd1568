"""A runner on a GPU loads many kernels, one after the other: what the earlier ones used of the device is given back."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from support.fake_driver import FakeDriver

from engine.trial.messages import ArenaHandle, LoadKernel, RunKernel
from engine.trial.runner import device_context, launchers, stopwatch
from engine.trial.runner.stopwatch import Sample
from engine.trial.shared.arena import DeviceBorrowed
from engine.trial.shared.cuda import device_memory, driver
from engine.trial.shared.cuda.device_memory import DeviceHandle, Means


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    made = FakeDriver()
    monkeypatch.setattr(driver, "bindings", lambda: made)
    monkeypatch.setattr(driver.Context, "open", lambda index: SimpleNamespace(index=index))
    yield made
    device_context.context_of.cache_clear()


def borrowed() -> DeviceBorrowed:
    header = DeviceHandle(Means.DESCRIPTOR, 0, 4096).header()
    return DeviceBorrowed(ArenaHandle("cuda-fd", 4096, False, header), os.open(os.devnull, os.O_RDONLY))


@pytest.mark.slow
def test_lent_memory_is_unmapped_with_the_last_use(fake: FakeDriver) -> None:
    """A suite's operands that were let go stayed on the device as long as any baseline's process had seen them."""
    memory = borrowed()
    tensor = device_memory.ArrayInterface(1 << 40, 1024, "float32", memory._arena)
    del memory
    gc.collect()
    assert "cuMemUnmap" not in fake.calls, "a tensor still uses it"
    del tensor
    gc.collect()
    assert fake.calls[-2:] == ["cuMemUnmap", "cuMemAddressFree"]


@pytest.mark.slow
def test_lent_memory_is_unmapped_once(fake: FakeDriver) -> None:
    memory = borrowed()
    memory.close()
    memory.close()
    del memory
    gc.collect()
    assert fake.calls.count("cuMemUnmap") == 1


def load() -> LoadKernel:
    nothing = ArenaHandle("cuda-fd", 0, False)
    return LoadKernel("null", "cuda:0", (), nothing, nothing, 1, stopwatch=b"hold kernel")


class Clock:
    """In place of the stopwatch, whose buffer for flushing takes twice the size of the L2 cache."""

    made = 0

    def __init__(self, *_: object, **__: object) -> None:
        type(self).made += 1

    def sample(self, work: object, *, gate: stopwatch.GateWait | None, **_: object) -> Sample:
        assert gate is None or (gate.opened, gate.done) == (1 << 40, (1 << 40) + 128)
        return Sample(1.0, 1.0, 1.0, 0.0, held=False)


def test_a_process_has_one_stopwatch(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each workload of a suite left another 100 MB buffer in the processes of the baselines, for every verdict."""
    monkeypatch.setattr(device_context, "Stopwatch", Clock)
    device_context.stopwatch_of.cache_clear()
    for _ in range(3):
        launchers.make_timer(load(), None, lambda *_: None)
    device_context.stopwatch_of.cache_clear()
    assert Clock.made == 1


@pytest.mark.slow
def test_the_gate_stays_mapped_as_long_as_it_is_used(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_context, "Stopwatch", Clock)
    device_context.stopwatch_of.cache_clear()
    gate = borrowed()
    seen = weakref.ref(gate)
    monkeypatch.setattr(DeviceBorrowed, "pointer", lambda self, slot: (1 << 40) + slot.offset)
    timed = launchers.make_timer(load(), gate, lambda *_: None)
    del gate
    gc.collect()
    assert seen() is not None
    timed(lambda: None, RunKernel(0, gate=1))
    device_context.stopwatch_of.cache_clear()


def test_each_process_s_memory_starts_elsewhere(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution's time depends on where its workspace lies: A/A was 0.765 [0.745, 0.785] where all processes lay alike."""
    sizes: list[int] = []
    monkeypatch.setattr(driver.Context, "open", lambda _: SimpleNamespace(keep_pool_memory=lambda: None))
    monkeypatch.setattr(device_context, "OwnMemory", lambda size, _: sizes.append(size) or size)
    for _ in range(64):
        device_context._offset_bytes.cache_clear()
        device_context.open_context(0)
    assert len(set(sizes)) > 8
    device_context.open_context(0)
    assert sizes[-2] == sizes[-1], "a process's later kernels take no more memory"
    assert all(size % (2 << 20) == 0 and 0 < size <= 32 << 20 for size in sizes)
    assert device_context._offset == sizes[-1], "held as long as the context"
