"""Guards Textual's timers: none spins, and none that is due once is lost.

Reported as for upstream (Textual 8.2.8, ``textual/timer.py``, ``Timer._run``). A timer that may skip late ticks does so with ::

    if self._skip and next_timer < now:
        count = int((now - start) / _interval + 1)
        continue

With a negative interval, or one shorter than a pass of the loop takes, ``next_timer`` never reaches ``now`` and the loop never
awaits: the event loop stands still and only SIGKILL ends the program. ``Toast`` makes such a timer of a notification whose time
is over before its toast is mounted, which a burst of keys on a busy screen does. An interval of zero divides by zero. A timer
that fires once (``repeat=0``) and is late counts its only tick as skipped and never fires.
"""

from __future__ import annotations

from textual._types import MessageTarget
from textual.timer import Timer, TimerCallback

SHORTEST_SECONDS = 0.001
"""The shortest interval of a timer: longer than a pass of the timer's loop, shorter than a frame."""

_original_init = Timer.__init__


def guard_timers() -> None:
    """Make every timer of this process safe, those of Textual's own widgets included. Calling it again changes nothing."""
    Timer.__init__ = _guarded_init  # type: ignore[method-assign,assignment]  # Textual has no seam here


def _guarded_init(
    timer: Timer,
    event_target: MessageTarget,
    interval: float,
    *,
    name: str | None = None,
    callback: TimerCallback | None = None,
    repeat: int | None = None,
    skip: bool = True,
    pause: bool = False,
) -> None:
    _original_init(
        timer,
        event_target,
        interval if interval >= SHORTEST_SECONDS else SHORTEST_SECONDS,
        name=name,
        callback=callback,
        repeat=repeat,
        skip=skip and repeat != 0,
        pause=pause,
    )
