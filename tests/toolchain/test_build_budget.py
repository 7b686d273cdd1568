"""All builds on a machine share one budget."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.errors import EspalierError
from engine.domain.model import Contract, Dialect
from engine.sandbox.confinement import CommandLimits, Confinement, LimitsOnly
from engine.toolchain import build_budget as b
from engine.toolchain.build import Artefact, BuildFailure, BuildOutcome, BuildRequest, build, build_with
from engine.toolchain.recipe import Recipe

GIB = 1 << 30
LAUNCH = 'extern "C" void launch(const float*, float*, void*) {}\n'
HOLD = """
import asyncio, sys
from pathlib import Path
from engine.toolchain import build_budget as b
async def hold():
    async with b.share(Path(sys.argv[1]), b.BuildBudget(1, 1, 1)):
        print("held", flush=True)
        sys.stdin.read()
asyncio.run(hold())
"""


@given(st.integers(1 << 28, 1 << 42), st.integers(1, 256))
def test_parallel_builds_fit_the_budget(memory: int, cores: int) -> None:
    budget = b.divide(memory, cores)
    assert 1 <= budget.slots <= cores
    assert budget.slots * budget.share_bytes <= memory
    assert budget.share_bytes <= budget.alone_bytes <= memory


@pytest.mark.parametrize(
    ("memory", "cores", "slots", "share"),
    [(12, 2, 2, 6), (12, 4, 4, 3), (64, 16, 16, 4), (2, 8, 1, 2), (1, 8, 1, 1), (64, 2, 2, 8)],
)
def test_shares_of_known_machines(memory: int, cores: int, slots: int, share: int) -> None:
    budget = b.divide(memory * GIB, cores)
    assert (budget.slots, budget.share_bytes) == (slots, share * GIB)


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "4000", "memory.max": "9000"}, 4000),
        ("0::/not/here\n", {"memory.max": "5000"}, 5000),
        ("4:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "3000"}, 3000),
        ("1:cpu:/a\n", {"a/memory.max": "3000"}, None),
        ("0::/../../..\n", {"memory.max": "7000"}, 7000),
    ],
)
def test_limits_of_control_groups_count(tmp_path: Path, groups: str, files: dict[str, str], limit: int | None) -> None:
    mounted = tmp_path / "cgroup"
    for name, text in files.items():
        (mounted / name).parent.mkdir(parents=True, exist_ok=True)
        (mounted / name).write_text(f"{text}\n")
    (tmp_path / "groups").write_text(groups)
    assert min(b.group_limits(tmp_path / "groups", mounted), default=None) == limit


def test_the_budget_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(b.MEMORY, "3")
    assert b.build_budget().alone_bytes == 3 * 10**9
    for wrong in ("much", "nan", "-1", "inf"):
        monkeypatch.setenv(b.MEMORY, wrong)
        with pytest.raises(EspalierError, match="set it to a number of GB"):
            b.build_budget()


def test_no_more_builds_run_than_there_are_shares(tmp_path: Path) -> None:
    budget = b.BuildBudget(2, GIB, GIB)
    running: list[int] = []
    counts: list[int] = []

    async def work(number: int, *, alone: bool) -> None:
        async with b.all_shares(tmp_path, budget) if alone else b.share(tmp_path, budget):
            running.append(2 if alone else 1)
            counts.append(sum(running))
            await asyncio.sleep(0.01)
            running.pop()

    async def all_work() -> None:
        await asyncio.gather(*(work(n, alone=n % 3 == 0) for n in range(9)))

    asyncio.run(asyncio.wait_for(all_work(), 60))
    assert len(counts) == 9
    assert max(counts) == 2


def test_shares_are_common_to_all_processes(tmp_path: Path) -> None:
    """A share that another process holds is free once that process has ended, however it ended."""
    budget = b.BuildBudget(1, GIB, GIB)
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdin is not None
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"

    async def take() -> None:
        async with b.share(tmp_path, budget):
            pass

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(take(), 0.2))
    other.kill()
    asyncio.run(asyncio.wait_for(take(), 60))
    other.wait()
    other.stdin.close()
    other.stdout.close()


def _build(code: str, confinement: Confinement) -> BuildOutcome:
    return asyncio.run(build(BuildRequest(code, Dialect.CPP, Contract.HOST, "", {}, "any", "mine.cpp"), confinement))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (f"char a[1 << 30] = {{1}};\n{LAUNCH}", "the compiler wrote a file larger than 512 MiB"),
        (f'asm(".data\\n.fill 1<<40,1,7");\n{LAUNCH}', "the compiler wrote a file larger than 512 MiB"),
        (f"char a[100000000] = {{1}};\n{LAUNCH}", "the compiled binary has 95 MiB: at most 64 MiB"),
        (f'asm(".rept 2000000000\\n.long 1\\n.endr");\n{LAUNCH}', "the compiler ran out of memory: "),
        (
            '#if __INCLUDE_LEVEL__ < 190\n#warning 0123456789\n#include "kernel.cpp"\n#include "kernel.cpp"\n#endif\n',
            "the compiler printed more than 4 MiB",
        ),
        (f"#error out of memory\n{LAUNCH}", "1:2: error: #error out of memory"),
    ],
    ids=["initialised array", "fill", "large binary", "repetition", "warnings", "a quotation"],
)
@pytest.mark.usefixtures("cache_root")
def test_a_bomb_is_one_line(confinement: Confinement, cache_root: Path, code: str, reason: str) -> None:
    outcome = _build(code, confinement)
    assert isinstance(outcome, BuildFailure), outcome
    assert outcome.reason.startswith(("mine.cpp: " if reason.startswith("the") else "mine.cpp:") + reason)
    assert "\n" not in outcome.reason
    assert not outcome.timed_out
    assert len(outcome.log) <= 1 << 20
    assert list((cache_root / "work").iterdir()) == []


@pytest.mark.usefixtures("cache_root")
def test_a_build_that_needs_more_than_its_share_runs_again_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.setenv(b.MEMORY, "8.6")
    fake = tmp_path / "bin" / "g++"
    fake.parent.mkdir()
    enough = b.build_budget().alone_bytes // 1024
    body = "echo 'cc1plus: out of memory allocating 65536 bytes'; exit 1"
    fake.write_text(f"#!/bin/sh\n[ $(ulimit -v) -ge {enough} ] || {{ {body}; }}\necho built > kernel.so\n")
    fake.chmod(0o755)
    recipe = Recipe((str(fake),), "kernel.cpp", "kernel.so", ())
    request = BuildRequest(LAUNCH, Dialect.CPP, Contract.HOST, "", {}, "", "mine.cpp")
    confinement = LimitsOnly(limits=CommandLimits(seconds=20))
    assert b.build_budget().share_bytes * 2 < enough * 1024
    assert isinstance(asyncio.run(build_with(request, recipe, confinement)), Artefact)
    fake.write_text(f"#!/bin/sh\n{body}\n")
    outcome = asyncio.run(build_with(request, Recipe((str(fake),), "kernel.cpp", "kernel.so", ("other",)), confinement))
    assert isinstance(outcome, BuildFailure)
    assert outcome.reason == "mine.cpp: the compiler ran out of memory: 8.0 GiB"
