"""A session as one file: packing, unpacking, and hostile archives."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support import builders as b
from support.stored import stored

from engine.domain import events as e
from engine.domain.errors import JournalCorrupt, JournalError, JournalUnwritable
from engine.export import bundle
from engine.export.bundle import pack, references, unpack
from engine.journal.blobs import Blobs
from engine.journal.journal import NAME, read


@pytest.fixture
def session(tmp_path: Path) -> Path:
    more = (
        e.KernelFailed("k1", b.failure()),
        e.UnknownEvent("llm.called", {"prompt": b.digest("prompt"), "n": [b.digest("no")]}),
    )
    return stored(tmp_path / "s", (*b.first_round(1.5), *more), blobs=("prompt", "rubbish", *blob_texts()))


def blob_texts() -> tuple[str, ...]:
    return ("source of k1", "log", "problem.h", "compiler output", "samples 1.0", "samples 1.3", "samples 1.5")


@pytest.fixture
def archive(session: Path, tmp_path: Path) -> Path:
    return pack(session, tmp_path / "s.tar.gz")


def test_a_session_survives_packing_without_unreferenced_blobs(session: Path, archive: Path, tmp_path: Path) -> None:
    back = unpack(archive, tmp_path / "there" / "s")
    assert read(back) == read(session)
    assert {p.name for p in (back / "blobs").iterdir()} == {b.digest(text) for text in ("prompt", *blob_texts())}
    assert Blobs(back).text(b.digest("source of k1")) == "source of k1"
    assert sorted(p.name for p in back.iterdir()) == ["blobs", NAME]
    assert sorted(p.name for p in back.parent.iterdir()) == ["s"]


def test_packing_is_deterministic(session: Path, archive: Path, tmp_path: Path) -> None:
    assert pack(session, tmp_path / "again.tar.gz").read_bytes() == archive.read_bytes()
    assert pack(unpack(archive, tmp_path / "t"), tmp_path / "third.tar.gz").read_bytes() == archive.read_bytes()


def test_every_declared_blob_is_a_reference() -> None:
    revised = (e.AttemptFailed("k1", 0, b.failure()), e.AttemptRevised("k1", 1, "f" * 64))
    events = (b.prepared(), b.drafted(), b.built(), b.verified(), b.measured(speedup=2.0), *revised)
    named = ("problem.h", "samples 1.0", "samples 1.3", "source of k1", "log", "samples 1.5", "samples 2.0", "compiler output")
    assert set(references(b.entries(events))) == {*(b.digest(text) for text in named), "f" * 64}


def test_a_torn_line_is_not_packed(session: Path, tmp_path: Path) -> None:
    whole = read(session)
    with (session / NAME).open("ab") as file:
        file.write(b'{"v":1,')
    assert read(unpack(pack(session, tmp_path / "x.tar.gz"), tmp_path / "y")) == whole


def test_a_bundle_unpacks_into_an_empty_folder(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert read(unpack(archive, tmp_path / "empty")).entries


@pytest.mark.parametrize("blob", ["source of k1", "samples 1.5"])
def test_a_session_with_a_missing_or_damaged_blob_is_not_packed(session: Path, tmp_path: Path, blob: str) -> None:
    path = Blobs(session).path(b.digest(blob))
    for spoil in (lambda: path.write_bytes(b"!"), path.unlink):
        spoil()
        with pytest.raises(JournalCorrupt, match=b.digest(blob)):
            pack(session, tmp_path / "x.tar.gz")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s"]


def test_a_bundle_that_cannot_be_written_is_an_error(session: Path, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"use a name that ends in \.tar\.gz"):
        pack(session, tmp_path / "x.zip")
    with pytest.raises(JournalUnwritable, match="restore its folder, or name another one"):
        pack(session, tmp_path / "nowhere" / "x.tar.gz")


def test_a_bundle_that_cannot_be_unpacked_is_an_error(archive: Path, session: Path, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="already exists"):
        unpack(archive, session)
    with pytest.raises(JournalError, match="already exists"):
        unpack(archive, archive)
    with pytest.raises(JournalError, match=r"cannot read bundle .*nothing\.tar\.gz"):
        unpack(tmp_path / "nothing.tar.gz", tmp_path / "y")
    with pytest.raises(JournalUnwritable):
        unpack(archive, archive / "below")


def test_a_full_disk_is_no_loss_of_what_was_not_there(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It advised to continue the session, and said that what it had recorded is kept: there is no session yet."""

    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(JournalUnwritable, match=r"No space left on device\): free some space, then repeat the command$"):
        unpack(archive, tmp_path / "new")
    assert not list(tmp_path.glob(".unpacking-*"))


def _parts(archive: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(archive) as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def _file(name: str, payload: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size = len(payload)
    return member, payload


def _link(name: str, kind: bytes, target: str) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = target
    return member, b""


def _extended(part: tuple[tarfile.TarInfo, bytes]) -> tuple[tarfile.TarInfo, bytes]:
    part[0].pax_headers = {"comment": "x" * 10}
    return part


Parts = list[tuple[tarfile.TarInfo, bytes]]


def _unsummed(parts: Parts) -> Parts:
    return [part for part in parts if part[0].name != bundle.SUMS]


def _summed(parts: Parts) -> Parts:
    """The parts with matching checksums."""
    rest = _unsummed(parts)
    lines = "".join(f"{hashlib.sha256(payload).hexdigest()}  {member.name}\n" for member, payload in rest)
    return [_file(bundle.SUMS, lines.encode()), *rest]


_BLOB = "blobs/" + "a" * 64
_ATTACKS: dict[str, Callable[[Parts], Parts]] = {
    "climbs out": lambda p: [*p, _file("../evil")],
    "climbs out of blobs": lambda p: [*p, _file("blobs/../../evil")],
    "absolute": lambda p: [*p, _file("/tmp/espalier-evil")],
    "unexpected name": lambda p: [*p, _file("lock")],
    "upper-case blob": lambda p: [*p, _file("blobs/" + "A" * 64)],
    "folder": lambda p: [*p, _link("blobs", tarfile.DIRTYPE, "")],
    "symbolic link": lambda p: [*p, _link(_BLOB, tarfile.SYMTYPE, "/etc/passwd")],
    "hard link": lambda p: [*p, _link(_BLOB, tarfile.LNKTYPE, NAME)],
    "journal is a link": lambda p: [_link(NAME, tarfile.SYMTYPE, "/etc/passwd"), *p[2:]],
    "device": lambda p: [*p, _link(_BLOB, tarfile.CHRTYPE, "")],
    "fifo": lambda p: [*p, _link(_BLOB, tarfile.FIFOTYPE, "")],
    "twice": lambda p: [*p, p[-1]],
    "journal twice": lambda p: [*p, p[1]],
    "no checksums": _unsummed,
    "checksums of nothing": lambda p: [_file(bundle.SUMS, b"\xff\n\n"), *_unsummed(p)],
    "no journal": lambda p: _summed([part for part in p if part[0].name != NAME]),
    "a blob less": lambda p: p[:-1],
    "a blob less, and its checksum": lambda p: _summed(p[:-1]),
    "a blob more": lambda p: [*p, _file(_BLOB)],
    "a blob under another's name": lambda p: _summed([*p, _file(_BLOB)]),
    "journal changed": lambda p: [p[0], _file(NAME, p[1][1].replace(b"two cores", b"ten cores")), *p[2:]],
    "journal of another format": lambda p: _summed([_file(NAME, b"{}\n" + p[1][1]), *p[2:]]),
    "nothing": lambda p: [],
    "extended header": lambda p: [_extended(p[0]), *p[1:]],
}


@pytest.mark.parametrize("name", _ATTACKS)
def test_a_hostile_archive_is_rejected_and_leaves_nothing(name: str, archive: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "hostile" / "h.tar.gz"
    hostile.parent.mkdir()
    with tarfile.open(hostile, "w:gz") as tar:
        for member, payload in _ATTACKS[name](_parts(archive)):
            tar.addfile(member, io.BytesIO(payload))
    with pytest.raises(JournalCorrupt) as caught:
        unpack(hostile, tmp_path / "hostile" / "out")
    assert "\n" not in str(caught.value)
    assert [p.name for p in hostile.parent.iterdir()] == ["h.tar.gz"]


def test_an_archive_written_by_another_program_is_accepted(archive: Path, tmp_path: Path) -> None:
    """Each attack above differs from this archive in one way."""
    with tarfile.open(tmp_path / "again.tar.gz", "w:gz") as tar:
        for member, payload in _summed(_parts(archive)):
            tar.addfile(member, io.BytesIO(payload))
    assert read(unpack(tmp_path / "again.tar.gz", tmp_path / "out")).entries


@pytest.mark.parametrize("suffix", bundle.SUFFIXES)
def test_every_suffix_packs_and_unpacks(suffix: str, session: Path, tmp_path: Path) -> None:
    packed = pack(session, tmp_path / f"mine{suffix}")
    assert bundle.session_name(packed) == "mine"
    assert (packed.read_bytes()[:2] == b"\x1f\x8b") == (suffix != ".tar")
    assert read(unpack(packed, tmp_path / "out")).entries == read(session).entries


@pytest.mark.parametrize("limit", ["LARGEST_MEMBER", "LARGEST_ARCHIVE"])
def test_a_bundle_that_is_too_large_is_rejected_before_it_is_written(
    limit: str, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, limit, 700)
    with pytest.raises(JournalCorrupt, match="more than any session needs"):
        unpack(archive, tmp_path / "out")


@pytest.mark.slow
def test_a_truncated_bundle_is_rejected(archive: Path, tmp_path: Path) -> None:
    data = archive.read_bytes()
    short = tmp_path / "short.tar.gz"
    plain = tmp_path / "plain.tar.gz"
    for cut in range(0, len(data), max(1, len(data) // 60)):
        short.write_bytes(data[:cut])
        plain.write_bytes(gzip.compress(gzip.decompress(data)[: cut * 3]))
        for path in (short, plain):
            with pytest.raises(JournalCorrupt, match=r"bundle .*\.tar\.gz"):
                unpack(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
