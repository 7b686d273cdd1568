"""The sdist, the wheel built from it, and that wheel installed in a virtual environment outside the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.domain import queries
from engine.journal import store

pytest.importorskip("build")
pytest.importorskip("hatchling")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PROBLEMS = sorted(folder.name for folder in (ROOT / "problems").iterdir() if (folder / "reference.py").is_file())
SESSIONS = sorted(folder.name for folder in (ROOT / "sessions").iterdir() if (folder / "journal.jsonl").is_file())


@dataclass(frozen=True, slots=True)
class Distribution:
    """What ``python -m build`` makes."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    """The sdist of this checkout, and the wheel built from the sdist."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=150)
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return Distribution(sdist, wheel)


@pytest.fixture(scope="module")
def environment(distribution: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel. It finds the dependencies, and not this checkout, where the tests find them."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    install = ["-m", "pip", "--python", str(folder / "bin" / "python"), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([sys.executable, *install, str(distribution.wheel)], check=True, capture_output=True, timeout=100)
    (site,) = folder.glob("lib/python*/site-packages")
    places = dict.fromkeys(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))
    (site / "dependencies.pth").write_text("".join(f"{place}\n" for place in places))
    return folder


def _run(environment: Path, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if name not in dropped}
    variables |= {"ESPALIER_HOME": str(home), "ESPALIER_CACHE": str(home / "cache")}
    return subprocess.run(
        [str(environment / "bin" / words[0]), *words[1:]],
        cwd=home, env=variables, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def test_the_sdist_holds_what_the_wheel_and_the_tests_need(distribution: Distribution) -> None:
    with tarfile.open(distribution.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in _tracked() if (ROOT / name).is_file()} - names == set()
    assert {"tui/app.py", "espalier.py", "problems/softmax/reference.py", "sessions/layernorm/journal.jsonl"} <= names
    assert {"tests/conftest.py", "README.md", "LICENSE", "pyproject.toml"} <= names
    assert [name for name in names if "__pycache__" in name or name.endswith("/lock")] == []


def _tracked() -> list[str]:
    """The files that git tracks; none in an unpacked sdist."""
    if not (ROOT / ".git").exists():
        return []
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name]


def test_the_wheel_holds_the_program_the_problems_and_the_sessions(distribution: Distribution) -> None:
    with zipfile.ZipFile(distribution.wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names} == {"engine", "tui", "espalier.py", "espalier-0.1.0.dist-info"}
    for package in ("engine", "tui"):
        files = {str(file.relative_to(ROOT)) for file in (ROOT / package).rglob("*.*") if _ships(file)}
        assert files - names == set()
    for name in ("problems", "sessions"):
        files = {str(file.relative_to(ROOT)) for file in (ROOT / name).rglob("*") if _ships(file)}
        assert {f"engine/_shipped/{file}" for file in files} - names == set()
    assert [name for name in names if "__pycache__" in name or name.endswith("/lock")] == []


def _ships(file: Path) -> bool:
    return file.is_file() and "__pycache__" not in file.parts and file.name != "lock" and "_shipped" not in file.parts


@pytest.mark.parametrize("program", [("espalier",), ("python", "-m", "espalier")])
def test_the_program_starts(environment: Path, tmp_path: Path, program: tuple[str, ...]) -> None:
    found = _run(environment, tmp_path, *program, "--version")
    assert (found.returncode, found.stdout, found.stderr) == (0, "espalier 0.1.0\n", "")
    found = _run(environment, tmp_path, *program)
    assert found.returncode == 0
    assert found.stdout.startswith("Usage: espalier")


def test_the_installed_code_is_the_wheels(environment: Path, tmp_path: Path) -> None:
    code = "import engine, tui, espalier, tui.app; print(engine.__file__, tui.__file__, espalier.__file__, sep='\\n')"
    found = _run(environment, tmp_path, "python", "-c", code)
    assert found.returncode == 0, found.stderr
    assert all(Path(line).is_relative_to(environment) for line in found.stdout.splitlines())


def test_the_problems_ship(environment: Path, tmp_path: Path) -> None:
    found = _run(environment, tmp_path, "espalier", "problems", "--json")
    assert found.returncode == 0, found.stderr
    assert all(f'"{name}"' in found.stdout for name in PROBLEMS)


@pytest.mark.parametrize("name", SESSIONS)
def test_a_recorded_session_replays_by_its_name(environment: Path, tmp_path: Path, name: str) -> None:
    found = _run(environment, tmp_path, "espalier", "replay", name, "--headless", "--json")
    assert found.returncode == 0, found.stderr
    summary = json.loads(found.stdout)
    state = store.state_of(ROOT / "sessions" / name)
    leader = queries.incumbent(state)
    assert leader is not None
    assert state.opened is not None
    assert summary["problem"] == state.opened.problem.name
    assert summary["best"]["kernel"] == leader.id
