"""``espalier fleet``, and what ``--fleet`` refuses."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from fleet.test_fleet_sessions import NAMES, search
from fleet.test_ray_start import break_ray
from support import sessions

from engine.cli import fleet
from engine.domain.errors import EspalierError
from engine.session.benches import check_fleet


def test_status_shows_the_workers_of_a_session(tmp_path: Path) -> None:
    search(tmp_path / "s")
    printed = CliRunner().invoke(fleet.status, [str(tmp_path / "s")]).output
    assert [line.split()[0] for line in printed.splitlines()] == ["s", *NAMES]
    (found,) = json.loads(CliRunner().invoke(fleet.status, [str(tmp_path / "s"), "--json"]).output)["sessions"]
    assert [worker["name"] for worker in found["workers"]] == list(NAMES)
    assert sum(worker["verdicts"] for worker in found["workers"]) >= 10
    assert found["queued"] == 0


def test_status_of_a_session_without_a_fleet_says_so(tmp_path: Path) -> None:
    sessions.whole(tmp_path / "s")
    assert "has no fleet" in CliRunner().invoke(fleet.status, [str(tmp_path / "s")]).output


def test_doctor_lists_what_a_worker_needs() -> None:
    found = json.loads(CliRunner().invoke(fleet.doctor, ["--device", "cpu", "--json"]).output)
    names = [check["name"] for check in found["checks"]]
    assert names == ["workers", "sandbox", "compiler", "torch", "ray", "token"]
    assert "cpu:" in found["checks"][0]["detail"]


def doctor_lines() -> dict[str, str]:
    printed = CliRunner().invoke(fleet.doctor, ["--device", "cpu"]).output
    return {line.split()[1]: line for line in printed.splitlines()}


def test_doctor_says_that_a_missing_ray_and_token_are_optional(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    lines = doctor_lines()
    assert lines["ray"].startswith("optional")
    assert "pip install 'espalier[fleet]'" in lines["ray"]
    assert lines["token"].startswith("optional")
    (tmp_path / "token").write_text("a" * 64)
    assert doctor_lines()["token"].startswith("ok")


def test_doctor_says_that_ray_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    break_ray(tmp_path, monkeypatch, "raise OSError('undefined symbol')")
    line = doctor_lines()["ray"]
    assert line.startswith("missing")
    assert "cannot be imported" in line


@pytest.mark.parametrize("text", ["", "local", "local:3"])
def test_a_local_fleet_needs_no_ray(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_fleet(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ray", "pip install"),
        ("node7:6379", "pip install"),
        ("locl", "unknown fleet"),
        ("local:x", "unknown"),
        ("local:0", "unknown"),
    ],
)
def test_another_fleet_is_refused_in_one_line(text: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EspalierError, match=words) as caught:
        check_fleet(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "address", "clusters"),
    [
        ((), "127.0.0.1:6379", "0"),
        (("--port", "7000"), "127.0.0.1:7000", "0"),
        (("--listen", "192.0.2.7"), "192.0.2.7:6379", None),
        (("--address", "192.0.2.7:6379"), "192.0.2.7:6379", None),
    ],
)
def test_a_head_without_an_address_is_for_this_machine(
    arguments: tuple[str, ...], address: str, clusters: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        runs.append((command, env))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(fleet, "gpu_names", list)
    monkeypatch.setattr(fleet, "check_installed", lambda: None)
    monkeypatch.setattr(subprocess, "run", run)
    printed = CliRunner().invoke(fleet.start, [*arguments, "--json"]).output
    assert json.loads(printed)["address"] == address
    command, environment = runs[-1]
    assert "start" in command
    assert environment.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") == clusters
