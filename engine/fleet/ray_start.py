"""Imports Ray, the extra ``espalier[fleet]``, with token authentication, and starts a cluster here or joins one.

Ray gives a start 30 s, which a busy machine exceeds now and then, and has no setting for more: a start that fails is repeated.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

from engine.domain.errors import EspalierError
from engine.fleet.loopback import is_on_loopback, loopback_only
from engine.fleet.messages import one_line
from engine.fleet.places import core_groups, cpu_places
from engine.sandbox.process import kill_tree

CPU_WORKERS = "espalier_cpu"
"""The custom resource of a node whose cores are to be used: how many workers share them."""
INSTALL = "Ray is not installed: pip install 'espalier[fleet]'"
HERE = "ray"
"""The address that stands for a cluster of this machine alone."""
_STARTS = 3
_KILL_S = 3.0


def check_installed() -> None:
    """Raises EspalierError with what to install if Ray is missing. Does not import it."""
    if importlib.util.find_spec("ray") is None:
        raise EspalierError(INSTALL)


def imported_ray() -> Any:
    """Ray itself, with token authentication. Raises EspalierError if it is missing or cannot be imported."""
    check_installed()
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except Exception as error:  # an extension module of another system or Python raises anything
        raise EspalierError(
            f"Ray is installed but cannot be imported: {first_line(error)}; "
            "install it again: pip install --force-reinstall 'espalier[fleet]'"
        ) from error


def connect(ray: Any, address: str) -> None:
    """Start a cluster here (``HERE``), or join the one at an address. Blocks. Raises EspalierError."""
    if address == HERE:
        _start_here(ray)
    else:
        try:
            with loopback_only() if is_on_loopback(address) else contextlib.nullcontext():
                _init(ray, address=address)
        except Exception as error:
            raise EspalierError(f"the Ray cluster {address!r} cannot be joined: {first_line(error)}") from error
    _silence()


def _start_here(ray: Any) -> None:
    for left in reversed(range(_STARTS)):
        before = _children()
        try:
            with loopback_only():
                _init(ray, **_own_cluster())
            return
        except Exception as error:
            ray.shutdown()
            _end_started(before)
            if not left:
                reason = f"Ray does not start here, tried {_STARTS} times: {first_line(error)}"
                raise EspalierError(f"{reason}; --fleet local needs no Ray") from error


def _init(ray: Any, **where: Any) -> None:
    ray.init(**where, log_to_driver=False, logging_level="ERROR", namespace="espalier")


def _own_cluster() -> dict[str, Any]:
    """A cluster of this machine alone. Without CPUs of its own, for each of which Ray would start a process at once."""
    workers = {CPU_WORKERS: len(cpu_places(core_groups(), 0))}
    return {"address": "local", "include_dashboard": False, "num_cpus": 0, "resources": workers}


def _children() -> frozenset[int]:
    """The child processes of this process."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended
            found |= set(map(int, (task / "children").read_text().split()))
    return frozenset(found)


def _end_started(before: frozenset[int]) -> None:
    """End what a failed start left: children of this process that came since and belong to Ray, which forgets them."""
    spec = importlib.util.find_spec("ray")
    roots = [os.fsencode(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []
    for pid in _children() - before:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if any(word.startswith(root + b"/") for word in words for root in roots):
                kill_tree(pid, _KILL_S)


def _silence() -> None:
    """Ray prints several lines on standard error for each lost actor and has no setting against it. The journal has one."""
    worker: Any = importlib.import_module("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None


def first_line(error: Exception) -> str:
    """The first line of an error of Ray, which are long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return one_line(lines[0]).rstrip(".") if lines else type(error).__name__
