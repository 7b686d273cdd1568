"""Whole sessions with seeded faults: what breaks, where, and on which occurrence.

``run_seed`` searches the scripted tree of ``support.sessions`` with a fake bench, in which every party can be killed, hang or
answer nonsense at any stage, and does what a person would: goes on, opens it again, retries. By itself this file is a program::

    python -m faults.injecting --seeds 1000        (with ``tests`` and the checkout on PYTHONPATH)
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from support import sessions

from engine.domain.errors import DeviceError, EspalierError, JournalError, ProposerError, SandboxError, ToolchainError
from engine.domain.state import SessionState
from engine.domain.work import WorkKey, WorkKind
from engine.journal.blobs import Blobs
from engine.journal.journal import Journal, read
from engine.session.fake_bench import FakeBench
from engine.session.live import LiveSession
from engine.session.outcome import EngineStopped, SessionEnded
from engine.session.perform import Ceilings
from engine.trial.client import JudgeDied

LIMIT_S = 0.03
"""Time limit of a port in these sessions."""
HANG_S = 20.0
"""A session with faults takes about 0.1 s; one that exceeds this limit hangs."""

FAULTS: dict[str, Callable[[], Exception]] = {
    "the compiler is gone": lambda: ToolchainError("g++ is missing: install it"),
    "the compiler was killed": lambda: ToolchainError("g++ was killed by signal 9"),
    "the cache's disk is full": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "the judge died": JudgeDied,
    "the host died": lambda: SandboxError("the trial's host process has ended"),
    "the device is lost": lambda: DeviceError("the device fell off the bus"),
    "the device's memory is full": lambda: DeviceError("out of memory while judging"),
    "memory is full": MemoryError,
    "a fault of the program": lambda: RuntimeError("out of\nluck"),
    "the model does not answer": lambda: ProposerError("the source does not answer"),
    "the connection broke": lambda: ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
}
SITES = {
    "prepare": 1, "build": 10, "verify": 8, "measure": 8, "race": 4, "sanitize": 1, "propose": 4, "implement": 6,
    "append": 90, "sync": 5, "blob": 20, "die": 90, "clock": 60, "close": 1,
}  # fmt: skip
"""Fault site → approximate number of occurrences."""

_NO_KERNEL = (WorkKind.PREPARE, WorkKind.PROPOSE, WorkKind.IMPLEMENT, WorkKind.RACE)


class Killed(BaseException):
    """The process ends here, as by SIGKILL: nothing further is written."""


@dataclass
class Dice:
    """The faults of a seed: site → occurrence → fault."""

    seed: int
    planned: dict[str, dict[int, str]] = field(default_factory=dict)
    struck: list[str] = field(default_factory=list)
    turns: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        self.chance = chance
        for _ in range(chance.randint(1, 6)):
            site = chance.choice(list(SITES))
            fault = "hangs" if chance.random() < 0.25 else chance.choice(list(FAULTS))
            self.planned.setdefault(site, {})[chance.randrange(SITES[site])] = fault

    def strikes(self, site: str) -> str:
        """The fault of this occurrence, each once; empty for none."""
        turn = self.turns[site]
        self.turns[site] += 1
        fault = self.planned.get(site, {}).pop(turn, "")
        if fault:
            self.struck.append(f"{site}: {fault}")
        return fault

    async def port(self, site: str) -> None:
        fault = self.strikes(site)
        if fault == "hangs":
            await asyncio.Event().wait()
        elif fault:
            raise FAULTS[fault]()


class Bench(FakeBench):
    def __init__(self, folder: Path, dice: Dice) -> None:
        super().__init__(Blobs(folder).put, pause=0.0)
        self._dice = dice

    async def prepare(self, *args: Any) -> Any:
        await self._dice.port("prepare")
        return await super().prepare(*args)

    async def build(self, *args: Any) -> Any:
        await self._dice.port("build")
        return await super().build(*args)

    async def verify(self, *args: Any) -> Any:
        await self._dice.port("verify")
        return await super().verify(*args)

    async def measure(self, *args: Any) -> Any:
        await self._dice.port("measure")
        return await super().measure(*args)

    async def sustain(self, *args: Any) -> Any:
        await self._dice.port("sustain")
        return await super().sustain(*args)

    async def race(self, *args: Any) -> Any:
        await self._dice.port("race")
        return await super().race(*args)

    async def sanitize(self, *args: Any) -> Any:
        await self._dice.port("sanitize")
        return await super().sanitize(*args)

    async def close(self) -> None:
        if fault := self._dice.strikes("close"):
            raise FAULTS.get(fault, FAULTS["the judge died"])()


@dataclass(frozen=True)
class Ideas:
    dice: Dice
    author = sessions.TREE.author

    async def propose(self, *args: Any) -> Any:
        await self.dice.port("propose")
        return await sessions.TREE.propose(*args)

    async def implement(self, *args: Any) -> Any:
        await self.dice.port("implement")
        return await sessions.TREE.implement(*args)

    async def repair(self, *args: Any) -> Any:
        return await sessions.TREE.repair(*args)

    async def close(self) -> None:
        """Nothing to release."""


class Clock(sessions.Ticking):
    """A clock that jumps, as when a laptop wakes up or the time is set."""

    def __init__(self, dice: Dice) -> None:
        super().__init__()
        self._dice = dice

    def __call__(self) -> float:
        if self._dice.strikes("clock"):
            self.now += self._dice.chance.choice([-86400.0, -3.0, 3600.0, 30 * 86400.0])
        return super().__call__()


class Disk:
    """Replaces ``os`` in the journal's modules: some writes fail, are truncated, or kill the process."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        if self._dice.strikes("die"):
            os.pwrite(handle, data[: self._dice.chance.randrange(len(data) + 1)], offset)
            raise Killed
        if self._dice.strikes("append"):
            os.pwrite(handle, data[: self._dice.chance.randrange(len(data))], offset)
            code = self._dice.chance.choice([errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
            raise OSError(code, os.strerror(code))
        return os.pwrite(handle, data, offset)

    def ftruncate(self, handle: int, size: int) -> None:
        if self._dice.struck and self._dice.struck[-1].startswith("append") and self._dice.chance.random() < 0.3:
            raise OSError(errno.EIO, "Input/output error")
        os.ftruncate(handle, size)

    def fsync(self, handle: int) -> None:
        if self._dice.strikes("sync"):
            raise OSError(errno.EIO, "Input/output error")
        os.fsync(handle)

    def replace(self, source: str, target: Path) -> None:
        if self._dice.strikes("blob"):
            raise OSError(errno.ENOSPC, "No space left on device")
        os.replace(source, target)


@contextmanager
def _disk(dice: Dice) -> Iterator[None]:
    disk = Disk(dice)
    with mock.patch("engine.journal.journal.os", disk), mock.patch("engine.journal.blobs.os", disk):
        yield


@dataclass(frozen=True)
class SeedResult:
    """The result of a seed."""

    seed: int
    state: SessionState
    struck: tuple[str, ...]
    processes: int
    seconds: float
    twice: frozenset[str]
    """Kernels whose work killed two processes: they fail as crashed, by design."""


async def run_seed(seed: int, folder: Path) -> SeedResult:
    """Run the scripted tree with this seed's faults. Raises AssertionError if it does not end."""
    began = time.monotonic()
    dice = Dice(seed)
    deaths: Counter[WorkKey] = Counter()
    processes = 0
    with _disk(dice):
        for _ in range(40):
            processes += 1
            state = await _one_process(folder, dice, deaths)
            if state is not None:
                twice = frozenset(key.subject for key, count in deaths.items() if count > 1 and key.kind not in _NO_KERNEL)
                return SeedResult(seed, state, tuple(dice.struck), processes, time.monotonic() - began, twice)
    raise AssertionError(f"seed {seed} never ends: {dice.struck}")


async def _one_process(folder: Path, dice: Dice, deaths: Counter[WorkKey]) -> SessionState | None:
    """Open the session and search until it ends or the process dies: the final state, or ``None``."""
    live = _open(folder, dice)
    if live is None:
        return None
    try:
        for _ in range(30):
            outcome = await live.run()
            if isinstance(outcome, SessionEnded):
                return live.state
            assert isinstance(outcome, EngineStopped), outcome
            for reason in outcome.reasons.values():
                _one_line(reason)
            await live.retry()
        raise AssertionError(f"seed {dice.seed} is retried without end")
    except (Killed, JournalError) as error:
        deaths.update(key for key in live.state.started)
        if not isinstance(error, Killed):
            _one_line(str(error))
        return None
    finally:
        await _leave(live)


def _one_line(text: str) -> None:
    assert text, "a failure without a word"
    assert "\n" not in text, text


def _open(folder: Path, dice: Dice) -> LiveSession | None:
    """The session as the next process finds it; ``None`` if this process died while opening it."""
    clock = Clock(dice)
    ceilings = Ceilings(prepare=LIMIT_S, build=LIMIT_S, verify=LIMIT_S, measure=LIMIT_S, model=LIMIT_S)
    given = sessions.ports(folder, Ideas(dice), Bench(folder, dice), clock=clock, sleep=clock.sleep, ceilings=ceilings)
    try:
        if _has_begun(folder):
            return LiveSession.resume(folder, given)
        return LiveSession.create(folder, sessions.opened(), given)
    except (Killed, JournalError):
        return None


def _has_begun(folder: Path) -> bool:
    try:
        return bool(read(folder).entries)
    except JournalError:
        return False


async def _leave(live: LiveSession) -> None:
    """Close cleanly if possible, else as a killed process."""
    try:
        await live.close()
    except (Killed, EspalierError, OSError, MemoryError, RuntimeError):
        _let_go(live._writer._journal)


def _let_go(journal: Journal) -> None:
    if journal._handle >= 0:
        journal._release()


def verdicts(state: SessionState) -> dict[str, object]:
    """File name of a kernel → its outcome. Kernel numbers may differ with the order of ideas."""
    return {
        k.name: (k.stage, k.failure and (k.failure.kind, k.failure.reason), k.measurement and k.measurement.time_us.value)
        for k in state.kernels.values()
    }


def check(result: SeedResult, expected: dict[str, object], folder: Path) -> None:
    """Check that nothing is lost, changed or left running."""
    found = verdicts(result.state)
    names = {k.id: k.name for k in result.state.kernels.values()}
    excused = {names[k] for k in result.twice if k in names}
    where = f"seed {result.seed}: {result.struck}"
    assert result.seconds < HANG_S, where
    if not excused:
        assert found == expected, where
    for name, verdict in expected.items():
        assert name in excused or found.get(name, verdict) == verdict, where
    left = [p.name for p in folder.rglob("*") if p.name.startswith(".incoming")]
    assert not left, f"{where}: {left}"
    entries = read(folder).entries
    assert [entry.seq for entry in entries] == list(range(len(entries))), where


def whole(folder: Path) -> dict[str, object]:
    """The verdicts of a session without faults."""
    return verdicts(sessions.whole(folder))


def limited(effect: Callable[[], Awaitable[Any]]) -> Any:
    """An event loop for one seed, with no task left in it."""

    async def run() -> Any:
        found = await asyncio.wait_for(effect(), HANG_S)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        return found

    return asyncio.run(run())


def main() -> None:
    """Run many seeds and print the results."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    struck: Counter[str] = Counter()
    slowest, processes, began = 0.0, 0, time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        expected = whole(Path(place) / "whole")
        for seed in range(asked.first, asked.first + asked.seeds):
            folder = Path(place) / str(seed)
            result = limited(lambda seed=seed, folder=folder: run_seed(seed, folder))
            check(result, expected, folder)
            struck.update(result.struck)
            processes += result.processes
            slowest = max(slowest, result.seconds)
    words = f"{asked.seeds} seeds, {sum(struck.values())} faults of {len(struck)} kinds, {processes} processes, "
    sys.stdout.write(f"{words}slowest {slowest:.2f} s, {time.monotonic() - began:.0f} s in all: nothing lost\n")


if __name__ == "__main__":
    main()
