"""Workers of a Ray cluster: an actor on each device. Ray is the extra ``espalier[fleet]`` and is imported only here.

Ray moves frames, places actors and says when one is lost; what the frames say is this project's own codec. Token authentication
is on unless the environment says otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.domain.errors import DeviceError, EspalierError
from engine.fleet.links import WORKER, Link, LinkClosed
from engine.fleet.loopback import is_on_loopback, loopback_only
from engine.fleet.messages import one_line
from engine.fleet.places import WorkerPlace, core_groups, cpu_places
from engine.fleet.ray_actor import CLOSED, WorkerActor

CPU_WORKERS = "espalier_cpu"
"""The custom resource of a node whose cores are to be used: how many workers share them."""
INSTALL = "Ray is not installed: pip install 'espalier[fleet]'"
_MODEL = "accelerator_type:"
_START_S = 120.0
_CLOSE_S = 30.0


def check_installed() -> None:
    """Raises EspalierError with what to install if Ray is missing. Does not import it."""
    if importlib.util.find_spec("ray") is None:
        raise EspalierError(INSTALL)


def _ray() -> Any:
    """Ray itself, with token authentication."""
    check_installed()
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return importlib.import_module("ray")


@dataclass(frozen=True, slots=True)
class NodeShare:
    """A worker's node, and which of how many workers it is there."""

    node: str
    number: int
    count: int
    model: str = ""
    """Of its GPU, as Ray names it (``H200``); empty where Ray does not say."""


class RayLink:
    """A worker behind an actor."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self._actor = actor
        self._frames: list[bytes] = []
        self._closed = False

    async def send(self, frame: bytes) -> None:
        failed = await self._reply(self._actor.send.remote(frame))
        if failed:
            raise LinkClosed(one_line(failed.decode("utf-8", "replace")))

    async def receive(self) -> bytes:
        while not self._frames:
            found = await self._reply(self._actor.receive.remote())
            if not isinstance(found, list) or not all(isinstance(one, bytes) for one in found):
                raise LinkClosed("its actor sent no frames")
            if found[:1] == [CLOSED]:
                raise LinkClosed(one_line(found[-1].decode("utf-8", "replace")))
            self._frames = found[::-1]
        return self._frames.pop()

    async def _reply(self, reference: Any) -> Any:
        """Raises LinkClosed if the actor is lost."""
        try:
            return await reference
        except self._ray.exceptions.RayError as error:
            raise LinkClosed(f"its actor was lost: {_first_line(error)}") from error

    def kill(self) -> None:
        self._ray.kill(self._actor, no_restart=True)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._reply(self._actor.close.remote())
        except (LinkClosed, TimeoutError):
            pass
        finally:
            self.kill()


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return one_line(lines[0]) if lines else type(error).__name__


class RayLauncher:
    """Workers of a cluster. ``connect`` makes one."""

    def __init__(
        self, ray: Any, nodes: Mapping[str, NodeShare], device: str, *, model: str, command: Sequence[str]
    ) -> None:  # fmt: skip
        """Use ``connect``."""
        self._ray = ray
        self._model = session_model([share.model for share in nodes.values()], model)
        self._nodes = dict(sorted(nodes.items(), key=lambda one: one[1].model != self._model))  # those of the session first
        self._device = device
        self._command = tuple(command)
        self.places = tuple(WorkerPlace(name, "cpu" if device == "cpu" else "cuda:0") for name in self._nodes)

    @classmethod
    def connect(cls, address: str, device: str, command: Sequence[str] = WORKER, model: str = "") -> RayLauncher:
        """Start Ray here (``ray``), or join the cluster at an address; ``model`` names the session's GPU, if it has one.

        Blocks. Raises EspalierError.
        """
        ray = _ray()
        here = address == "ray"
        try:
            with loopback_only() if here or is_on_loopback(address) else contextlib.nullcontext():
                ray.init(**(_own_cluster() if here else {"address": address}), log_to_driver=False, logging_level="ERROR",
                         namespace="espalier")  # fmt: skip
        except Exception as error:
            failed = "Ray does not start here" if here else f"the Ray cluster {address!r} cannot be joined"
            raise EspalierError(f"{failed}: {_first_line(error)}") from error
        _silence()
        nodes = shares([node for node in ray.nodes() if node["Alive"]], device, bare=here)
        if not nodes:
            ray.shutdown()
            raise DeviceError(_nothing(device, address))
        return cls(ray, nodes, device, model=model, command=command)

    async def start(self, place: WorkerPlace) -> Link:
        share = self._nodes[place.name]
        if share.model and share.model != self._model:
            raise DeviceError(f"refused: it has {share.model}, this session measures on {self._model} only")
        needs: dict[str, Any] = {"resources": {CPU_WORKERS: 1}}
        if self._device != "cpu":
            needs = {"num_gpus": 1, **({"accelerator_type": share.model} if share.model else {})}
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        affinity = strategies.NodeAffinitySchedulingStrategy(share.node, soft=False)
        made = self._ray.remote(num_cpus=0, max_restarts=0, max_concurrency=64, scheduling_strategy=affinity, **needs)
        actor = made(WorkerActor).remote(place.name, self._device, (share.number, share.count), self._command)
        link = RayLink(self._ray, actor)
        try:
            async with asyncio.timeout(_START_S):
                failed = await link._reply(actor.start.remote())
        except TimeoutError:
            link.kill()
            raise EspalierError(f"{place.name} did not get its device within {_START_S:g} s") from None
        if failed:
            raise EspalierError(one_line(failed.decode("utf-8", "replace")))
        return link

    async def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        await asyncio.to_thread(self._ray.shutdown)


def _silence() -> None:
    """Ray prints several lines on standard error for each lost actor and has no setting against it. The journal has one."""
    worker: Any = importlib.import_module("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None


def _own_cluster() -> dict[str, Any]:
    """A cluster of this machine alone. Without CPUs of its own, for each of which Ray would start a process at once."""
    workers = {CPU_WORKERS: len(cpu_places(core_groups(), 0))}
    return {"address": "local", "include_dashboard": False, "num_cpus": 0, "resources": workers}


def shares(nodes: Sequence[Mapping[str, Any]], device: str, *, bare: bool = False) -> dict[str, NodeShare]:
    """The workers that living nodes have room for, by name; ``bare`` names lack the machine."""
    found: dict[str, NodeShare] = {}
    for node in sorted(nodes, key=lambda one: str(one["NodeManagerHostname"])):
        count = int(node["Resources"].get(CPU_WORKERS if device == "cpu" else "GPU", 0))
        host = one_line(str(node["NodeManagerHostname"]))
        kind, model = "cpu" if device == "cpu" else "cuda", _model(node["Resources"])
        for number in range(count):
            plain = f"{kind}:{number}" if bare else f"{host}/{kind}:{number}"
            name = plain if plain not in found else f"{plain}@{node['NodeID'][:6]}"
            found[name] = NodeShare(str(node["NodeID"]), number, count, model if kind == "cuda" else "")
    return found


def _model(resources: Mapping[str, Any]) -> str:
    """The model of a node's GPUs. Ray tells it as a resource: ``accelerator_type:H200``."""
    return min((one_line(name.removeprefix(_MODEL)) for name in resources if name.startswith(_MODEL)), default="")


def session_model(models: Sequence[str], device: str) -> str:
    """The model for a session whose device is called ``NVIDIA H200`` or, while it has none, the most frequent one."""
    known = Counter(filter(None, models))
    own = {model: count for model, count in known.items() if re.search(rf"\b{re.escape(model)}\b", device)}
    return min(own or known, key=lambda model: (-known[model], model), default="")


def _nothing(device: str, address: str) -> str:
    if device == "cpu":
        return f"no node of the Ray cluster {address!r} offers its cores: `ray start --resources '{{\"{CPU_WORKERS}\": 1}}'`"
    return f"no node of the Ray cluster {address!r} has a GPU"
