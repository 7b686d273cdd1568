"""Lists, doctor, export, help: what they print, and that nothing heavy is loaded for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import click
import pytest
from support.program import ROOT, Call, command, environment

from engine.cli import doctor
from engine.cli.command_groups import CommandGroup
from engine.cli.command_table import SECTIONS
from engine.cli.main import espalier as program
from engine.problem import catalog


@pytest.mark.slow
def test_problems_are_listed_with_their_ideas(espalier: Call) -> None:
    found = {row["name"]: row for row in espalier("problems", "--json").json()["problems"]}
    assert set(found) == set(catalog.shipped_names())
    for row in found.values():
        assert list(row) == ["name", "title", "workloads", "ideas", "suites"]
        assert {"full", "small"} <= row["workloads"].keys()
        assert row["ideas"]["cpp"] >= 3
        assert row["ideas"]["cuda"] >= 1
    assert "softmax" in espalier("problems").out


def test_sessions_are_listed_with_the_reason_of_an_unreadable_one(espalier: Call, recorded: Path) -> None:
    broken = recorded.parent / "broken"
    broken.mkdir()
    (broken / "journal.jsonl").write_text("not a journal\n{}\n")
    rows = {row["name"]: row for row in espalier("session", "list", "--json").json()["sessions"]}
    assert rows["scripted"]["status"] == "closed"
    listed = next(row for row in espalier("session", "list").out.splitlines() if row.startswith("scripted"))
    assert " ended " in listed
    assert rows["scripted"]["best"]["speedup"]["baseline"] == "eager"
    assert rows["broken"]["status"] == "unreadable"
    assert rows["broken"]["reason"]
    assert "unreadable" in espalier("session", "list").out


def test_doctor_has_a_remedy_for_each_missing_thing(espalier: Call) -> None:
    found = espalier("doctor", "--json").json()
    names = [check["name"] for check in found["checks"]]
    expected = "python torch g++ nvcc ninja gpu bubblewrap reference nvml cache sessions log".split()
    for name in (*expected, "sanitizer cpp", "sanitizer cuda", "counters cpu", "counters cuda", "build cache"):
        assert name in names
    assert len(set(names)) == len(names)
    for check in found["checks"]:
        assert set(check) == {"name", "ok", "detail", "remedy"}
        assert check["detail"]
        assert check["ok"] or check["remedy"], check
    assert found["ok"] == all(check["ok"] for check in found["checks"])


@pytest.mark.slow
def test_doctor_prints_the_memory_plan_of_a_problem(espalier: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    found = espalier("doctor", "softmax", "--device", "cpu", "--json").json()
    assert found["ok"]
    assert [one["workload"] for one in found["workloads"]][:2] == ["small", "full"]
    assert len(found["workloads"]) == 2 + 8 + 8, "the suites' too"
    small = found["workloads"][0]
    assert small["operand_bytes"] >= 2 * 4 * 128 * 16384
    assert small["plan"]["device_bytes"] <= small["free_bytes"]
    monkeypatch.setenv("ESPALIER_MEMORY_GB", "0.1")
    refused = espalier("doctor", "softmax", "--device", "cpu", "--workload", "full")
    assert refused.status == 1
    assert "does not fit: it needs " in refused.out
    assert "100 MB are free, the limit set by ESPALIER_MEMORY_GB" in refused.out
    monkeypatch.setenv("ESPALIER_MEMORY_GB", "much")
    wrong = espalier("doctor", "softmax", "--device", "cpu")
    assert wrong.status == 2
    assert "ESPALIER_MEMORY_GB is 'much': set it to a number of GB" in wrong.err


@pytest.mark.slow
def test_doctor_finds_no_compiler_where_there_is_none(process: Call, tmp_path: Path) -> None:
    result = process("doctor", "--json", env={"PATH": str(tmp_path)})
    checks = {check["name"]: check for check in result.json()["checks"]}
    assert not checks["g++"]["ok"]
    assert "install" in checks["g++"]["remedy"]
    assert not checks["bubblewrap"]["ok"]
    assert "dnf install bubblewrap" in checks["bubblewrap"]["remedy"]
    assert "resource limits only" in checks["bubblewrap"]["detail"]
    assert not checks["reference"]["ok"]
    assert "outside the sandbox" in checks["reference"]["detail"]


def test_doctor_shows_the_build_cache_and_clears_it(espalier: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ESPALIER_CACHE_GB", "0.25")
    entry = tmp_path / "cache" / "build" / "ab" / ("ab" * 32)
    entry.mkdir(parents=True)
    (entry / "kernel.so").write_bytes(b"x" * 20_000_000)
    line = next(line for line in espalier("doctor").out.splitlines() if line.startswith("build cache"))
    assert "1 compiled kernel, 0.02 GB; at most 0.25 GB, 30 days unused" in line
    cleared = espalier("doctor", "--clear-cache", "--json")
    assert "1 compiled kernel, 0.02 GB deleted" in cleared.err
    (check,) = (check for check in cleared.json()["checks"] if check["name"] == "build cache")
    assert check["detail"].startswith("0 compiled kernels, 0.00 GB")
    assert not entry.exists()
    monkeypatch.setenv("ESPALIER_CACHE_GB", "much")
    (check,) = (check for check in espalier("doctor", "--json").json()["checks"] if check["name"] == "build cache")
    assert (check["ok"], check["detail"]) == (False, "ESPALIER_CACHE_GB is 'much'")


def test_doctor_asks_for_the_python_that_the_package_asks_for(monkeypatch: pytest.MonkeyPatch, espalier: Call) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == doctor._OLDEST_PYTHON
    monkeypatch.setattr(doctor, "_metadata", {"Requires-Python": ">=3.99"}.get)
    check = espalier("doctor", "--json").json()["checks"][0]
    assert (check["name"], check["ok"], check["remedy"]) == ("python", False, "install Python >=3.99")


def test_a_session_is_exported_as_a_bundle_and_as_data(espalier: Call, recorded: Path, tmp_path: Path) -> None:
    assert espalier("export", "scripted", "--format", "bundle", "-o", tmp_path / "s.tar.gz").status == 0
    with tarfile.open(tmp_path / "s.tar.gz") as archive:
        assert "journal.jsonl" in archive.getnames()
    assert espalier("session", "note", "scripted", "keep it").status == 0
    assert espalier("export", "scripted", "--format", "json", "-o", tmp_path / "s.json").status == 0
    exported = json.loads((tmp_path / "s.json").read_text())
    assert exported["kernels"] == 10
    assert [(note["text"], note["by"]) for note in exported["notes"]] == [("keep it", "engineer")]
    assert "already exists" in espalier("export", "scripted", "--format", "json", "-o", tmp_path / "s.json").error_line()
    assert espalier("export", "scripted", "--format", "json", "-o", tmp_path / "s.json", "--force").status == 0


@pytest.mark.slow
def test_without_a_command_and_a_terminal_it_prints_the_help(process: Call) -> None:
    result = process()
    assert result.status == 0
    for section in SECTIONS.values():
        for name in section:
            assert f"\n  {name} " in result.out


@pytest.mark.parametrize("name", [name for section in SECTIONS.values() for name in section])
def test_every_command_in_the_table_is_there_and_has_help(espalier: Call, name: str) -> None:
    result = espalier(name, "--help")
    assert result.status == 0
    assert result.out.startswith(f"Usage: espalier {name} ")


def test_the_table_of_commands_and_the_commands_agree() -> None:
    assert isinstance(program, CommandGroup)
    context = click.Context(program)
    for name in program.list_commands(context):
        found = program.get_command(context, name)
        assert found is not None
        assert found.name == name


HEAVY = ("torch", "numpy", "openai", "google.genai", "textual", "rich")


@pytest.mark.slow
def test_no_module_of_the_command_line_loads_torch_or_a_model_library() -> None:
    modules = ["espalier", *sorted(f"engine.cli.{path.stem}" for path in (ROOT / "engine/cli").glob("*.py"))]
    code = f"import importlib, sys; [importlib.import_module(m) for m in {modules}]; print(set({HEAVY}) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_entry_point_loads_no_other_room() -> None:
    code = "import sys, espalier; print(sorted(m for m in sys.modules if m.startswith('engine.')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "engine.domain.model" not in done.stdout
    assert "engine.session" not in done.stdout


@pytest.mark.slow
def test_a_closed_pipe_ends_quietly(home: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command("problems"), env=environment(home), stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert done.stderr == b""
    assert done.returncode == 141


@pytest.mark.parametrize("arguments", [("session", "list"), ("session", "list", "--json"), ("bank",), ("bank", "--json")])
@pytest.mark.parametrize("place", ["home", "home/below", "folder"])
def test_sessions_that_cannot_be_listed_are_said(
    espalier: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], place: str
) -> None:
    (tmp_path / "home").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "sessions").write_text("")
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path / place))
    ended = espalier(*arguments)
    assert ended.status == 2
    root = tmp_path / place / "sessions"
    assert ended.err == (
        f"espalier: the folder of sessions {root} cannot be read (Not a directory): "
        "make it readable, or name another one with ESPALIER_HOME\n"
    )
    assert ended.out, "what ships is listed nevertheless"
    assert "the folder of sessions" in espalier("session", "show", "mine").error_line()


def test_a_session_that_cannot_be_read_is_listed(espalier: Call, home: Path) -> None:
    (home / "sessions").mkdir(parents=True)
    (home / "sessions" / "loop").symlink_to("loop")
    (row,) = [line for line in espalier("session", "list").out.splitlines() if line.startswith("loop ")]
    assert "unreadable" in row
    assert "cannot be read (Too many levels of symbolic links)" in row
