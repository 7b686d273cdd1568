"""A CPU kernel called many times with nobody to judge it, its counters open during the calls alone: what perf is run on.

``python -m engine.trial.repeated CONTROL ANSWER FLUSH [SPEC INPUTS]``: ``CONTROL`` and ``ANSWER`` are the pipes of ``perf stat
--control``, ``FLUSH`` the bytes to walk before each call so that it finds cold caches (0: none), ``SPEC`` and ``INPUTS`` as for
``engine.trial.once``. Without the latter two nothing is called between opening and closing the counters: what that costs by
itself. The last line says how many times they were opened. Imports torch where there is a kernel.
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

from engine.build.perf import SAID

_BUDGET_S, _EMPTY_S = 1.0, 0.3
"""No further call is begun after this long; the latter where there is no kernel."""
_LEAST, _MOST = 3, 1000
_ANSWER_S = 20.0
Work = Callable[[], object]


class Counters:
    """perf's counters from within the process that it counts: open while a piece of work runs, else closed."""

    def __init__(self, control: str, answer: str, flush: int) -> None:
        # For both: a pipe that perf has not opened would otherwise be waited for without end.
        self._control = os.open(control, os.O_RDWR | os.O_NONBLOCK)
        self._answer = os.open(answer, os.O_RDWR | os.O_NONBLOCK)
        self._walked = np.zeros(flush // 8)

    def around(self, work: Work) -> None:
        """Do a piece of work with the counters open."""
        if self._walked.size:
            np.add(self._walked, 1.0, out=self._walked)
        self._tell(b"enable\n")
        work()
        self._tell(b"disable\n")

    def _tell(self, what: bytes) -> None:
        os.write(self._control, what)
        if not select.select([self._answer], [], [], _ANSWER_S)[0]:
            sys.exit("perf does not answer when it is told that a call begins: version 5.10 or newer is needed")
        os.read(self._answer, 64)


def main() -> None:
    """Open and close the counters until enough time has passed. Ends with status 1 and one line where nothing can be called."""
    control, answer, flush, *kernel = sys.argv[1:]
    own = os.dup(sys.stdout.fileno())
    # What a kernel prints is not kept: after so much of it the last line would not be either.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    counters = Counters(control, answer, int(flush))
    call = _calling(Path(kernel[0]), Path(kernel[1]), counters) if kernel else lambda: counters.around(lambda: None)
    enough = time.monotonic() + (_BUDGET_S if kernel else _EMPTY_S)
    calls = 0
    while calls < _LEAST or (calls < _MOST and time.monotonic() < enough):
        call()
        calls += 1
    os.write(own, f"\n{SAID}{calls}\n".encode())


def _calling(spec: Path, inputs: Path, counters: Counters) -> Work:
    """The kernel, loaded and called once already: threads are started, pages are touched, a module has compiled itself."""
    import torch

    from engine.trial.once import loaded
    from engine.trial.wire import Called, Fault

    warm = False

    def timed(work: Callable[[], Any], _: float) -> Called:
        if warm:
            counters.around(work)
        else:
            work()
        return Called(1.0, 1.0, 0.0)

    load, launcher = loaded(spec, inputs, timed)
    torch.set_num_threads(load.threads)

    def call() -> None:
        called = launcher.call(0, 0.0)
        if isinstance(called, Fault):
            sys.exit(called.text)

    call()
    warm = True
    return call


if __name__ == "__main__":
    main()
