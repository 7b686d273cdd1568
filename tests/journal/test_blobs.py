"""Blobs: named by content, complete or absent, verified on reading."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.domain.errors import JournalCorrupt, JournalUnwritable
from engine.journal.blobs import Blobs, is_blob_name


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=2000))
def test_payloads_are_read_back_by_digest(tmp_path: Path, payload: bytes) -> None:
    blobs = Blobs(tmp_path)
    name = blobs.put(payload)
    assert name == hashlib.sha256(payload).hexdigest()
    assert blobs.get(name) == payload
    assert blobs.put(payload) == name


def test_no_folder_is_created_before_the_first_put(tmp_path: Path) -> None:
    Blobs(tmp_path / "s")
    assert not list(tmp_path.iterdir())


def test_text_round_trips_and_invalid_bytes_are_replaced(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    assert blobs.text(blobs.put("// µs → ×\r\n".encode())) == "// µs → ×\r\n"
    assert blobs.text(blobs.put(b"nvcc: \xff!")) == "nvcc: \ufffd!"


def test_missing_and_damaged_blobs_are_named(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    name = blobs.put(b"source")
    blobs.path(name).write_bytes(b"sour")
    with pytest.raises(JournalCorrupt, match=rf"blob {name} .* is damaged"):
        blobs.get(name)
    blobs.path(name).unlink()
    with pytest.raises(JournalCorrupt, match=rf"blob {name} is missing"):
        blobs.text(name)
    blobs.path(name).mkdir()
    with pytest.raises(JournalCorrupt, match="not a regular file"):
        blobs.get(name)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_blob_that_would_block_or_never_end_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    blobs = Blobs(tmp_path)
    name = blobs.put(b"source")
    blobs.path(name).unlink()
    make(blobs.path(name))
    with pytest.raises(JournalCorrupt, match=r"not a regular file.*copy it from the original"):
        blobs.get(name)


def test_a_truncated_blob_is_rewritten(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    name = blobs.put(b"source")
    blobs.path(name).write_bytes(b"sour")
    assert blobs.put(b"source") == name
    assert blobs.get(name) == b"source"


@pytest.mark.parametrize(
    "name", ["", "..", "../journal.jsonl", "a" * 63, "A" * 64, "g" * 64, "a" * 64 + "\n", "/etc/passwd", "é" * 64]
)
def test_invalid_blob_names_are_never_looked_up(tmp_path: Path, name: str) -> None:
    assert not is_blob_name(name)
    with pytest.raises(JournalCorrupt, match="invalid blob name"):
        Blobs(tmp_path).get(name)


def test_many_threads_can_store_payloads(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    payloads = [str(n % 10).encode() * 10_000 for n in range(100)]
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(blobs.put, payloads))
    assert [blobs.get(name) for name in names] == payloads
    assert len(list((tmp_path / "blobs").iterdir())) == 10


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_bytes(b"a file")
    with pytest.raises(JournalUnwritable, match=r"cannot write 6 bytes to .*blobs"):
        Blobs(tmp_path).put(b"source")


def test_a_failed_write_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(JournalUnwritable, match="No space left on device"):
        Blobs(tmp_path).put(b"source")
    assert not list((tmp_path / "blobs").iterdir())
