"""What the judge does when memory runs out during a kernel's trial."""

from __future__ import annotations

from typing import Any, cast

import pytest

from engine.domain.errors import DeviceError
from engine.domain.model import Device, FailureKind
from engine.trial.judge import retrying
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.retrying import retried

CPU = Device("cpu", 0, "processor", "x86_64", 2, 1 << 20, 1 << 34, "torch")


class Plans:
    """Two plans; what was done with them."""

    def __init__(self) -> None:
        self.now, self.done = 0, [""]

    def tighten(self, *, fully: bool) -> bool:
        self.done.append("tighten")
        self.now, before = 1, self.now
        return before == 0

    def restore(self) -> None:
        self.done.append("restore")
        self.now = 0

    def close(self) -> None:
        self.done.append("close")


def out_of_memory() -> TrialFailed:
    return TrialFailed(FailureKind.CRASHED, "torch.OutOfMemoryError: CUDA out of memory")


def attempt(plans: Plans, failures: int) -> int:
    """A trial that runs out of memory so many times."""
    calls = 0

    def act() -> int:
        nonlocal calls
        calls += 1
        if calls <= failures:
            raise out_of_memory()
        return calls

    return retried(act, cast(Any, plans), plans, CPU, trying=True)


def test_a_kernel_that_fits_into_a_frugal_plan_keeps_it() -> None:
    plans = Plans()
    assert attempt(plans, 1) == 2
    assert plans.now == 1
    assert "restore" not in plans.done


def test_a_kernel_that_never_fits_does_not_leave_the_frugal_plan_to_others() -> None:
    plans = Plans()
    with pytest.raises(TrialFailed, match="out of memory"):
        attempt(plans, 3)
    assert plans.now == 0
    assert plans.done[-2:] == ["close", "restore"]
    assert attempt(plans, 0) == 1


def test_a_plan_that_another_trial_needed_stays_when_a_kernel_fails_under_it() -> None:
    plans = Plans()
    attempt(plans, 1)
    with pytest.raises(TrialFailed):
        attempt(plans, 3)
    assert plans.now == 1


def test_the_memory_of_killed_processes_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver goes on releasing a full device's memory after the processes have ended."""
    free = iter([0.0, 0.01, 0.02, 0.9])
    held: list[float] = []

    def memory(index: int) -> tuple[float, float]:
        held.append(next(free, 0.9))
        return held[-1], 1.0

    def act() -> None:
        held.append(-1.0)
        raise DeviceError("cuda:0 is out of memory: allocating an arena asked for 18.0 MiB; 3.2 MiB of 139.8 GiB free")

    monkeypatch.setattr("torch.cuda.mem_get_info", memory)
    monkeypatch.setattr(retrying, "_POLL_S", 0.0)
    plans = Plans()
    gpu = Device("cuda", 0, "H200", "9.0", 132, 1 << 25, 1 << 37, "torch")
    with pytest.raises(TrialFailed, match="has enough without it: 1 bytes of 137 GB are free"):
        retried(act, cast(Any, plans), plans, gpu, trying=True)
    assert held[:6] == [-1.0, 0.0, 0.01, 0.02, 0.9, -1.0]
    assert plans.now == 0
