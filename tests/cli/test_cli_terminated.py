"""SIGTERM and Ctrl-C, whenever they come, end the program with the status of an interruption."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import espalier

_PROGRAM = """
import signal, sys
from engine.cli import exit_codes, main
signal.signal(signal.SIGTERM, main._interrupt)
sys.exit(exit_codes.exit_status_of(lambda: exec("import signal; signal.raise_signal(signal.SIGTERM)")))
"""
ROOT = Path(__file__).resolve().parents[2]


def test_sigterm_while_an_import_runs_text_is_an_interruption(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{_PROGRAM}")
    call = [sys.executable, "-m", "program"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (130, "espalier: interrupted\n")


def test_ctrl_c_while_the_program_loads_gets_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "engine.cli.ui", Interrupted("engine.cli.ui"))
    assert espalier.main(["--version"]) == 130
    assert capsys.readouterr() == ("", "espalier: interrupted\n")


_INTERRUPTED_IMPORT = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name not in ("espalier", "__future__") and sys.argv[1] == "interrupted":
            raise KeyboardInterrupt
        print("imports", name)
sys.meta_path.insert(0, Finder())
import espalier
if sys.argv[1] == "interrupted":
    sys.exit(espalier.main(["--version"]))
"""


@pytest.mark.parametrize("how", ["imported", "interrupted"])
def test_nothing_is_imported_before_ctrl_c_is_handled(tmp_path: Path, how: str) -> None:
    """Ctrl-C during the imports of the entry's own module printed Python's traceback.

    ``-S``: the program begins with what the interpreter itself has loaded.
    """
    (tmp_path / "program.py").write_text(_INTERRUPTED_IMPORT)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    call = [sys.executable, "-S", "program.py", how]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60, env=env)
    expected = (130, "espalier: interrupted\n") if how == "interrupted" else (0, "")
    assert (done.returncode, done.stderr) == expected
    assert set(done.stdout.split()) <= {"imports", "espalier", "__future__"}
