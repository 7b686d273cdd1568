"""Memory that a kernel gets without having written it: a workspace, with what is written past its end, and a module's heap."""

from __future__ import annotations

import ast
import ctypes
import os
import subprocess
import sys
from typing import NoReturn

import pytest
import torch
from support.fake_driver import FakeDriver

from engine.domain.errors import DeviceError
from engine.sandbox import python_process
from engine.trial.runner import workspace
from engine.trial.runner.calls import LauncherError
from engine.trial.runner.workspace import KernelWorkspace
from engine.trial.shared.cuda import driver
from engine.trial.shared.layout import GUARD, POISONS


def content(of: KernelWorkspace, size: int) -> set[int]:
    return set(ctypes.string_at(of.pointer, size))


def test_a_workspace_and_the_region_after_it_begin_as_nonsense() -> None:
    """Each of two workspaces of a process with another kind of it."""
    first, second = KernelWorkspace(100, "cpu"), KernelWorkspace(100, "cpu")
    begun = [content(one, 100 + GUARD) for one in (first, second)]
    assert sorted(map(sorted, begun)) == sorted([poison] for poison in POISONS)


@pytest.mark.parametrize("place", [100, 100 + GUARD - 1])
def test_a_write_past_the_end_shows(place: int) -> None:
    made = KernelWorkspace(100, "cpu")
    ctypes.memset(made.pointer, 0, 100)
    assert not made.is_overrun()
    ctypes.memset(made.pointer + place, 0, 1)
    assert made.is_overrun()


def test_no_workspace_has_no_address() -> None:
    made = KernelWorkspace(0, "cpu")
    assert made.pointer == 0
    assert not made.is_overrun()


def test_a_workspace_for_tools_is_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Filled memory looks written to a tool, and a guard region looks allocated."""
    sizes: list[int] = []
    empty = torch.empty
    monkeypatch.setattr(workspace._HostMemory, "fill", lambda *_: pytest.fail("filled"))
    monkeypatch.setattr(torch, "empty", lambda size, **more: (sizes.append(size), empty(size, **more))[1])
    assert not KernelWorkspace(100, "cpu", guarded=False).is_overrun()
    assert sizes == [100]


def test_on_a_gpu_the_driver_fills_it_before_any_call(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDriver()
    monkeypatch.setattr(driver, "bindings", lambda: fake)
    made = KernelWorkspace(100, "cuda:0")
    assert made.pointer == 1 << 41
    assert fake.calls == ["cuMemAlloc", "cuMemsetD8", "cuCtxSynchronize"]
    del made
    assert fake.calls[3:] == ["cuMemFree"]


def test_a_workspace_that_the_device_has_no_room_for_fails_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the trial: with less memory planned, or free, it is judged again."""

    def full(*_: object) -> NoReturn:
        raise DeviceError("cuda:0 is out of memory: allocating the workspace")

    monkeypatch.setattr(workspace, "OwnMemory", full)
    with pytest.raises(LauncherError, match="out of memory"):
        KernelWorkspace(100, "cuda:0")


FRESH = """
import torch
from engine.trial.runner.modules import warm_heap
warm_heap(128 << 20)
values, counts = torch.empty(16 << 20, dtype=torch.uint8).unique(return_counts=True)
print([int(values[counts.argmax()]), (16 << 20) - int(counts.max())])
"""


@pytest.mark.slow
def test_the_heap_of_a_module_begins_as_nonsense() -> None:
    """What a module does not write of a new tensor is not zero. The C library keeps a few addresses in memory that is free."""
    environment = os.environ | python_process.environment("cpu", alone=False, threads=1)
    shown = subprocess.run([sys.executable, "-c", FRESH], env=environment, capture_output=True, text=True, check=True).stdout
    byte, others = ast.literal_eval(shown)
    assert byte in POISONS
    assert others <= 64
