"""Two CPU workers under real Ray: a session, a killed worker, a killed actor, what a worker inherits."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fleet.test_fleet_sessions import happened, verdicts
from support import builders, fake_worker, sessions

from engine.domain import events as e
from engine.domain.errors import EspalierError
from engine.domain.state import SessionState
from engine.fleet import ray_cluster
from engine.fleet.bench import FleetBench
from engine.journal.blobs import Blobs
from engine.session.live import LiveSession
from engine.trial.assignment import Assignment

LIMIT_S = 120
FAKE = ("/usr/bin/env", f"{fake_worker.PAUSE}=0.15", *fake_worker.COMMAND)
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")


def worker_processes(above: int) -> list[int]:
    """The fake workers below a process, or all of them if they have outlived it."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().decode()
            environment = Path(f"/proc/{name}/environ").read_bytes().decode()
        except OSError:
            continue
        if "fake_worker.py" in words and f"ESPALIER_HOME=/of/{above}" in environment:
            found.append(int(name))
    return found


async def search(folder: Path) -> SessionState:
    """The scripted tree on a Ray of this machine alone; a worker and then an actor are killed."""
    launcher = await asyncio.to_thread(ray_cluster.RayLauncher.connect, "ray", "cpu", FAKE)
    problem = builders.opened().problem
    bench = FleetBench(Assignment(problem, problem.workloads[0], "cpu"), Blobs(folder).put, launcher)
    ports = replace(sessions.ports(folder, bench=bench, clock=time.time), workers=bench)
    async with LiveSession.create(folder, sessions.opened(), ports) as live:
        running = asyncio.ensure_future(live.run())
        await live.wait_until(lambda state: len(state.kernels) > 1)
        workers = worker_processes(os.getpid())
        assert workers
        for pid in workers:
            seen = Path(f"/proc/{pid}/environ").read_bytes().upper()
            assert b"RAY" not in seen.replace(b"/RAY", b""), "a worker inherits nothing of Ray"
        os.kill(workers[0], signal.SIGKILL)
        await live.wait_until(lambda state: any(one.losses for one in state.workers.values()))
        actor = int(Path(f"/proc/{workers[-1]}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(actor, signal.SIGKILL)
        await running
        return live.state


@needs_ray
@pytest.mark.slow
def test_a_session_on_ray_survives_a_killed_worker_and_a_killed_actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPALIER_HOME", f"/of/{os.getpid()}")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    (tmp_path / "token").write_text("a" * 64)
    alone = sessions.whole(tmp_path / "alone")
    state = asyncio.run(asyncio.wait_for(search(tmp_path / "fleet"), LIMIT_S))
    assert verdicts(state) == verdicts(alone)
    reasons = [event.reason for event in happened(tmp_path / "fleet", e.WorkerLost)]
    assert len(reasons) == 2
    assert any("killed by signal 9" in reason for reason in reasons)
    assert any("its actor was lost" in reason for reason in reasons)
    assert worker_processes(os.getpid()) == []


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EspalierError, match=r"^Ray is not installed: pip install 'espalier\[fleet\]'$"):
        ray_cluster.RayLauncher.connect("ray", "cpu")


def node(name: str, identity: str, **resources: float) -> dict[str, object]:
    return {"NodeManagerHostname": name, "NodeID": identity, "Alive": True, "Resources": resources}


def test_workers_of_a_cluster_are_named_by_their_machine() -> None:
    nodes = [node("b", "1" * 9, GPU=2.0, CPU=8.0), node("a", "2" * 9, GPU=1.0, espalier_cpu=2.0), node("a", "3" * 9, GPU=1.0)]
    assert list(ray_cluster.shares(nodes, "cuda:0")) == ["a/cuda:0", "a/cuda:0@333333", "b/cuda:0", "b/cuda:1"]
    found = ray_cluster.shares(nodes, "cpu")
    assert {name: (one.number, one.count) for name, one in found.items()} == {"a/cpu:0": (0, 2), "a/cpu:1": (1, 2)}
    assert list(ray_cluster.shares(nodes[:1], "cuda:0", bare=True)) == ["cuda:0", "cuda:1"]
