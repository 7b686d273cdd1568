"""``espalier fleet``: the workers of running sessions, and a Ray cluster for them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.exit_codes import BAD_INPUT, FAILED, CommandExit, end
from engine.cli.output import show, show_json
from engine.domain.errors import EspalierError
from engine.domain.state import SessionState
from engine.fleet.loopback import LOOPBACK, is_on_loopback
from engine.fleet.places import core_groups, cpu_places, local_places
from engine.fleet.ray_start import CPU_WORKERS, check_installed, imported_ray
from engine.fleet.versions import versions
from engine.journal import store, user_folders
from engine.journal.lock import is_written
from engine.report.facts.fleet import fleet_rows
from engine.report.text.fleet import fleet_lines
from engine.report.text.lines import Span, Tone, line, table
from engine.sandbox.trial_sandbox import judge_reason
from engine.session.devices import checked_device, gpu_names

_PORT = 6379
_START_S = 120.0


@click.command()
@click.argument("session", type=o.SESSION, required=False)
@o.json_option
def status(session: str | None, as_json: bool) -> None:
    """Show the workers of SESSION, or of every session that runs now with --fleet: what each does, its rate and its device."""
    folders = [store.resolve(session)] if session else [folder for folder in _session_folders() if is_written(folder)]
    found = {}
    for folder in folders:
        state = store.state_of(folder)
        rows = fleet_rows(state, _now(state, folder))
        if rows is not None:
            found[folder] = rows
    if as_json:
        show_json(
            {"sessions": [{"session": folder.name, "folder": str(folder), **asdict(rows)} for folder, rows in found.items()]}
        )
        return
    for folder, rows in found.items():
        show([line(Span(folder.name, Tone.STRONG)), *fleet_lines(rows)])
    if not found:
        show([f"{session} has no fleet" if session else "no running session has a fleet: `espalier run PROBLEM --fleet local`"])


def _session_folders() -> list[Path]:
    root = user_folders.sessions_root()
    return sorted(folder for folder in root.iterdir() if store.is_session(folder)) if root.is_dir() else []


def _now(state: SessionState, folder: Path) -> float:
    return time.time() if is_written(folder) else state.at


@click.command()
@click.option(
    "--address", type=o.ADDRESS, metavar="HOST:PORT", help="Join the cluster whose head is there. Default: start a head here."
)
@click.option("--listen", type=o.ADDRESS, metavar="IP",
              help="This machine's address for the others. Default for a head: this machine alone can join.")  # fmt: skip
@click.option("--port", type=click.IntRange(1, 65535), default=_PORT, show_default=True, metavar="N", help="Port of a head.")
@click.option("--cpu-workers", type=click.IntRange(0, 1024), metavar="N",
              help="Workers on this machine's cores. Default: as many as suit them; none beside GPUs.")  # fmt: skip
@o.json_option
def start(address: str | None, listen: str | None, port: int, cpu_workers: int | None, as_json: bool) -> None:
    """Start Ray on this machine with token authentication, as a head or as a node of a cluster.

    A head without --listen is for this machine: its ports are open on 127.0.0.1 only. With --listen, and on a machine that
    joins, Ray opens its ports on every address; the token protects them. Every machine of a cluster needs the head's token in
    ~/.ray/auth_token: `ray get-auth-token` prints it.
    """
    check_installed()
    gpus = len(gpu_names())
    cores = cpu_workers if cpu_workers is not None else 0 if gpus else len(cpu_places(core_groups(), 0))
    if address is None:
        _ray("get-auth-token", "--generate", quiet=True)
    where = ["--address", address] if address else ["--head", "--port", str(port), "--include-dashboard", "false"]
    resources = f'{{"{CPU_WORKERS}": {cores}}}'
    alone = not listen and (address is None or is_on_loopback(address))
    _ray("start", *where, *(("--node-ip-address", listen) if listen else ()), "--num-gpus", str(gpus), "--resources", resources,
         "--disable-usage-stats", quiet=True, alone=alone)  # fmt: skip
    cluster = address or f"{listen or '127.0.0.1'}:{port}"
    if as_json:
        show_json({"address": cluster, "gpus": gpus, "cpu_workers": cores})
        return
    devices = ", ".join(filter(None, (f"{gpus} GPUs" if gpus else "", f"{cores} workers on its cores" if cores else "")))
    show([f"Ray runs here with {devices or 'no device'}; measure with --fleet {cluster}"])


@click.command()
@o.json_option
def stop(as_json: bool) -> None:
    """Stop every Ray process of yours on this machine. Sessions that measured on it wait for their workers, then stop."""
    check_installed()
    _ray("stop", quiet=True)
    if as_json:
        show_json({"stopped": True})
    else:
        show(["Ray is stopped on this machine"])


def _ray(*arguments: str, quiet: bool = False, alone: bool = False) -> None:
    """Run Ray's own program; ``alone``: on this machine's loopback address. Raises CommandExit with its last line."""
    token = os.environ.get("RAY_AUTH_MODE", "token")
    environment = {**os.environ, "RAY_AUTH_MODE": token, "RAY_USAGE_STATS_ENABLED": "0", **(LOOPBACK if alone else {})}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", *arguments], env=environment, capture_output=quiet, text=True,
            timeout=_START_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CommandExit(FAILED, f"`ray {arguments[0]}` did not end within {_START_S:g} s") from None
    if done.returncode:
        words = [text for text in (done.stderr or done.stdout or "").splitlines() if text.strip()]
        raise CommandExit(BAD_INPUT, f"`ray {arguments[0]}` failed: {words[-1].strip() if words else 'no message'}")


@dataclass(frozen=True, slots=True)
class FleetCheck:
    """One thing that a fleet uses on this machine."""

    name: str
    ok: bool
    detail: str
    needed: bool = True
    """Whether workers of this machine need it; else only those of several machines."""


@click.command()
@o.device_option
@o.json_option
def doctor(device: str | None, as_json: bool) -> None:
    """Show which workers this machine has room for, and what each lacks. Run it on every machine of a cluster."""
    checks = _checks(checked_device(device))
    if as_json:
        show_json(
            {
                "ok": all(one.ok for one in checks if one.needed),
                "checks": [asdict(one) for one in checks],
                "versions": versions(),
            }
        )
    else:
        show(table([[_mark(one), Span(one.name, Tone.STRONG), Span(one.detail)] for one in checks]))
    end(0)


def _mark(check: FleetCheck) -> Span:
    if check.ok:
        return Span("ok", Tone.GOOD)
    return Span("missing", Tone.BAD) if check.needed else Span("optional", Tone.FAINT)


def _checks(device: str) -> list[FleetCheck]:
    places = local_places(device, 0, len(gpu_names()))
    names = ", ".join(place.name for place in places)
    outside = judge_reason()
    installed: Mapping[str, str] = versions()
    compiler = "g++" if device == "cpu" else "nvcc"
    return [
        FleetCheck("workers", bool(places), f"{names}, with `espalier run PROBLEM --fleet local`" if places else "no device"),
        FleetCheck("sandbox", outside is None, outside or "every worker runs its trials in bubblewrap"),
        FleetCheck("compiler", compiler in installed, f"{compiler} {installed.get(compiler, 'not found')}"),
        FleetCheck("torch", "torch" in installed, installed.get("torch", "not found")),
        _ray_check(),
        _token_check(),
    ]


def _ray_check() -> FleetCheck:
    if importlib.util.find_spec("ray") is None:
        return FleetCheck("ray", False, "not installed; for several machines, pip install 'espalier[fleet]'", needed=False)
    try:
        return FleetCheck("ray", True, f"{imported_ray().__version__}, for several machines", needed=False)
    except EspalierError as error:
        return FleetCheck("ray", False, str(error))


def _token_check() -> FleetCheck:
    if os.environ.get("RAY_AUTH_TOKEN"):
        return FleetCheck("token", True, "in RAY_AUTH_TOKEN, for the Ray cluster", needed=False)
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if file.is_file():
        return FleetCheck("token", True, f"in {file}, for the Ray cluster", needed=False)
    how = "for several machines, `espalier fleet start` makes one on the head: copy it to the others"
    return FleetCheck("token", False, f"none in {file}; {how}", needed=False)
