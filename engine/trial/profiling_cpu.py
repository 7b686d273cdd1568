"""Many calls of a kernel on a CPU under ``perf stat``, in the runner's sandbox, on fresh inputs of the session's workload.

perf stands outside the sandbox (there it may count what this user may, and nobody inside can write its answer) and begins with
its counters closed; ``engine.trial.repeated`` has it open them right before each call and close them right after, so that
neither starting Python and torch nor making caches cold is in the figures. What opening and closing count by themselves is
measured likewise, with nothing in between, and taken off. Where there is no perf, or it may not count, or the processor has
nothing to count with, the reason is what comes back. No torch.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.build import perf
from engine.build.build import BuildFailure, build
from engine.build.cache import Cache, cache_folder
from engine.build.confinement import Confinement
from engine.build.process import run
from engine.domain.model import Device
from engine.domain.profile import CALLS, Profile
from engine.trial.profiling import Subject
from engine.trial.sandbox import python_once
from engine.trial.sanitizing import Draw, Store
from engine.trial.sanitizing_gpu import sandboxed, specified

_SECONDS = 120.0
_PROBE_S = 20.0
_NO_TOOL = "perf is not installed (Debian: apt install linux-perf, Ubuntu: linux-tools-generic)"
_NO_COUNTERS = (
    "perf works, but this machine offers it no hardware counters, as most virtual machines do: "
    "profile on the machine itself, or give the virtual one a PMU"
)
_TOLD = re.compile(r"^Events (?:en|dis)abled\n", re.MULTILINE)
"""What perf says each time that it is told something."""
_FLUSHED = 2
"""Times the size of the last level that is walked to make caches cold, as in a measurement."""


@dataclass(frozen=True, slots=True)
class Offered:
    """What can be counted here, and with which tool."""

    tool: Path
    events: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    """One run under the tool: counts over all calls, or why there are none."""

    counted: perf.Counted
    calls: int
    log: str
    seconds: float
    note: str = ""

    def each(self, event: str) -> float:
        return self.counted.values[event] / self.calls


async def offered() -> Offered | str:
    """What perf counts of a program that does nothing, or the reason why it counts nothing."""
    found = shutil.which("perf")
    if found is None:
        return _NO_TOOL
    argv = [found, "stat", "-x,", "-e", ",".join(perf.METRICS), "--", "true"]
    try:
        result = await run(argv, seconds=_PROBE_S, folder=Path("/"), environment=_plain())
    except OSError as error:
        return f"perf: {found} cannot be run: {error.strerror}"
    counted = perf.of_perf(result.output)
    events = tuple(event for event in perf.METRICS if event in counted.values or counted.missing.get(event) == "not counted")
    if not counted.values and not counted.missing:
        return f"perf: stopped after {_PROBE_S:g} s" if result.timed_out else f"perf: {perf.why_not(result.output)}"
    if not set(events) - {perf.CLOCK}:
        return _NO_COUNTERS
    return Offered(Path(found), events)


async def profile_cpu(
    subject: Subject, offer: Offered, draw: Draw, confinement: Confinement, store: Store, *, cold: bool
) -> Profile:
    """The counters of one call in the mean of many, or the reason why there are none. Raises as ``build`` does."""
    shape, device = subject.shape, subject.device
    built = await build(shape.request, confinement)
    if isinstance(built, BuildFailure):
        return Profile(0, note=f"does not build: {built.reason}", log=store(built.log.encode()))
    runs: list[_Run] = []
    with Cache(cache_folder()).workplace() as folder:
        (inputs,) = await draw(shape.workload, folder, 1)
        spec = specified(shape, subject.plan, device, built, folder, subject.scalars)
        here = _Place(offer.tool, device, folder, built.folder, cold=cold, confined=sandboxed(confinement))
        for group in perf.PASSES:
            events = [event for event in group if event in offer.events]
            if not events:
                continue
            runs += [await here.counted(events, (spec, inputs)), await here.counted(events, ())]
            if any(one.note for one in runs):
                break
    return _together(runs, device, store)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where and how the tool is run."""

    tool: Path
    device: Device
    folder: Path
    built: Path
    cold: bool
    confined: bool

    async def counted(self, events: Sequence[str], kernel: Sequence[Path]) -> _Run:
        """Count ``events`` in calls of a kernel, or in none."""
        control, answer, table = (self.folder / name for name in ("control", "answer", "counts"))
        for pipe in (control, answer, table):
            pipe.unlink(missing_ok=True)
        os.mkfifo(control)
        os.mkfifo(answer)
        before = arguments(self.tool, events, control, answer, table)
        flush = str(_FLUSHED * self.device.cache_bytes if self.cold else 0)
        argv, environment = python_once(
            "engine.trial.repeated", [control, answer, flush, *kernel], self.device.label, [], [self.folder, self.built],
            confined=self.confined, threads=self.device.units,
        )  # fmt: skip
        result = await run([*before, *argv], seconds=_SECONDS, folder=Path("/"), environment=environment)
        said = table.read_text(errors="replace") if table.is_file() else ""
        output = _TOLD.sub("", result.output)
        log = f"{' '.join(before)}\n{output}\n{said}\n"
        counted, calls = perf.of_perf(said), perf.calls_in(result.output)
        note = ""
        if result.timed_out:
            note = f"perf stopped after {_SECONDS:g} s"
        elif not said.strip():
            note = f"perf: {perf.why_not(output)}"
        elif result.status != 0 or not calls:
            note = f"not called to the end under perf, status {result.status}: {_last(output)}"
        return _Run(counted, max(1, calls), log, result.seconds, note)


def arguments(tool: Path, events: Sequence[str], control: Path, answer: Path, table: Path) -> list[str]:
    """How the tool is called: counters closed until it is told, its answer in a file."""
    return [
        str(tool), "stat", "-x,", "-e", ",".join(events), "--delay", "-1", "--control", f"fifo:{control},{answer}",
        "-o", str(table), "--",
    ]  # fmt: skip


def _plain() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


def _last(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"


def _together(runs: Sequence[_Run], device: Device, store: Store) -> Profile:
    """One profile of all runs: those with the kernel and those without take turns."""
    log, seconds = store("".join(one.log for one in runs).encode()), sum(one.seconds for one in runs)
    failed = next((one.note for one in runs if one.note), "")
    metrics = {
        perf.METRICS[event]: max(0.0, full.each(event) - empty.each(event))
        for full, empty in zip(runs[::2], runs[1::2], strict=True)
        for event in full.counted.values
        if event in empty.counted.values
    }
    if failed or not set(metrics) - {perf.METRICS[perf.CLOCK]}:
        return Profile(0, note=failed or "perf: it counted nothing during the calls", log=log, seconds=seconds)
    absent = [event for event, name in perf.METRICS.items() if name not in metrics]
    note = f"not counted on this machine: {', '.join(absent)}" if absent else ""
    calls = {CALLS: float(min(full.calls for full in runs[::2]))}
    return Profile(0, "perf", device.name, 1, {**metrics, **_pace(metrics), **calls}, note=note, log=log, seconds=seconds)


def _pace(metrics: Mapping[str, float]) -> dict[str, float]:
    """Instructions a cycle, where both are known."""
    if metrics.get("cycles", 0.0) <= 0 or "instructions" not in metrics:
        return {}
    return {"ipc": metrics["instructions"] / metrics["cycles"]}
