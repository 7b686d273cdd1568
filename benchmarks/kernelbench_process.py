"""The process that judges one KernelBench file: started before its file is known, it imports what a verdict needs.

On a GPU the next file's process starts when a file is given to the one before, and imports torch while that one calibrates:
nothing of a file is shared with the next one but the time. On a CPU it starts with its file, because its imports would
take the cores that are measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections import deque
from dataclasses import asdict

from benchmarks.kernelbench_judging import Request, Result, judge
from engine.trial.client import JudgeClient, StartHosts

JUDGE = "--judge"
"""The argument of such a process; the device and the parent's process id follow."""
_PR_SET_PDEATHSIG = 1
_ENDING_S = 10.0
_IDLE_CORES = 8
"""With so many cores, a process and its hosts import torch beside the file before and leave it its own."""
_STEPS = 8
"""Lines of a process that are kept: its latest steps, each with the seconds since its start."""


class JudgingProcess:
    """One process, seen from the benchmark."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.said: deque[str] = deque(["starting its process"], maxlen=_STEPS)
        self.answered_at: float | None = None
        """When it printed the result, on the monotonic clock: before it ended what it had started."""

    @classmethod
    async def start(cls, device: str) -> JudgingProcess:
        """Start it, without a file."""
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.kernelbench", JUDGE, device, str(os.getpid()),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    async def judge(self, request: Request, seconds: float) -> bytes:
        """What it prints on the file, while ``said`` gets its steps. Raises TimeoutError after so many seconds."""
        order, out, err = self._process.stdin, self._process.stdout, self._process.stderr
        assert order is not None
        assert out is not None
        assert err is not None
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):  # it has ended: what it said is read below
                order.write(json.dumps(asdict(request)).encode() + b"\n")
                await order.drain()
            printed, _ = await asyncio.gather(self._answer(out), self._listen(err))
            await self._process.wait()
        return printed

    async def _answer(self, stream: asyncio.StreamReader) -> bytes:
        line = await stream.readline()
        self.answered_at = time.monotonic()
        return line + await stream.read()

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            if text := line.decode(errors="replace").strip():
                self.said.append(text)

    async def end(self) -> None:
        """End it with everything that it has started; idempotent."""
        process = self._process
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _ENDING_S)
        if process.returncode is None:
            process.kill()
            await process.wait()


class NextProcess:
    """The processes of one device, each started while the file before is judged."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._next: JudgingProcess | None = None

    async def take(self, *, more: bool) -> JudgingProcess:
        """The process of the next file; with ``more`` files after it, the one after starts now."""
        found, self._next = self._next or await JudgingProcess.start(self._device), None
        if more and self._device != "cpu":
            self._next = await JudgingProcess.start(self._device)
        return found

    async def close(self) -> None:
        """End the one that waits."""
        if self._next is not None:
            await self._next.end()


def main(device: str, parent: int) -> None:
    """Print the result of the file that comes on standard input."""
    _end_with(parent)
    asyncio.run(_judge_what_comes(device))


async def _judge_what_comes(device: str) -> None:
    client = JudgeClient()
    try:
        if device != "cpu":
            await client.start(device, StartHosts.NOW if len(os.sched_getaffinity(0)) >= _IDLE_CORES else StartHosts.WHEN_ASKED)
        line = await asyncio.to_thread(sys.stdin.readline)
        answered: list[Result] = []

        def answer(found: Result) -> None:
            answered.append(found)
            print(json.dumps(found.to_json()), flush=True)

        if line:
            found = await judge(Request(**json.loads(line)), client, answer)
            if not answered:
                answer(found)
    finally:
        await client.close()


def _end_with(parent: int) -> None:
    """Have this process killed when its parent dies; whatever it has started ends with it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the benchmark has ended")
