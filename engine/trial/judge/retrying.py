"""Repeats work of the judge that a lost process or a lack of memory ended. Imports torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from engine.domain import memory_text
from engine.domain.model import Device, FailureKind
from engine.trial.judge.failures import TrialFailed, TrustedProcessLost
from engine.trial.judge.process_pool import ProcessPool
from engine.trial.judge.test_beds import ran_out

Reply = TypeVar("Reply")
_FREE_SHARE = 0.1
"""A kernel is blamed for running out of memory if at least this share of the device's memory is free without it."""
_RELEASE_S = 10.0
"""Seconds in which a driver releases the memory of processes that were killed: a full device takes more than one."""
_POLL_S = 0.05


class Plans(Protocol):
    """The memory plans of a judge."""

    def tighten(self, *, fully: bool) -> bool:
        """Go over to a more frugal plan, or to the most frugal one; false if there is none."""
        ...

    def restore(self) -> None:
        """Go back to the plan before the last ``tighten``."""
        ...


def retried(act: Callable[[], Reply], pool: ProcessPool, plans: Plans, device: Device, *, trying: bool) -> Reply:
    """``act``, repeated with new processes if a trusted process was lost: a kernel is not blamed for a baseline's crash.

    Where memory runs out, ``act`` is repeated with a more frugal plan: the next one, or the most frugal one if ``act`` runs a
    kernel (``trying``). The kernel is rejected if memory runs out again and is free without it; later kernels then get the
    earlier plan back, under which verdicts take less time. Raises as ``act`` does.
    """
    lost = tightened = False
    while True:
        try:
            return act()
        except TrustedProcessLost:
            if lost:
                raise
            lost = True
            pool.close()
        except TrialFailed as failed:
            text = f"{failed.failure.reason} {failed.log}".lower()
            if not (trying and "out of memory" in text):
                raise
            if tightened or not _tighten(pool, plans, device, fully=True):
                _restore(pool, plans, tightened=tightened)
                raise
            tightened = True
        except Exception as error:
            if not ran_out(error):
                raise
            if not _tighten(pool, plans, device, fully=trying):
                if trying and (free := _room(device)):
                    _restore(pool, plans, tightened=tightened)
                    raise TrialFailed(FailureKind.REJECTED, _blamed(free, device)) from error
                raise
            tightened = True


def _blamed(free: float, device: Device) -> str:
    """Names what is free without the kernel: little of the device's memory says that other programs hold it."""
    return (
        f"the device ran out of memory during its trial and has enough without it: {memory_text.size(free)} of "
        f"{memory_text.size(device.memory_bytes)} are free"
    )


def _tighten(pool: ProcessPool, plans: Plans, device: Device, *, fully: bool) -> bool:
    """End every process and let all memory go; false if the plan cannot be more frugal."""
    pool.close()
    _room(device)
    return plans.tighten(fully=fully)


def _restore(pool: ProcessPool, plans: Plans, *, tightened: bool) -> None:
    """Undo ``_tighten``, where it was the kernel that took the memory."""
    if tightened:
        pool.close()
        plans.restore()


def _room(device: Device) -> float:
    """The bytes that are free, 0 if they are few. Waits while the driver releases what killed processes held."""
    if device.kind == "cpu":
        return 0.0
    until = time.monotonic() + _RELEASE_S
    while True:
        free, total = torch.cuda.mem_get_info(device.index)
        if free > _FREE_SHARE * total:
            return float(free)
        if time.monotonic() > until:
            return 0.0
        time.sleep(_POLL_S)
