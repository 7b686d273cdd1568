"""Record the outcome of every kernel that a CPU playbook can make: ``python -m benchmarks.playbook_outcomes --workers 4``.

Each kernel file of a playbook, with each allowed combination of its tunables, is built, verified and measured on the workload
``small``. Each worker has cores of its own, as with ``espalier run --fleet local:N``, and works on the problem that has most
kernels left. Writes ``PROBLEM.jsonl`` into the folder ``--outcomes``. The next run judges what these files lack, so a recording
can be made in pieces (``--seconds``), on one kind of machine and with the same number of cores a worker.
``benchmarks/playbooks.py`` searches over these files. A kernel whose times vary too much is tried twice.

A kernel counts relative to eager PyTorch, which is measured in the same trial, whether its time is corroborated or not.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import outcome_files
from benchmarks.outcome_files import FOLDER, Outcome, Recorded, outcome_key
from engine.domain import work as w
from engine.domain.errors import EspalierError
from engine.domain.model import ENGINE, Device, Dialect, FailureKind, Signature
from engine.domain.state import Kernel
from engine.fleet.links import LocalLauncher, WorkerLauncher
from engine.fleet.member import ONCE, FleetWorker, KernelParcel
from engine.fleet.places import WorkerPlace, local_places
from engine.ideas.playbook_file import PlaybookImplementation, read_playbook
from engine.problem import catalog
from engine.problem.header import plan_names
from engine.session.seeds import kernel_spec
from engine.toolchain.tunables import MAX_CANDIDATES, variants
from engine.trial.assignment import Assignment
from engine.trial.kernel_builds import KernelSpec

PROBLEMS = ("softmax", "layernorm", "matmul_fp32", "matmul_fp16", "conv2d", "conv2d_relu_maxpool", "attention_fp16")
WORKLOAD = "small"
_FEWEST = 3
"""Kernels that a further worker must find to do: opening a problem costs as much time as some of them."""


@dataclass(slots=True)
class Recording:
    """A problem's file, and the kernels that it lacks."""

    problem: str
    file: Path
    workers: int = 0
    missing: list[KernelSpec] | None = None
    """The next one last; ``None`` until a worker has opened the problem."""
    done: int = 0

    @property
    def share(self) -> float:
        """How many kernels one more worker would have to do."""
        return math.inf if self.missing is None else len(self.missing) / (self.workers + 1)

    def open(self, device: Device, signature: Signature) -> list[KernelSpec]:
        """What the file lacks. Raises EspalierError if it was recorded elsewhere."""
        here = Recorded(self.problem, WORKLOAD, device.name, device.units)
        known: set[outcome_files.OutcomeKey] = set()
        if self.file.exists():
            there, outcomes = outcome_files.read(self.file)
            if there != here:
                raise EspalierError(f"{self.file} was recorded with {there}, this is {here}: use another folder")
            known = {one.key for one in outcomes}
        else:
            self.file.write_text(outcome_files.head_line(here) + "\n", encoding="utf-8")
        if self.missing is None:
            wanted = kernels(self.problem, signature, device.units)
            self.missing = [one for one in reversed(wanted) if outcome_key(one.name, one.tunables) not in known]
        return self.missing

    def add(self, outcome: Outcome) -> None:
        """Write an outcome."""
        with self.file.open("a", encoding="utf-8") as lines:
            print(outcome_files.outcome_line(outcome), file=lines)
        self.done += 1


def kernels(problem: str, signature: Signature, units: int) -> list[KernelSpec]:
    """Every kernel of the playbook with every allowed combination of its tunables, the defaults of each file first."""
    names = plan_names(signature, units)
    files = [
        [kernel_spec(one.kernel, chosen) for chosen in variants(one.tunables, one.requires, names, MAX_CANDIDATES, 0)]
        for one in _implementations(problem)
    ]
    return [spec for turn in itertools.zip_longest(*files) for spec in turn if spec is not None]


def _implementations(problem: str) -> Iterator[PlaybookImplementation]:
    playbook = read_playbook(catalog.problems_root() / problem)
    yield from playbook.root.get(Dialect.CPP, ())
    for idea in playbook.ideas:
        yield from idea.implementations.get(Dialect.CPP, ())


@dataclass(frozen=True, slots=True)
class Recorder:
    """Shares the kernels of several problems among the workers of one machine."""

    launcher: WorkerLauncher
    recordings: Sequence[Recording]
    until: float
    """No kernel begins after this time."""
    troubles: list[str] = field(default_factory=list)
    """What kept workers from going on, a line each."""

    async def record(self) -> None:
        """Judge until no kernel is left or the time is over."""
        try:
            await asyncio.gather(*(self._serve(place) for place in self.launcher.places))
        finally:
            await self.launcher.close()

    async def _serve(self, place: WorkerPlace) -> None:
        """One worker: a problem after the other, until one fails."""
        while time.monotonic() < self.until and (chosen := self._next()) is not None:
            member = FleetWorker(place, self.launcher)
            chosen.workers += 1
            try:
                await self._judge(member, chosen)
            except EspalierError as error:
                self.troubles.append(f"{chosen.problem} on {place.name}: {error}")
                return
            finally:
                chosen.workers -= 1
                await member.end()

    def _next(self) -> Recording | None:
        """The problem with the most kernels for one more worker."""
        chosen = max(self.recordings, key=lambda one: (one.share, -one.workers))
        return chosen if chosen.share >= (_FEWEST if chosen.workers else 1) else None

    async def _judge(self, member: FleetWorker, recording: Recording) -> None:
        problem = catalog.find(recording.problem)
        assignment = Assignment(problem, catalog.workload_for(problem, WORKLOAD), "cpu", prepared=True)
        opened = await member.begin(assignment, ceilings=True)
        missing = recording.open(opened.device, opened.signature)
        await _done(member, w.WorkKind.PREPARE)
        while missing and time.monotonic() < self.until:
            spec = missing.pop()
            try:
                outcome = await judged(member, spec)
                recording.add(await judged(member, spec) if outcome.failure == FailureKind.UNSTABLE else outcome)
            except EspalierError:
                missing.append(spec)
                raise
            print(f"{recording.problem}: {len(missing)} left", flush=True)


async def judged(member: FleetWorker, spec: KernelSpec) -> Outcome:
    """Build, verify and measure one kernel. Raises EspalierError if the worker cannot."""
    source = hashlib.sha256(spec.text.encode()).hexdigest()
    kernel = Kernel("k1", "", None, 0, ENGINE, spec.name, spec.dialect, spec.contract, source, spec.tunables, False)
    parcel, machine_code = KernelParcel(kernel, spec.text), ""
    for kind in (w.WorkKind.BUILD, w.WorkKind.VERIFY, w.WorkKind.MEASURE):
        match await _done(member, kind, parcel):
            case w.Failed(failure):
                return Outcome(spec.name, spec.tunables, None, failure.kind.value)
            case w.Suspected():
                return Outcome(spec.name, spec.tunables, None, "suspicious")
            case w.Built() as built:
                machine_code = built.machine_code[:16]
            case w.Measured(measurement):
                return Outcome(spec.name, spec.tunables, measurement.speedup["eager"], machine_code=machine_code)
    raise EspalierError(f"{spec.name} has no verdict")


async def _done(member: FleetWorker, kind: w.WorkKind, *kernels: KernelParcel) -> Any:
    found = await member.work(kind, kernels, ONCE, lambda _: None, lambda _: "")
    if isinstance(found, w.Impossible):
        raise EspalierError(found.reason)
    return found


async def main() -> None:
    """Record the chosen problems. Exit status 1 if a worker could not go on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default=",".join(PROBLEMS), help="names, separated by commas")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further kernel after this time")
    parser.add_argument("--workers", type=int, default=0, help="as N in `--fleet local:N`; 0: as many as suit the machine")
    parser.add_argument("--outcomes", type=Path, default=FOLDER, help="folder of the files")
    options = parser.parse_args()
    options.outcomes.mkdir(parents=True, exist_ok=True)
    recordings = [Recording(name, options.outcomes / f"{name}.jsonl") for name in options.problems.split(",")]
    began = time.monotonic()
    recorder = Recorder(LocalLauncher(local_places("cpu", options.workers, 0)), recordings, began + options.seconds)
    await recorder.record()
    for one in recordings:
        left = "not opened" if one.missing is None else f"{len(one.missing)} left"
        print(f"{one.problem}: {one.done} kernels recorded, {left}")
    print(f"{time.monotonic() - began:.0f} s")
    if recorder.troubles:
        raise SystemExit("\n".join(recorder.troubles))


if __name__ == "__main__":
    asyncio.run(main())
