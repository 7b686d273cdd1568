"""``espalier eval``: verify and measure one kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import click

from engine.cli import options as o
from engine.cli.drive import ProgressPrinter, drive
from engine.cli.exit_codes import DONE, FAILED, end
from engine.cli.output import as_data, show, show_json
from engine.cli.verbosity import quiet, verbosity
from engine.domain import work as w
from engine.domain.model import Dialect
from engine.problem import catalog, header
from engine.report.text import verdict as v
from engine.report.text.lines import Line, Span, Tone, line, table, tunables
from engine.session.devices import checked_device, default_workload
from engine.session.seeds import Seed, check_dialect, kernel_spec, seed_of
from engine.session.workbench import KernelTrial, Workbench, open_workbench
from engine.toolchain import tunables as tuning
from engine.toolchain.kernel_file import KernelCode, read_kernel_file
from engine.trial.bench import Assignment, KernelSpec


@dataclass(frozen=True, slots=True)
class _Request:
    assignment: Assignment
    file: Path
    seed: Seed
    other_file: Path | None
    other: Seed | None
    variants: int
    accept: bool


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """What is printed."""

    verdict: v.Verdict
    lines: list[Line]
    variants: tuple[tuple[dict[str, int], v.Verdict], ...] = ()
    against: v.HeadToHead | None = None
    trouble: str = ""
    """Why the kernel of ``--against`` was not compared."""


@click.command("eval")
@click.argument("problem", type=o.PROBLEM)
@click.argument("kernel", type=o.PATH)
@click.option("--against", "other", type=o.PATH, metavar="OTHER", help="Also race KERNEL against OTHER.")
@o.device_option
@o.workload_option
@o.tolerance_option
@click.option("--baselines", type=o.NameList(o.BASELINES), default=("eager",), metavar="NAME,...",
              help="Baselines; the first one ranks. Default: eager.")  # fmt: skip
@click.option("--tune", type=o.TunableValue(), multiple=True, metavar="NAME=VALUE", help="A tunable's value; repeatable.")
@click.option("--all-variants", is_flag=True, help="Measure the combinations of its tunables; print the best one's verdict.")
@click.option(
    "--most", type=click.IntRange(1, 1000), default=16, show_default=True, metavar="N", help="Most combinations to measure."
)
@o.hot_option
@o.accept_option
@o.json_option
@verbosity
def evaluate(problem: str, kernel: Path, as_json: bool, **given: Any) -> None:
    """Verify and measure KERNEL (.cu, .cpp or .py) for PROBLEM. Exit status: 0 measured, 1 the kernel failed."""
    request = _request(problem, kernel, given)
    evaluation = drive(lambda printer: _evaluate(request, printer))
    if as_json:
        show_json(_json_object(evaluation))
    else:
        show(evaluation.lines)
        if not quiet():
            show([f"next: {_next_step(problem, request, evaluation)}"])
    end(DONE if evaluation.verdict.measured and not evaluation.trouble else FAILED)


def _next_step(problem: str, request: _Request, evaluation: _Evaluation) -> str:
    """What to do with the kernel next, as a command."""
    file, name = quote(str(request.file)), quote(problem)
    where = f" --device {request.assignment.device} --workload {request.assignment.workload.name}"
    if not evaluation.verdict.measured:
        return f"fix {file}, then espalier eval {name} {file}{where}"
    return f"espalier run {name} --seed-kernel {file}{where}: search from this kernel"


def _request(name: str, kernel: Path, given: dict[str, Any]) -> _Request:
    problem = catalog.find(name)
    seed = seed_of(read_kernel_file(kernel), dict(given["tune"]))
    other = given["other"]
    second = seed_of(read_kernel_file(other), {}) if other is not None else None
    device = checked_device(given["device"] or _default_device(seed.kernel))
    for one in filter(None, (seed, second)):
        check_dialect(one.kernel, device)
    workload = catalog.workload_for(problem, given["workload"] or default_workload(device))
    ranking, *others = given["baselines"]
    assignment = Assignment(problem, workload, device, given["tolerance"], ranking, tuple(others), not given["hot"])
    variants = given["most"] if given["all_variants"] else 1
    return _Request(assignment, kernel, seed, other, second, variants, given["accept_unverifiable"])


def _default_device(kernel: KernelCode) -> str | None:
    return {Dialect.CPP: "cpu", Dialect.CUDA: "cuda:0"}.get(kernel.dialect)


async def _evaluate(request: _Request, printer: ProgressPrinter) -> _Evaluation:
    async with open_workbench(request.assignment, printer.show, accept_unverifiable=request.accept) as bench:
        tries: list[tuple[dict[str, int], v.Verdict, KernelTrial]] = []
        for chosen in _tunable_choices(request, bench):
            tried = await bench.attempt(kernel_spec(request.seed.kernel, chosen))
            tries.append((chosen, _verdict(request, bench, tried), tried))
        chosen, best, tried = min(tries, key=lambda one: _median_time(one[1]))
        lines = _verdict_lines(tries, best, tried, bench)
        against, trouble = None, ""
        if request.other is not None and best.measured:
            compared = await _compare(request, bench, kernel_spec(request.seed.kernel, chosen), request.other)
            if isinstance(compared, v.HeadToHead):
                against = compared
                lines += v.head_to_head_lines(best, against)
            else:
                trouble = compared
                lines.append(line(Span(trouble, Tone.BAD)))
        variants = tuple((c, one) for c, one, _ in tries) if request.variants > 1 else ()
        return _Evaluation(best, lines, variants, against, trouble)


def _tunable_choices(request: _Request, bench: Workbench) -> Iterable[dict[str, int]]:
    if request.variants == 1:
        return [dict(request.seed.tunables)]
    kernel = request.seed.kernel
    declared = tuning.parse_tunables(kernel.text, kernel.dialect)
    requires = tuning.parse_requires(kernel.text, kernel.dialect)
    names = header.plan_names(bench.signature, bench.device.units)
    return [dict(chosen) for chosen in tuning.variants(declared, requires, names, request.variants, 0)]


def _median_time(verdict: v.Verdict) -> float:
    return verdict.time_us.median if verdict.time_us is not None else float("inf")


def _verdict(request: _Request, bench: Workbench, tried: KernelTrial) -> v.Verdict:
    a, kernel = request.assignment, request.seed.kernel
    subject = v.VerdictSubject(
        a.problem.name, str(request.file), kernel.dialect, kernel.contract, bench.device, a.workload.name,
        bench.preparation.sandbox,
    )  # fmt: skip
    seconds = v.StageSeconds(tried.build_s, tried.verify_s, tried.measure_s)
    return v.verdict(subject, tried.verification, tried.final, seconds)


def _verdict_lines(
    tries: list[tuple[dict[str, int], v.Verdict, KernelTrial]], best: v.Verdict, tried: KernelTrial, bench: Workbench
) -> list[Line]:
    lines = v.lines(best, tried.verification, tried.measurement, bench.preparation)
    if len(tries) > 1:
        rows = v.variant_rows([(tunables(chosen), one) for chosen, one, _ in tries])
        return [*table(rows), line(), *lines]
    return lines


async def _compare(request: _Request, bench: Workbench, first: KernelSpec, seed: Seed) -> v.HeadToHead | str:
    """The comparison with another verified kernel, or why there is none."""
    other = kernel_spec(seed.kernel, seed.tunables)
    checked = await bench.bench.try_verify(other, bench.say)
    if not isinstance(checked, w.Verified):
        reason = checked.failure.reason if isinstance(checked, w.Failed) else checked.reason
        return f"{request.other_file} cannot be compared: {reason}"
    measured = await bench.bench.versus(first, other, bench.say)
    if isinstance(measured, w.Failed):
        return f"the comparison with {request.other_file} failed: {measured.failure.reason}"
    return v.head_to_head(str(request.other_file), measured.measurement)


def _json_object(evaluation: _Evaluation) -> dict[str, object]:
    plain: dict[str, object] = as_data(evaluation.verdict)
    if evaluation.variants:
        plain["variants"] = [{"tunables": chosen, **as_data(one)} for chosen, one in evaluation.variants]
    if evaluation.against is not None:
        plain["against"] = evaluation.against
    elif evaluation.trouble:
        plain["against"] = {"error": evaluation.trouble}
    return plain
