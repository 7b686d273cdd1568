"""What an event loop does between two of its pauses, in which nothing is drawn and no key is handled.

A *stretch* is the time from one pause to the next. Of its time by the wall clock, what its thread waited for a core is the
machine's; the rest is the program's own: work, garbage collections among it, and waits for a disk or another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import selectors
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

SHORT = 0.001
"""Seconds under which a stretch is not kept."""
_SCHEDULE = Path("/proc/thread-self/schedstat")
_SAMPLED_AFTER = 0.05
_SAMPLED_EVERY = 0.01


@dataclass(frozen=True, slots=True)
class Stretch:
    """Seconds between two pauses of the loop."""

    wall: float
    queued: float
    """Waiting for a core."""
    work: float
    """Processor time of the loop's thread."""
    collected: float
    """Garbage collections, in processor time."""
    stacks: tuple[tuple[str, ...], ...]
    """What ran every ``_SAMPLED_EVERY`` after the first ``_SAMPLED_AFTER``, outermost call first."""

    @property
    def own(self) -> float:
        """Seconds that the program, not the machine, kept the loop."""
        return self.wall - self.queued


class _Clocks(NamedTuple):
    """Seconds of the calling thread, as in ``Stretch``."""

    wall: float
    queued: float
    work: float


@dataclass
class LoopWatch:
    """The stretches of its event loop, except short ones. One loop, on the main thread."""

    stretches: list[Stretch] = field(default_factory=list)
    _watches: bool = False
    _began: _Clocks | None = None
    _stacks: list[tuple[str, ...]] = field(default_factory=list)
    _collected: float = 0.0
    _collecting_since: float = 0.0

    def loop(self) -> asyncio.AbstractEventLoop:
        """A new event loop that is watched."""
        return asyncio.SelectorEventLoop(_WatchedSelector(self))

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Keep stretches, from the loop's thread. Stacks are read in a signal's handler, between two instructions."""
        before = signal.signal(signal.SIGPROF, self._sample)
        gc.callbacks.append(self._note_collection)
        self._watches = True
        try:
            yield
        finally:
            self._watches = False
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
            gc.callbacks.remove(self._note_collection)

    def begin(self, began: _Clocks) -> None:
        """The loop has something to do since then."""
        if self._watches:
            self._began, self._stacks, self._collected = began, [], 0.0
            signal.setitimer(signal.ITIMER_PROF, _SAMPLED_AFTER, _SAMPLED_EVERY)

    def end(self, ended: _Clocks) -> None:
        """The loop pauses."""
        if self._watches and self._began is not None:
            signal.setitimer(signal.ITIMER_PROF, 0)
            wall, queued, work = (after - before for after, before in zip(ended, self._began, strict=True))
            if wall > SHORT:
                self.stretches.append(Stretch(wall, queued, work, self._collected, tuple(self._stacks)))

    def _sample(self, _: int, frame: FrameType | None) -> None:
        stack = []
        while frame is not None:
            code = frame.f_code
            stack.append(f"{code.co_qualname} ({Path(code.co_filename).name}:{frame.f_lineno})")
            frame = frame.f_back
        self._stacks.append(tuple(reversed(stack)))

    def _note_collection(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self._collecting_since = time.thread_time()
        else:
            self._collected += time.thread_time() - self._collecting_since


class _WatchedSelector(selectors.DefaultSelector):
    """Between two calls of ``select`` the loop handles what is ready, and no more."""

    def __init__(self, watch: LoopWatch) -> None:
        super().__init__()
        self._watch = watch

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        before = _clocks()
        self._watch.end(before)
        ready = super().select(timeout)
        after = _clocks()
        due = before.wall + (timeout or 0.0)
        late = timeout is not None and not ready and after.wall - due > SHORT  # waited for another thread, or for a core
        self._watch.begin(after._replace(wall=due, queued=before.queued) if late else after)
        return ready


def _clocks() -> _Clocks:
    return _Clocks(time.monotonic(), int(_SCHEDULE.read_bytes().split()[1]) / 1e9, time.thread_time())
