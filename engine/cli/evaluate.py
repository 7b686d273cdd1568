"""``espalier eval``: one kernel, one verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from engine.build import tunables as tuning
from engine.build.source import KernelSource, read_kernel
from engine.cli import options as o
from engine.cli.ending import DONE, FAILED, end
from engine.cli.machine import checked_device, usual_workload
from engine.cli.output import as_data, show, show_json
from engine.cli.running import Teller, drive
from engine.domain import work as w
from engine.domain.model import Dialect
from engine.problem import catalog, header
from engine.report import verdict as v
from engine.report.text import Line, Span, Tone, line, table, tunables
from engine.session import assembly
from engine.session.assembly import Seed, seed_of
from engine.session.single import Table, Tried
from engine.session.single import table as set_table
from engine.trial.bench import Assignment, Source


@dataclass(frozen=True, slots=True)
class _Wanted:
    assignment: Assignment
    kernel: Path
    seed: Seed
    other: Path | None
    second: Seed | None
    variants: int
    accept: bool


@dataclass(frozen=True, slots=True)
class _Found:
    """What there is to print."""

    verdict: v.Verdict
    lines: list[Line]
    variants: tuple[tuple[dict[str, int], v.Verdict], ...] = ()
    against: v.Against | None = None
    trouble: str = ""
    """Why the second kernel of ``--against`` could not be compared."""


@click.command("eval")
@click.argument("problem")
@click.argument("kernel", type=o.PATH)
@click.option("--against", "other", type=o.PATH, metavar="KERNEL", help="Also the speedup of the first over this one.")
@o.device_option
@o.workload_option
@o.tolerance_option
@click.option("--baselines", type=o.Names(o.BASELINES), default=("eager",), metavar="NAME,...",
              help="Baselines to measure against, the first one leads. Default: eager.")  # fmt: skip
@click.option("--tune", type=o.Tuning(), multiple=True, metavar="NAME=VALUE", help="A tunable's value; repeatable.")
@click.option("--all-variants", is_flag=True, help="Try every combination of its tunables, spread out, the best one's verdict.")
@click.option("--most", type=click.IntRange(1, 1000), default=16, show_default=True, help="Variants at most.")
@o.hot_option
@o.accept_option
@o.json_option
def evaluate(problem: str, kernel: Path, as_json: bool, **given: Any) -> None:
    """The verdict on KERNEL (.cu, .cpp or .py) for PROBLEM. Exit status: 0 measured, 1 the kernel failed."""
    wanted = _wanted(problem, kernel, given)
    teller = Teller()
    try:
        found = drive(lambda: _judge(wanted, teller))
    finally:
        teller.moment.clear()
    if as_json:
        show_json(_object(found))
    else:
        show(found.lines)
    end(DONE if found.verdict.measured and not found.trouble else FAILED)


def _wanted(problem: str, kernel: Path, given: dict[str, Any]) -> _Wanted:
    found = catalog.find(problem)
    seed = seed_of(read_kernel(kernel), dict(given["tune"]))
    other = given["other"]
    second = seed_of(read_kernel(other), {}) if other is not None else None
    device = checked_device(given["device"] or _usual_device(seed.kernel))
    for one in filter(None, (seed, second)):
        assembly.check_dialect(one.kernel, device)
    workload = catalog.workload_for(found, given["workload"] or usual_workload(device))
    ranking, *others = given["baselines"]
    assignment = Assignment(found, workload, device, given["tolerance"], ranking, tuple(others), not given["hot"])
    variants = given["most"] if given["all_variants"] else 1
    return _Wanted(assignment, kernel, seed, other, second, variants, given["accept_unverifiable"])


def _usual_device(kernel: KernelSource) -> str | None:
    return {Dialect.CPP: "cpu", Dialect.CUDA: "cuda:0"}.get(kernel.dialect)


async def _judge(wanted: _Wanted, teller: Teller) -> _Found:
    async with set_table(wanted.assignment, teller.say, accept_unverifiable=wanted.accept) as bench:
        tries: list[tuple[dict[str, int], v.Verdict, Tried]] = []
        for chosen in _combinations(wanted, bench):
            tried = await bench.attempt(_source(wanted.seed, chosen))
            tries.append((chosen, _verdict(wanted, bench, tried), tried))
        chosen, best, tried = min(tries, key=lambda one: _rank(one[1]))
        lines = _lines(tries, best, tried, bench)
        against, trouble = None, ""
        if wanted.second is not None and best.measured:
            compared = await _compare(wanted, bench, _source(wanted.seed, chosen), wanted.second)
            if isinstance(compared, v.Against):
                against = compared
                lines += v.against_lines(best, against)
            else:
                trouble = compared
                lines.append(line(Span(trouble, Tone.BAD)))
        variants = tuple((c, one) for c, one, _ in tries) if wanted.variants > 1 else ()
        return _Found(best, lines, variants, against, trouble)


def _combinations(wanted: _Wanted, bench: Table) -> Iterable[dict[str, int]]:
    if wanted.variants == 1:
        return [dict(wanted.seed.tunables)]
    kernel = wanted.seed.kernel
    found = tuning.parse_tunables(kernel.text, kernel.dialect)
    requires = tuning.parse_requires(kernel.text, kernel.dialect)
    names = header.plan_names(bench.signature, bench.device.units)
    return [dict(chosen) for chosen in tuning.variants(found, requires, names, wanted.variants, 0)]


def _source(seed: Seed, chosen: dict[str, int]) -> Source:
    kernel = seed.kernel
    return Source(kernel.name, kernel.text, kernel.dialect, kernel.contract, chosen)


def _rank(found: v.Verdict) -> float:
    return found.time_us.median if found.time_us is not None else float("inf")


def _verdict(wanted: _Wanted, bench: Table, tried: Tried) -> v.Verdict:
    a, kernel = wanted.assignment, wanted.seed.kernel
    subject = v.Subject(
        a.problem.name, str(wanted.kernel), kernel.dialect, kernel.contract, bench.device, a.workload.name,
        bench.preparation.sandbox,
    )  # fmt: skip
    seconds = v.Seconds(tried.build_s, tried.verify_s, tried.measure_s)
    return v.verdict(subject, tried.verification, tried.final, seconds)


def _lines(tries: list[tuple[dict[str, int], v.Verdict, Tried]], best: v.Verdict, tried: Tried, bench: Table) -> list[Line]:
    found = v.lines(best, tried.verification, tried.measurement, bench.preparation)
    if len(tries) > 1:
        rows = v.variant_rows([(tunables(chosen), one) for chosen, one, _ in tries])
        return [*table(rows), line(), *found]
    return found


async def _compare(wanted: _Wanted, bench: Table, first: Source, second: Seed) -> v.Against | str:
    """The comparison, or why there is none: both kernels must be right."""
    other = _source(second, dict(second.tunables))
    checked = await bench.bench.try_verify(other, bench.say)
    if not isinstance(checked, w.Verified):
        reason = checked.failure.reason if isinstance(checked, w.Failed) else checked.reason
        return f"{wanted.other} cannot be compared with: {reason}"
    measured = await bench.bench.versus(first, other, bench.say)
    if isinstance(measured, w.Failed):
        return f"the comparison with {wanted.other} failed: {measured.failure.reason}"
    return v.against(str(wanted.other), measured.measurement)


def _object(found: _Found) -> dict[str, object]:
    plain: dict[str, object] = as_data(found.verdict)
    if found.variants:
        plain["variants"] = [{"tunables": chosen, **as_data(one)} for chosen, one in found.variants]
    if found.against is not None:
        plain["against"] = found.against
    elif found.trouble:
        plain["against"] = {"error": found.trouble}
    return plain
