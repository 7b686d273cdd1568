"""A session that another thread holds and runs on the fake bench, as another process would."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.sessions import TREE, opened, ports

from engine.ideas.proposer import Proposer
from engine.session.live import LiveSession
from engine.session.perform import Ceilings

UNHURRIED = Ceilings(model=None)
"""A person answers prompts when it suits."""


@contextmanager
def held(folder: Path, mode: str = "ask", ideas: Proposer = TREE, **settings: Any) -> Iterator[None]:
    """A session that runs in another thread, as in another process: the lock is held, the inbox answered."""
    ready, end = threading.Event(), threading.Event()

    async def search() -> None:
        async with LiveSession.create(folder, opened(mode, **settings), ports(folder, ideas, ceilings=UNHURRIED)) as live:
            running = asyncio.create_task(live.run())
            while not live.state.kernels:
                await asyncio.sleep(0.01)
            ready.set()
            await asyncio.to_thread(end.wait)
            running.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(search()))
    thread.start()
    try:
        assert ready.wait(20)
        yield
    finally:
        end.set()
        thread.join()
