"""A package of another program that hides or overwrote one of Espalier's: one line and exit status 2."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import espalier

ROOT = Path(__file__).resolve().parents[2]


def _espalier(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """``python -m espalier --version`` in a folder: Python looks for packages there first."""
    return subprocess.run(
        [sys.executable, "-m", "espalier", "--version"], cwd=folder, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


@pytest.mark.parametrize("file", ["engine/__init__.py", "engine.py", "tui/__init__.py"])
def test_a_package_of_the_same_name_is_one_line(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise RuntimeError('never imported')\n")
    found = _espalier(tmp_path)
    assert found.returncode == 2
    name = Path(file).parts[0].removesuffix(".py")
    assert found.stderr.startswith(f"espalier: another package named '{name}' ({tmp_path}/")
    assert "virtual environment" in found.stderr
    assert len(found.stderr.splitlines()) == 1
    assert found.stdout == ""


def test_a_folder_that_is_no_package_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    assert _espalier(tmp_path).returncode == 0


@pytest.mark.parametrize("overwritten", [True, False])
def test_a_damaged_installation_is_one_line(tmp_path: Path, overwritten: bool) -> None:
    """Another distribution with a package ``engine`` was installed over this one, or removed with its files."""
    site = tmp_path / "site"
    site.mkdir()
    shutil.copy(ROOT / "espalier.py", site)
    shutil.copytree(ROOT / "engine", site / "engine", ignore=shutil.ignore_patterns("__pycache__"))
    if overwritten:
        (site / "engine" / "__init__.py").write_text('"""Another program."""\n')
    else:
        (site / "engine" / "__init__.py").unlink()
    found = _espalier(tmp_path, PYTHONPATH=str(site))
    assert found.returncode == 2
    words = "overwrote Espalier's package 'engine'" if overwritten else "Espalier's package 'engine' is missing"
    assert words in found.stderr
    assert str(site) in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_the_public_names_load_nothing_else() -> None:
    code = (
        "import sys, espalier; known = set(sys.modules); espalier.__version__; dir(espalier)\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('engine', 'tui', 'torch', 'click', 'textual')))\n"
        "print(espalier.__all__)"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.splitlines() == ["[]", str(espalier.__all__)]
