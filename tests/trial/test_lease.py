"""The lease on a device, with real processes: order, dead holders, what others leave behind, two users."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import engine
from engine.domain.device_waits import is_waiting
from engine.domain.errors import EspalierError
from engine.trial import lease
from engine.trial.lease import LEASES, Lease, QueuePlace

_ROOT = str(Path(engine.__file__).parent.parent)
_HOLDER = """
import asyncio, concurrent.futures.thread, os, sys
from engine.trial.lease import Lease

def say(text):
    print(text, flush=True)

async def main():
    held = Lease("cpu", lambda: None)
    async with held.held(say):
        print("has it", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print("done", flush=True)
    held.close()

if len(sys.argv) > 1:
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
asyncio.run(main())
"""
NOBODY = 65534


class Holder:
    """A process that waits for the cores, holds them until it is told to end, and reports each step."""

    def __init__(self, folder: Path, user: int | None = None) -> None:
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": _ROOT, LEASES: str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", _HOLDER, *([str(user)] if user is not None else [])]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def until(self, words: str) -> str:
        """The first line with these words."""
        while words not in (line := self.line()):
            assert line, f"ended before it said {words!r}"
        return line

    def release(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.until("done")
        self.process.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of leases that every user can enter."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o755)
    monkeypatch.setenv(LEASES, str(made / "leases"))
    yield made / "leases"
    shutil.rmtree(made)


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Holder]]:
    started: list[Holder] = []

    def begin(user: int | None = None) -> Holder:
        started.append(Holder(folder, user))
        return started[-1]

    yield begin
    for one in started:
        one.kill()


@pytest.mark.slow
def test_processes_hold_the_device_in_the_order_in_which_they_asked(start: Callable[..., Holder]) -> None:
    first = start()
    first.until("has it")
    queue = []
    for ahead in range(4):
        queue.append(start())
        said = queue[-1].until("waiting for cpu")
        others = f", {ahead} ahead" if ahead else ""
        assert said == f"waiting for cpu, held by process {first.process.pid}{others}"
    holders = lease.queues()[0].tickets
    assert [ticket.pid for ticket in holders] == [first.process.pid, *(one.process.pid for one in queue)]
    for one in (first, *queue):
        one.until("has it") if one is not first else None
        one.release()
    assert lease.queues() == ()


def test_sets_of_cores_exclude_each_other_only_where_they_overlap(folder: Path) -> None:
    async def act() -> None:
        async with asyncio.timeout(20):
            low, high = Lease("cpu", lambda: None, (0, 1)), Lease("cpu", lambda: None, (2, 3))
            heard: list[str] = []
            async with low.held(heard.append), high.held(heard.append):
                assert heard == []
                place = lease.queues()[0]
                assert [ticket.cores for ticket in place.tickets] == [(0, 1), (2, 3)]
                crossing = await QueuePlace.join(folder / "cores", (1, 2))
                whole = await QueuePlace.join(folder / "cores")
                beside = await QueuePlace.join(folder / "cores", (4,))
                assert [len(one.ahead()) for one in (crossing, whole, beside)] == [2, 3, 1]
                assert not beside.try_hold(), "the whole machine was asked for before"
                whole.leave()
                assert beside.try_hold()
            low.close()
            assert not crossing.try_hold()
            high.close()
            assert crossing.try_hold()
            crossing.leave()
            beside.leave()

    asyncio.run(act())


@pytest.mark.slow
def test_a_killed_holder_and_a_killed_waiter_give_their_places_back(start: Callable[..., Holder]) -> None:
    first, second, third = start(), None, None
    first.until("has it")
    second = start()
    second.until("waiting for cpu")
    third = start()
    third.until("1 ahead")
    second.kill()
    third.until(f"held by process {first.process.pid}")
    first.kill()
    third.until("cpu is free")
    third.release()


@pytest.mark.slow
def test_a_stopped_holder_is_named_as_stopped(start: Callable[..., Holder]) -> None:
    first, second = start(), start()
    holder, waiter = (first, second) if first.line() == "has it" else (second, first)
    os.kill(holder.process.pid, signal.SIGSTOP)
    waiter.until("(stopped)")
    os.kill(holder.process.pid, signal.SIGCONT)
    holder.release()
    waiter.until("has it")


@pytest.mark.parametrize("content", [b"", b'{"pid": 1}', b"\xff not json", b'{"pid": "x"}', b"[[[[["])
def test_tickets_that_nobody_holds_are_skipped(folder: Path, start: Callable[..., Holder], content: bytes) -> None:
    place = folder / "cores"
    place.mkdir(parents=True)
    for number in (1, 7, 10**12):
        (place / f"{number:012d}").write_bytes(content)
    (place / "notes.txt").write_bytes(b"what is this")
    one = start()
    one.until("has it")
    one.release()
    assert sorted(path.name for path in place.iterdir()) == ["device", "notes.txt", "queue"]


@pytest.mark.slow
def test_two_never_hold_it_even_if_the_tickets_are_deleted(folder: Path, start: Callable[..., Holder]) -> None:
    first = start()
    first.until("has it")
    for ticket in (folder / "cores").glob("0*"):
        ticket.unlink()

    async def joined() -> bool:
        place = await QueuePlace.join(folder / "cores")
        try:
            return place.try_hold()
        finally:
            place.leave()

    assert not asyncio.run(joined())
    first.release()
    assert asyncio.run(joined())


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="starting a process as another user needs root")
@pytest.mark.parametrize(("holder", "waiter"), [(None, NOBODY), (NOBODY, None)])
def test_two_users_wait_for_each_other(start: Callable[..., Holder], holder: int | None, waiter: int | None) -> None:
    start().kill()  # makes the folder
    making = start()
    making.until("has it")
    making.release()
    first = start(holder)
    first.until("has it")
    second = start(waiter)
    assert f"held by process {first.process.pid} of " in second.until("waiting for cpu")
    first.kill()
    second.until("has it")
    second.release()


def test_a_named_folder_that_cannot_be_used_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leases").write_text("a file")
    monkeypatch.setenv(LEASES, str(tmp_path / "leases"))

    async def use() -> None:
        async with Lease("cpu", lambda: None).held(lambda _: None):
            pass

    with pytest.raises(EspalierError, match="set ESPALIER_LEASES to a folder"):
        asyncio.run(use())


@pytest.mark.parametrize("obstacle", ["file", "link"])
def test_without_the_common_folder_it_is_told_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    monkeypatch.delenv(LEASES)
    place = tmp_path / "leases"
    place.write_text("") if obstacle == "file" else place.symlink_to(tmp_path)
    monkeypatch.setattr(lease, "_SHARED", place)
    said: list[str] = []
    mine = Lease("cpu", lambda: None)

    async def use() -> None:
        for _ in range(2):
            async with mine.held(said.append):
                pass

    asyncio.run(use())
    assert len(said) == 1
    assert "no lease on cpu" in said[0]
    assert str(place) in mine.note


def test_uses_overlap_and_nest_without_waiting(folder: Path) -> None:
    mine = Lease("cpu", lambda: None)

    async def use(depth: int) -> None:
        async with mine.held(pytest.fail):
            if depth:
                await asyncio.gather(use(depth - 1), use(depth - 1))

    asyncio.run(asyncio.wait_for(use(4), 20))
    mine.close()
    assert lease.queues() == ()


@pytest.mark.slow
def test_an_idle_holder_gives_way_even_if_its_event_loop_stands_still(folder: Path, start: Callable[..., Holder]) -> None:
    evicted: list[float] = []
    mine = Lease("cpu", lambda: evicted.append(time.monotonic()))

    async def use() -> None:
        async with mine.held(lambda _: None):
            pass

    asyncio.run(use())
    assert [ticket.pid for ticket in lease.queues()[0].tickets] == [os.getpid()]
    assert not evicted
    other = start()
    other.until("has it")  # no event loop runs here
    assert len(evicted) == 1
    other.release()
    asyncio.run(use())
    mine.close()


@pytest.mark.slow
def test_a_busy_holder_gives_way_between_two_uses(
    folder: Path, start: Callable[..., Holder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_SLICE_S", 0.0)
    mine = Lease("cpu", lambda: None)
    said: list[str] = []

    async def use() -> None:
        async with mine.held(said.append):
            other = start()
            await asyncio.to_thread(other.until, "waiting for cpu")
        ending = asyncio.create_task(asyncio.to_thread(lambda: (other.until("has it"), other.release())))
        async with mine.held(said.append):
            await ending
        assert any(is_waiting(text) and str(other.process.pid) in text for text in said)

    asyncio.run(asyncio.wait_for(use(), 60))
    mine.close()


@pytest.mark.slow
def test_cancelling_a_wait_leaves_no_ticket(folder: Path, start: Callable[..., Holder]) -> None:
    first = start()
    first.until("has it")
    mine = Lease("cpu", lambda: None)

    async def give_up() -> None:
        async with asyncio.timeout(0.3):
            async with mine.held(lambda _: None):
                pytest.fail("held by two")

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    assert [ticket.pid for ticket in lease.queues()[0].tickets] == [first.process.pid]


def test_devices_have_their_own_leases(folder: Path, start: Callable[..., Holder], monkeypatch: pytest.MonkeyPatch) -> None:
    start().until("has it")
    monkeypatch.setattr(lease, "_gpu_uuid", lambda index: "")
    gpu = Lease("cuda:1", lambda: None)

    async def use() -> None:
        async with gpu.held(pytest.fail):
            pass

    asyncio.run(use())
    assert {queue.device for queue in lease.queues()} == {"cores", "cuda-1"}
    gpu.close()
