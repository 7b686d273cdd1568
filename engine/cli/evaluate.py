"""``espalier eval``: verify and measure one kernel, or many with one preparation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import click

from engine.cli import options as o
from engine.cli.drive import ProgressPrinter, drive
from engine.cli.exit_codes import DONE, DOUBTED, FAILED, end
from engine.cli.output import as_data, show, show_json, show_json_line
from engine.cli.verbosity import quiet, verbosity
from engine.domain import work as w
from engine.domain.corroboration import MEASURED, NOT_CORROBORATED, QUARANTINED
from engine.domain.errors import EspalierError, KernelCodeError, ProblemError
from engine.domain.model import Dialect
from engine.problem import catalog, header
from engine.report.text import verdict as v
from engine.report.text.lines import Line, Span, Tone, line, one_line, table, tunables
from engine.session import trust
from engine.session.devices import checked_device, default_workload
from engine.session.seeds import Seed, check_dialect, kernel_spec, read_kernel, seed_of
from engine.session.workbench import KernelTrial, Workbench, open_workbench
from engine.toolchain import tunables as tuning
from engine.toolchain.kernel_file import SUFFIXES, KernelCode
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
@click.argument("kernels", type=o.PATH, nargs=-1, required=True, metavar="KERNEL...")
@click.option("--against", "other", type=o.PATH, metavar="OTHER", help="Also race KERNEL against OTHER.")
@o.include_option
@o.device_option
@o.workload_option
@o.suite_option
@o.tolerance_option
@click.option("--baselines", type=o.NameList(o.BASELINES), default=("eager",), metavar="NAME,...",
              help="Baselines; the first one ranks. Default: eager.")  # fmt: skip
@click.option("--tune", type=o.TunableValue(), multiple=True, metavar="NAME=VALUE", help="A tunable's value; repeatable.")
@click.option("--all-variants", is_flag=True, help="Measure the combinations of its tunables; print the best one's verdict.")
@click.option(
    "--most", type=click.IntRange(1, 1000), default=16, show_default=True, metavar="N", help="Most combinations to measure."
)
@o.hot_option
@click.option("--fresh", is_flag=True, help="Calibrate and measure baselines again. Default: what was kept, up to 7 days.")
@o.accept_option
@o.json_option
@verbosity
def evaluate(problem: str, kernels: tuple[Path, ...], as_json: bool, **given: Any) -> None:
    """Verify and measure each KERNEL (.cu, .cpp or .py) for PROBLEM; of a folder, the kernels in it.

    Several kernels share one preparation. Each gets one line, when it is there, with --json one object on one line. One that
    fails does not stop the others.

    Exit status: 0 measured, 1 a kernel failed, 4 correct, but a time is not corroborated or a kernel is quarantined.
    """
    if len(kernels) > 1 or kernels[0].is_dir():
        end(_evaluate_each(problem, kernels, given, as_json=as_json))
        return
    request = _request(problem, kernels[0], given)
    evaluation = drive(lambda printer: _evaluate(request, printer))
    if as_json:
        show_json(_json_object(evaluation))
    else:
        show(evaluation.lines)
        if not quiet():
            show([f"next: {_next_step(problem, request, evaluation)}"])
    end(_exit_status(evaluation))


def _exit_status(evaluation: _Evaluation) -> int:
    if evaluation.trouble:
        return FAILED
    compared = evaluation.against
    if evaluation.verdict.doubted or (compared is not None and compared.doubts):
        return DOUBTED
    return DONE if evaluation.verdict.measured else FAILED


def _next_step(problem: str, request: _Request, evaluation: _Evaluation) -> str:
    """What to do with the kernel next, as a command."""
    file, name = quote(str(request.file)), quote(problem)
    a = request.assignment
    shapes = f"--suite {quote(a.suite)}" if a.suite else f"--workload {quote(a.workload.name)}"
    where = f" --device {a.device} {shapes}"
    if evaluation.verdict.quarantined:
        return f"espalier run {name} --seed-kernel {file}{where}: a session lets you accept or discard it"
    if evaluation.verdict.doubted:
        return f"espalier eval {name} {file}{where}, when nothing else runs on the machine"
    if not evaluation.verdict.measured:
        return f"fix {file}, then espalier eval {name} {file}{where}"
    return f"espalier run {name} --seed-kernel {file}{where}: search from this kernel"


def _request(name: str, kernel: Path, given: dict[str, Any]) -> _Request:
    problem = catalog.find(name)
    trust.require_problem(problem)
    seed = seed_of(read_kernel(kernel, problem), dict(given["tune"]))
    other = given["other"]
    second = seed_of(read_kernel(other, problem), {}) if other is not None else None
    device = checked_device(given["device"] or _default_device(seed.kernel))
    for one in filter(None, (seed, second)):
        check_dialect(one.kernel, device)
    workload, *rest = catalog.workloads_for(problem, given["workload"] or "", given["suite"] or "", default_workload(device))
    ranking, *others = given["baselines"]
    assignment = Assignment(
        problem, workload, device, given["tolerance"], ranking, tuple(others), not given["hot"], fresh=given["fresh"],
        prepared=True, rest=tuple(rest), suite=given["suite"] or "",
    )  # fmt: skip
    variants = given["most"] if given["all_variants"] else 1
    return _Request(assignment, kernel, seed, other, second, variants, given["accept_unverifiable"])


@dataclass(frozen=True, slots=True)
class _NotEvaluated:
    """A file of several that cannot be read as a kernel, or whose trial could not be finished, and why."""

    kernel: str
    error: str


def _evaluate_each(problem: str, paths: Sequence[Path], given: dict[str, Any], *, as_json: bool) -> int:
    """Evaluate several kernels and print each when it is there; the exit status."""
    if given["tune"] or given["other"] is not None:
        raise click.UsageError("--tune and --against take one KERNEL")
    requests = _requests(problem, _kernel_files(paths), given)
    width = max(len(str(file)) for file, _ in requests)

    def printed(file: Path, found: _Evaluation | _NotEvaluated, printer: ProgressPrinter) -> int:
        printer.clear()
        if as_json:
            show_json_line(_json_object(found) if isinstance(found, _Evaluation) else found)
        else:
            show(_short_lines(str(file).ljust(width), found))
        return _exit_status(found) if isinstance(found, _Evaluation) else FAILED

    statuses = drive(lambda printer: _evaluate_all(requests, printer, printed))
    return next((status for status in (FAILED, DOUBTED) if status in statuses), DONE)


def _short_lines(name: str, found: _Evaluation | _NotEvaluated) -> list[Line]:
    if isinstance(found, _Evaluation):
        return table(v.variant_rows([(name, found.verdict)]))
    return [line(Span(name, Tone.STRONG), "  ", Span("failed", Tone.BAD), f"  {one_line(found.error)}")]


def _kernel_files(paths: Iterable[Path]) -> list[Path]:
    """The files, and those in the folders that have a kernel's suffix. Raises KernelCodeError for a folder without one."""
    files: dict[Path, None] = {}
    for path in paths:
        found = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
        if not found:
            raise KernelCodeError(f"{path} has no kernel file ({', '.join(SUFFIXES)})")
        files |= dict.fromkeys(found)
    return list(files)


def _requests(problem: str, files: Sequence[Path], given: dict[str, Any]) -> list[tuple[Path, _Request | _NotEvaluated]]:
    """What to evaluate, on one device: the one given, else that of the first kernel. Raises the last error if none can be."""
    found: list[tuple[Path, _Request | _NotEvaluated]] = []
    assignment: Assignment | None = None
    trouble: EspalierError | None = None
    for file in files:
        try:
            request = _request(problem, file, given if assignment is None else {**given, "device": assignment.device})
        except KernelCodeError as error:
            trouble = error
            found.append((file, _NotEvaluated(str(file), str(error))))
        except ProblemError as error:
            if assignment is None:
                raise
            found.append((file, _NotEvaluated(str(file), str(error))))
        else:
            assignment = assignment or request.assignment
            found.append((file, replace(request, assignment=assignment)))
    if assignment is None and trouble is not None:
        raise trouble
    return found


async def _evaluate_all(
    requests: Sequence[tuple[Path, _Request | _NotEvaluated]],
    printer: ProgressPrinter,
    printed: Callable[[Path, _Evaluation | _NotEvaluated, ProgressPrinter], int],
) -> list[int]:
    """One preparation for all. A kernel whose trial cannot be finished is told as failed, and the next one is evaluated."""
    first = next(request for _, request in requests if isinstance(request, _Request))
    statuses = []
    async with open_workbench(first.assignment, printer.show, accept_unverifiable=first.accept) as bench:
        for file, request in requests:
            found: _Evaluation | _NotEvaluated
            try:
                found = await _evaluate_on(bench, request) if isinstance(request, _Request) else request
            except EspalierError as error:
                found = _NotEvaluated(str(file), str(error))
            statuses.append(printed(file, found, printer))
    return statuses


def _default_device(kernel: KernelCode) -> str | None:
    return {Dialect.CPP: "cpu", Dialect.CUDA: "cuda:0", Dialect.TRITON: "cuda:0"}.get(kernel.dialect)


async def _evaluate(request: _Request, printer: ProgressPrinter) -> _Evaluation:
    async with open_workbench(request.assignment, printer.show, accept_unverifiable=request.accept) as bench:
        return await _evaluate_on(bench, request)


async def _evaluate_on(bench: Workbench, request: _Request) -> _Evaluation:
    tries: list[tuple[dict[str, int], v.Verdict, KernelTrial]] = []
    for chosen in _tunable_choices(request, bench):
        tried = await bench.attempt(kernel_spec(request.seed.kernel, chosen))
        tries.append((chosen, _verdict(request, bench, tried), tried))
    chosen, best, tried = min(tries, key=lambda one: _rank(one[1]))
    lines = _verdict_lines(tries, best, tried, bench)
    against, trouble = None, ""
    if request.other is not None and best.status in (MEASURED, NOT_CORROBORATED):
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


_ORDER = (MEASURED, NOT_CORROBORATED, QUARANTINED)


def _rank(verdict: v.Verdict) -> tuple[int, float]:
    """The sort key of variants: whatever a doubted one claims, it is after those that are measured; failures are last."""
    place = _ORDER.index(verdict.status) if verdict.status in _ORDER else len(_ORDER)
    return place, verdict.time_us.median if verdict.time_us is not None else float("inf")


def _verdict(request: _Request, bench: Workbench, tried: KernelTrial) -> v.Verdict:
    a, kernel = request.assignment, request.seed.kernel
    subject = v.VerdictSubject(
        a.problem.name, str(request.file), kernel.dialect, kernel.contract, bench.device, a.workload.name,
        bench.preparation.sandbox, a.suite, a.baseline,
    )  # fmt: skip
    seconds = v.StageSeconds(tried.build_s, tried.verify_s, tried.measure_s, tried.wait_s)
    return replace(v.verdict(subject, tried.verification, tried.final, seconds), included=tried.included, limit=tried.limit)


def _verdict_lines(
    tries: list[tuple[dict[str, int], v.Verdict, KernelTrial]], best: v.Verdict, tried: KernelTrial, bench: Workbench
) -> list[Line]:
    lines = v.lines(best, tried.verification, tried.timed, bench.preparation)
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
