"""The command line to test with: through its own ``main``, in processes of its own, and over a pretended bench."""

from __future__ import annotations

import logging
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support import sessions
from support.pretended import PretendedBench
from support.program import Call, CommandResult, command, environment

from engine.journal.log_file import LogFileHandler
from engine.session import benches, trust
from espalier import main


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("ESPALIER_HOME", str(folder))
    for variable in ("OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    return folder


@pytest.fixture
def espalier(home: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """The program in this process."""

    def call(*arguments: object) -> CommandResult:
        status = main([str(argument) for argument in arguments])
        result = capsys.readouterr()
        return CommandResult(status, result.out, result.err)

    before = signal.getsignal(signal.SIGTERM)
    yield call
    signal.signal(signal.SIGTERM, before)
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, LogFileHandler)]:
        root.removeHandler(handler)


@pytest.fixture
def process(home: Path) -> Call:
    """The program in a process of its own; ``env`` changes its environment, ``before`` stands before its command line."""

    def call(*arguments: object, env: Mapping[str, str] | None = None, before: tuple[str, ...] = ()) -> CommandResult:
        done = subprocess.run(
            [*before, *command(*arguments)], env=environment(home, **(env or {})), capture_output=True, text=True,
            timeout=120, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return CommandResult(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def recorded(home: Path) -> Path:
    """The scripted tree of ten kernels, searched to its end with the fake bench, as a session made here that has a name."""
    folder = home / "sessions" / "scripted"
    trust.made_here(folder, sessions.whole(folder))
    return folder


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that compute nothing: times from a hash, playbooks as they ship. ``--tolerance crfm`` fools the gate."""
    monkeypatch.setattr(benches, "TrialBench", PretendedBench)
