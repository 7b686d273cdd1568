"""A session from elsewhere runs nothing and tells no key before it is allowed, and reading one runs nothing at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support import forged, scripted, sessions
from support.model_servers import OPENAI_KEY, OpenAIServer
from support.program import Call

from engine.domain.model import Contract, Dialect, Draft
from engine.domain.settings import ModelServer
from engine.export import bundle
from engine.journal import store, trust_records
from engine.session import trust
from engine.session.live import LiveSession

RUNNING: dict[str, tuple[str, ...]] = {
    "open": ("open", "{}", "--headless"),
    "open in autopilot": ("open", "{}", "--headless", "--mode", "autopilot"),
    "step": ("step", "{}"),
    "rerun": ("rerun", "{}"),
    "ablate": ("ablate", "{}"),
    "profile": ("kernel", "profile", "{}", "k1"),
}
"""Commands that run something of a session."""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "it-ran"


@pytest.fixture
def stranger(home: Path, recorded: Path) -> Callable[..., Path]:
    """Forges a session that stands after its first round, under the name ``stranger``."""
    return lambda *changes: forged.forge(recorded, home / "sessions" / "stranger", *changes, rounds=1)


def asked_to_trust(espalier: Call, *arguments: object) -> str:
    result = espalier(*arguments)
    *imported, line = result.err.splitlines()
    assert result.status == 2
    assert result.out == ""
    assert all(one.startswith("imported ") for one in imported)
    assert "is not trusted" in line, line
    assert "`espalier trust " in line
    return line


@pytest.mark.parametrize("command", RUNNING)
def test_a_forged_reference_and_commands_run_nothing(
    espalier: Call, stranger: Callable[..., Path], marker: Path, pretended: None, command: str
) -> None:
    before = forged.with_settings(source=forged.touching(marker), writer=forged.touching(marker))
    folder = stranger(forged.with_reference(marker), before)
    line = asked_to_trust(espalier, *(word.format(folder) for word in RUNNING[command]))
    assert "`espalier trust stranger`" in line
    assert "`espalier replay stranger` runs nothing" in line
    assert not marker.exists()


@pytest.mark.slow
def test_a_fork_of_a_session_that_is_not_trusted_is_not_trusted(
    espalier: Call, stranger: Callable[..., Path], marker: Path, pretended: None, tmp_path: Path
) -> None:
    stranger(forged.with_settings(source=forged.touching(marker)))
    assert espalier("fork", "stranger", "--into", tmp_path / "copy").status == 0
    asked_to_trust(espalier, "step", tmp_path / "copy")
    assert espalier("trust", "stranger", "--yes").status == 0
    assert espalier("fork", "stranger", "--into", tmp_path / "later").status == 0
    espalier("step", tmp_path / "later")
    assert marker.exists()


@pytest.mark.slow
@pytest.mark.parametrize("role", ["source", "writer"])
def test_a_command_runs_once_it_is_allowed(
    espalier: Call, stranger: Callable[..., Path], marker: Path, pretended: None, role: str
) -> None:
    settings = {role: forged.touching(marker), **({"source": "paste"} if role == "writer" else {})}
    stranger(forged.with_settings(**settings))
    asked_to_trust(espalier, "step", "stranger")
    shown = espalier("trust", "stranger")
    assert shown.status == 2
    assert f"touch {marker}" in shown.out
    assert "runs with your rights" in shown.out
    assert shown.err.count("\n") == 1
    assert "espalier trust stranger --yes" in shown.err
    assert not marker.exists()
    assert "allowed" in espalier("trust", "stranger", "--yes").out
    if role == "writer":
        assert espalier("idea", "add", "stranger", "An idea", "--approve").status == 0
    espalier("step", "stranger")
    assert marker.exists()


@pytest.mark.slow
def test_a_key_goes_to_no_server_that_only_a_journal_names(
    espalier: Call, stranger: Callable[..., Path], pretended: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", OPENAI_KEY)
    with OpenAIServer(["no ideas"]) as server:
        with_key = ModelServer("openai", server.url, "OPENAI_API_KEY")
        folder = stranger(forged.with_settings(source="openai:some-model", servers=(with_key,)))
        for command in RUNNING.values():
            asked_to_trust(espalier, *(word.format(folder) for word in command))
        assert server.requests == []
        shown = espalier("trust", "stranger")
        assert f"{server.url} (openai) gets the key in OPENAI_API_KEY" in shown.out
        assert OPENAI_KEY not in shown.out
        assert server.requests == []
        espalier("trust", "stranger", "--yes")
        espalier("step", "stranger")
        assert {request.key for request in server.requests} == {OPENAI_KEY}


@pytest.mark.slow
def test_a_session_made_here_needs_no_question_and_may_gain_a_writer(
    espalier: Call, home: Path, tmp_path: Path, marker: Path, pretended: None
) -> None:
    begun = espalier("run", "softmax", "--headless", "--device", "cpu", "--rounds", 1, "--session", tmp_path / "mine")
    assert begun.status == 0
    assert espalier("session", "limits", tmp_path / "mine", "--rounds", 3).status == 0
    assert espalier("idea", "add", tmp_path / "mine", "An idea").status == 0
    (pending,) = [
        idea for idea in espalier("idea", "list", tmp_path / "mine", "--json").json()["ideas"] if idea["status"] == "proposed"
    ]
    assert espalier("idea", "edit", tmp_path / "mine", pending["id"], "--writer", forged.touching(marker)).status == 0
    assert espalier("idea", "approve", tmp_path / "mine").status == 0
    espalier("open", tmp_path / "mine", "--headless")
    assert marker.exists()
    listed = espalier("trust", "--list", "--json").json()
    (mine,) = [one for one in listed["paths"] if one["path"] == str(tmp_path / "mine")]
    assert mine["made_here"]
    assert mine["commands"] == [f"touch {marker}"]


@pytest.mark.slow
def test_a_changed_journal_voids_the_permission(
    espalier: Call, home: Path, stranger: Callable[..., Path], recorded: Path, marker: Path, pretended: None
) -> None:
    folder = stranger()
    espalier("trust", "stranger", "--yes")
    assert espalier("step", "stranger").status == 0
    for change, why in [
        (forged.with_settings(source=forged.touching(marker)), "it names a command that was not confirmed"),
        (forged.with_settings(base_url="http://127.0.0.1:9/v1"), "it names a server that was not confirmed"),
        (forged.with_reference(marker), "its reference has changed"),
    ]:
        shutil.rmtree(folder)
        stranger(change)
        assert why in asked_to_trust(espalier, "step", "stranger")
    assert not marker.exists()


@pytest.mark.slow
def test_permission_belongs_to_a_path(
    espalier: Call, stranger: Callable[..., Path], marker: Path, pretended: None, tmp_path: Path
) -> None:
    folder = stranger(forged.with_settings(source=forged.touching(marker)))
    espalier("trust", "stranger", "--yes")
    moved = folder.rename(tmp_path / "moved")
    asked_to_trust(espalier, "step", moved)
    link = tmp_path / "link"
    link.symlink_to(moved)
    asked_to_trust(espalier, "step", link)
    assert not marker.exists()
    espalier("trust", link, "--yes")
    espalier("step", moved)
    assert marker.exists()
    marker.unlink()
    other = forged.forge(moved, tmp_path / "other", forged.with_settings(source=f"{forged.touching(marker)}-2"))
    link.unlink()
    link.symlink_to(other)
    asked_to_trust(espalier, "step", link)


@pytest.mark.slow
def test_a_bundle_is_asked_about_and_may_be_allowed(
    espalier: Call, home: Path, stranger: Callable[..., Path], marker: Path, pretended: None, tmp_path: Path
) -> None:
    folder = stranger(forged.with_settings(source=forged.touching(marker)))
    file = bundle.pack(folder, tmp_path / "sent.tar.gz")
    asked_to_trust(espalier, "open", file, "--headless")
    assert espalier("session", "import", file, "--json").json()["session"].endswith("sent-2")
    asked_to_trust(espalier, "open", "sent-2", "--headless")
    shown = espalier("trust", file, "--json")
    assert shown.status == 2
    (asked,) = shown.json()["paths"]
    assert (asked["kind"], asked["commands"], asked["trusted"]) == ("bundle", [f"touch {marker}"], False)
    assert not marker.exists()
    espalier("trust", file, "--yes")
    espalier("open", file, "--headless")
    assert marker.exists()
    tampered = tmp_path / "tampered.tar.gz"
    tampered.write_bytes(file.read_bytes()[:-40])
    assert "damaged" in espalier("trust", tampered, "--yes").error_line()
    marker.unlink()
    shutil.rmtree(folder)
    bundle.pack(stranger(forged.with_settings(source=f"{forged.touching(marker)}-2")), file)
    asked_to_trust(espalier, "open", file, "--headless")


def test_problems_run_in_the_sandbox_or_after_permission(
    espalier: Call, marker: Path, tmp_path: Path, pretended: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, folder = tmp_path / "stranger.py", tmp_path / "folder"
    file.write_text(forged.problem_text(marker))
    folder.mkdir()
    shutil.copy(file, folder / "reference.py")
    kernel = tmp_path / "kernel.cpp"
    kernel.write_text(sessions.source("kernel"))
    monkeypatch.setattr(trust, "judge_reason", lambda: "bubblewrap (bwrap) is not installed")
    for problem in (file, folder, folder / "reference.py"):
        for command in (("run", problem, "--headless", "--device", "cpu"), ("eval", problem, kernel), ("scaffold", problem)):
            line = espalier(*command).error_line()
            assert "would run outside a sandbox" in line
            assert f"`espalier trust {problem}`" in line
    (asked,) = espalier("trust", file, "--json").json()["paths"]
    assert (asked["kind"], asked["sandbox"], asked["reference"]["file"]) == ("problem", "limits", str(file))
    assert espalier("trust", file, folder, "--yes").status == 0
    for problem in (file, folder, folder / "reference.py"):
        result = espalier("run", problem, "--headless", "--device", "cpu", "--rounds", 1)
        assert "no naive port" in result.err  # of a pretended operator: the problem was taken
    file.write_text(forged.problem_text(marker) + "\n")
    assert "would run outside" in espalier("run", file, "--headless", "--device", "cpu").error_line()
    assert not marker.exists()


@pytest.mark.slow
def test_what_names_only_what_ships_needs_no_question_where_there_is_a_sandbox(
    espalier: Call, home: Path, tmp_path: Path, pretended: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = ("run", "softmax", "--headless", "--device", "cpu", "--rounds", 1, "--session", home / "sessions" / "old")
    assert espalier(*begun).status == 0
    assert espalier("trust", "--revoke", "old").status == 0
    assert espalier("session", "limits", "old", "--rounds", 3).status == 0
    assert espalier("step", "old").status == 0
    assert "ships with Espalier" in espalier("trust", "old").out
    monkeypatch.setattr(trust, "judge_reason", lambda: "bubblewrap (bwrap) is not installed")
    asked_to_trust(espalier, "step", "old")
    shown = espalier("trust", "old")
    assert "runs with your rights: bubblewrap (bwrap) is not installed" in shown.out
    monkeypatch.undo()
    forged.forge(home / "sessions" / "old", tmp_path / "forged", forged.with_reference(tmp_path / "it-ran"))
    assert "not the text that ships under this name" in espalier("trust", tmp_path / "forged").out


def test_what_is_no_session_and_no_problem_is_one_line(espalier: Call, tmp_path: Path) -> None:
    empty, text = tmp_path / "empty", tmp_path / "text.py"
    empty.mkdir()
    text.write_text("print('hello')\n")
    for path in (empty, text, tmp_path / "none", "nonesuch", ""):
        espalier("trust", path, "--yes").error_line()
    espalier("trust").error_line()
    espalier("trust", "--list", "--yes").error_line()
    espalier("trust", "--revoke", "nonesuch").error_line()
    assert espalier("trust", "softmax").out.endswith("nothing to allow: it is trusted\n")


GARBAGE = {
    "empty": b"", "no record": b"{}", "no text": b"\xff\xfe", "deep": b"[" * 20_000, "newer": b'{"version":2,"record":null}',
}  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_a_damaged_record_allows_nothing(
    espalier: Call, stranger: Callable[..., Path], marker: Path, pretended: None, garbage: bytes
) -> None:
    stranger(forged.with_settings(source=forged.touching(marker)))
    espalier("trust", "stranger", "--yes")
    (record,) = [file for file in trust_records.folder().iterdir() if b"stranger" in file.read_bytes()]
    record.write_bytes(garbage)
    assert "the record of trust" in asked_to_trust(espalier, "step", "stranger")
    assert not marker.exists()
    listed = espalier("trust", "--list")
    assert listed.status == 0
    assert "is damaged; it allows nothing" in listed.out
    assert espalier("trust", "--revoke", "stranger").status == 0
    espalier("trust", "stranger", "--yes")
    espalier("step", "stranger")
    assert marker.exists()


def test_a_record_of_another_path_allows_nothing(
    espalier: Call, home: Path, stranger: Callable[..., Path], recorded: Path, marker: Path, pretended: None
) -> None:
    forged.forge(recorded, home / "sessions" / "second", forged.with_settings(source=forged.touching(marker)), rounds=1)
    stranger(forged.with_settings(source=forged.touching(marker)))
    espalier("trust", "stranger", "--yes")
    espalier("trust", "second", "--yes")
    files = {json.loads(f.read_bytes())["record"]["path"].rpartition("/")[2]: f for f in trust_records.folder().iterdir()}
    shutil.copy(files["second"], files["stranger"])
    assert "belongs to another path" in asked_to_trust(espalier, "step", "stranger")
    assert not marker.exists()


def test_permissions_are_listed_and_revoked(espalier: Call, home: Path, stranger: Callable[..., Path], pretended: None) -> None:
    stranger()
    espalier("trust", "stranger", "--yes")
    assert str(home / "sessions" / "stranger") in espalier("trust", "--list").out
    assert espalier("trust", "--revoke", "stranger").out == f"revoked {home / 'sessions' / 'stranger'}\n"
    asked_to_trust(espalier, "step", "stranger")
    espalier("trust", "stranger", "--yes")
    espalier("session", "delete", "stranger", "--yes")
    assert "stranger" not in espalier("trust", "--list").out


def test_steering_a_session_that_is_not_trusted_does_not_allow_it(
    espalier: Call, stranger: Callable[..., Path], marker: Path, pretended: None
) -> None:
    stranger(forged.with_settings(source=forged.touching(marker)))
    assert espalier("idea", "add", "stranger", "Mine").status == 0
    asked_to_trust(espalier, "step", "stranger")
    assert not marker.exists()


@pytest.mark.slow
def test_reading_a_session_runs_nothing(espalier: Call, home: Path, marker: Path, tmp_path: Path) -> None:
    """The reference, the code of a module, the commands and the playbook would each leave a file."""
    tree, code = sessions.TREE, forged.module_code(marker)
    module = Draft(code, Dialect.PYTHON, Contract.MODULE, "deep.py", {})
    drafts = {**tree.drafts, "deep": (module, *tree.drafts["deep"][1:])}
    opened = forged.with_settings(writer=forged.touching(marker))(forged.with_reference(marker)(sessions.opened()))
    problem = tmp_path / "problem"
    shutil.copytree(Path(__file__).parents[2] / "problems" / "softmax" / "playbook", problem / "playbook")
    (problem / "reference.py").write_text(forged.problem_text(marker))
    for file in (problem / "playbook").glob("*.py"):
        file.write_text(code)
    folder = home / "sessions" / "strange"
    ideas = scripted.ScriptedProposer(tree.rounds, drafts)

    async def search() -> None:
        async with LiveSession.create(folder, opened, sessions.ports(folder, ideas)) as live:
            await live.run()

    sessions.run(search)
    assert len(store.state_of(folder).kernels) == 10
    file = bundle.pack(folder, tmp_path / "strange.tar.gz")
    (python,) = [k.id for k in store.state_of(folder).kernels.values() if k.dialect is Dialect.PYTHON]
    exports = {"report": "html", "json": "json", "sft": "jsonl", "pairs": "jsonl", "jsonl": "jsonl", "bundle": "tar.gz"}
    exports["module"] = "py"
    reading = [
        *(("replay", where, "--headless", *how) for where in (folder, file) for how in ((), ("--story",), ("--json",))),
        ("follow", folder, "--headless"),
        *(("export", folder, "--format", kind, "--force", "-o", tmp_path / f"out.{end}") for kind, end in exports.items()),
        ("export", folder, "--format", "module", "--kernel", python, "-o", tmp_path / "module.py"),
        ("session", "show", folder), ("session", "list"), ("session", "import", file), ("session", "limits", folder),
        ("kernel", "list", folder), ("kernel", "show", folder, python, "--code"), ("kernel", "show", folder, python, "--diff"),
        ("idea", "list", folder), ("idea", "show", folder, "i1"), ("idea", "predictions", folder),
        ("model", "prompts", folder), ("model", "usage", folder), ("bank",), ("problems",),
        ("fork", folder, "--preview"), ("fork", folder, "--into", tmp_path / "fork"),
        ("trust", folder), ("trust", file), ("trust", problem), ("trust", problem, "--yes", "--code"), ("trust", "--list"),
        ("open", folder, "--headless"),
    ]  # fmt: skip
    for command in reading:
        result = espalier(*command)
        assert result.status in (0, 2 if command[0] == "trust" else 0), (command, result)
        assert not marker.exists(), command
