"""The lines of progress about a device that another process holds: that it is waited for, and that it is free. Pure."""

from __future__ import annotations

_WAITING, _HELD, _FREE = "waiting for ", ", held by ", " is free"


def waiting_text(device: str, holder: str) -> str:
    """``waiting for cpu, held by process 4711``."""
    return f"{_WAITING}{device}{_HELD}{holder}"


def free_text(device: str) -> str:
    """``cpu is free``."""
    return f"{device}{_FREE}"


def is_waiting(progress: str) -> bool:
    """Whether a line of progress says that a device is waited for."""
    return _WAITING in progress and f"{_HELD}process " in progress


def is_free(progress: str) -> bool:
    """Whether a line of progress says that the wait for a device is over."""
    return progress.endswith(_FREE)
