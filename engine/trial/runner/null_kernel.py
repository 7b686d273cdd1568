"""The null kernel: trusted work on the same path as a kernel's. It shows what a call costs beside the kernel. Imports torch.

On a CPU the work reads the inputs and writes as many bytes as the outputs have, with the team's threads: afterwards caches and
threads are as a kernel leaves them, which decides how long the reply takes. Its own time is known, because its clock can be
trusted. On a GPU the judge's clock does not contain the path through the host, and the null kernel does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine.domain.model import Role
from engine.trial.messages import ClaimedTimes, Fault, LoadKernel, RunKernel
from engine.trial.runner.calls import Launcher, LentOperands, Timed, timed_plainly
from engine.trial.runner.modules import ModuleLauncher

_MOST_BYTES = 64 << 20
"""Most bytes that the work reads, and writes: enough to evict a last-level cache."""
_WORD = 8


def null_launcher(load: LoadKernel, lent: LentOperands, timed: Timed) -> Launcher:
    """The launcher of the path that ``load.baseline`` names: ``module`` or ``native``."""
    if load.device != "cpu":
        return _NativeNull(lambda _: lambda: None, timed)
    work = _Sweep(lent)
    if load.baseline == "module":
        return ModuleLauncher(load, lent, work.as_module, timed)
    return _NativeNull(work.on_slot, timed, len(lent.slots))


class _NativeNull:
    def __init__(self, work_on: Callable[[int], Callable[[], Any]], timed: Timed, plain_slots: int = 0) -> None:
        """``plain_slots``: the slots on which a plain call is all that is needed."""
        self._work_on = work_on
        self._timed = timed
        self._plain_slots = plain_slots

    def call(self, order: RunKernel) -> ClaimedTimes | Fault:
        return self._timed(self._work_on(order.slot), order)

    def plain_call(self) -> Callable[[int], float] | None:
        works = [self._work_on(slot) for slot in range(self._plain_slots)]
        return timed_plainly(works) if works else None


class _Sweep:
    """Reads the inputs and writes private memory as large as the outputs."""

    def __init__(self, lent: LentOperands) -> None:
        self._reads = [_all_words(lent.tensors(slot, Role.INPUT)) for slot in range(len(lent.slots))]
        self._outputs = [torch.zeros_like(t) for t in lent.tensors(0, Role.OUTPUT)]

    def on_slot(self, slot: int) -> Callable[[], Any]:
        """The work on the inputs of one slot."""
        reads = self._reads[slot]
        return lambda: self._run(reads)

    def as_module(self, *arguments: Any) -> list[torch.Tensor]:
        """The work as the ``forward`` of a module: returns tensors of the outputs' shapes."""
        self._run(_all_words([t for t in arguments if isinstance(t, torch.Tensor)]))
        return [t.clone() for t in self._outputs]

    def _run(self, reads: list[torch.Tensor]) -> None:
        for words in reads:
            words.sum()
        for output in self._outputs:
            output.view(-1)[: _MOST_BYTES // output.element_size()].zero_()


def _all_words(given: list[torch.Tensor]) -> list[torch.Tensor]:
    return [words for tensor in given if (words := _words(tensor)).numel()]


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes as integers, cut to ``_MOST_BYTES``."""
    flat = tensor.reshape(-1).view(torch.uint8)
    return flat[: min(flat.numel(), _MOST_BYTES) // _WORD * _WORD].view(torch.int64)
