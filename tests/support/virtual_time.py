"""An event loop whose clock jumps over every wait: simulated hours take seconds. For code that waits for no file descriptor."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Waits for nothing: what would be a wait advances the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None and timeout > 0:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.virtual = _Jumping()
        super().__init__(self.virtual)

    def time(self) -> float:
        return self.virtual.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def now() -> float:
    """Seconds on the clock of the running loop; for ports that take a clock."""
    return asyncio.get_running_loop().time()
