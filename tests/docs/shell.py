"""Runs the commands of a page: the program's own in this process, everything else through bash."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from docs.pages import ROOT, Block
from support import stored_showcase
from support.pretended import PretendedBench

from engine.journal import store
from engine.journal.log_file import LogFileHandler
from engine.session import benches, trust
from espalier import main

SESSION = "my-search"
"""The session that the how-to guides steer."""
_PLAIN = re.compile(r"espalier [^|<>;$&`]*")


class Shell:
    """A folder and a home of its own, with the recorded sessions of the checkout beside a session to steer."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.home, self.here = folder / "home", folder / "here"
        self.here.mkdir(parents=True)
        shutil.copytree(ROOT / "sessions", self.here / "sessions")
        for name in ("problems", "benchmarks"):
            (self.here / name).symlink_to(ROOT / name)
        self._bin = folder / "bin"
        self._bin.mkdir()
        (self._bin / "espalier").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m espalier "$@"\n')
        (self._bin / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        for tool in self._bin.iterdir():
            tool.chmod(0o755)
        patch.chdir(self.here)
        patch.setenv("ESPALIER_HOME", str(self.home))
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("PATH", f"{self._bin}{os.pathsep}{os.environ['PATH']}")
        for variable in ("OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_BASE_URL"):
            patch.delenv(variable, raising=False)
        self._patch = patch

    def prepare(self) -> None:
        """A new copy of the session that the guides steer."""
        folder = self.home / "sessions" / SESSION
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        stored_showcase.store(folder)
        trust.made_here(folder, store.state_of(folder))

    def run(self, block: Block) -> None:
        """Write the block's file, or run its commands one after the other."""
        if "file" in block.note:
            (self.here / block.note["file"]).write_text(block.text + "\n", encoding="utf-8")
            return
        if "fresh" in block.note:
            self.prepare()
        with _bench(pretended="slow" not in block.note):
            for command, allowed in zip(block.commands, block.statuses, strict=True):
                status = self._status(command)
                assert status in allowed, f"{block.page.name}:{block.line}: `{command}` exits with {status}"

    def _status(self, command: str) -> int:
        if _PLAIN.fullmatch(command):
            with _handlers_kept():
                return main(shlex.split(command)[1:])
        if command.startswith("pip install "):
            return _installs(shlex.split(command)[-1])
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=self.here,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        sys.stdout.write(done.stdout + done.stderr)
        return done.returncode


def _installs(what: str) -> int:
    """Whether pip would find this package and these extras; CI and ``tests/packaging`` install it."""
    named = re.fullmatch(r"(?:\.|espalier)(?:\[([a-z,]+)\])?", what)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    return 0 if named and set((named[1] or "").split(",")) - {""} <= set(extras) else 1


@contextmanager
def _bench(*, pretended: bool) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if pretended:
            patch.setattr(benches, "TrialBench", PretendedBench)
        yield


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """The program's own signal handler and log file go with the call."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, LogFileHandler)]:
        root.removeHandler(handler)
