"""Workers of a Ray cluster: an actor on each device, and builders: actors without one.

Ray moves frames, places actors and says when one is lost; what the frames say is this project's own codec.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.domain.errors import DeviceError, EspalierError
from engine.fleet.links import BUILDER, WORKER, Link, LinkClosed
from engine.fleet.messages import one_line
from engine.fleet.places import BUILD, WorkerPlace, builder_count
from engine.fleet.ray_actor import CLOSED, WorkerActor
from engine.fleet.ray_start import CPU_WORKERS, HERE, connect, first_line, imported_ray

_MODEL = "accelerator_type:"
_START_S = 120.0
_CLOSE_S = 30.0


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The node of a worker or builder, and which of how many it is there."""

    node: str
    number: int
    count: int
    model: str = ""
    """Of its GPU, as Ray names it (``H200``); empty where Ray does not say."""


@dataclass(frozen=True, slots=True)
class Commands:
    """The programs that the actors start, without their arguments."""

    worker: Sequence[str] = WORKER
    builder: Sequence[str] = BUILDER


COMMANDS = Commands()


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
            raise LinkClosed(f"its actor was lost: {first_line(error)}") from error

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


class RayLauncher:
    """Workers and builders of a cluster. ``connect`` makes one."""

    def __init__(
        self, ray: Any, nodes: Mapping[str, NodeShare], builders: Mapping[str, NodeShare], device: str, *, model: str,
        commands: Commands,
    ) -> None:  # fmt: skip
        """Use ``connect``."""
        self._ray = ray
        self._builders = builders
        self.builders = tuple(WorkerPlace(name, BUILD) for name in builders)
        self._model = session_model([share.model for share in nodes.values()], model)
        self._nodes = dict(sorted(nodes.items(), key=lambda one: one[1].model != self._model))  # those of the session first
        self._device = device
        self._commands = commands
        self.places = tuple(WorkerPlace(name, "cpu" if device == "cpu" else "cuda:0") for name in self._nodes)

    @classmethod
    def connect(
        cls, address: str, device: str, model: str = "", *, builders: int | None = None, commands: Commands = COMMANDS
    ) -> RayLauncher:
        """Start Ray here (``ray``), or join the cluster at an address; ``model`` names the session's GPU, if it has one.

        ``builders``: on each machine; by default as many as suit it. Blocks. Raises EspalierError.
        """
        ray = imported_ray()
        connect(ray, address)
        alive, bare = [node for node in ray.nodes() if node["Alive"]], address == HERE
        nodes = shares(alive, device, bare=bare)
        if not nodes:
            ray.shutdown()
            raise DeviceError(_nothing(device, address))
        found = builder_shares(alive, device, builders, bare=bare)
        return cls(ray, nodes, found, device, model=model, commands=commands)

    async def start(self, place: WorkerPlace) -> Link:
        share = (self._builders if place.builds else self._nodes)[place.name]
        if share.model and share.model != self._model:
            raise DeviceError(f"refused: it has {share.model}, this session measures on {self._model} only")
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        affinity = strategies.NodeAffinitySchedulingStrategy(share.node, soft=False)
        made = self._ray.remote(
            num_cpus=0, max_restarts=0, max_concurrency=64, scheduling_strategy=affinity, **self._needs(place, share)
        )  # fmt: skip
        device, command = (BUILD, self._commands.builder) if place.builds else (self._device, self._commands.worker)
        actor = made(WorkerActor).remote(place.name, device, (share.number, share.count), command)
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

    def _needs(self, place: WorkerPlace, share: NodeShare) -> dict[str, Any]:
        """What Ray sets aside for an actor."""
        if place.builds:
            return {"num_gpus": 0}
        if self._device == "cpu":
            return {"resources": {CPU_WORKERS: 1}}
        return {"num_gpus": 1, **({"accelerator_type": share.model} if share.model else {})}

    async def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        await asyncio.to_thread(self._ray.shutdown)


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


def builder_shares(
    nodes: Sequence[Mapping[str, Any]], device: str, count: int | None, *, bare: bool = False
) -> dict[str, NodeShare]:
    """The builders of living nodes, by name: ``count`` on each, or as many as suit its cores."""
    found: dict[str, NodeShare] = {}
    for node in sorted(nodes, key=lambda one: str(one["NodeManagerHostname"])):
        cores = len(os.sched_getaffinity(0)) if bare else int(node["Resources"].get("CPU", 0))
        own = builder_count(device, cores) if count is None else count
        for number in range(own):
            plain = f"builder:{number}" if bare else f"{one_line(str(node['NodeManagerHostname']))}/builder:{number}"
            found[plain if plain not in found else f"{plain}@{node['NodeID'][:6]}"] = NodeShare(
                str(node["NodeID"]), number, own
            )
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
