"""Real processes of a real bench, killed or stopped at random times: the bench continues, and no other verdict changes.

``--seeds`` is not needed here: ``ESPALIER_FAULT_SEEDS=100`` in the environment runs more of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.program import command, environment
from trial.ground import marked, nothing_left_behind

from engine.domain import work as w
from engine.domain.errors import EspalierError
from engine.domain.model import Contract, Dialect, FailureKind
from engine.problem import catalog
from engine.sandbox.bubblewrap import bubblewrap_reason
from engine.sandbox.confinement import CommandLimits, LimitsOnly
from engine.toolchain import recipes
from engine.toolchain.build import BuildFailure, BuildRequest, build_with
from engine.trial.bench import Assignment, KernelSpec, TrialBench
from engine.trial.judge.timing.conditions import descends

TESTS = Path(__file__).parent.parent
RIGHT = (TESTS / "exploits" / "right.h").read_text()
SEEDS = int(os.environ.get("ESPALIER_FAULT_SEEDS", "1"))
LIMIT_S = 6.0
"""Time limit in these tests, after which the work is cancelled."""
GRACE_S = 5.0

pytestmark = pytest.mark.skipif(bubblewrap_reason() is not None, reason="orphans are only found for sure in a sandbox")


def source(name: str, body: str) -> KernelSpec:
    launch = 'extern "C" void launch(const float* x, const float* weight, float* out, void*)'
    return KernelSpec(f"{name}.cpp", f"{RIGHT}\n{launch}\n{{\n{body}\n}}\n", Dialect.CPP, Contract.HOST)


GOOD = source("good", "right(x, weight, out);")
BAD = source("bad", "right(x, weight, out); out[7] *= 1.01f;")


class Stand:
    """A bench, and the processes that it has started."""

    def __init__(self, mark: str) -> None:
        self._runner = asyncio.Runner()
        self.mark = mark
        problem = catalog.find(str(TESTS / "trial" / "problems" / "scaled_softmax"))
        self.bench = TrialBench(Assignment(problem, catalog.workload_for(problem, "small"), "cpu"), lambda _: "")

    def run(self, effect: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(asyncio.wait_for(effect, 90))

    async def wounded(self, seed: int) -> tuple[str, float]:
        """Verify a kernel while a process is disturbed: the result, and seconds past the limit."""
        chance = random.Random(seed)
        victim = source(f"victim{seed}", f"right(x, weight, out); // {seed}")
        harm = asyncio.create_task(self._harm(chance))
        began = time.monotonic()
        try:
            async with asyncio.timeout(LIMIT_S):
                found = await chance.choice([self.bench.verify_kernel, self.bench.sanitize_kernel])(victim, lambda _: None)
                if isinstance(found, w.Verified):
                    found = await self.bench.measure_kernel(victim, lambda _: None)
                told = type(found).__name__
        except TimeoutError:
            told = "given up"
        except EspalierError as error:
            told = str(error)
            assert "\n" not in told
        finally:
            harm.cancel()
            await asyncio.gather(harm, return_exceptions=True)
        return told, time.monotonic() - began - LIMIT_S

    async def _harm(self, chance: random.Random) -> None:
        for _ in range(chance.randint(1, 3)):
            await asyncio.sleep(chance.uniform(0.0, 0.6))
            running = sorted(await asyncio.to_thread(marked, self.mark))
            if running:
                number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(chance.choice(running), number)

    def close(self) -> None:
        self.run(self.bench.close())
        self._runner.close()


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("mark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESPALIER_CACHE", str(tmp_path_factory.mktemp("cache")))
        with nothing_left_behind(folder):
            made = Stand(str(folder))
            made.run(made.bench.prepare(lambda _: None, measure=False))
            yield made
            made.close()
        left = list((Path(os.environ["ESPALIER_CACHE"]) / "build" / "work").iterdir())
    assert left == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_bench_survives_disturbed_processes(stand: Stand, seed: int) -> None:
    told, late = stand.run(stand.wounded(seed))
    assert late < GRACE_S, told
    good = stand.run(stand.bench.verify_kernel(GOOD, lambda _: None))
    bad = stand.run(stand.bench.verify_kernel(BAD, lambda _: None))
    assert isinstance(good, w.Verified | w.Suspected), (told, good)
    assert isinstance(bad, w.Failed), (told, bad)
    assert bad.failure.kind is FailureKind.MISMATCH, (told, bad)


@pytest.mark.slow
def test_a_file_of_the_sandbox_that_is_replaced_costs_a_new_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an update of the system does: a mount of a file that was replaced cannot be mounted again in the inner sandbox."""
    tree = tmp_path / "headers"
    tree.mkdir()
    (tree / "some.h").write_text("")
    monkeypatch.setenv("ESPALIER_INCLUDE", str(tree))
    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path / "cache"))
    said: list[str] = []
    with nothing_left_behind(tmp_path):
        stand = Stand(str(tmp_path))
        stand.run(stand.bench.prepare(lambda _: None, measure=False))
        (tree / "some.h").unlink()
        tree.rmdir()
        tree.mkdir()
        (tree / "some.h").write_text("")
        for pid, words in marked(stand.mark).items():
            if "engine.trial.runner.host" in words:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        found = stand.run(stand.bench.verify_kernel(GOOD, said.append))
        stand.close()
    assert isinstance(found, w.Verified | w.Suspected), found
    assert any(words.startswith("starting the sandbox again: ") for words in said), said


COMPILERS = {
    "killed": ("kill -9 $$", "was killed by signal 9"),
    "ends without a word": ("exit 3", "exited with status 3 and printed nothing"),
    "claims success and makes nothing": ("exit 0", "exited with status 0"),
    "ignores every request to stop": ("trap '' TERM INT HUP; while :; do sleep 0.1; done", "exceeded its time limit"),
    "leaves children behind": ("(trap '' TERM; sleep 300) & exit 1", "exceeded its time limit"),
    "says too much": ("head -c 3000000 /dev/zero; exit 1", "exited with status 1"),
    "is killed for memory": ("echo 'g++: fatal error: Killed signal terminated program cc1plus'; exit 1", "ran out of memory"),
    "runs out of space": (
        "echo 'fatal error: error writing to /tmp/x.s: No space left on device' >&2; exit 1",
        "No space left",
    ),
}
FLOODS = {
    "prints endlessly": ("cat /dev/zero", "printed more than 4 MiB"),
    "writes far too much": ("while :; do head -c 100000000 /dev/zero > $(date +%N); done", "more than 1 GiB"),
    "writes many files": ("seq 1100 | split -l 1 -a 4; sleep 60", "too many files"),
    "starts many processes": ("for n in $(seq 100); do sleep 60 & done; wait", "more than 64 processes"),
}
"""They end long before their time limit."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words", "seconds"),
    [(*one, 1.0) for one in COMPILERS.values()] + [(*one, 60.0) for one in FLOODS.values()],
    ids=[*COMPILERS, *FLOODS],
)
def test_a_misbehaving_compiler_is_one_line_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str, seconds: float
) -> None:
    fake = tmp_path / "bin" / "g++"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path / "cache"))
    recipe = recipes.Recipe((str(fake),), "kernel.cpp", "kernel.so", (words,))
    request = BuildRequest(GOOD.text, Dialect.CPP, Contract.HOST, "", {}, "", "mine.cpp")
    began = time.monotonic()
    found = asyncio.run(build_with(request, recipe, LimitsOnly(limits=CommandLimits(seconds=seconds))))
    assert time.monotonic() - began < seconds + GRACE_S
    assert isinstance(found, BuildFailure)
    assert words in found.reason
    assert found.timed_out == ("time limit" in words)
    assert "\n" not in found.reason
    assert list((tmp_path / "cache" / "build" / "work").iterdir()) == []


@pytest.mark.slow
def test_a_full_disk_while_the_sanitizers_get_their_inputs_is_one_line(stand: Stand) -> None:
    """The judge writes them. If it fails, so does the work, and the next kernel is still judged."""

    async def act() -> w.Sanitized:
        await stand.bench.open()
        (judge,) = judges_of(os.getpid())
        limits = resource.prlimit(judge, resource.RLIMIT_FSIZE)
        resource.prlimit(judge, resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            return await stand.bench.sanitize_kernel(GOOD, lambda _: None)
        finally:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(judge, resource.RLIMIT_FSIZE, limits)

    with pytest.raises(EspalierError) as caught:
        stand.run(act())
    assert "\n" not in str(caught.value)
    assert isinstance(stand.run(stand.bench.sanitize_kernel(GOOD, lambda _: None)), w.Sanitized)


ENDLESS = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        open("/tmp/computes", "w").close()
        while True:
            pass


def get_inputs():
    return [torch.rand(4)]


def get_init_inputs():
    return []
"""


def judges_of(engine: int) -> list[int]:
    """The judges below a process; not the bubblewrap processes around them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"python" in words[0] and b"engine.trial.judge" in words and descends(int(folder.name), engine):
                found.append(int(folder.name))
    return found


def computes(judge: int) -> bool:
    """Whether the endless reference has begun: it can write to the private folder of its sandbox only."""
    return Path(f"/proc/{judge}/root/tmp/computes").exists()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["it starts", "it computes"])
def test_a_judge_ends_with_its_engine(moment: str, tmp_path: Path) -> None:
    """The judge imports torch for seconds; a request may already be waiting."""
    path = tmp_path / "endless.py"
    path.write_text(ENDLESS)
    call = command("run", path, "--headless", "--device", "cpu")
    engine = subprocess.Popen(call, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: bool(judges_of(engine.pid)))
        (judge,) = judges_of(engine.pid)
        if moment == "it computes":
            until(lambda: computes(judge))
    finally:
        engine.kill()
        engine.wait()
    until(lambda: gone(judge), GRACE_S)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def until(happens: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.1)
