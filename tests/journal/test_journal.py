"""The journal on disk: appending, locking, reading during writes, and every kind of damage."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support import builders as b
from support.stored import stored

from engine.domain import events as e
from engine.domain.errors import JournalCorrupt, JournalError, JournalLocked, JournalTooNew, JournalUnwritable
from engine.domain.figures import Interval, SpeedOfLight
from engine.domain.model import ENGINE, ENGINEER
from engine.journal import codec, journal
from engine.journal.journal import NAME, Journal, JournalContents, read, tail, whole_lines
from engine.journal.lock import is_written

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A session with four events, closed."""
    path = tmp_path / "softmax-1"
    with Journal.create(path) as log:
        log.append((b.opened(), b.prepared()), ENGINE, lambda: b.START)
        log.append((e.RoundOpened(0, ()), e.NoteAdded("", "half\u2028a line…")), ENGINEER, lambda: b.START + 1.5)
    return path


def lines(folder: Path) -> list[bytes]:
    return (folder / NAME).read_bytes().splitlines(keepends=True)


def rewrite(folder: Path, *content: bytes) -> None:
    (folder / NAME).write_bytes(b"".join(content))


def reopened(folder: Path) -> tuple[tuple[e.Entry, ...], str]:
    log, entries, repaired = Journal.open_for_append(folder)
    log.close()
    return entries, repaired


def test_appended_events_are_read_back_with_gapless_numbers(folder: Path) -> None:
    recording = read(folder)
    assert [entry.seq for entry in recording.entries] == [0, 1, 2, 3]
    assert [entry.by for entry in recording.entries] == [ENGINE, ENGINE, ENGINEER, ENGINEER]
    assert recording.entries[0].event == b.opened()
    assert recording.entries[3] == e.Entry(3, b.START + 1.5, ENGINEER, e.NoteAdded("", "half\u2028a line…"))
    assert not recording.torn


def test_append_returns_the_entries_that_readers_see(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "s") as log:
        odd = (b.opened(), e.NoteAdded("", "broken \udcff"))
        written = log.append(odd, ENGINE, lambda: b.START + 0.123_456_789)
    assert written == read(tmp_path / "s").entries
    assert written[1].event == e.NoteAdded("", "broken \ufffd")


def test_a_session_resumes_where_it_stopped(folder: Path) -> None:
    log, entries, repaired = Journal.open_for_append(folder)
    with log:
        assert (entries, repaired) == (read(folder).entries, "")
        assert log.append((), ENGINE, lambda: 0.0) == ()
        log.append((e.SessionResumed(()),), ENGINE, lambda: b.START + 9)
    assert [entry.seq for entry in read(folder).entries] == [0, 1, 2, 3, 4]


def test_appended_events_are_visible_before_the_journal_is_closed(folder: Path) -> None:
    log, _, _ = Journal.open_for_append(folder)
    with log:
        log.append((e.SessionResumed(()),), ENGINE, lambda: b.START + 9)
        assert len(read(folder).entries) == 5
        log.sync()


def test_closing_twice_does_nothing(folder: Path) -> None:
    log, _, _ = Journal.open_for_append(folder)
    log.close()
    log.close()
    assert reopened(folder)[1] == ""


def test_the_first_event_must_open_the_session(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "s") as log, pytest.raises(ValueError, match=r"session\.opened"):
        log.append((b.prepared(),), ENGINE, lambda: b.START)


def test_blobs_are_stored_beside_the_journal(folder: Path) -> None:
    log, _, _ = Journal.open_for_append(folder)
    with log:
        name = log.blobs.put(b"__global__ void k() {}")
    assert (folder / "blobs" / name).read_bytes() == b"__global__ void k() {}"


# ---------------------------------------------------------------- creating


def test_a_folder_with_a_session_is_not_overwritten(folder: Path) -> None:
    before = (folder / NAME).read_bytes()
    with pytest.raises(JournalError, match="already holds a session"):
        Journal.create(folder)
    assert (folder / NAME).read_bytes() == before
    assert reopened(folder)[1] == ""


@pytest.mark.parametrize("left", [b"", b'{"v":1,"seq":0,"at":"2026'])
def test_a_start_killed_before_its_first_event_does_not_block_the_folder(tmp_path: Path, left: bytes) -> None:
    (tmp_path / NAME).write_bytes(left)
    with Journal.create(tmp_path) as log:
        log.append((b.opened(),), ENGINE, lambda: b.START)
    assert len(read(tmp_path).entries) == 1
    assert [p.read_bytes() for p in tmp_path.glob("journal.torn-*")] == ([left] if left else [])


def test_a_file_cannot_be_a_session_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(JournalError, match=r"notes\.txt is a file"):
        Journal.create(tmp_path / "notes.txt")
    with pytest.raises(JournalUnwritable, match="Not a directory"):
        Journal.create(tmp_path / "notes.txt" / "below")


# ---------------------------------------------------------------- locking


def test_a_second_writer_is_rejected_with_the_pid_of_the_first(folder: Path) -> None:
    log, _, _ = Journal.open_for_append(folder)
    with log:
        with pytest.raises(JournalLocked, match=rf"open in process {os.getpid()} since 20\d\d-"):
            Journal.open_for_append(folder)
        with pytest.raises(JournalLocked):
            Journal.create(folder)
        assert len(read(folder).entries) == 4
    assert reopened(folder)[1] == ""


_HOLD = """
import sys, time
from pathlib import Path
from engine.journal.journal import Journal
log, _, _ = Journal.open_for_append(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.slow
def test_the_lock_of_a_killed_process_is_released(folder: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(JournalLocked, match=rf"process {holder.pid} since"):
        Journal.open_for_append(folder)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert len(reopened(folder)[0]) == 4


_FORK = """
import os, sys
from pathlib import Path
from engine.journal.journal import Journal
log, _, _ = Journal.open_for_append(Path(sys.argv[1]))
if os.fork():
    os._exit(0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_lock_inherited_by_a_child_is_reported_as_such(folder: Path) -> None:
    command = [sys.executable, "-c", _FORK, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "held\n"
        parent.wait()
        with pytest.raises(JournalLocked, match=rf"locked by a child of process {parent.pid}, which has ended"):
            Journal.open_for_append(folder)


# ---------------------------------------------------------------- repair


def test_a_torn_last_line_is_set_aside_and_reported(folder: Path) -> None:
    whole = lines(folder)
    rewrite(folder, *whole[:3], whole[3][:40])
    assert read(folder) == JournalContents(tuple(codec.decode(line) for line in whole[:3]), torn=codec.CUT_SHORT)
    entries, repaired = reopened(folder)
    assert len(entries) == 3
    assert repaired == "set a torn last line of 40 bytes aside as journal.torn-1"
    assert (folder / "journal.torn-1").read_bytes() == whole[3][:40]
    assert lines(folder) == whole[:3]
    assert reopened(folder)[1] == ""


def test_torn_lines_of_several_crashes_are_all_kept(folder: Path) -> None:
    for number in (1, 2, 3):
        with (folder / NAME).open("ab") as file:
            file.write(b'{"v":1,"seq"' + b" " * number)
        assert f"journal.torn-{number}" in reopened(folder)[1]
    assert sorted(p.name for p in folder.glob("journal.torn-*")) == ["journal.torn-1", "journal.torn-2", "journal.torn-3"]


def test_a_missing_last_newline_is_added(folder: Path) -> None:
    whole = lines(folder)
    rewrite(folder, *whole[:3], whole[3].rstrip(b"\n"))
    assert len(read(folder).entries) == 4
    log, entries, repaired = Journal.open_for_append(folder)
    with log:
        assert (len(entries), repaired) == (4, "completed the last line, which lacked its newline")
        log.append((e.SessionReopened(),), ENGINE, lambda: b.START + 5)
    assert lines(folder)[:4] == whole
    assert len(read(folder).entries) == 5
    assert not list(folder.glob("journal.torn-*"))


@pytest.mark.parametrize("rubbish", [b"\x00" * 4096, b"\x00" * 10 + b"\n", b"\xff\xfe", b'{"v":1,"se\n'])
def test_garbage_after_a_power_cut_is_set_aside(folder: Path, rubbish: bytes) -> None:
    whole = (folder / NAME).read_bytes()
    rewrite(folder, whole, rubbish)
    assert read(folder).torn
    assert "journal.torn-1" in reopened(folder)[1]
    assert (folder / NAME).read_bytes() == whole
    assert (folder / "journal.torn-1").read_bytes() == rubbish


@pytest.mark.slow
def test_cut_at_any_byte_it_loses_at_most_the_event_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every prefix of a journal: complete lines are kept, the rest is set aside, and the session continues."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    events = (b.opened(), e.RoundOpened(0, ()), b.proposed("i1"), e.IdeaSelected("i1"), b.drafted(), b.verified(), b.measured())
    with Journal.create(tmp_path / "whole") as log:
        expected = log.append(events, ENGINE, lambda: b.START)
    data = (tmp_path / "whole" / NAME).read_bytes()
    ends = [n for n, byte in enumerate(data) if byte == ord("\n")]
    folder = tmp_path / "cut"
    folder.mkdir()
    for cut in range(len(data) + 1):
        for left in folder.glob("journal.torn-*"):
            left.unlink()
        rewrite(folder, data[:cut])
        whole = sum(end <= cut for end in ends)
        if whole == 0:
            with pytest.raises(JournalCorrupt, match="has no complete event"):
                read(folder)
            with pytest.raises(JournalCorrupt, match="has no complete event"):
                Journal.open_for_append(folder)
            assert (folder / NAME).read_bytes() == data[:cut]
            continue
        assert read(folder).entries == expected[:whole]
        log, entries, repaired = Journal.open_for_append(folder)
        assert entries == expected[:whole]
        torn = b"".join(p.read_bytes() for p in folder.glob("journal.torn-*"))
        assert bool(repaired) == (cut not in {0} | {end + 1 for end in ends})
        assert torn == (b"" if cut in ends else data[data.rfind(b"\n", 0, cut) + 1 : cut])
        log.append((e.SessionResumed((), repaired),), ENGINE, lambda: b.START + 60)
        log.close()
        assert [entry.seq for entry in read(folder).entries] == list(range(whole + 1))


_WRITE = """
import sys, time
from pathlib import Path
sys.path.insert(0, "tests")
from support import builders as b
from engine.domain import events as e
from engine.journal.journal import Journal
log = Journal.create(Path(sys.argv[1]))
log.append((b.opened(),), b.ENGINE, time.time)
print("writing", flush=True)
number = 0
while True:
    log.append(tuple(e.NoteAdded("", f"{number + k} " + "x" * 3000) for k in range(3)), b.ENGINE, time.time)
    number += 3
"""


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.002, 0.01, 0.03])
def test_a_kill_during_a_write_loses_no_complete_line(tmp_path: Path, delay: float) -> None:
    folder = tmp_path / "killed"
    with subprocess.Popen([sys.executable, "-c", _WRITE, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        time.sleep(delay)
        process.kill()
    before = (folder / NAME).read_bytes()
    entries, repaired = reopened(folder)
    assert (folder / NAME).read_bytes() == before[: before.rfind(b"\n") + 1]
    assert bool(repaired) == (not before.endswith(b"\n"))
    assert [entry.event.text.split()[0] for entry in entries[1:] if isinstance(entry.event, e.NoteAdded)] == [
        str(n) for n in range(len(entries) - 1)
    ]


# ---------------------------------------------------------------- unreadable journals


def test_a_missing_session_and_a_folder_without_one(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "file").touch()
    for attempt in (read, Journal.open_for_append, whole_lines, lambda f: tail(f).poll()):
        with pytest.raises(JournalError, match="nowhere not found"):
            attempt(tmp_path / "nowhere")
        with pytest.raises(JournalError, match=r"photos is not a session: it has no journal\.jsonl"):
            attempt(tmp_path / "photos")
        with pytest.raises(JournalError, match="file not found"):
            attempt(tmp_path / "file")
    assert not list((tmp_path / "photos").iterdir()), "looking must not leave a lock behind"


def test_an_empty_journal_and_one_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / NAME).touch()
    with pytest.raises(JournalCorrupt, match="has no complete event: restore it from a copy"):
        read(tmp_path)
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).mkdir()
    with pytest.raises(JournalError, match="cannot be read"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [(-2.0, -3.0, -1.0), (2.0, 3.0, 1.0), (9.0, 1.0, 3.0), (math.nan, math.nan, math.nan), (2.0, math.nan, 3.0)],
)
def test_an_interval_that_no_measurement_gives_is_damage(tmp_path: Path, value: float, low: float, high: float) -> None:
    path = tmp_path / "edited"
    edited = e.SessionPrepared(b.device(), replace(b.preparation(), same=Interval(value, low, high)))
    with Journal.create(path) as log:
        log.append((b.opened(), edited), ENGINE, lambda: b.START)
    with pytest.raises(JournalCorrupt, match=r"has an interval that no measurement gives \("):
        read(path)


def test_it_is_damage_in_every_event_that_has_one(tmp_path: Path) -> None:
    path = tmp_path / "edited"
    edited = e.KernelSustained("k1", 0, replace(b.sustained(1.2), time_us=Interval(2.0, 3.0, 4.0)))
    with Journal.create(path) as log:
        log.append((*b.first_round(), edited), ENGINE, lambda: b.START)
    with pytest.raises(JournalCorrupt, match=r"has an interval that no measurement gives \("):
        read(path)


@pytest.mark.parametrize("share", [-0.5, math.nan])
def test_a_share_of_sol_that_no_measurement_gives_is_damage(tmp_path: Path, share: float) -> None:
    path = tmp_path / "edited"
    measured = b.measured("k1")
    light = SpeedOfLight("bytes", 431.0, share)
    edited = replace(measured, measurement=replace(measured.measurement, light=light))
    events = [edited if isinstance(one, e.KernelMeasured) else one for one in b.first_round()]
    with Journal.create(path) as log:
        log.append(events, ENGINE, lambda: b.START)
    with pytest.raises(JournalCorrupt, match=r"has a share of SOL that no measurement gives \("):
        read(path)


@pytest.mark.parametrize("at", [-62_135_596_800.0, 253_402_300_799.0])
def test_a_time_without_a_date_in_every_time_zone_is_damage(tmp_path: Path, at: float) -> None:
    path = tmp_path / "edited"
    with Journal.create(path) as log:
        log.append((b.opened(), b.prepared()), ENGINE, lambda: at)
    with pytest.raises(JournalCorrupt, match=r"^line 1 of \S+ has a time outside the years 1 to 9999: restore"):
        read(path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda w: [w[0], b"garbage\n", w[2], w[3]], r"line 2 of .*journal\.jsonl cannot be read"),
        (lambda w: [w[0], b"garbage\n", w[2][:30]], r"line 2 of .*journal\.jsonl cannot be read"),
        (lambda w: [w[0], w[1][:50], w[2], w[3]], r"line 2 of .*journal\.jsonl cannot be read"),
        (lambda w: [w[0], b"\n", w[1], w[2]], r"line 2 of .*journal\.jsonl cannot be read"),
        (lambda w: [w[0], w[2], w[3]], r"line 2 of .*journal\.jsonl has sequence number 2, not 1 \(events are missing"),
        (
            lambda w: [w[0], w[1], w[1], w[2]],
            r"line 3 of .*journal\.jsonl has sequence number 1, not 2 \(events are repeated .* keep its first 2 lines",
        ),
        (lambda w: w[1:], r"line 1 of .*journal\.jsonl has sequence number 1, not 0"),
        (lambda w: [w[2].replace(b'"seq":2', b'"seq":0')], r"line 1 of .*journal\.jsonl is not session\.opened"),
        (lambda w: [w[0], w[1], w[2], w[3].replace(b'"text":', b'"test":')], r"line 4 .* missing required field `text`"),
        (lambda w: [w[0], w[3].replace(b'"text":', b'"test":').rstrip(b"\n")], r"line 2 .* missing required field `text`"),
        (
            lambda w: [w[0], w[1].replace(b'"seq":1', b'"seq":' + b"9" * 400)],
            r"line 2 of .*journal\.jsonl has sequence number 9{20}… \(400 digits\), not 1 ",
        ),
        (lambda w: [*w, *w], r"line 5 of .*journal\.jsonl has sequence number 0, not 4"),
    ],
)
def test_damage_before_the_end_is_named_and_not_repaired(folder: Path, damage: object, words: str) -> None:
    rewrite(folder, *damage(lines(folder)))  # type: ignore[operator]
    before = (folder / NAME).read_bytes()
    for attempt in (read, Journal.open_for_append, whole_lines):
        with pytest.raises(JournalCorrupt, match=words):
            attempt(folder)
    assert (folder / NAME).read_bytes() == before
    assert not list(folder.glob("journal.torn-*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [read, whole_lines, Journal.open_for_append, lambda folder: tail(folder).poll()],
    ids=["read", "copy", "resume", "follow"],
)
def test_gigabytes_of_zeros_after_the_events_are_named_and_not_read(folder: Path, use: Callable[[Path], object]) -> None:
    """A file system that lost the end of a file can leave its length: here a hole of 1 GiB."""
    events = len(lines(folder))
    os.truncate(folder / NAME, 1 << 30)
    before = bytes_read()
    with pytest.raises(JournalCorrupt, match=rf"line {events + 1} of .* is longer than 64 MiB: .* first {events} lines"):
        use(folder)
    assert bytes_read() - before < 4 * journal.LONGEST_LINE
    assert (folder / NAME).stat().st_size == 1 << 30


def bytes_read() -> int:
    """Bytes that this process has read."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_an_event_that_no_reader_would_accept_is_not_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (folder / NAME).read_bytes()
    monkeypatch.setattr(journal, "LONGEST_LINE", max(map(len, lines(folder))) + 1)
    with Journal.open_for_append(folder)[0] as log, pytest.raises(JournalUnwritable, match="longer than a journal's line"):
        log.append((e.NoteAdded("", "x" * 10_000),), ENGINE, lambda: b.START)
    assert (folder / NAME).read_bytes() == before


def test_a_newer_format_is_rejected_and_untouched_even_on_the_last_line(folder: Path) -> None:
    whole = lines(folder)
    for newer in (b'{"v":2,"n":4}\n', b'{"v":2,"n":4}'):
        rewrite(folder, *whole, newer)
        for attempt in (read, Journal.open_for_append, Journal.create):
            with pytest.raises(JournalTooNew, match=r"line 5 of .*journal\.jsonl has format 2"):
                attempt(folder)
        assert lines(folder) == [*whole, newer]


def test_whole_lines_returns_the_journals_bytes(folder: Path) -> None:
    whole = (folder / NAME).read_bytes()
    assert whole_lines(folder) == whole
    rewrite(folder, whole, b'{"v":1')
    assert whole_lines(folder) == whole
    rewrite(folder, whole[:-1])
    assert whole_lines(folder) == whole


# ---------------------------------------------------------------- failed writes

_FULL = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, "tests")
from support import builders as b
from engine.domain import events as e
from engine.domain.errors import JournalUnwritable
from engine.journal.journal import Journal, NAME, read
folder = Path(sys.argv[1])
log, entries, _ = Journal.open_for_append(folder)
size = (folder / NAME).stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 700, resource.RLIM_INFINITY))
batch = tuple(e.NoteAdded("", "x" * 300) for _ in range(3))
for _ in range(2):
    try:
        log.append(batch, b.ENGINE, lambda: b.START + 2)
    except JournalUnwritable as error:
        print(error)
    assert (folder / NAME).stat().st_size == size
    assert read(folder).entries == entries and not read(folder).torn
try:
    log.blobs.put(b"y" * (size + 5000))
except JournalUnwritable as error:
    print(error)
assert not list((folder / "blobs").iterdir())
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.append(batch, b.ENGINE, lambda: b.START + 3)
log.close()
assert [entry.seq for entry in read(folder).entries] == [0, 1, 2, 3, 4, 5, 6]
"""


@pytest.mark.slow
def test_a_full_disk_leaves_no_partial_batch_and_the_session_continues(folder: Path) -> None:
    """A file size limit truncates a write like a full disk does."""
    done = subprocess.run([sys.executable, "-c", _FULL, str(folder)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert len(printed) == 3
    advice = "free some space and continue: everything recorded before is kept"
    assert printed[0] == printed[1] == f"session {folder} cannot be written (File too large): {advice}"
    assert "cannot write" in printed[2]


def test_a_failed_write_is_undone_by_the_next_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, entries, _ = Journal.open_for_append(folder)
    size = (folder / NAME).stat().st_size
    real = os.pwrite

    def half(handle: int, data: bytes, offset: int) -> int:
        if offset > size:
            raise OSError(28, "No space left on device")
        return real(handle, data[:2000], offset)

    def never(handle: int, length: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(journal.os, "pwrite", half)
        broken.setattr(journal.os, "ftruncate", never)
        with pytest.raises(JournalUnwritable, match="No space left"):
            log.append((e.NoteAdded("", "x" * 3000),), ENGINE, lambda: b.START + 2)
    assert read(folder).torn
    log.append((e.SessionReopened(),), ENGINE, lambda: b.START + 2)
    log.close()
    assert [entry.seq for entry in read(folder).entries] == [0, 1, 2, 3, 4]
    assert read(folder).entries[:4] == entries


_READ_ONLY = """
import os, sys
from pathlib import Path
from engine.domain.errors import JournalUnwritable
from engine.journal.blobs import Blobs
from engine.journal.journal import Journal, read
folder = Path(sys.argv[1])
os.chdir(folder.parent)
folder = Path(folder.name)
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
assert len(read(folder).entries) == 4
for attempt in (Journal.open_for_append, lambda f: Journal.create(f / "below"), lambda f: Blobs(f).put(b"x")):
    try:
        attempt(folder)
    except JournalUnwritable as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("lock_left", [True, False])
def test_a_read_only_session_can_be_read_but_not_written(folder: Path, lock_left: bool) -> None:
    """Runs without superuser rights, which would allow writing anywhere."""
    if not lock_left:
        (folder / "lock").unlink()
    for path in (folder, folder / NAME, folder / "lock"):
        if path.exists():
            path.chmod(0o555)
    folder.parent.chmod(0o755)
    command = [sys.executable, "-c", _READ_ONLY, str(folder)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    finally:
        folder.chmod(0o755)
    assert done.returncode == 0, done.stderr
    advice = "copy it to a writable folder, and use the copy"
    printed = done.stdout.splitlines()
    assert printed[0] == f"session {folder.name} cannot be written (Permission denied): {advice}"
    assert printed[1] == f"session {folder.name}/below cannot be written (Permission denied): name a writable folder"
    assert "make it writable" in printed[2]


def test_a_folder_in_the_place_of_the_lock_is_named(folder: Path) -> None:
    (folder / "lock").unlink()
    (folder / "lock").mkdir()
    with pytest.raises(JournalUnwritable, match=rf"cannot be written \(Is a directory\): move {folder}/lock away"):
        Journal.open_for_append(folder)


@pytest.mark.parametrize("make", [os.mkfifo, lambda lock: os.symlink(lock.parent / "precious", lock)])
def test_what_is_no_file_in_the_place_of_the_lock_is_left_alone(folder: Path, make: Callable[[Path], None]) -> None:
    """In a session from elsewhere: a pipe would block a reader, and a link would have another file overwritten."""
    (folder / "precious").write_text("precious")
    (folder / "lock").unlink()
    make(folder / "lock")
    assert not is_written(folder)
    with pytest.raises(JournalUnwritable, match=rf"cannot be written \(not a regular file\): move {folder}/lock away"):
        Journal.open_for_append(folder)
    assert (folder / "precious").read_text() == "precious"


def test_a_session_removed_during_a_run_is_detected(folder: Path) -> None:
    log, _, _ = Journal.open_for_append(folder)
    (folder / NAME).rename(folder / "elsewhere")
    with pytest.raises(JournalUnwritable, match="No such file"):
        log.sync()
    (folder / NAME).write_bytes(b"")
    with pytest.raises(JournalUnwritable, match="another file replaced the journal"):
        log.close()
    log.close()


# ---------------------------------------------------------------- following


def test_a_follower_sees_each_event_once_and_waits_for_half_lines(folder: Path) -> None:
    whole = lines(folder)
    follower = tail(folder, 1)
    seen: list[e.Entry] = []
    data = b"".join(whole)
    for cut in (0, 100, *range(len(data) - len(whole[3]) - len(whole[2]) - 5, len(data) + 1)):
        rewrite(folder, data[:cut])
        seen += follower.poll()
        assert [entry.seq for entry in seen] == list(range(1, data[:cut].count(b"\n")))
    assert follower.poll() == ()


def test_a_follower_starts_at_the_given_entry(folder: Path) -> None:
    assert [entry.seq for entry in tail(folder).poll()] == [0, 1, 2, 3]
    assert [entry.seq for entry in tail(folder, 3).poll()] == [3]
    later = tail(folder, 6)
    assert later.poll() == ()
    log, _, _ = Journal.open_for_append(folder)
    with log:
        for _ in range(4):
            log.append((e.SessionReopened(),), ENGINE, lambda: b.START + 2)
    assert [entry.seq for entry in later.poll()] == [6, 7]


def test_a_follower_survives_a_repair(folder: Path) -> None:
    follower = tail(folder)
    with (folder / NAME).open("ab") as file:
        file.write(b'{"v":1,"seq":4,')
    assert len(follower.poll()) == 4
    log, _, _ = Journal.open_for_append(folder)
    with log:
        log.append((e.SessionResumed((), "repaired"),), ENGINE, lambda: b.START + 2)
    assert [entry.event for entry in follower.poll()] == [e.SessionResumed((), "repaired")]


def test_a_follower_reports_a_replaced_journal(folder: Path) -> None:
    follower = tail(folder)
    follower.poll()
    rewrite(folder, lines(folder)[0])
    with pytest.raises(JournalError, match="truncated while it was followed"):
        follower.poll()
    (folder / NAME).unlink()
    with pytest.raises(JournalError, match="is not a session"):
        follower.poll()


def test_a_damaged_last_line_is_left_out_by_a_follower_too(folder: Path) -> None:
    follower = tail(folder)
    path = folder / "journal.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"v":1,"seq":\x004}\n')
    assert [entry.seq for entry in follower.poll()] == [entry.seq for entry in read(folder).entries]
    path.write_bytes(whole + b'{"v":1,"seq":\x004}\n' + whole.splitlines(keepends=True)[-1])
    with pytest.raises(JournalCorrupt, match="cannot be read"):
        follower.poll()


def test_a_follower_names_an_unreadable_line(folder: Path) -> None:
    whole = lines(folder)
    for damage, words in (
        (b"garbage\n" + whole[3], r"line 3 of .*journal\.jsonl cannot be read"),
        (whole[3], "sequence number 3, not 2"),
    ):
        rewrite(folder, *whole[:2], damage)
        with pytest.raises(JournalCorrupt, match=words):
            tail(folder).poll()


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (b.built("k9"), "names kernel 'k9', which does not exist (it may be of another session)"),
        (e.RaceAsked("k1", "k9"), "names kernel 'k9', which does not exist"),
        (b.drafted("k1"), "introduces kernel 'k1', which exists"),
        (b.drafted("k9", idea="i9"), "names idea 'i9', which does not exist"),
        (b.drafted("k9", parent="k8"), "names kernel 'k8', which does not exist"),
        (b.proposed("i8", "i1"), "introduces idea 'i1', which exists"),
        (e.IdeaParked("i9", ""), "names idea 'i9', which does not exist"),
    ],
)
def test_an_event_of_another_session_is_refused(tmp_path: Path, event: e.Event, words: str) -> None:
    """A line with the right sequence number that names what this session does not have."""
    folder = stored(tmp_path / "s", (*b.first_round(1.5), event))
    count = len((folder / NAME).read_bytes().splitlines())
    for reading in (read, lambda folder: tail(folder).poll()):
        with pytest.raises(JournalCorrupt, match=f"line {count} of .*{re.escape(words)}"):
            reading(folder)


def test_a_line_of_another_session_is_refused_though_all_that_it_names_exists(folder: Path, tmp_path: Path) -> None:
    mine, other = lines(folder), lines(stored(tmp_path / "other", (b.opened(), b.prepared(), e.RoundOpened(0, ()))))
    rewrite(folder, *mine[:2], other[2], *mine[3:])
    for reading in (read, lambda folder: tail(folder).poll()):
        with pytest.raises(JournalCorrupt, match=r"line 3 of .* is of another session: restore"):
            reading(folder)


def test_a_session_from_before_lines_named_it_stays_without_a_name(tmp_path: Path) -> None:
    """Its first line decides: an older journal goes on without, and takes no line of a newer one."""
    events = (b.opened(), e.NoteAdded("", "first"), e.NoteAdded("", "second"))
    folder, newer = stored(tmp_path / "older", events[:2]), lines(stored(tmp_path / "newer", events))
    rewrite(folder, *(re.sub(rb',"session":"[0-9a-f]{8}"', b"", line) for line in lines(folder)))
    log, entries, _ = Journal.open_for_append(folder)
    with log:
        log.append((e.NoteAdded("", "later"),), ENGINEER, lambda: 5.0)
    assert b'"session"' not in (folder / NAME).read_bytes()
    rewrite(folder, *lines(folder)[: len(entries)], newer[-1])
    with pytest.raises(JournalCorrupt, match="is of another session"):
        read(folder)


def test_after_an_event_of_a_later_version_any_name_may_exist(tmp_path: Path) -> None:
    events = (*b.first_round(1.5), e.UnknownEvent("kernel.imported", {"kernel": "k9"}), b.built("k9"))
    assert read(stored(tmp_path / "s", events)).entries[-1].event == b.built("k9")
