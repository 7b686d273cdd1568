"""Calls a CPU kernel many times outside a trial, with perf's counters enabled during the calls only.

``python -m engine.trial.runner.profile_loop CONTROL ANSWER FLUSH [SPEC INPUTS]``: ``CONTROL`` and ``ANSWER`` are the pipes of
perf's ``--control``, ``FLUSH`` is the number of bytes to write before each call to flush the caches (0: none), ``SPEC`` and
``INPUTS`` are those of ``engine.trial.runner.profile_target``. Without them nothing is called, which measures the cost of
enabling and disabling. The last line of output is the number of times the counters were enabled. Imports torch only with a
kernel.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from engine.trial.messages import COUNTED_CALLS, LoadKernel

_BUDGET_S, _EMPTY_S = 1.0, 0.3
"""Seconds after which no further call starts; the second without a kernel."""
_LEAST, _MOST = 3, 1000
_ANSWER_S = 20.0
Work = Callable[[], object]


class PerfControl:
    """perf's counters, controlled from within the counted process."""

    def __init__(self, control: str, answer: str, flush: int) -> None:
        # Both read-write: opening a pipe that perf has not opened yet would block.
        self._control = os.open(control, os.O_RDWR | os.O_NONBLOCK)
        self._answer = os.open(answer, os.O_RDWR | os.O_NONBLOCK)
        self._walked = np.zeros(flush // 8)

    def around(self, work: Work) -> None:
        """Run work with the counters enabled."""
        if self._walked.size:
            np.add(self._walked, 1.0, out=self._walked)
        self._tell(b"enable\n")
        work()
        self._tell(b"disable\n")

    def _tell(self, what: bytes) -> None:
        os.write(self._control, what)
        if not select.select([self._answer], [], [], _ANSWER_S)[0]:
            sys.exit("perf does not reply on --control: version 5.10 or newer is needed")
        os.read(self._answer, 64)


def main() -> None:
    """Make counted calls until enough time has passed. Exits with status 1 and one line if the kernel cannot be called."""
    control, answer, flush, *kernel = sys.argv[1:]
    own = os.dup(sys.stdout.fileno())
    # A kernel's output is dropped: it could push out the last line.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    counters = PerfControl(control, answer, int(flush))
    call = calling(Path(kernel[0]), Path(kernel[1]), counters.around)[1] if kernel else lambda: counters.around(lambda: None)
    enough = time.monotonic() + (_BUDGET_S if kernel else _EMPTY_S)
    calls = 0
    while calls < _LEAST or (calls < _MOST and time.monotonic() < enough):
        call()
        calls += 1
    os.write(own, f"\n{COUNTED_CALLS}{calls}\n".encode())


def calling(spec: Path, inputs: Path, around: Callable[[Work], object]) -> tuple[LoadKernel, Work]:
    """The kernel, called once: threads are started, pages touched, a module compiled. Later calls are in ``around``."""
    import torch

    from engine.trial.messages import ClaimedTimes, Fault, RunKernel
    from engine.trial.runner.profile_target import load_launcher

    warm = False

    def timed(work: Callable[[], Any], order: RunKernel, outputs: Callable[[], tuple[int, ...]] = tuple) -> ClaimedTimes:
        if warm:
            around(work)
        else:
            work()
        return ClaimedTimes(1.0, 1.0, 0.0)

    load, launcher = load_launcher(spec, inputs, timed)
    torch.set_num_threads(load.threads)

    def call() -> None:
        called = launcher.call(RunKernel(0))
        if isinstance(called, Fault):
            sys.exit(called.text)

    call()
    warm = True
    return load, call


if __name__ == "__main__":
    main()
