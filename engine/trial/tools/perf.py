"""Many calls of a kernel on a CPU under ``perf stat``, in the runner's sandbox, on fresh inputs of the session's workload.

perf runs outside the sandbox, with this user's rights: no kernel can write its results. It starts with disabled counters;
``engine.trial.runner.profile_loop`` enables them right before each call and disables them right after: neither the start of
Python and torch nor cache flushes are counted. The counts of enabling and disabling alone are measured and subtracted. If perf
is missing or may not count, or the processor has no counters, the result is the reason. No torch.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.domain.model import Device
from engine.domain.profile import CALLS, Profile
from engine.sandbox.confinement import Confinement
from engine.sandbox.process import run
from engine.sandbox.python_process import python_once
from engine.toolchain.build import BuildFailure, build
from engine.toolchain.cache import Cache, cache_folder
from engine.trial.tools import perf_output
from engine.trial.tools.kernel_case import DumpInputs, Store, sandboxed, write_spec
from engine.trial.tools.ncu import ProfiledKernel

_SECONDS = 120.0
_PROBE_S = 20.0
_NO_TOOL = "perf is not installed (Debian: apt install linux-perf, Ubuntu: linux-tools-generic)"
_NO_COUNTERS = (
    "perf works, but this machine has no hardware counters, as most virtual machines: "
    "profile on bare metal, or enable a virtual PMU"
)
_ACKNOWLEDGED = re.compile(r"^Events (?:en|dis)abled\n", re.MULTILINE)
"""Printed by perf for each command."""
FLUSHED = 2
"""Bytes written to flush the caches, in sizes of the last-level cache, as in a measurement."""


@dataclass(frozen=True, slots=True)
class PerfSupport:
    """The perf executable, and the events it can count here."""

    tool: Path
    events: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoCounters:
    """Why perf cannot count here."""

    reason: str


@dataclass(frozen=True, slots=True)
class _PerfRun:
    """One run under perf: counts over all calls, or a note why there are none."""

    counted: perf_output.Counted
    calls: int
    log: str
    seconds: float
    note: str = ""

    def each(self, event: str) -> float:
        return self.counted.values[event] / self.calls


async def perf_support() -> PerfSupport | NoCounters:
    """The events that perf can count here, tested with ``true``."""
    found = shutil.which("perf")
    if found is None:
        return NoCounters(_NO_TOOL)
    argv = [found, "stat", "-x,", "-e", ",".join(perf_output.METRICS), "--", "true"]
    try:
        result = await run(argv, seconds=_PROBE_S, folder=Path("/"), environment=_plain_environment())
    except OSError as error:
        return NoCounters(f"perf: {found} cannot be run: {error.strerror}")
    counted = perf_output.parse_perf(result.output)
    events = tuple(
        event for event in perf_output.METRICS if event in counted.values or counted.missing.get(event) == "not counted"
    )
    if not counted.values and not counted.missing:
        why = f"stopped after {_PROBE_S:g} s" if result.timed_out else perf_output.why_not(result.output)
        return NoCounters(f"perf: {why}")
    if not set(events) - {perf_output.CLOCK}:
        return NoCounters(_NO_COUNTERS)
    return PerfSupport(Path(found), events)


async def profile_cpu(
    subject: ProfiledKernel, offer: PerfSupport, dump: DumpInputs, confinement: Confinement, store: Store, *, cold: bool
) -> Profile:
    """The counters of one call, averaged over many, or a note why there are none. Raises as ``build`` does."""
    case, device = subject.case, subject.device
    built = await build(case.request, confinement)
    if isinstance(built, BuildFailure):
        return Profile(0, note=f"does not build: {built.reason}", log=store(built.log.encode()))
    runs: list[_PerfRun] = []
    with Cache(cache_folder()).build_folder() as folder:
        (inputs,) = await dump(case.workload, folder, 1)
        spec = write_spec(case, subject.plan, device, built, folder, subject.scalars)
        perf_command = _PerfCommand(offer.tool, device, folder, built.folder, cold=cold, confined=sandboxed(confinement))
        for group in perf_output.PASSES:
            events = [event for event in group if event in offer.events]
            if not events:
                continue
            runs += [await perf_command.counted(events, (spec, inputs)), await perf_command.counted(events, ())]
            if any(one.note for one in runs):
                break
    return _combine(runs, device, store)


@dataclass(frozen=True, slots=True)
class _PerfCommand:
    """How perf is run."""

    tool: Path
    device: Device
    folder: Path
    built: Path
    cold: bool
    confined: bool

    async def counted(self, events: Sequence[str], kernel: Sequence[Path]) -> _PerfRun:
        """Count ``events`` in calls of a kernel, or in empty calls if ``kernel`` is empty."""
        control, answer, table = (self.folder / name for name in ("control", "answer", "counts"))
        for pipe in (control, answer, table):
            pipe.unlink(missing_ok=True)
        os.mkfifo(control)
        os.mkfifo(answer)
        before = arguments(self.tool, events, control, answer, table)
        flush = str(FLUSHED * self.device.cache_bytes if self.cold else 0)
        argv, environment = python_once(
            "engine.trial.runner.profile_loop", [control, answer, flush, *kernel], self.device.label, [],
            [self.folder, self.built], confined=self.confined, threads=self.device.units,
        )  # fmt: skip
        result = await run([*before, *argv], seconds=_SECONDS, folder=Path("/"), environment=environment)
        counts = table.read_text(errors="replace") if table.is_file() else ""
        output = _ACKNOWLEDGED.sub("", result.output)
        log = f"{' '.join(before)}\n{output}\n{counts}\n"
        counted, calls = perf_output.parse_perf(counts), perf_output.calls_in(result.output)
        note = ""
        if result.timed_out:
            note = f"perf stopped after {_SECONDS:g} s"
        elif not counts.strip():
            note = f"perf: {perf_output.why_not(output)}"
        elif result.status != 0 or not calls:
            note = f"the kernel did not finish under perf, status {result.status}: {_last(output)}"
        return _PerfRun(counted, max(1, calls), log, result.seconds, note)


def arguments(tool: Path, events: Sequence[str], control: Path, answer: Path, table: Path) -> list[str]:
    """The perf command: counters disabled until enabled through ``control``, counts written to ``table``."""
    return [
        str(tool), "stat", "-x,", "-e", ",".join(events), "--delay", "-1", "--control", f"fifo:{control},{answer}",
        "-o", str(table), "--",
    ]  # fmt: skip


def _plain_environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


def _last(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"


def _combine(runs: Sequence[_PerfRun], device: Device, store: Store) -> Profile:
    """One profile of all runs, which alternate between the kernel and no kernel."""
    log, seconds = store("".join(one.log for one in runs).encode()), sum(one.seconds for one in runs)
    failed = next((one.note for one in runs if one.note), "")
    metrics = {
        perf_output.METRICS[event]: max(0.0, full.each(event) - empty.each(event))
        for full, empty in zip(runs[::2], runs[1::2], strict=True)
        for event in full.counted.values
        if event in empty.counted.values
    }
    if failed or not set(metrics) - {perf_output.METRICS[perf_output.CLOCK]}:
        return Profile(0, note=failed or "perf counted nothing during the calls", log=log, seconds=seconds)
    absent = [event for event, name in perf_output.METRICS.items() if name not in metrics]
    note = f"not counted on this machine: {', '.join(absent)}" if absent else ""
    calls = {CALLS: float(min(full.calls for full in runs[::2]))}
    return Profile(0, "perf", device.name, 1, {**metrics, **_ipc(metrics), **calls}, note=note, log=log, seconds=seconds)


def _ipc(metrics: Mapping[str, float]) -> dict[str, float]:
    """Instructions per cycle, if both were counted."""
    if metrics.get("cycles", 0.0) <= 0 or "instructions" not in metrics:
        return {}
    return {"ipc": metrics["instructions"] / metrics["cycles"]}
