"""Random kills during sessions on a fleet: ``python -m benchmarks.fleet_chaos --kills 100``.

Sessions on the fake bench run over and over on CPU workers, under Ray of this machine or as a local fleet. At random moments a
worker, an actor or the engine is killed with SIGKILL; a killed engine is started again on the same session. At the end of each
session its verdicts must be those of an undisturbed one, each counted once, and no process may be left. Prints the slowest
recovery: from a kill to the next verdict, a kill of the engine included.

A kernel that happened to lose two workers counts as crashed, as in any session; such kernels are printed, and are no error.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support import builders, fake_worker, sessions  # noqa: E402

from engine.domain import events as e  # noqa: E402
from engine.domain.errors import EspalierError  # noqa: E402
from engine.domain.folds import advance  # noqa: E402
from engine.domain.state import SessionState, Stage  # noqa: E402
from engine.fleet.bench import FleetBench  # noqa: E402
from engine.fleet.links import LocalLauncher, WorkerLauncher  # noqa: E402
from engine.fleet.places import WorkerPlace  # noqa: E402
from engine.fleet.ray_cluster import RayLauncher  # noqa: E402
from engine.journal import store  # noqa: E402
from engine.journal.blobs import Blobs  # noqa: E402
from engine.journal.journal import read  # noqa: E402
from engine.session.live import LiveSession  # noqa: E402
from engine.session.outcome import EngineStopped  # noqa: E402
from engine.trial.assignment import Assignment  # noqa: E402

_MARK = "ESPALIER_HOME"
"""The environment variable by which all processes of a run are found: every worker inherits it."""
_ODDS = {"worker": 3, "actor": 3, "engine": 1}
"""How likely each is killed."""
_PAUSE_S = 0.4
_QUIET_S = 240.0
"""Seconds without a new event after which a session counts as stuck."""
_STARTS = 3
"""How often an engine that ends with an error is started again in a session: Ray gives up its start after 30 s."""
_VERDICTS = (e.KernelMeasured, e.KernelFailed, e.KernelQuarantined, e.KernelRaced)


def launcher(kind: str) -> WorkerLauncher:
    """Two workers around the fake bench."""
    command = ("/usr/bin/env", f"{fake_worker.PAUSE}={_PAUSE_S}", *fake_worker.COMMAND)
    if kind == "ray":
        return RayLauncher.connect("ray", "cpu", command)
    return LocalLauncher((WorkerPlace("cpu:0", "cpu"), WorkerPlace("cpu:1", "cpu")), command)


async def engine(folder: Path, kind: str) -> None:
    """Run or resume a session to its end: the process that is killed."""
    workers = await asyncio.to_thread(launcher, kind)
    problem = builders.opened().problem
    bench = FleetBench(Assignment(problem, problem.workloads[0], "cpu"), Blobs(folder).put, workers)
    ports = replace(sessions.ports(folder, bench=bench, clock=time.time, sleep=asyncio.sleep), workers=bench)
    again = store.is_session(folder)
    async with LiveSession.resume(folder, ports) if again else LiveSession.create(folder, sessions.opened(), ports) as live:
        while isinstance(outcome := await live.run(), EngineStopped):
            print(f"{folder.name} stopped, as after two crashes of the engine in one step: {dict(outcome.reasons)}", flush=True)
            await live.retry()


def processes(mark: str) -> dict[str, list[int]]:
    """The living workers and actors of a run."""
    found: dict[str, list[int]] = {"worker": [], "actor": []}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            place = Path("/proc") / name
            words, environment = (place / "cmdline").read_bytes(), (place / "environ").read_bytes()
            parent = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if b"fake_worker.py" in words and f"{_MARK}={mark}".encode() in environment:
            found["worker"].append(int(name))
            found["actor"].append(parent)
    return found


@dataclass
class Tally:
    """What happened over all sessions."""

    kills: Counter[str] = field(default_factory=Counter)
    sessions: int = 0
    recoveries: list[float] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)
    restarts: int = 0
    """Engines that were started again because they ended by themselves."""
    faults: list[str] = field(default_factory=list)


def verdicts(state: SessionState) -> Mapping[str, object]:
    """The verdict on each kernel, by name."""
    return {
        k.name: (k.stage, k.failure and k.failure.kind, k.measurement and k.measurement.time_us) for k in state.kernels.values()
    }


def entries(folder: Path) -> Sequence[e.Entry]:
    """The journal so far; a torn last line is left out."""
    try:
        return read(folder).entries
    except (EspalierError, OSError):
        return ()


def session(folder: Path, options: argparse.Namespace, chance: random.Random, tally: Tally) -> None:
    """One session, disturbed until it ends or the kills are used up."""
    mark = f"/chaos/{os.getpid()}/{tally.sessions}"
    environment = {**os.environ, _MARK: mark, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    command = [sys.executable, "-m", "benchmarks.fleet_chaos", "--engine", str(folder), "--under", options.under]

    def started() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=environment, cwd=ROOT)

    process, killed, next_kill = started(), 0.0, time.monotonic() + 3 + chance.random() * options.every
    known, changed, tries = 0, time.monotonic(), _STARTS
    try:
        while (status := process.poll()) is None or (status and tries):
            if status:
                tries, tally.restarts, process = tries - 1, tally.restarts + 1, started()
            time.sleep(0.1)
            now = time.monotonic()
            for entry in entries(folder)[known:]:
                known, changed = known + 1, now
                if killed and isinstance(entry.event, _VERDICTS):
                    tally.recoveries.append(now - killed)
                    killed = 0.0
            if now - changed > _QUIET_S:
                tally.faults.append(f"{folder.name}: nothing happened for {_QUIET_S:g} s")
                return
            if now < next_kill or killed or tally.kills.total() >= options.kills or not entries(folder):
                continue
            victims = processes(mark)
            kinds = [kind for kind in ("worker", "actor", "engine") if kind == "engine" or victims[kind]]
            if options.under == "local":
                kinds = [kind for kind in kinds if kind != "actor"]  # the parent of a local worker is the engine
            kind = chance.choices(kinds, [_ODDS[kind] for kind in kinds])[0]
            pid = process.pid if kind == "engine" else chance.choice(victims[kind])
            os.kill(pid, signal.SIGKILL)
            tally.kills[kind] += 1
            killed, next_kill = now, now + chance.uniform(0.3, 1.7) * options.every
            if kind == "engine":
                process.wait()
                process = started()
    finally:
        process.kill() if process.poll() is None else None
        process.wait()
    check(folder, mark, tally)


def check(folder: Path, mark: str, tally: Tally) -> None:
    """Compare a session that has ended with an undisturbed one."""
    tally.sessions += 1
    with tempfile.TemporaryDirectory() as other:
        alone = verdicts(sessions.whole(Path(other)))
    state, counted = SessionState(), Counter[str]()
    for entry in entries(folder):
        if isinstance(entry.event, e.KernelMeasured | e.KernelFailed | e.KernelQuarantined):
            counted[entry.event.kernel] += 1
        state = advance(state, (entry,))
    failed = [(k.name, k.failure.reason) for k in state.kernels.values() if k.failure is not None]
    given_up = {name for name, reason in failed if "workers were lost" in reason or "the engine crashed" in reason}
    tally.crashed += [f"{folder.name}: {name}" for name in sorted(given_up)]
    if state.closed is None:
        tally.faults.append(f"{folder.name}: it did not end")
    settled = {name: one for name, one in verdicts(state).items() if name not in given_up}
    if not given_up and settled != alone:
        tally.faults.append(f"{folder.name}: other verdicts: {sorted(set(settled.items()) ^ set(alone.items()), key=str)[:4]}")
    if any(state.kernels[k].stage is not Stage.QUARANTINED and n > 1 + state.kernels[k].again for k, n in counted.items()):
        tally.faults.append(f"{folder.name}: a verdict was counted twice: {counted.most_common(3)}")
    deadline = time.monotonic() + 60
    while (left := processes(mark)["worker"]) and time.monotonic() < deadline:
        time.sleep(0.2)
    if left:
        tally.faults.append(f"{folder.name}: processes {left} are left")


def summary(tally: Tally, seconds: float) -> Iterator[str]:
    kills = ", ".join(f"{count} {kind}" for kind, count in tally.kills.most_common())
    yield f"{tally.kills.total()} kills ({kills}) in {tally.sessions} sessions, {seconds:.0f} s"
    if tally.recoveries:
        ordered = sorted(tally.recoveries)
        middle = ordered[len(ordered) // 2]
        yield f"recovery, from a kill to the next verdict: median {middle:.1f} s, slowest {ordered[-1]:.1f} s"
    yield f"engines that ended with an error and were started again: {tally.restarts}"
    yield f"kernels given up after two losses: {', '.join(tally.crashed) or 'none'}"
    yield from (f"FAULT {fault}" for fault in tally.faults)
    yield "no verdict lost or counted twice, no process left" if not tally.faults else f"{len(tally.faults)} faults"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_chaos", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--every", type=float, default=4.0, metavar="S", help="seconds between two kills, on average")
    parser.add_argument("--under", choices=("ray", "local"), default="ray")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        try:
            asyncio.run(engine(options.engine, options.under))
        except EspalierError as error:
            sys.exit(f"{options.engine.name}: {error}")
        return 0
    chance, tally, began = random.Random(options.seed), Tally(), time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        while tally.kills.total() < options.kills and not tally.faults:
            session(Path(root) / f"session-{tally.sessions}", options, chance, tally)
            print(f"{tally.kills.total()} kills, {tally.sessions} sessions", flush=True)
    print("\n".join(summary(tally, time.monotonic() - began)))
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
