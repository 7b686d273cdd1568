"""Ends of child processes: whenever it is cancelled, and however often, none stays and no pipe stays open."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from engine.fleet.links import ProcessLink
from engine.sandbox import process
from engine.trial.client import JudgeClient

STUBBORN = ["sh", "-c", "trap '' TERM; while :; do sleep 0.01; done"]
"""A command that ignores SIGTERM."""
MOMENTS = (0.0, 0.02, 0.06)
"""Seconds after which the end is cancelled once more."""


def left(transports: list[asyncio.SubprocessTransport]) -> list[str]:
    """What is left of the processes: those that live, and transports that complain once the event loop has closed."""
    found = []
    for transport in transports:
        if not transport.is_closing():
            found.append("a transport is open")
        try:
            os.kill(transport.get_pid(), 0)
        except ProcessLookupError:
            continue
        if Path(f"/proc/{transport.get_pid()}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            found.append("a process lives")
    return found


@pytest.fixture
def transports(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.SubprocessTransport]:
    """The transports of all processes that the test starts."""
    made: list[asyncio.SubprocessTransport] = []
    start = asyncio.create_subprocess_exec

    async def noting(*argv: str, **options: object) -> asyncio.subprocess.Process:
        child = await start(*argv, **options)  # type: ignore[arg-type]
        made.append(child._transport)  # type: ignore[attr-defined]
        return child

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noting)
    monkeypatch.setattr(process, "GRACE", 0.2)
    monkeypatch.setattr("engine.trial.client._GRACE_S", 0.2)
    monkeypatch.setattr("engine.fleet.links._GRACE_S", 0.2)
    return made


async def cancelled(act: Awaitable[object], moments: tuple[float, ...]) -> None:
    """Cancel ``act`` after each of these pauses, and leave the event loop with it if it has not ended."""
    task = asyncio.ensure_future(act)
    await asyncio.sleep(0)
    for pause in moments:
        await asyncio.sleep(pause)
        task.cancel()
    await asyncio.wait([task], timeout=5)


async def run_command() -> None:
    await process.run(STUBBORN, seconds=30)


async def close_judge() -> None:
    client = JudgeClient()
    client._process = child = await child_of_its_own()
    assert child.stderr is not None
    client._words = asyncio.create_task(process.last_bytes(child.stderr, 4000))
    await client.close()


async def close_worker() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        await ProcessLink(await child_of_its_own(), ours).close()


async def child_of_its_own() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(*STUBBORN, stderr=asyncio.subprocess.PIPE, start_new_session=True)


@pytest.mark.parametrize("act", [run_command, close_judge, close_worker])
@pytest.mark.parametrize("repeated", [1, 2, 3])
def test_a_cancelled_end_goes_on(
    act: Callable[[], Awaitable[object]], repeated: int, transports: list[asyncio.SubprocessTransport]
) -> None:
    asyncio.run(cancelled(act(), (0.1, *MOMENTS[:repeated])))
    assert transports
    assert not left(transports)


@pytest.mark.parametrize("act", [run_command, close_judge, close_worker])
def test_an_event_loop_that_closes_meanwhile_leaves_no_open_transport(
    act: Callable[[], Awaitable[object]], transports: list[asyncio.SubprocessTransport]
) -> None:
    """``asyncio.run`` cancels what the main coroutine has left, also the task of an end."""

    async def main() -> None:
        task = asyncio.ensure_future(act())
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.sleep(0.02)

    asyncio.run(main())
    assert transports
    assert not left(transports)
