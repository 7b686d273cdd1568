"""The README's table of results, measured on this machine: ``python -m benchmarks.results [--device cuda:0]``.

Builds, verifies and measures the incumbent of each recorded session together with eager PyTorch as shipped, eager with TF32
allowed, and ``torch.compile`` (default, and max-autotune without CUDA graphs), in one run, and back to back with the first
baseline (``sustained``). Prints one Markdown row per session, then the device, the baselines' times and every doubt. Exit
status 1 if a kernel failed, 4 if the time of one is not corroborated or it is quarantined: its row then says so in place of a
result.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.cli.exit_codes import DONE, DOUBTED, FAILED
from engine.domain import corroboration, queries, work
from engine.domain.errors import EspalierError
from engine.domain.model import Interval, Measurement
from engine.domain.suite import label
from engine.journal import store
from engine.journal.bank import BankEntry, kernels_to_bank
from engine.problem import catalog
from engine.report.text.lines import duration, duration_interval, percent, times
from engine.report.text.regimes import NOT_MEASURED
from engine.session.workbench import KernelTrial, open_workbench
from engine.trial.bench import Assignment, KernelSpec

_SESSIONS = Path(__file__).resolve().parents[1] / "sessions"
_BASELINES = ("eager", "eager_tf32", "compile", "compile_max")
_HEAD = ("problem", "class", "kernel", "time", *(f"over {name}" for name in _BASELINES), "sustained", "of the speed of light")


@dataclass(frozen=True, slots=True)
class Row:
    """One session's incumbent, measured here; ``remarks`` are printed below the table."""

    cells: tuple[str, ...]
    remarks: tuple[str, ...]
    measured: bool
    doubted: bool


def leaders(sessions: Path, problems: list[str]) -> Iterator[BankEntry]:
    """The incumbent of each recorded session on one of ``problems`` (all by default), but of those on autopilot.

    They lie beside steered sessions of the same problems (``session compare``).
    """
    recorded = (one for one in sessions.iterdir() if store.is_session(one) and not one.name.endswith("_autopilot"))
    for folder in sorted(recorded):
        state = store.state_of(folder)
        leader = queries.incumbent(state)
        found = next((e for e in kernels_to_bank(folder, state) if leader is not None and e.kernel == leader.id), None)
        if found is not None and (not problems or found.problem in problems):
            yield found


def assignment_of(entry: BankEntry, device: str, baselines: tuple[str, ...], *, fresh: bool) -> Assignment:
    """What the session judged its kernels on: a workload, or a suite of several."""
    problem = catalog.find(entry.problem)
    suite = next((name for name in problem.suites if label(name, "") == entry.workload), "")
    first, *rest = catalog.workloads_for(problem, "" if suite else entry.workload, suite, entry.workload)
    ranking, *others = baselines
    return Assignment(problem, first, device, "class", ranking, tuple(others), fresh=fresh, rest=tuple(rest), suite=suite)


async def row_of(entry: BankEntry, device: str, baselines: tuple[str, ...], *, fresh: bool) -> Row:
    """Build, verify and measure one kernel with the baselines."""
    assignment = assignment_of(entry, device, baselines, fresh=fresh)
    ranking = assignment.baseline
    source = KernelSpec(entry.name, entry.source_path.read_text(), entry.dialect, entry.contract, dict(entry.tunables))
    async with open_workbench(assignment, lambda _: None, accept_unverifiable=False) as bench:
        tried = await bench.sustain(source, await bench.attempt(source))
        prepared = bench.preparation
        baseline_times = ", ".join(f"{name} {duration_interval(m.time_us)}" for name, m in prepared.baselines.items())
        itself = f"{ranking} against itself {times(prepared.same)}"
        where = f"{bench.device.name} ({bench.device.software})"
        remarks = (f"{where}: {baseline_times}; {itself}", *prepared.notes, *doubts(tried))
    lines = tuple(f"{entry.problem}: {words}" for words in remarks)
    return Row(cells(entry, tried, baselines), lines, tried.measurement is not None, bool(doubts(tried)))


def doubts(tried: KernelTrial) -> tuple[str, ...]:
    """Why the kernel's time is no result; none if it is, or if the kernel failed."""
    evidence = tried.final.evidence if isinstance(tried.final, work.Suspected) else ()
    return corroboration.combined(evidence, tried.timed)


def exit_status(rows: Sequence[Row]) -> int:
    """``DONE`` only if every kernel was measured and corroborated."""
    if not rows or not all(row.measured or row.doubted for row in rows):
        return FAILED
    return DOUBTED if any(row.doubted for row in rows) else DONE


def cells(entry: BankEntry, tried: KernelTrial, baselines: tuple[str, ...]) -> tuple[str, ...]:
    """A row of the table."""
    idea = f"`{entry.name}`: {entry.idea}"
    measured, verified = tried.measurement, tried.verification
    if isinstance(tried.final, work.Suspected):
        return (entry.problem, "", idea, f"quarantined: {'; '.join(doubts(tried))}", *("" for _ in baselines), "", "")
    if measured is None or verified is None:
        reason = getattr(getattr(tried.final, "failure", None), "reason", "not measured")
        return (entry.problem, "", idea, f"failed: {reason}", *("" for _ in baselines), "", "")
    ratios = tuple(over(measured, name) for name in baselines)
    light = percent(measured.light.fraction) if measured.light is not None else ""
    time = duration(measured.time_us.value)
    if not measured.corroborated:
        time, ratios = f"{time}, not corroborated", tuple(f"({ratio})" for ratio in ratios)
    return (entry.problem, verified.precision_class.value, idea, time, *ratios, sustained(measured, baselines[0]), light)


def sustained(measured: Measurement, baseline: str) -> str:
    """The speedup over the ranking baseline, both called back to back."""
    found = measured.sustained
    ratio = found.speedup.get(baseline) if found is not None else None
    if found is None or ratio is None:
        return NOT_MEASURED
    return times(ratio) if found.corroborated else f"({times(ratio)})"


def over(measured: Measurement, baseline: str) -> str:
    """The speedup over one baseline, if it was measured."""
    ratio: Interval | None = measured.speedup.get(baseline)
    return times(ratio) if ratio is not None else "–"


async def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--sessions", type=Path, default=_SESSIONS)
    parser.add_argument("--problems", default="", help="only these, comma separated")
    parser.add_argument("--baselines", default=",".join(_BASELINES), help="comma separated, the ranking one first")
    parser.add_argument("--kept-baselines", action="store_true", help="reuse baselines measured here by earlier runs")
    options = parser.parse_args()
    baselines = tuple(options.baselines.split(","))
    print("| " + " | ".join((*_HEAD[:4], *(f"over {name}" for name in baselines), *_HEAD[-2:])) + " |")
    print("|" + "---|" * (6 + len(baselines)), flush=True)
    rows = []
    for entry in leaders(options.sessions, [name for name in options.problems.split(",") if name]):
        row = await row_of(entry, options.device, baselines, fresh=not options.kept_baselines)
        print("| " + " | ".join(row.cells) + " |", flush=True)
        rows.append(row)
    print("\n" + "\n".join(line for row in rows for line in row.remarks))
    return exit_status(rows)


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except EspalierError as error:
        sys.exit(f"benchmarks.results: {error}")
