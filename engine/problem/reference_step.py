"""Bounds what one step of a reference may do to the process that runs it: how long it takes, and that it stays one process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_LONG_S = 120
_limit_s = 0.0


class StepTooLong(BaseException):
    """The step has reached the time limit. No ``Exception``: code that catches those must not go on."""

    def __init__(self) -> None:
        minutes = f"{_limit_s / 60:.0f} minutes" if _limit_s >= _LONG_S else f"{_limit_s:g} s"
        super().__init__(f"takes longer than {minutes}")


def limit_steps(seconds: float) -> None:
    """From now on a step of a reference in this process, called in its main thread, raises StepTooLong after this time.

    An operator that is at work then is waited for.
    """
    global _limit_s
    _limit_s = seconds
    signal.signal(signal.SIGALRM, _interrupt)


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    raise StepTooLong


@contextmanager
def one_step() -> Iterator[None]:
    """Within: code of a reference. Steps may be nested. A process that it forks, and that comes to the end, ends."""
    process = os.getpid()
    starts = bool(_limit_s) and not signal.getitimer(signal.ITIMER_REAL)[0]
    if starts:
        signal.setitimer(signal.ITIMER_REAL, _limit_s)
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(0)
        if starts:
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def steps_at_most(seconds: float) -> Iterator[None]:
    """Within: steps that take no longer than this together, else StepTooLong. Without limit where ``limit_steps`` set none."""
    starts = bool(_limit_s) and not signal.getitimer(signal.ITIMER_REAL)[0]
    if starts:
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        if starts:
            signal.setitimer(signal.ITIMER_REAL, 0)
