"""The first command on a machine that lacks something: one line with what is missing, what it changes, what provides it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from engine.domain.errors import ToolchainError
from engine.sandbox import python_process
from engine.session import requirements
from espalier import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))


def _without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else find(name, *rest))


def _lines(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str], list[str]]:
    status = main(words)
    found = capsys.readouterr()
    return status, found.out.splitlines(), found.err.splitlines()


RUN = ("run", "softmax", "--device", "cpu", "--headless")


@pytest.mark.parametrize("command", [RUN, ("scaffold", "softmax")])
def test_without_torch_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any, command: tuple[str, ...]
) -> None:
    _without(monkeypatch, "torch")
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    status, out, err = _lines(command, capsys)
    assert (status, out) == (2, [])
    assert err == ["espalier: torch not found: the reference and the baselines run in it; pip install 'torch>=2.6,<2.14'"]
    assert not (tmp_path / "sessions").exists()


@pytest.mark.usefixtures("empty_path")
def test_without_a_compiler_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    status, out, err = _lines(RUN, capsys)
    assert (status, out) == (2, [])
    (line,) = err
    assert line.startswith("espalier: g++ not found: kernels for the CPU need it; apt install g++")


@pytest.mark.usefixtures("empty_path")
def test_without_nvcc_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements.compilers, "DEFAULT_CUDA", "/nonexistent")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ToolchainError, match=r"^nvcc not found: kernels for the GPU need it; install the CUDA toolkit"):
        asyncio.run(requirements.check_requirements("cuda:0"))


@pytest.mark.usefixtures("empty_path")
def test_without_bubblewrap_a_warning_says_what_is_left() -> None:
    warning = requirements.sandbox_warning()
    assert warning == (
        "no sandbox, bubblewrap (bwrap) is not installed: kernels and the reference run with resource limits only and can read "
        "your files; "
        "apt install bubblewrap (Debian, Ubuntu) or dnf install bubblewrap (Fedora)"
    )
    missing = asyncio.run(requirements.missing_tools())
    assert missing[0] == warning
    assert len(missing) == 2


def test_without_a_terminal_the_help_is_printed(capsys: Any) -> None:
    status, out, err = _lines((), capsys)
    assert (status, err) == (0, [])
    assert out[0].startswith("Usage: espalier")


def test_the_torch_that_is_named_is_the_one_the_package_asks_for() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = requirements.TORCH.split("'")[1]
    assert f'"{wanted}"' in text


def test_ninja_is_found_in_an_environment_that_is_not_activated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    path = python_process.environment("cpu", alone=True, threads=1)["PATH"]
    assert path.split(os.pathsep) == ["/usr/bin", sysconfig.get_path("scripts")]


@pytest.mark.slow
def test_progress_is_printed_before_torch_is_loaded(tmp_path: Path) -> None:
    """Without a terminal too."""
    variables = {**os.environ, "ESPALIER_HOME": str(tmp_path / "home"), "ESPALIER_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "espalier", *RUN]
    with subprocess.Popen(command, cwd=ROOT, env=variables, stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr is not None
        lines = [program.stderr.readline()]
        if "no sandbox" in lines[0]:
            lines.append(program.stderr.readline())
        before = not (tmp_path / "home" / "sessions").exists()
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=60)
    assert lines[-1].split(" s  ")[-1] == "loading torch and the problem\n"
    assert before, "a session was made first"
    assert program.returncode == 130
