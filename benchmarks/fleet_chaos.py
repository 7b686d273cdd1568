"""Random kills during sessions on a fleet: ``python -m benchmarks.fleet_chaos --kills 100``.

Sessions on the fake bench run over and over on two workers and two builders, under Ray of this machine or as a local fleet. At
random moments a worker, a builder, an actor or the engine is killed with SIGKILL; a killed engine is started again on the same
session. Prints the slowest recovery for each: from a kill to the next verdict.

At the end of each session its verdicts must be those of an undisturbed one, each counted once, and no process may be left. Work
is tried at most twice: a kernel that happens to lose two workers, or two engines, in one step counts as crashed there. The
undisturbed session is then one in which exactly these kernels are given up in exactly these steps, and every other verdict must
be the same. A kernel may be given up only if the journal has two losses during that step. Such kernels are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support import builders, fake_worker, sessions  # noqa: E402

from engine.domain import events as e  # noqa: E402
from engine.domain import work as w  # noqa: E402
from engine.domain.errors import EspalierError  # noqa: E402
from engine.domain.folds import advance  # noqa: E402
from engine.domain.state import Kernel, SessionState, Stage  # noqa: E402
from engine.fleet.bench import FleetBench  # noqa: E402
from engine.fleet.links import LocalLauncher, WorkerLauncher  # noqa: E402
from engine.fleet.places import BUILD, WorkerPlace  # noqa: E402
from engine.fleet.ray_cluster import Commands, RayLauncher  # noqa: E402
from engine.journal import store  # noqa: E402
from engine.journal.blobs import Blobs  # noqa: E402
from engine.journal.journal import read  # noqa: E402
from engine.session.fake_bench import FakeBench  # noqa: E402
from engine.session.live import LiveSession  # noqa: E402
from engine.session.outcome import EngineStopped  # noqa: E402
from engine.session.ports import Say, StoreBlob  # noqa: E402
from engine.trial.assignment import Assignment  # noqa: E402

_MARK = "ESPALIER_HOME"
"""The environment variable by which all processes of a run are found: every worker inherits it."""
_ODDS = {"worker": 3, "builder": 2, "actor": 3, "engine": 1}
"""How likely each is killed."""
_PAUSE_S = 0.4
_BUILDERS = 2
_QUIET_S = 240.0
"""Seconds without a new event after which a session counts as stuck."""
_GIVEN_UP = re.compile(r"(?:2 workers were lost|the engine crashed 2 times) during this (\w+) step")
_VERDICTS = (e.KernelMeasured, e.KernelFailed, e.KernelQuarantined, e.KernelRaced)


def launcher(kind: str) -> WorkerLauncher:
    """Two workers around the fake bench, and as many builders."""
    program = ("/usr/bin/env", f"{fake_worker.PAUSE}={_PAUSE_S}", *fake_worker.COMMAND)
    if kind == "ray":
        return RayLauncher.connect("ray", "cpu", builders=_BUILDERS, commands=Commands(program, program))
    builders = tuple(WorkerPlace(f"builder:{n}", BUILD) for n in range(_BUILDERS))
    return LocalLauncher((WorkerPlace("cpu:0", "cpu"), WorkerPlace("cpu:1", "cpu")), builders, program, program)


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


class GivingUpBench(FakeBench):
    """The fake bench as if two workers had been lost in these steps: of a kernel, by name, the step."""

    def __init__(self, store_blob: StoreBlob, steps: Mapping[str, str]) -> None:
        super().__init__(store_blob)
        self._steps = steps

    def _lost(self, kernel: Kernel, step: str) -> w.Abandoned | None:
        return w.Abandoned("given up", "cpu:0") if self._steps.get(kernel.name) == step else None

    async def build(self, kernel: Kernel, code: str, say: Say) -> Any:
        return self._lost(kernel, w.WorkKind.BUILD) or await super().build(kernel, code, say)

    async def verify(self, kernel: Kernel, code: str, say: Say) -> Any:
        return self._lost(kernel, w.WorkKind.VERIFY) or await super().verify(kernel, code, say)

    async def measure(self, kernel: Kernel, code: str, say: Say) -> Any:
        return self._lost(kernel, w.WorkKind.MEASURE) or await super().measure(kernel, code, say)


def undisturbed(steps: Mapping[str, str]) -> SessionState:
    """The same session without kills, but with these kernels given up in these steps."""

    async def search(folder: Path) -> SessionState:
        bench = GivingUpBench(Blobs(folder).put, steps)
        async with LiveSession.create(folder, sessions.opened(), sessions.ports(folder, bench=bench)) as live:
            await live.run()
            return live.state

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(search(Path(folder)))


def processes(mark: str) -> dict[str, list[int]]:
    """The living workers, builders, actors and sandboxes of a run."""
    found: dict[str, list[int]] = {"worker": [], "builder": [], "actor": [], "sandbox": []}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words, environment = command(int(name)), (Path("/proc") / name / "environ").read_bytes()
            if FAKE not in words or f"{_MARK}={mark}".encode() not in environment:
                continue
            above = parent(int(name))
            if words[0].endswith(b"bwrap"):
                found["sandbox"].append(int(name))
                continue
            while command(above)[0].endswith(b"bwrap"):
                above = parent(above)
        except OSError:
            continue
        found["builder" if BUILD.encode() in words else "worker"].append(int(name))
        found["actor"].append(above)
    return found


FAKE = fake_worker.COMMAND[-1].encode()


def command(pid: int) -> list[bytes]:
    return (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")


def parent(pid: int) -> int:
    return int((Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[1])


@dataclass
class Tally:
    """What happened over all sessions."""

    kills: Counter[str] = field(default_factory=Counter)
    sessions: int = 0
    recoveries: dict[str, list[float]] = field(default_factory=dict)
    """Seconds from a kill to the next verdict, by what was killed."""
    crashed: list[str] = field(default_factory=list)
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
    program = [sys.executable, "-m", "benchmarks.fleet_chaos", "--engine", str(folder), "--under", options.under]

    def started() -> subprocess.Popen[bytes]:
        return subprocess.Popen(program, env=environment, cwd=ROOT)

    process, killed, next_kill = started(), 0.0, time.monotonic() + 3 + chance.random() * options.every
    known, changed, kind = 0, time.monotonic(), ""
    try:
        while (status := process.poll()) is None:
            time.sleep(0.1)
            now = time.monotonic()
            for entry in entries(folder)[known:]:
                known, changed = known + 1, now
                if killed and isinstance(entry.event, _VERDICTS):
                    tally.recoveries.setdefault(kind, []).append(now - killed)
                    killed = 0.0
            if now - changed > _QUIET_S:
                tally.faults.append(f"{folder.name}: nothing happened for {_QUIET_S:g} s")
                return
            if now < next_kill or killed or tally.kills.total() >= options.kills or not entries(folder):
                continue
            victims = processes(mark)
            kinds = [kind for kind in _ODDS if kind == "engine" or victims[kind]]
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
        if status:
            tally.faults.append(f"{folder.name}: the engine ended with status {status}")
    finally:
        process.kill() if process.poll() is None else None
        process.wait()
    check(folder, mark, tally)


def check(folder: Path, mark: str, tally: Tally) -> None:
    """Compare a session that has ended with an undisturbed one."""
    tally.sessions += 1
    state, counted = SessionState(), Counter[str]()
    losses = Counter[str]()
    for entry in entries(folder):
        if isinstance(entry.event, e.KernelMeasured | e.KernelFailed | e.KernelQuarantined):
            counted[entry.event.kernel] += 1
        if isinstance(entry.event, e.WorkStarted):
            losses[entry.event.work] += 1
        if isinstance(entry.event, e.WorkAssigned):
            losses[f"assigned {entry.event.work}"] += 1
        state = advance(state, (entry,))
    steps: dict[str, str] = {}
    for kernel in state.kernels.values():
        if kernel.failure is not None and (found := _GIVEN_UP.search(kernel.failure.reason)):
            steps[kernel.name] = found[1]
            tally.crashed.append(f"{folder.name}: {kernel.name} ({found[1]})")
            key = f"{found[1]}:{kernel.id}:{kernel.attempt}"
            if max(losses[key], losses[f"assigned {key}"]) < 2:
                tally.faults.append(f"{folder.name}: {kernel.name} was given up, but {key} was tried once")
    if state.closed is None:
        tally.faults.append(f"{folder.name}: it did not end")
    settled, alone = verdicts(state), verdicts(undisturbed(steps))
    if settled != alone:
        tally.faults.append(f"{folder.name}: other verdicts: {sorted(set(settled.items()) ^ set(alone.items()), key=str)[:4]}")
    if any(state.kernels[k].stage is not Stage.QUARANTINED and n > 1 + state.kernels[k].again for k, n in counted.items()):
        tally.faults.append(f"{folder.name}: a verdict was counted twice: {counted.most_common(3)}")
    deadline = time.monotonic() + 60
    while (left := living(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    if left:
        tally.faults.append(f"{folder.name}: processes {left} are left")


def living(mark: str) -> list[int]:
    """The processes that must end with the engine."""
    found = processes(mark)
    return [*found["worker"], *found["builder"], *found["sandbox"]]


def summary(tally: Tally, seconds: float) -> Iterator[str]:
    kills = ", ".join(f"{count} {kind}" for kind, count in tally.kills.most_common())
    yield f"{tally.kills.total()} kills ({kills}) in {tally.sessions} sessions, {seconds:.0f} s"
    for kind, taken in sorted(tally.recoveries.items()):
        middle, slowest = sorted(taken)[len(taken) // 2], max(taken)
        yield f"recovery, from a kill ({kind}) to the next verdict: median {middle:.1f} s, slowest {slowest:.1f} s"
    yield f"kernels given up after two losses, so in the undisturbed session too: {', '.join(tally.crashed) or 'none'}"
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
