"""Ray is missing, broken, or does not start at once: one line, or another try."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.domain.errors import EspalierError
from engine.fleet import ray_start
from engine.fleet.ray_cluster import RayLauncher

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
TIMED_OUT = "The current node timed out during startup.\nThis could happen because ..."


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EspalierError, match=r"^Ray is not installed: pip install 'espalier\[fleet\]'$"):
        RayLauncher.connect("ray", "cpu")


def break_ray(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have ``import ray`` run this."""
    (folder / "ray").mkdir()
    (folder / "ray" / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    for name in [one for one in sys.modules if one == "ray" or one.startswith("ray.")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("broken", ["import no_such_module", "raise OSError('undefined symbol: x')", "1 / 0"])
def test_a_ray_that_cannot_be_imported_is_said_in_one_line(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_ray(tmp_path, monkeypatch, broken)
    with pytest.raises(EspalierError, match=r"^Ray is installed but cannot be imported: .*; install it again: pip ") as caught:
        RayLauncher.connect("ray", "cpu")
    assert "\n" not in str(caught.value)


class FailingRay:
    """Ray whose first starts fail and leave a process of Ray behind, and one that is not Ray's."""

    def __init__(self, failures: int) -> None:
        self.failures, self.starts, self.shutdowns = failures, 0, 0
        self.left: list[subprocess.Popen[bytes]] = []
        self.others: list[subprocess.Popen[bytes]] = []

    def init(self, **_: Any) -> None:
        self.starts += 1
        if self.starts <= self.failures:
            spec = importlib.util.find_spec("ray")
            assert spec is not None
            assert spec.submodule_search_locations is not None
            sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
            self.left.append(subprocess.Popen([*sleep, f"{spec.submodule_search_locations[0]}/core/raylet"]))
            self.others.append(subprocess.Popen(sleep))
            raise RuntimeError(TIMED_OUT)

    def shutdown(self) -> None:
        self.shutdowns += 1


@pytest.fixture
def failing(request: pytest.FixtureRequest) -> Iterator[FailingRay]:
    ray = FailingRay(request.param)
    yield ray
    for process in (*ray.left, *ray.others):
        process.kill()
        process.wait()


@needs_ray
@pytest.mark.parametrize("failing", [0, 1, 2], indirect=True)
def test_a_failed_start_is_repeated_and_what_it_left_is_ended(failing: FailingRay) -> None:
    ray_start.connect(failing, "ray")
    assert failing.starts == failing.failures + 1
    assert failing.shutdowns == len(failing.left) == failing.failures
    assert all(process.wait(timeout=30) < 0 for process in failing.left)
    assert all(process.poll() is None for process in failing.others)


@needs_ray
@pytest.mark.parametrize("failing", [9], indirect=True)
def test_the_third_failure_is_said_in_one_line(failing: FailingRay) -> None:
    with pytest.raises(EspalierError) as caught:
        ray_start.connect(failing, "ray")
    assert str(caught.value) == (
        "Ray does not start here, tried 3 times: The current node timed out during startup; --fleet local needs no Ray"
    )
    assert failing.starts == 3


@needs_ray
@pytest.mark.parametrize("failing", [9], indirect=True)
def test_a_cluster_that_cannot_be_joined_is_tried_once(failing: FailingRay) -> None:
    with pytest.raises(EspalierError, match="the Ray cluster 'node7:6379' cannot be joined: The current node"):
        ray_start.connect(failing, "node7:6379")
    assert failing.starts == 1
