"""The bound of the build cache: which entries are evicted, and that none is while a process uses it."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.errors import EspalierError
from engine.domain.model import Contract, Dialect
from engine.sandbox.confinement import LimitsOnly
from engine.toolchain import cache_bound
from engine.toolchain.build import Artefact, BuildRequest, build
from engine.toolchain.cache import Cache, CacheEntry, digest
from engine.toolchain.cache_bound import Bound, CacheSize, trim, usage

ROOT = Path(__file__).resolve().parents[2]
DAY = 24 * 3600.0
PAGE = 4096


def _key(number: int) -> str:
    return f"{number:064x}"[::-1]


def _add(root: Path, number: int, *, pages: int = 1, age: float = 0.0) -> str:
    """An entry of about this size, last used this long ago."""
    key = _key(number)
    folder = root / key[:2] / key
    folder.mkdir(parents=True)
    (folder / "kernel.so").write_bytes(b"x" * PAGE * pages)
    (folder / "log.txt").write_text("")
    (folder / "entry.json").write_text("{}")
    used = time.time() - age
    os.utime(folder / "entry.json", (used, used))
    return key


@contextmanager
def _in_use(root: Path, keys: list[str]) -> Iterator[None]:
    """As in a process that found these entries, without counting as a use now."""
    before = {path: path.stat().st_mtime for path in root.glob("??/*/entry.json")}
    for key in keys:
        cache_bound.mark_used(root, key)
    for path, used in before.items():
        os.utime(path, (used, used))
    try:
        yield
    finally:
        if keys:
            os.close(cache_bound._lists.pop((root, os.getpid())).descriptor)


def _keys(root: Path) -> set[str]:
    return {path.name for path in root.glob("??/*")}


@dataclass(frozen=True, slots=True)
class _Entry:
    pages: int
    age: float
    in_use: bool


_ENTRIES = st.lists(
    st.builds(_Entry, st.integers(0, 20), st.integers(0, 40).map(DAY.__mul__), st.booleans()),
    max_size=12,
    unique_by=lambda e: e.age,
)


@pytest.mark.slow
@given(
    entries=_ENTRIES, pages=st.integers(0, 150), age=st.integers(0, 40).map(lambda days: (days + 0.5) * DAY) | st.just(math.inf)
)
def test_eviction_keeps_what_is_in_use_then_what_was_used_last(entries: list[_Entry], pages: int, age: float) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        keys = [_add(root, n, pages=entry.pages, age=entry.age) for n, entry in enumerate(entries)]
        known = dict(zip(keys, entries, strict=True))
        sizes = {key: sum(f.stat().st_blocks * 512 for f in (root / key[:2] / key).iterdir()) for key in keys}
        with _in_use(root, [key for key, entry in known.items() if entry.in_use]):
            deleted = trim(root, Bound(pages * PAGE, age))
        left = _keys(root)
        gone = set(known) - left
    unused = {key for key in left if not known[key].in_use}
    assert not any(known[key].in_use for key in gone)
    assert all(known[key].age <= age for key in unused)
    assert not unused or sum(sizes[key] for key in left) <= pages * PAGE
    too_large = [key for key in gone if known[key].age <= age]
    if too_large:  # evicted for size: whatever stayed was used later, and the last one evicted did not fit beside it
        last = min(too_large, key=lambda key: known[key].age)
        assert all(known[key].age <= known[last].age for key in unused)
        assert sum(sizes[key] for key in left) + sizes[last] > pages * PAGE
    assert deleted == CacheSize(len(gone), sum(sizes[key] for key in gone))


def test_the_entries_of_a_process_that_ended_are_evicted(tmp_path: Path) -> None:
    key = _add(tmp_path, 1)
    code = "import sys\nfrom pathlib import Path\nfrom engine.toolchain import cache_bound\n"
    code += "cache_bound.mark_used(Path(sys.argv[1]), sys.argv[2])\nprint('used', flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), key], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "used\n"
        assert trim(tmp_path, Bound(0, 0)) == CacheSize()
        assert _keys(tmp_path) == {key}
        other.kill()
        other.wait()
    assert trim(tmp_path, Bound(0, 0)).entries == 1
    assert _keys(tmp_path) == set()
    assert list((tmp_path / "use").iterdir()) == []
    assert list((tmp_path / "work").iterdir()) == []


def test_an_entry_that_is_found_counts_as_used_now(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    key = _add(tmp_path, 1, age=20 * DAY)
    folder = cache.folder(key)
    entry = CacheEntry(key, "kernel.so", digest(folder / "kernel.so"), 1.0, ())
    with cache.build_folder() as private:
        (private / "kernel.so").write_bytes((folder / "kernel.so").read_bytes())
        (private / "log.txt").write_text("")
        cache.publish(private, entry)
    os.utime(folder / "entry.json", (0, 0))
    assert cache.find(key) == entry
    assert time.time() - (folder / "entry.json").stat().st_mtime < 60
    assert cache.clear() == CacheSize()


_WORKER = """
import random, sys, time
from pathlib import Path
from engine.toolchain.cache import Cache, CacheEntry, digest
from engine.toolchain.cache_bound import Bound, trim
cache, seed = Cache(Path(sys.argv[1])), int(sys.argv[2])
chance, used = random.Random(seed), {}
until = time.monotonic() + 3
while time.monotonic() < until:
    key = f"{chance.randrange(40):02x}" * 32
    entry = cache.find(key)
    if entry is None:
        with cache.build_folder() as folder:
            (folder / "kernel.so").write_bytes(key.encode() * 100)
            (folder / "log.txt").write_text("")
            cache.publish(folder, CacheEntry(key, "kernel.so", digest(folder / "kernel.so"), 0.1, ()))
        entry = cache.find(key)
    assert entry is not None, f"{key} was evicted between two looks"
    used[key] = cache.folder(key) / entry.binary
    trim(cache.root, Bound(chance.choice([0, 20_000, 100_000]), 1e9))
    gone = [key for key, path in used.items() if not path.is_file()]
    assert not gone, f"evicted while in use: {gone}"
    if len(used) > 8:
        break
print(len(used))
"""


@pytest.mark.slow
def test_processes_that_build_and_evict_at_once_keep_what_they_use(tmp_path: Path) -> None:
    for round_ in range(3):
        commands = [[sys.executable, "-c", _WORKER, str(tmp_path), str(10 * round_ + n)] for n in range(4)]
        others = [subprocess.Popen(c, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for c in commands]
        for other in others:
            out, err = other.communicate(timeout=60)
            assert (other.returncode, err) == (0, "")
            assert int(out) > 0
    assert trim(tmp_path, Bound(0, 0)).entries > 0
    assert usage(tmp_path) == CacheSize()


def test_a_build_applies_the_bound_first(cache_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, young = _add(cache_root, 1, age=3 * DAY), _add(cache_root, 2, age=1 * DAY)
    monkeypatch.setenv("ESPALIER_CACHE_DAYS", "2")
    request = BuildRequest('extern "C" int launch() { return 1; }\n', Dialect.CPP, Contract.HOST, "", {}, "any", "mine.cpp")
    outcome = asyncio.run(build(request, LimitsOnly()))
    assert isinstance(outcome, Artefact)
    assert _keys(cache_root) == {young, outcome.key}
    assert old not in _keys(cache_root)
    assert not Cache(cache_root).needs_trim()


@pytest.mark.parametrize("name", ["ESPALIER_CACHE_GB", "ESPALIER_CACHE_DAYS"])
@pytest.mark.parametrize("text", ["many", "-1", "nan"])
def test_a_bound_that_is_not_a_number_is_one_line(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(EspalierError, match=rf"^{name} is '{text}': set it to a number of 0 or more, such as \d+, or to inf$"):
        cache_bound.bound()


def test_the_bound_is_5_gb_and_30_days_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ESPALIER_CACHE_GB", "ESPALIER_CACHE_DAYS"):
        monkeypatch.delenv(name, raising=False)
    assert str(cache_bound.bound()) == "at most 5 GB, 30 days unused"
    monkeypatch.setenv("ESPALIER_CACHE_GB", "0.5")
    monkeypatch.setenv("ESPALIER_CACHE_DAYS", "inf")
    assert str(cache_bound.bound()) == "at most 0.5 GB"


def test_a_cache_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert usage(tmp_path / "none") == CacheSize()
    assert trim(tmp_path / "none", Bound(0, 0)) == CacheSize()
    assert not (tmp_path / "none").exists()


def test_a_cache_deleted_while_it_is_used_protects_again(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    with _in_use(root, [_add(root, 1)]):
        subprocess.run(["rm", "-r", str(root)], check=True)
        key = _add(root, 2)
        cache_bound.mark_used(root, key)
        assert trim(root, Bound(0, 0)) == CacheSize()
        assert _keys(root) == {key}
