"""A killed search resumes where it stopped, whenever it was killed."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import sessions
from support.sessions import opened, ports, tree, whole

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import work as w
from engine.domain.state import SessionState, Stage
from engine.domain.work import WorkKey
from engine.journal.journal import read
from engine.session.fake_bench import FAKE_GPU, FakeBench
from engine.session.live import LiveSession
from engine.session.outcome import EngineStopped, SessionEnded, Until


def _resumed(folder: Path, bench: FakeBench | None = None, **others: bool) -> SessionState:
    async def search() -> SessionState:
        async with LiveSession.resume(folder, ports(folder, bench=bench), **others) as live:
            await live.run()
            return live.state

    state: SessionState = sessions.run(search)
    return state


def _cut(original: Path, copy: Path, lines: int, torn: bytes = b"") -> Path:
    """The folder of a process that died after this many complete lines."""
    copy.mkdir()
    (copy / "blobs").symlink_to(original / "blobs")
    kept = (original / "journal.jsonl").read_bytes().split(b"\n")[:lines]
    (copy / "journal.jsonl").write_bytes(b"".join(line + b"\n" for line in kept) + torn)
    return copy


@pytest.mark.slow
def test_a_search_cut_after_any_event_reaches_the_same_tree(tmp_path: Path) -> None:
    original = tmp_path / "original"
    wanted = tree(whole(original))
    count = len(read(original).entries)
    assert count > 60
    for lines in range(1, count + 1):
        copy = _cut(original, tmp_path / f"cut{lines}", lines)
        assert tree(_resumed(copy)) == wanted, f"cut after {lines} events"


@pytest.mark.parametrize("lines", [2, 17, 40, 60])
def test_a_torn_last_line_is_repaired_and_reported(tmp_path: Path, lines: int) -> None:
    original = tmp_path / "original"
    wanted = tree(whole(original))
    copy = _cut(original, tmp_path / "copy", lines, torn=b'{"v":1,"seq":')
    assert tree(_resumed(copy)) == wanted
    resumed = next(entry.event for entry in read(copy).entries if isinstance(entry.event, e.SessionResumed))
    assert "torn last line" in resumed.repaired


@pytest.mark.slow
def test_a_session_abandoned_during_a_run_resumes(tmp_path: Path) -> None:
    wanted = tree(whole(tmp_path / "original"))
    folder = tmp_path / "abandoned"

    async def abandon() -> None:
        bench = FakeBench(lambda data: "0" * 64, pause=0.003)
        live = LiveSession.create(folder, opened(), ports(folder, bench=bench))
        run = asyncio.create_task(live.run())
        while len(live.state.kernels) < 4:
            await asyncio.sleep(0.001)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        live._writer._journal.close()

    sessions.run(abandon)
    assert tree(_resumed(folder)) == wanted


_VICTIM = """
import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from support import sessions
from engine.journal.blobs import Blobs
from engine.session.fake_bench import FakeBench
from engine.session.live import LiveSession

async def tell(live):
    async for batch in live.batches():
        print(batch.state.seq, flush=True)

async def main():
    folder = Path(sys.argv[1])
    bench = FakeBench(Blobs(folder).put, pause=0.02)
    async with LiveSession.create(folder, sessions.opened(), sessions.ports(folder, bench=bench)) as live:
        telling = asyncio.create_task(tell(live))
        await live.run()

asyncio.run(main())
"""


@contextmanager
def _victim(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is searching the scripted tree."""
    environment = {"PYTHONPATH": ":".join(p for p in sys.path if p)}
    command = [sys.executable, "-c", _VICTIM, str(folder)]
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdout=pipe, stderr=quiet, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 30:
                break
        yield process


@pytest.mark.slow
def test_a_session_resumes_after_a_killed_process(tmp_path: Path) -> None:
    wanted = tree(whole(tmp_path / "original"))
    folder = tmp_path / "killed"
    with _victim(folder) as victim:
        victim.kill()
        assert victim.wait() == -signal.SIGKILL
    assert tree(_resumed(folder)) == wanted


@pytest.mark.slow
def test_an_interrupt_from_the_keyboard_leaves_a_clean_session(tmp_path: Path) -> None:
    wanted = tree(whole(tmp_path / "original"))
    folder = tmp_path / "interrupted"
    with _victim(folder) as victim:
        victim.send_signal(signal.SIGINT)
        assert victim.wait() != 0
    last = read(folder).entries[-1].event
    assert isinstance(last, e.WorkFailed)
    assert last.reason == "interrupted"
    assert not read(folder).torn
    assert tree(_resumed(folder)) == wanted


def test_work_that_crashed_two_processes_is_given_up(tmp_path: Path) -> None:
    original = tmp_path / "original"
    whole(original)
    entries = read(original).entries
    deadly = next(n for n, entry in enumerate(entries, 1) if entry.event == e.WorkStarted("verify:k2:0"))
    first = _cut(original, tmp_path / "first", deadly)

    class Slow(FakeBench):
        async def verify(self, *args: object) -> object:
            await asyncio.Event().wait()

    async def die_in_it() -> None:
        live = LiveSession.resume(first, ports(first, bench=Slow(lambda data: "0" * 64)))
        run = asyncio.create_task(live.run())
        while live.state.started.get(w.Verify("k2", 0).key) != 2:
            await asyncio.sleep(0.001)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        live._writer._journal.close()

    sessions.run(die_in_it)
    state = _resumed(first)
    failure = state.kernels["k2"].failure
    assert failure is not None
    assert failure.kind == "crashed"
    assert "crashed 2 times" in failure.reason
    assert state.kernels["k3"].stage is Stage.MEASURED


def test_a_clean_exit_is_not_a_crash(tmp_path: Path) -> None:
    """Repeated interruptions of the same work never become a verdict on the kernel."""

    class Stuck(FakeBench):
        async def verify(self, *args: object) -> object:
            await asyncio.Event().wait()

    async def interrupt(first: bool) -> None:
        given = ports(tmp_path, bench=Stuck(lambda data: "0" * 64))
        live = LiveSession.create(tmp_path, opened(), given) if first else LiveSession.resume(tmp_path, given)
        async with live:
            run = asyncio.create_task(live.run())
            while w.Verify("k1", 0).key not in live.in_hand:
                await asyncio.sleep(0.001)
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)

    for n in range(4):
        sessions.run(lambda n=n: interrupt(n == 0))
    assert _resumed(tmp_path).kernels["k1"].stage is Stage.MEASURED


def test_awaiting_approval_survives_the_process(tmp_path: Path) -> None:
    async def begin() -> None:
        async with LiveSession.create(tmp_path, opened("ask"), ports(tmp_path)) as live:
            await live.run(Until.IDLE)

    async def decide() -> tuple[object, SessionState]:
        async with LiveSession.resume(tmp_path, ports(tmp_path)) as live:
            again = await live.run(Until.IDLE)
            await live.submit(c.SelectIdeas())
            await live.run(Until.IDLE)
            return again, live.state

    sessions.run(begin)
    again, state = sessions.run(decide)
    assert again.ideas == ("i2", "i3")
    assert set(state.kernels) == {"k1", "k2", "k3", "k4", "k5"}


def test_a_moved_session_is_prepared_again_and_its_best_kernels_remeasured(tmp_path: Path) -> None:
    whole(tmp_path, limits=opened().settings.limits)
    bench = FakeBench(lambda data: "0" * 64, FAKE_GPU)

    async def move() -> SessionState:
        async with LiveSession.resume(tmp_path, ports(tmp_path, bench=bench), prepare_again=True) as live:
            await live.submit(c.Remeasure("k2"))
            assert await live.run() == SessionEnded("3 of 3 rounds done")
            return live.state

    state = sessions.run(move)
    assert state.device == FAKE_GPU
    assert state.epoch == 2
    assert {k.id for k in state.kernels.values() if k.epoch == 2} >= {"k10", "k6", "k2"}


def test_the_policy_does_not_approve_before_the_preparation(tmp_path: Path) -> None:
    async def begin() -> None:
        async with LiveSession.create(tmp_path, opened("ask"), ports(tmp_path)) as live:
            await live.run(Until.IDLE)
            await live.submit(c.SetMode("ask:5"))

    async def go_on() -> SessionState:
        clock = sessions.Ticking()
        live = LiveSession.resume(tmp_path, ports(tmp_path, clock=clock, sleep=clock.sleep), prepare_again=True)
        async with live:
            assert live.deadline is None
            clock.now += 60
            await live.run()
            return live.state

    sessions.run(begin)
    assert sessions.run(go_on).closed == "3 of 3 rounds done"
    kinds = [type(entry.event) for entry in read(tmp_path).entries]
    moved = kinds.index(e.SessionResumed)
    assert kinds.index(e.SessionPrepared, moved) < kinds.index(e.IdeaSelected, moved)


def test_a_copied_folder_is_an_independent_session(tmp_path: Path) -> None:
    wanted = tree(whole(tmp_path / "here", limits=opened().settings.limits))
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    assert tree(_resumed(tmp_path / "there")) == wanted


def test_failed_work_is_owed_again_after_a_resume(tmp_path: Path) -> None:
    class Absent(FakeBench):
        async def prepare(self, say: object) -> object:
            raise OSError("the device is gone")

    async def fail() -> object:
        given = ports(tmp_path, bench=Absent(lambda data: "0" * 64))
        async with LiveSession.create(tmp_path, opened(), given) as live:
            return await live.run()

    assert sessions.run(fail) == EngineStopped({WorkKey.parse("prepare"): "OSError: the device is gone"})
    assert _resumed(tmp_path).closed == "3 of 3 rounds done"
