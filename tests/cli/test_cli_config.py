"""``config.toml`` and ``espalier.toml``: what they set, who wins, and one line for whatever is wrong in them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.program import Call

from engine.journal import store


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder below another."""
    folder = tmp_path / "project" / "deep"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def user(home: Path, text: str) -> Path:
    file = home / "config" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def project(here: Path, text: str) -> Path:
    file = here.parent / "espalier.toml"
    file.write_text(text)
    return file


@pytest.mark.usefixtures("pretended")
def test_the_command_line_wins_over_the_project_and_the_project_over_the_user(
    espalier: Call, home: Path, here: Path, tmp_path: Path
) -> None:
    user(home, '[run]\nrounds = 2\nideas = 2\nbeam = 5\ndevice = "cpu"\nheadless = true\nplateau = 9\n')
    project(here, "[run]\nrounds = 1\nideas = 3\n")
    assert espalier("run", "softmax", "--ideas", "1", "--session", tmp_path / "s").status == 0
    opened = store.state_of(tmp_path / "s").opened
    assert opened is not None
    settings = opened.settings
    assert (settings.limits.rounds, settings.ideas, settings.beam, settings.limits.plateau) == (1, 1, 5, 9)


def test_a_table_of_a_group_and_a_flag(espalier: Call, home: Path, here: Path, recorded: Path) -> None:
    user(home, "[session.list]\njson = true\n[idea.list]\nawaiting = true\n")
    assert espalier("session", "list").json()["sessions"][0]["name"] == "scripted"
    assert espalier("idea", "list", "scripted").out == "no idea awaits approval\n"


def test_the_nearest_project_file_counts(espalier: Call, here: Path, recorded: Path) -> None:
    project(here, "[session.list]\nbogus = 1\n")
    (here / "espalier.toml").write_text("[session.list]\njson = true\n")
    assert espalier("session", "list").json()["sessions"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[rum]\nrounds = 3", "unknown command [rum]: did you mean 'run'?"),
        ("[session.lst]\njson = true", "unknown command [session.lst]: did you mean 'session.list'?"),
        ("[prune]\nreason = 'x'", "unknown command [prune]: did you mean 'kernel.prune'?"),
        ("[run]\nronds = 3", "unknown option 'ronds' in [run]: did you mean 'rounds'?"),
        ("[run]\nproblem = 'softmax'", "unknown option 'problem' in [run]"),
        ("[run]\nrounds = 'x'", "[run] rounds: 'x' is not a whole number"),
        ("[run]\nrounds = 2.5", "[run] rounds: '2.5' is not a whole number"),
        ("[run]\nrounds = true", "[run] rounds: true is not a text or a number"),
        ("[run]\nrounds = 0", "[run] rounds: 0 is not in the range"),
        ("[run]\nrounds = [1, 2]", "[run] rounds: takes one value, not 2"),
        ("[run]\nhot = 1", "[run] hot: 1 is not true or false"),
        ("[run]\ntolerance = 'clas'", "[run] tolerance: unknown value 'clas': did you mean 'class'?"),
        ("[run]\nmode = 1979-05-27", "[run] mode: 1979-05-27 is not a text or a number"),
        ("rounds = 3", "rounds is outside a table: put it below a command such as [run]"),
        ("[run", "is not valid TOML"),
        ("run = 3", "run is outside a table"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line_with_its_name(
    espalier: Call, home: Path, here: Path, text: str, words: str
) -> None:
    file = user(home, text)
    line = espalier("run", "softmax").error_line()
    assert words in line
    assert str(file) in line
    assert not (home / "sessions").exists()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda f: f.symlink_to(f), lambda f: f.symlink_to("gone")])
@pytest.mark.parametrize("project_s", [False, True])
def test_a_file_that_cannot_be_read_is_not_ignored(
    espalier: Call, home: Path, here: Path, make: Callable[[Path], object], project_s: bool
) -> None:
    file = project(here, "") if project_s else user(home, "")
    file.unlink()
    make(file)
    line = espalier("run", "softmax", "--device", "cpu").error_line()
    assert f"{file} cannot be read (" in line
    assert "correct or remove it" in line
    assert not (home / "sessions").exists()
    assert espalier("--help").status == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[run]\nproposer = 'command:rm -rf'", "cannot set a command: program"),
        ("[run]\nsource = 'openai:m=1,Command:rm=1'", "cannot set a command: program"),
        ("[run]\nwriter = 'command:rm'", "cannot set a command: program"),
        ("[run]\nbase-url = 'http://evil'", "cannot set --base-url"),
        ("[run]\nbase_url = 'http://evil'", "cannot set --base-url"),
        ("[run]\nseed-kernel = ['evil.cpp']", "cannot set --seed-kernel"),
    ],
)
def test_a_project_file_sets_neither_programs_nor_servers(
    espalier: Call, home: Path, here: Path, text: str, words: str
) -> None:
    file = project(here, text)
    line = espalier("run", "softmax", "--device", "cpu").error_line()
    assert words in line
    assert str(file) in line
    assert str(home / "config" / "config.toml") in line, "where it may be set"
    assert not (home / "sessions").exists()


@pytest.mark.usefixtures("pretended")
def test_the_user_s_own_file_may(espalier: Call, home: Path, here: Path, tmp_path: Path) -> None:
    user(home, "[run]\nproposer = 'command:false'\nrounds = 1\nheadless = true\n")
    espalier("run", "softmax", "--device", "cpu", "--session", tmp_path / "s")
    opened = store.state_of(tmp_path / "s").opened
    assert opened is not None
    assert opened.settings.source == "command:false"


def test_a_project_file_confirms_no_question(espalier: Call, here: Path, recorded: Path) -> None:
    project(here, "[session.delete]\nyes = true\n")
    assert "cannot set --yes" in espalier("session", "delete", "scripted").error_line()
    assert recorded.exists()


@pytest.mark.parametrize("arguments", [("run", "--help"), ("doctor", "--json"), ("--help",), ("--version",)])
def test_help_and_doctor_work_with_a_faulty_file(espalier: Call, home: Path, here: Path, arguments: tuple[str, ...]) -> None:
    user(home, "[run\n")
    assert espalier(*arguments).status == 0


def test_the_help_names_the_files_in_effect_and_the_folders(espalier: Call, home: Path, here: Path) -> None:
    user(home, "")
    project(here, "")
    text = " ".join(espalier("--help").out.split())
    assert "ESPALIER_HOME" in text
    assert "ESPALIER_CACHE" in text
    assert text.count("in effect") == 2


def test_doctor_shows_the_files_in_effect(espalier: Call, home: Path, here: Path) -> None:
    file = user(home, "")
    found = espalier("doctor", "--json").json()["checks"]
    assert any("config.toml" in str(check) and "in effect" in str(check) for check in found), file
