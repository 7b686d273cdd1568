"""Session folders: names, lookup, summaries of damaged ones too, deletion."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support import builders as b
from support.stored import stored

from engine.domain import events as e
from engine.domain.errors import JournalError, JournalLocked, JournalUnwritable
from engine.journal import store, user_folders
from engine.journal.blobs import Blobs
from engine.journal.journal import NAME, Journal


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary home folder without shipped sessions."""
    monkeypatch.setenv(user_folders.HOME, str(tmp_path / "home"))
    monkeypatch.setattr(store, "shipped_root", lambda: None)
    return tmp_path / "home" / "sessions"


def test_the_root_comes_from_the_environment_or_is_the_users_data_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_folders.sessions_root() == root
    monkeypatch.delenv(user_folders.HOME)
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere/data")
    assert user_folders.sessions_root() == Path("/somewhere/data/espalier/sessions")
    monkeypatch.setenv(user_folders.HOME, "~/espalier")
    assert user_folders.sessions_root() == Path.home() / "espalier" / "sessions"


def test_new_folders_have_readable_unique_names(root: Path) -> None:
    first, second = store.new_folder("softmax"), store.new_folder("softmax")
    assert first.parent == root
    assert first.is_dir()
    assert first.name.startswith("softmax-20")
    assert first.name.endswith("-1")
    assert second.name == first.name[:-1] + "2"


@pytest.mark.parametrize(
    ("problem", "stem"),
    [
        ("23_Softmax.py", "23_softmax-20"),
        ("/a/b/My Model.py", "my-model-20"),
        ("…", "session-20"),
        ("x" * 500, "x" * 60 + "-20"),
    ],
)
def test_every_problem_name_gives_a_folder_name(problem: str, stem: str) -> None:
    assert store.new_folder(problem).name.startswith(stem)


def test_an_unwritable_root_is_reported(root: Path) -> None:
    root.parent.write_text("a file where the home should be")
    with pytest.raises(JournalUnwritable, match="the folder of sessions"):
        store.new_folder("softmax")


def test_the_advice_for_a_read_only_root_is_another_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir(parents=True)

    def refuse(folder: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(folder))

    monkeypatch.setattr(Path, "mkdir", lambda folder, **_: refuse(folder))
    with pytest.raises(
        JournalUnwritable, match=r"sessions cannot be written \(Read-only file system\): name a writable folder"
    ):
        store.new_folder("softmax")


def test_a_session_is_found_by_name_by_folder_and_by_its_journal(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stored(root / "softmax-1", [b.opened()])
    assert store.resolve("softmax-1") == folder
    assert store.resolve(str(folder)) == folder
    assert store.resolve(str(folder / NAME)) == folder
    monkeypatch.chdir(folder)
    assert store.resolve(".").resolve() == folder
    monkeypatch.chdir(root)
    assert store.resolve("softmax-1").resolve() == folder


def test_an_unknown_session_gets_the_nearest_names(root: Path, tmp_path: Path) -> None:
    for name in ("softmax-2026-11-20-1", "layernorm-2026-11-20-1"):
        stored(root / name, [b.opened()])
    with pytest.raises(JournalError, match=r"unknown session 'softmax': did you mean 'softmax-2026-11-20-1'\?"):
        store.resolve("softmax")
    with pytest.raises(JournalError, match=r"did you mean 'layernorm-2026-11-20-1'\?"):
        store.resolve("layernrom-2026-11-20-1")
    for text in ("zzz", "", "a\0b", "~nobody-here/x", "x" * 5000):
        with pytest.raises(JournalError, match="`espalier session list` lists"):
            store.resolve(text)
    with pytest.raises(JournalError, match="is not a session"):
        store.resolve(str(tmp_path))
    (tmp_path / "odd" / "journal.jsonl").mkdir(parents=True)
    with pytest.raises(JournalError, match=r"odd is not a session \(its journal\.jsonl is not a file\): restore the file$"):
        store.resolve(str(tmp_path / "odd"))
    (tmp_path / "kernel.cpp").touch()
    with pytest.raises(JournalError, match=r"kernel\.cpp is not a session: .* `espalier session import`"):
        store.resolve(str(tmp_path / "kernel.cpp"))


def test_a_session_that_may_not_be_read_is_not_called_unknown(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs without superuser rights, which would allow reading everything."""
    stored(tmp_path / "closed", [b.opened()])
    stored(tmp_path / "half", [b.opened()])
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "closed").chmod(0)
    (tmp_path / "half").chmod(0o755)
    (tmp_path / "half" / "journal.jsonl").chmod(0)
    user = os.geteuid()
    os.seteuid(user or 65534)
    try:
        with pytest.raises(
            JournalError, match=r"^closed cannot be read \(Permission denied\): make it readable, or use a copy$"
        ):
            store.resolve("closed")
        with pytest.raises(
            JournalError, match=r"^half/journal\.jsonl cannot be read \(Permission denied\): make it readable, or use a copy$"
        ):
            store.state_of(store.resolve("half"))
    finally:
        os.seteuid(user)
        (tmp_path / "closed").chmod(0o755)


def test_a_session_summary_shows_the_progress(root: Path) -> None:
    more = (
        e.RoundOpened(1, ("k1",)),
        b.proposed("i2", "i3", round_number=1, parent="k1"),
        e.IdeaSelected("i2"),
        *b.measured_kernel("k2", 2.0, idea="i2", parent="k1", round_number=1),
        b.drafted("k3", idea="i2", parent="k1", round_number=1),
        e.KernelFailed("k3", b.failure()),
    )
    folder = stored(root / "softmax-1", (*b.first_round(mode="ask"), *more))
    found = store.summary(folder)
    assert (found.name, found.folder, found.status, found.reason) == ("softmax-1", folder, "open", "")
    assert (found.problem, found.workload, found.device, found.baseline) == ("softmax", "small", "two cores", "eager")
    assert (found.rounds, found.kernels, found.verified, found.awaiting) == (1, 3, 2, 1)
    assert (found.best, found.incumbent, found.best_so_far) == (b.interval(2.0), "k2", (1.0, 2.0))
    assert found.last_activity == b.START + len(b.first_round()) + len(more) - 1


def test_a_session_that_has_only_begun_has_a_summary_too(root: Path) -> None:
    found = store.summary(stored(root / "s", [b.opened()]))
    assert (found.device, found.best, found.incumbent, found.rounds, found.best_so_far) == ("cpu", None, "", 0, ())


def test_sessions_are_listed_with_the_latest_first_and_the_unreadable_with_their_reason(root: Path) -> None:
    stored(root / "older", b.first_round())
    stored(root / "newer", (*b.first_round(), e.SessionClosed("closed by hand")), at=b.START + 1000)
    for name, content in {"torn": b'{"v":1', "future": b'{"v":7}\n', "empty": b"", "holes": b"\n\n"}.items():
        (root / name).mkdir()
        (root / name / NAME).write_bytes(content)
        os.utime(root / name / NAME, (b.START - 50, b.START - 50))
    (root / "a folder of something else").mkdir()
    (root / "a file").touch()
    found = {summary.name: summary for summary in store.summaries()}
    assert list(found)[:2] == ["newer", "older"]
    assert (found["newer"].status, found["newer"].reason) == ("closed", "closed by hand")
    assert {name for name, s in found.items() if s.status == "unreadable"} == {"torn", "future", "empty", "holes"}
    assert "format 7" in found["future"].reason
    assert "has no complete event" in found["torn"].reason
    assert "line 1" in found["holes"].reason
    assert found["empty"].last_activity == b.START - 50


@pytest.mark.parametrize(
    "make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")], ids=["folder", "pipe", "link"]
)
def test_a_journal_that_is_no_file_is_listed_with_its_reason(make: Callable[[Path], None], root: Path) -> None:
    (root / "odd").mkdir(parents=True)
    make(root / "odd" / "journal.jsonl")
    (found,) = (one for one in store.summaries() if one.name == "odd")
    assert (found.status, found.reason) == ("unreadable", "its journal.jsonl is not a file: restore it")
    assert root / "odd" not in store.folders()
    with pytest.raises(JournalError, match=r"its journal\.jsonl is not a file"):
        store.resolve("odd")


def test_the_session_that_is_searched_is_listed_once_wherever_it_lies(root: Path, tmp_path: Path) -> None:
    inside, elsewhere = stored(root / "inside", b.first_round()), stored(tmp_path / "elsewhere", b.first_round())
    (tmp_path / "link").symlink_to(inside)
    assert {one.folder for one in store.summaries(elsewhere)} == {inside, elsewhere}
    assert [one.folder for one in store.summaries(tmp_path / "link")] == [tmp_path / "link"]


def test_without_a_root_there_are_no_sessions() -> None:
    assert store.summaries() == []


def test_shipped_sessions_are_listed_after_the_user_s_own(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = tmp_path / "checkout" / "sessions"
    monkeypatch.setattr(store, "shipped_root", lambda: shipped)
    stored(shipped / "demo", [b.opened()])
    stored(shipped / "mine", [b.opened()])
    own = stored(root / "mine", [b.opened()])
    assert store.folders() == (own, shipped / "demo", shipped / "mine")
    assert store.resolve("demo") == shipped / "demo"
    assert store.resolve("mine") == own


def test_deleting_removes_only_the_files_of_a_session(root: Path) -> None:
    folder = stored(root / "s", b.first_round())
    (folder / "journal.torn-1").write_bytes(b"{")
    store.delete(folder)
    assert not folder.exists()
    shared = stored(root / "shared", b.first_round())
    (shared / "thesis.tex").write_text("mine")
    store.delete(shared)
    assert [path.name for path in shared.iterdir()] == ["thesis.tex"]
    with pytest.raises(JournalError, match="is not a session"):
        store.delete(shared)


@pytest.mark.parametrize("place", ["blobs", "inbox"])
def test_a_folder_among_the_files_of_a_session_stays(root: Path, place: str) -> None:
    """The journal was deleted, then "cannot be deleted (Is a directory)" was said; the blobs stayed, of no session."""
    folder = stored(root / "s", b.first_round())
    Blobs(folder).put(b"text")
    (folder / place / "mine").mkdir(parents=True)
    store.delete(folder)
    assert [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*"))] == [place, f"{place}/mine"]


def test_a_session_that_is_being_written_is_not_deleted(root: Path) -> None:
    log, _, _ = Journal.open_for_append(stored(root / "s", b.first_round()))
    with log, pytest.raises(JournalLocked):
        store.delete(root / "s")
    assert store.summary(root / "s").status == "open"


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (("/a/softmax", "/a/other"), ["softmax", "other"]),
        (("/a/softmax", "/b/softmax", "/b/other"), ["a/softmax", "b/softmax", "other"]),
        (("/a/x/softmax", "/b/x/softmax"), ["a/x/softmax", "b/x/softmax"]),
        (("/x/softmax", "/b/x/softmax"), ["/x/softmax", "b/x/softmax"]),
        (("/a/softmax", "/a/softmax"), ["softmax", "softmax"]),
    ],
)
def test_sessions_of_one_name_are_told_apart_by_their_paths(folders: tuple[str, ...], names: list[str]) -> None:
    """A comparison of two sessions called softmax said that softmax is faster."""
    assert store.distinct_names([Path(folder) for folder in folders]) == names
