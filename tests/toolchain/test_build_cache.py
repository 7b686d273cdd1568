"""The build cache: keys, damaged entries, concurrent builds, a full disk."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.domain.errors import EspalierError
from engine.domain.model import Contract, Dialect
from engine.sandbox.confinement import Confinement, LimitsOnly
from engine.toolchain.build import Artefact, BuildFailure, BuildOutcome, BuildRequest, build
from engine.toolchain.cache import cache_folder

REQUEST = BuildRequest(
    '#include "problem.h"\nextern "C" int launch() { return N + A; }\n',
    Dialect.CPP,
    Contract.HOST,
    "#define N 4\n",
    {"A": 1},
    "any",
    "mine.cpp",
)
ROOT = Path(__file__).resolve().parents[2]


def _built(request: BuildRequest = REQUEST) -> Artefact:
    outcome = asyncio.run(build(request, LimitsOnly()))
    assert isinstance(outcome, Artefact)
    return outcome


def test_the_second_build_is_cached(cache_root: Path) -> None:
    first, second = _built(), _built()
    assert (first.cached, second.cached) == (False, True)
    assert dataclasses.replace(second, cached=False) == first
    assert first.binary.is_relative_to(cache_root)


@pytest.mark.slow
@pytest.mark.usefixtures("cache_root")
def test_the_key_covers_everything_the_binary_depends_on() -> None:
    key = _built().key
    assert _built(dataclasses.replace(REQUEST, name="other.cpp")).key == key
    different = [
        dataclasses.replace(REQUEST, code=REQUEST.code + "\n"),
        dataclasses.replace(REQUEST, header="#define N 5\n"),
        dataclasses.replace(REQUEST, tunables={"A": 2}),
    ]
    keys = {_built(request).key for request in different}
    assert len(keys | {key}) == 4


def _truncate(artefact: Artefact) -> None:
    artefact.binary.write_bytes(artefact.binary.read_bytes()[:100])


def _remove_binary(artefact: Artefact) -> None:
    artefact.binary.unlink()


def _remove_entry(artefact: Artefact) -> None:
    (artefact.folder / "entry.json").unlink()


def _garble_entry(artefact: Artefact) -> None:
    (artefact.folder / "entry.json").write_text("{]")


def _foreign_entry(artefact: Artefact) -> None:
    entry = json.loads((artefact.folder / "entry.json").read_text())
    (artefact.folder / "entry.json").write_text(json.dumps(entry | {"key": "0" * 64}))


def _remove_log(artefact: Artefact) -> None:
    (artefact.folder / "log.txt").unlink()


def _file_in_place(artefact: Artefact) -> None:
    shutil.rmtree(artefact.folder)
    artefact.folder.write_text("not a folder")


@pytest.mark.parametrize(
    "damage",
    [_truncate, _remove_binary, _remove_entry, _garble_entry, _foreign_entry, _remove_log, _file_in_place],
)
def test_a_damaged_entry_is_rebuilt(cache_root: Path, damage: Callable[[Artefact], None]) -> None:
    first = _built()
    damage(first)
    again = _built()
    assert (again.cached, again.key) == (False, first.key)
    assert _built().cached
    assert list((cache_root / "work").iterdir()) == []


class _Counting(LimitsOnly):
    """Counts the commands requested."""

    runs = 0

    def command(self, argv, readable, writable):  # type: ignore[no-untyped-def]
        type(self).runs += 1
        return super().command(argv, readable, writable)


@pytest.mark.usefixtures("cache_root")
def test_concurrent_builds_of_one_key_run_once() -> None:
    _Counting.runs = 0

    async def together() -> list[BuildOutcome]:
        bad = dataclasses.replace(REQUEST, code="nonsense")
        return await asyncio.gather(*(build(r, _Counting()) for r in [REQUEST, bad, REQUEST, bad, REQUEST]))

    outcomes = asyncio.run(together())
    assert _Counting.runs == 2
    assert outcomes[0] == outcomes[2] == outcomes[4]
    assert isinstance(outcomes[1], BuildFailure)
    assert outcomes[1] == outcomes[3]


@pytest.mark.usefixtures("cache_root")
def test_a_failure_names_the_requested_kernel() -> None:
    """Two kernels with the same code, built concurrently, do not share their messages."""
    requests = [dataclasses.replace(REQUEST, code="no C++", name=name) for name in ("one.cpp", "two.cpp")]

    async def both() -> list[BuildOutcome]:
        return await asyncio.gather(*(build(request, LimitsOnly()) for request in requests))

    reasons = [outcome.reason for outcome in asyncio.run(both()) if isinstance(outcome, BuildFailure)]
    assert [reason.partition(":")[0] for reason in reasons] == ["one.cpp", "two.cpp"]


def test_cancelling_one_waiter_does_not_stop_the_others(cache_root: Path) -> None:
    async def together() -> BuildOutcome:
        first = asyncio.create_task(build(REQUEST, LimitsOnly()))
        second = asyncio.create_task(build(REQUEST, LimitsOnly()))
        while not list(cache_root.glob("work/*/kernel.cpp")):
            await asyncio.sleep(0.005)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await second

    assert isinstance(asyncio.run(together()), Artefact)


def test_cancelling_the_last_waiter_stops_the_compiler(cache_root: Path) -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(build(REQUEST, LimitsOnly()))
        while not list(cache_root.glob("work/*/kernel.cpp")):
            await asyncio.sleep(0.005)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert list((cache_root / "work").iterdir()) == []
    assert not list(cache_root.glob("??/*"))


_OTHER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from engine.toolchain.build import Artefact, BuildRequest, build
from engine.sandbox.confinement import LimitsOnly
from engine.domain.errors import EspalierError
from engine.domain.model import Contract, Dialect
request = BuildRequest(Path(sys.argv[2]).read_text(), Dialect.CPP, Contract.HOST, "", {}, "any", "mine.cpp")
try:
    outcome = asyncio.run(build(request, LimitsOnly()))
except EspalierError as error:
    print("error:", error)
else:
    print(outcome.key if isinstance(outcome, Artefact) else outcome.reason)
"""


@pytest.mark.slow
def test_two_processes_build_one_key(cache_root: Path, tmp_path: Path) -> None:
    text = tmp_path / "kernel.cpp"
    text.write_text('#include <vector>\nextern "C" int launch() { return 7; }\n')
    words = [sys.executable, "-c", _OTHER, str(ROOT), str(text)]
    others = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    keys = {other.communicate(timeout=120)[0] for other in others}
    assert len(keys) == 1
    (entry,) = cache_root.glob("??/*")
    assert entry.name == keys.pop().strip()
    assert list((cache_root / "work").iterdir()) == []


def test_leftovers_of_killed_processes_are_removed(cache_root: Path) -> None:
    _built()
    old, young = cache_root / "work" / "build-old", cache_root / "work" / "build-young"
    for folder in (old, young):
        folder.mkdir()
        (folder / "kernel.cpp").write_text("")
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    _built(dataclasses.replace(REQUEST, tunables={"A": 9}))
    assert list((cache_root / "work").iterdir()) == [young]


def test_a_cache_that_cannot_be_created_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(EspalierError, match=rf"the build cache {tmp_path}/file/cache/build cannot be used") as caught:
        _built()
    assert "ESPALIER_CACHE" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("comment_bytes", [0, 200_000], ids=["compiler", "source"])
def test_a_full_disk_is_one_line(bubblewrap: Confinement, tmp_path: Path, comment_bytes: int) -> None:
    """In a separate mount namespace, the cache gets a disk of 64 KiB."""
    full, scratch, text = tmp_path / "disk", tmp_path / "scratch", tmp_path / "kernel.cpp"
    full.mkdir()
    scratch.mkdir()
    text.write_text("//" + "x" * comment_bytes + '\nextern "C" int launch() { return 1; } int big[60000] = {1};\n')
    disks = ["--ro-bind", "/", "/", "--dev", "/dev", "--size", "65536", "--tmpfs", str(full), "--bind", *[str(scratch)] * 2]
    settings = ["--setenv", "ESPALIER_CACHE", str(full), "--setenv", "TMPDIR", str(scratch)]
    words = ["bwrap", *disks, *settings, sys.executable, "-c", _OTHER, str(ROOT), str(text)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    if "--size" in result.stderr:
        pytest.skip("this bubblewrap cannot make a small disk")
    assert result.stdout.startswith(f"error: the build cache {full}/build"), result
    assert len(result.stdout.splitlines()) == 1


def test_the_folder_is_the_user_s_cache_unless_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ESPALIER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "espalier" / "build"
    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine" / "build"
