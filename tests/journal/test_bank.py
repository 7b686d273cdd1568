"""The bank: which kernels it offers as seeds, and in which order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import builders as b
from support.stored import stored

from engine.domain import events as e
from engine.journal import store, user_folders
from engine.journal.bank import banked_kernels
from engine.journal.blobs import Blobs
from engine.journal.journal import NAME


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(user_folders.HOME, str(tmp_path))
    monkeypatch.setattr(store, "shipped_root", lambda: None)
    return tmp_path / "sessions"


def kernels(*made: tuple[e.Event, ...], name: str = "softmax", device: str = "two cores") -> tuple[e.Event, ...]:
    return (
        b.opened(name=name),
        b.prepared(name=device),
        e.RoundOpened(0, ()),
        b.proposed("i1"),
        *(ev for way in made for ev in way),
    )


def test_an_empty_store_has_an_empty_bank() -> None:
    assert banked_kernels() == []


def test_a_bank_entry_has_its_measurement_and_origin(root: Path) -> None:
    folder = stored(root / "s", kernels(b.measured_kernel("k1", 2.0, tunables={"BLOCK": 4})))
    (entry,) = banked_kernels()
    assert (entry.problem, entry.workload, entry.device, entry.baseline) == ("softmax", "small", "two cores", "eager")
    assert (entry.kernel, entry.session, entry.name, entry.tunables) == ("k1", folder, "k1.cpp", {"BLOCK": 4})
    assert entry.idea == b.idea_text(1).title
    assert entry.speedup == b.interval(2.0)
    assert entry.source_path.read_bytes() == b"source of k1"


def test_only_verified_precise_corroborated_kernels_of_the_present_device_count(root: Path) -> None:
    screened = (
        b.drafted("k2"),
        b.built("k2"),
        b.verified("k2"),
        e.KernelMeasured("k2", b.measurement(9.0, depth="screen"), 0.0),
    )
    doubtful = (*b.measured_kernel("k3")[:3], e.KernelMeasured("k3", b.measurement(9.0, corroborated=False), 0.0))
    failed = (*b.measured_kernel("k4", 9.0), e.KernelReopened("k4", ""), e.KernelFailed("k4", b.failure()))
    names = tuple(f"source of k{n}" for n in range(1, 5))
    stored(root / "s", kernels(screened, doubtful, failed, b.measured_kernel("k1", 1.1)), blobs=names)
    assert [entry.kernel for entry in banked_kernels()] == ["k1"]
    stored(root / "moved", (*kernels(b.measured_kernel("k1", 1.1)), b.prepared(name="other machine")), blobs=names)
    assert [entry.session.name for entry in banked_kernels()] == ["s"]


def test_the_best_come_first_by_the_lower_end(root: Path) -> None:
    wide = replace(b.measurement(3.0), speedup={"eager": b.interval(3.0, 0.9)})
    ways = (b.measured_kernel("k1", 1.5), (*b.measured_kernel("k2")[:3], e.KernelMeasured("k2", wide, 0.0)))
    stored(root / "s", kernels(*ways))
    assert [entry.kernel for entry in banked_kernels()] == ["k1", "k2"]


def test_a_kernel_of_many_sessions_is_one_entry_with_its_latest_measurement(root: Path) -> None:
    same: dict[str, Any] = {"source": "one source", "tunables": {"BLOCK": 4}}
    stored(root / "old", kernels(b.measured_kernel("k1", 3.0, **same)), blobs=["one source"])
    stored(root / "new", kernels(b.measured_kernel("k1", 2.0, **same)), at=b.START + 500, blobs=["one source"])
    other = b.measured_kernel("k1", 1.2, source="one source", tunables={"BLOCK": 8})
    stored(root / "tuned", kernels(other), blobs=["one source"])
    stored(root / "elsewhere", kernels(b.measured_kernel("k1", 5.0, **same), device="sixteen cores"), blobs=["one source"])
    assert [(entry.session.name, entry.speedup.value) for entry in banked_kernels()] == [
        ("elsewhere", 5.0),
        ("new", 2.0),
        ("tuned", 1.2),
    ]


def test_unreadable_sessions_and_missing_code_are_skipped(root: Path) -> None:
    good = stored(root / "good", kernels(b.measured_kernel("k1")))
    stored(root / "gone", kernels(b.measured_kernel("k1", source="gone")), blobs=[])
    stored(root / "forged", kernels((replace(b.drafted(), source="../../x"), *b.measured_kernel("k1")[1:])))
    (root / "broken").mkdir()
    (root / "broken" / NAME).write_bytes(b"{}\n{}\n")
    assert [entry.session for entry in banked_kernels()] == [good]
    assert banked_kernels()[0].source_path == Blobs(good).path(b.digest("source of k1"))
