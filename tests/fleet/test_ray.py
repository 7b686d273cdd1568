"""Two CPU workers under real Ray: a session, a killed worker, a killed actor, what a worker inherits."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import time
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import pytest
from fleet.test_fleet_sessions import happened, verdicts
from support import builders, fake_worker, sessions

from engine.domain import events as e
from engine.domain.errors import DeviceError
from engine.domain.state import SessionState
from engine.fleet import ray_cluster, ray_start
from engine.fleet.bench import FleetBench
from engine.fleet.loopback import listening_sockets
from engine.journal.blobs import Blobs
from engine.session.live import LiveSession
from engine.trial.assignment import Assignment

LIMIT_S = 120
_COMMAND = ("/usr/bin/env", f"{fake_worker.PAUSE}=0.15", *fake_worker.COMMAND)
FAKE = ray_cluster.Commands(_COMMAND, _COMMAND)
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")


def ray_ports(mark: str) -> list[IPv4Address | IPv6Address]:
    """The addresses on which processes with ``mark`` in their environment, and this one, listen."""
    found, sockets = [], listening_sockets()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if int(name) == os.getpid() or mark.encode() in Path(f"/proc/{name}/environ").read_bytes():
                inodes = [os.readlink(fd).removeprefix("socket:").strip("[]") for fd in Path(f"/proc/{name}/fd").iterdir()]
                found += [sockets[inode][0] for inode in inodes if inode in sockets]
    return found


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


def actor_of(process: int) -> int:
    """The Ray actor that a process runs below. A builder has bubblewrap in between."""
    while b"ray::" not in Path(f"/proc/{process}/cmdline").read_bytes():
        process = int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return process


async def search(folder: Path) -> SessionState:
    """The scripted tree on a Ray of this machine alone; a worker and then an actor are killed."""
    launcher = await asyncio.to_thread(ray_cluster.RayLauncher.connect, "ray", "cpu", builders=1, commands=FAKE)
    problem = builders.opened().problem
    bench = FleetBench(Assignment(problem, problem.workloads[0], "cpu"), Blobs(folder).put, launcher)
    ports = replace(sessions.ports(folder, bench=bench, clock=time.time), workers=bench)
    async with LiveSession.create(folder, sessions.opened(), ports) as live:
        running = asyncio.ensure_future(live.run())
        await live.wait_until(lambda state: len(state.kernels) > 1)
        workers = worker_processes(os.getpid())
        assert workers
        assert len(ray_ports(os.environ["RAY_AUTH_TOKEN_PATH"])) >= len(workers) + 2, "head, node and actors"
        assert all(address.is_loopback for address in ray_ports(os.environ["RAY_AUTH_TOKEN_PATH"]))
        for pid in workers:
            seen = Path(f"/proc/{pid}/environ").read_bytes().upper()
            assert b"RAY" not in seen.replace(b"/RAY", b""), "a worker inherits nothing of Ray"
        victim, actor = workers[0], next(found for found in map(actor_of, workers[::-1]) if found != actor_of(workers[0]))
        os.kill(victim, signal.SIGKILL)
        await live.wait_until(lambda state: any(one.losses for one in state.workers.values()))
        os.kill(actor, signal.SIGKILL)
        await running
        return live.state


@needs_ray
@pytest.mark.slow
def test_a_session_on_ray_survives_a_killed_worker_and_a_killed_actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPALIER_HOME", f"/of/{os.getpid()}")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")  # a cluster that is not to be joined
    (tmp_path / "token").write_text("a" * 64)
    alone = sessions.whole(tmp_path / "alone")
    state = asyncio.run(asyncio.wait_for(search(tmp_path / "fleet"), LIMIT_S))
    assert verdicts(state) == verdicts(alone)
    reasons = [event.reason for event in happened(tmp_path / "fleet", e.WorkerLost)]
    assert len(reasons) == 2
    assert any("killed by signal 9" in reason for reason in reasons), reasons
    assert any("its actor was lost" in reason for reason in reasons), reasons
    assert worker_processes(os.getpid()) == []


class PretendedRay:
    """Ray, as far as joining it goes."""

    def __init__(self, *nodes: dict[str, object]) -> None:
        self.given: dict[str, Any] = {}
        self._nodes = nodes or (node("here", "1" * 9, espalier_cpu=2.0),)

    def init(self, **given: Any) -> None:
        self.given = {**given, "clusters": os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")}

    def nodes(self) -> list[dict[str, object]]:
        return list(self._nodes)


@needs_ray
@pytest.mark.parametrize(
    ("address", "joined", "clusters", "name"),
    [("ray", "local", "0", "cpu:0"), ("node7:6379", "node7:6379", None, "here/cpu:0")],
)
def test_a_ray_of_its_own_joins_no_cluster(
    monkeypatch: pytest.MonkeyPatch, address: str, joined: str, clusters: str | None, name: str
) -> None:
    """``local`` is Ray's word for a new cluster: without it, one that RAY_ADDRESS names or that runs here is joined."""
    ray = PretendedRay()
    monkeypatch.setattr(ray_cluster, "imported_ray", lambda: ray)
    monkeypatch.setattr(ray_start, "_silence", lambda: None)
    found = ray_cluster.RayLauncher.connect(address, "cpu")
    assert (ray.given["address"], ray.given["clusters"]) == (joined, clusters)
    assert found.places[0].name == name


def node(name: str, identity: str, **resources: float) -> dict[str, object]:
    return {"NodeManagerHostname": name, "NodeID": identity, "Alive": True, "Resources": resources}


def test_workers_of_a_cluster_are_named_by_their_machine() -> None:
    nodes = [node("b", "1" * 9, GPU=2.0, CPU=8.0), node("a", "2" * 9, GPU=1.0, espalier_cpu=2.0), node("a", "3" * 9, GPU=1.0)]
    assert list(ray_cluster.shares(nodes, "cuda:0")) == ["a/cuda:0", "a/cuda:0@333333", "b/cuda:0", "b/cuda:1"]
    found = ray_cluster.shares(nodes, "cpu")
    assert {name: (one.number, one.count) for name, one in found.items()} == {"a/cpu:0": (0, 2), "a/cpu:1": (1, 2)}
    assert list(ray_cluster.shares(nodes[:1], "cuda:0", bare=True)) == ["cuda:0", "cuda:1"]


def gpu_node(name: str, model: str, gpus: int) -> dict[str, object]:
    return node(name, name * 9, GPU=float(gpus), **{f"accelerator_type:{model}": 1.0} if model else {})


CLUSTER = (gpu_node("a", "L4", 1), gpu_node("b", "H200", 4), gpu_node("c", "L40S", 2), gpu_node("d", "", 1))
MODELS = {
    "": "H200",  # a new session: the model of which there are most
    "NVIDIA H200": "H200",
    "NVIDIA L40S": "L40S",
    "NVIDIA L4": "L4",
    "NVIDIA B200": "H200",  # there is none: the session moves to another model, as without a fleet
}


@needs_ray
@pytest.mark.parametrize("device", MODELS)
def test_a_session_measures_on_one_model_and_refuses_others_by_name(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "imported_ray", lambda: PretendedRay(*CLUSTER))
    monkeypatch.setattr(ray_start, "_silence", lambda: None)
    launcher = ray_cluster.RayLauncher.connect("node7:6379", "cuda:0", model=device)
    first = {"H200": "b", "L40S": "c", "L4": "a"}[MODELS[device]]
    assert launcher.places[0].name == f"{first}/cuda:0", "the first worker decides on the session's device"
    others = {"a": "L4", "b": "H200", "c": "L40S"}
    for place in launcher.places:
        if (host := place.name.partition("/")[0]) in others and host != first:
            with pytest.raises(DeviceError) as caught:
                asyncio.run(launcher.start(place))
            assert str(caught.value) == f"refused: it has {others[host]}, this session measures on {MODELS[device]} only"
