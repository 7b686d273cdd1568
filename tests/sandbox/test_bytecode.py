"""Torch's bytecode is written once, outside the sandbox, where the installation has none."""

from __future__ import annotations

import asyncio
import os
import py_compile
import sys
from pathlib import Path

import pytest

from engine.sandbox import bytecode, python_process


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that is looked at, in place of torch's; importing it is all there is to compile."""
    file = tmp_path / "library" / "one_file.py"
    file.parent.mkdir()
    file.write_text("WORD = 1\n")
    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bytecode, "_file", lambda: file)
    monkeypatch.setattr(bytecode, "_PROGRAM", "import one_file")
    return file


def write(source: Path) -> None:
    forbidden = {"PYTHONDONTWRITEBYTECODE": "1"}
    asyncio.run(bytecode.write({"PATH": os.environ["PATH"], "PYTHONPATH": str(source.parent), **forbidden}))


def test_what_no_installer_compiled_is_compiled_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bytecode.folder() is None
    write(source)
    place = bytecode.folder()
    assert place is not None
    assert [file.name.partition(".")[0] for file in place.rglob("*.pyc")].count("one_file") == 1
    assert not (source.parent / "__pycache__").exists(), "the installation stays as it is"
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    write(source)  # starts nothing


def test_the_sandbox_reads_it(source: Path) -> None:
    write(source)
    place = str(bytecode.folder())
    words = python_process.file_system("cpu")
    at = words.index(place)
    assert words[at - 1 : at + 2] == ["--ro-bind", place, place]
    assert python_process.environment("cpu", alone=True, threads=1)[bytecode.VARIABLE] == place
    assert bytecode.VARIABLE not in python_process.environment("cpu", alone=False, threads=1), "there a kernel could change it"


def test_compiled_sources_need_nothing(source: Path) -> None:
    py_compile.compile(str(source))
    write(source)
    assert bytecode.folder() is None
    assert bytecode.variables() == {}


def test_a_newer_torch_is_compiled_again(source: Path) -> None:
    write(source)
    os.utime(source, (1, 1))
    assert bytecode.folder() is None


def test_an_import_that_fails_is_not_repeated_by_every_judge(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytecode, "_PROGRAM", "import one_file, no_such_module")
    write(source)
    place = bytecode.folder()
    assert place is not None
    assert list(place.rglob("one_file.*.pyc")), "what was compiled before is kept"
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    write(source)


def test_what_a_killed_process_left_is_removed(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache" / "bytecode"
    old, running = (root / f"{bytecode._UNFINISHED}{name}" for name in ("old", "running"))
    for folder in (old, running):
        (folder / "torch").mkdir(parents=True)
    os.utime(old, (1, 1))
    write(source)
    assert [path.name for path in root.glob(".*")] == [running.name], "another process may still be compiling"


def test_the_file_that_is_looked_at_is_torchs() -> None:
    file = bytecode._file()
    assert file is not None
    assert file.parts[-3] == "torch"
