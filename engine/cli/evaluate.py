"""``espalier eval``: verify and measure one kernel, or many with one preparation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import click

from engine.api.evaluation import (
    Evaluation,
    EvaluationRequest,
    Variant,
    bench_for,
    build_ahead,
    evaluate_on,
    request,
)
from engine.cli import options as o
from engine.cli.drive import ProgressPrinter, drive
from engine.cli.exit_codes import DONE, DOUBTED, FAILED, end
from engine.cli.output import as_data, show, show_json, show_json_line
from engine.cli.verbosity import quiet, verbosity
from engine.domain.errors import EspalierError, KernelCodeError, ProblemError
from engine.domain.settings import BASELINES
from engine.problem import catalog
from engine.report.text import verdict as v
from engine.report.text.head_to_head import head_to_head_lines
from engine.report.text.lines import Line, Span, Tone, line, one_line, table, tunables
from engine.report.text.shell import quoted
from engine.session import trust
from engine.session.seeds import read_kernel
from engine.toolchain.kernel_file import SUFFIXES
from engine.trial.bench import Assignment
from engine.trial.messages import WANTS_GPU

EPILOG = """\b
Examples:
  espalier scaffold softmax --dialect cpp -o mine.cpp
  espalier eval softmax mine.cpp
  espalier eval softmax mine.cpp --against other.cpp --json"""


@click.command("eval", epilog=EPILOG)
@click.argument("problem", type=o.PROBLEM)
@click.argument("kernels", type=o.PATH, nargs=-1, required=True, metavar="KERNEL...")
@click.option("--against", "other", type=o.PATH, metavar="OTHER", help="Also race KERNEL against OTHER.")
@o.include_option
@o.device_option
@o.workload_option
@o.suite_option
@o.tolerance_option
@click.option("--baselines", type=o.NameList(BASELINES), default=("eager",), metavar="NAME,...",
              help="Baselines to measure; the first one decides. Default: eager.")  # fmt: skip
@click.option("--tune", type=o.TunableValue(), multiple=True, metavar="NAME=VALUE", help="A tunable's value; repeatable.")
@click.option("--all-variants", is_flag=True, help="Measure the combinations of tunables; print the best one's verdict.")
@click.option("--most", type=click.IntRange(1, 1000), default=16, show_default=True, metavar="N",
              help="Measure at most this many combinations.")  # fmt: skip
@o.hot_option
@o.regime_option
@click.option("--fresh", is_flag=True, help="Calibrate and measure baselines again. Default: reuse those of the last 7 days.")
@o.accept_option
@o.json_option
@verbosity
def evaluate(problem: str, kernels: tuple[Path, ...], as_json: bool, **given: Any) -> None:
    """Verify and measure each KERNEL (.cu, .cpp or .py) for PROBLEM. A folder stands for the kernels in it.

    On a GPU a measured kernel is also timed back to back, at the clock that the power limit leaves, unless --regime is
    single. On a CPU, --regime sustained does so.

    Several kernels share one preparation. Each prints one line as soon as it has its verdict; with --json, one object per
    line. A kernel that fails does not stop the others.

    Exit status: 0 measured, 1 a kernel failed, 4 correct, but a time is not corroborated or a kernel is quarantined.
    """
    if len(kernels) > 1 or kernels[0].is_dir():
        end(_evaluate_each(problem, kernels, given, as_json=as_json))
        return
    wanted = _request(problem, kernels[0], given)
    end(drive(lambda printer: _evaluate_one(problem, wanted, printer, as_json=as_json)))


async def _evaluate_one(problem: str, wanted: EvaluationRequest, printer: ProgressPrinter, *, as_json: bool) -> int:
    """Evaluate a kernel, and print its verdict before the processes of the trial end; the exit status."""
    async with bench_for(wanted, printer.show) as bench:
        evaluation = await evaluate_on(bench, wanted, _nothing if as_json else partial(_tell, printer))
        printer.clear()
        if as_json:
            show_json(_json_object(evaluation))
        else:
            show(_lines(evaluation))
            if not quiet():
                show([f"next: {_next_step(problem, wanted, evaluation)}"])
    return _exit_status(evaluation)


def _nothing(found: Variant, of: Sequence[Mapping[str, int]]) -> None:
    """With ``--json`` variants are in the object."""


def _tell(printer: ProgressPrinter, found: Variant, of: Sequence[Mapping[str, int]]) -> None:
    """Print a variant when it has its verdict: an interrupted command keeps what it has found."""
    printer.clear()
    width = max(len(tunables(one)) for one in of)
    show(table(v.variant_rows([(tunables(found.tunables).ljust(width), found.verdict)])))


def _exit_status(evaluation: Evaluation) -> int:
    if evaluation.trouble:
        return FAILED
    compared = evaluation.against
    if evaluation.verdict.doubted or (compared is not None and compared.doubts):
        return DOUBTED
    return DONE if evaluation.verdict.measured else FAILED


def _next_step(problem: str, wanted: EvaluationRequest, evaluation: Evaluation) -> str:
    """What to do with the kernel next, as a command."""
    file, name = quoted(wanted.name), quoted(problem)
    a = wanted.assignment
    shapes = f"--suite {quote(a.suite)}" if a.suite else f"--workload {quote(a.workload.name)}"
    where = f" --device {a.device} {shapes}"
    if evaluation.verdict.quarantined:
        return f"espalier run {name} --seed-kernel {file}{where}: a session lets you accept or discard it"
    if evaluation.verdict.doubted:
        return f"espalier eval {name} {file}{where}, when nothing else runs on the machine"
    if (evaluation.verdict.reason or "").startswith(WANTS_GPU):
        return f"espalier eval {name} {file} --device cuda:0 {shapes}, on a machine with a GPU"
    if not evaluation.verdict.measured:
        return f"fix {file}, then espalier eval {name} {file}{where}"
    return f"espalier run {name} --seed-kernel {file}{where}: search from this kernel"


def _request(name: str, kernel: Path, given: dict[str, Any]) -> EvaluationRequest:
    problem = catalog.find(name)
    trust.require_problem(problem)
    other = given["other"]
    return request(
        problem, read_kernel(kernel, problem), name=str(kernel), device=given["device"], workload=given["workload"],
        suite=given["suite"],
        tolerance=given["tolerance"], baselines=given["baselines"], tunables=dict(given["tune"]), cold=not given["hot"],
        fresh=given["fresh"], variants=given["most"] if given["all_variants"] else 1,
        other=read_kernel(other, problem) if other is not None else None, other_name=str(other or ""),
        regime=given["regime"], accept_unverifiable=given["accept_unverifiable"],
    )  # fmt: skip


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

    def printed(file: Path, found: Evaluation | _NotEvaluated, printer: ProgressPrinter) -> int:
        printer.clear()
        if as_json:
            show_json_line(_json_object(found) if isinstance(found, Evaluation) else found)
        else:
            show(_short_lines(str(file).ljust(width), found))
        return _exit_status(found) if isinstance(found, Evaluation) else FAILED

    statuses = drive(lambda printer: _evaluate_all(requests, printer, printed))
    return next((status for status in (FAILED, DOUBTED) if status in statuses), DONE)


def _short_lines(name: str, found: Evaluation | _NotEvaluated) -> list[Line]:
    if isinstance(found, Evaluation):
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


_Wanted = tuple[Path, EvaluationRequest | _NotEvaluated]


def _requests(problem: str, files: Sequence[Path], given: dict[str, Any]) -> list[_Wanted]:
    """What to evaluate, on one device: the one given, else that of the first kernel. Raises the last error if none can be."""
    found: list[_Wanted] = []
    assignment: Assignment | None = None
    trouble: EspalierError | None = None
    for file in files:
        try:
            wanted = _request(problem, file, given if assignment is None else {**given, "device": assignment.device})
        except KernelCodeError as error:
            trouble = error
            found.append((file, _NotEvaluated(str(file), str(error))))
        except ProblemError as error:
            if assignment is None:
                raise
            found.append((file, _NotEvaluated(str(file), str(error))))
        else:
            assignment = assignment or wanted.assignment
            found.append((file, replace(wanted, assignment=assignment)))
    if assignment is None and trouble is not None:
        raise trouble
    return found


async def _evaluate_all(
    requests: Sequence[_Wanted],
    printer: ProgressPrinter,
    printed: Callable[[Path, Evaluation | _NotEvaluated, ProgressPrinter], int],
) -> list[int]:
    """One preparation for all. A kernel whose trial cannot be finished is reported as failed, and the next one is evaluated."""
    first = next(wanted for _, wanted in requests if isinstance(wanted, EvaluationRequest))
    statuses = []
    async with bench_for(first, printer.show) as bench:
        build_ahead(bench, [wanted for _, wanted in requests if isinstance(wanted, EvaluationRequest)])
        for file, wanted in requests:
            found: Evaluation | _NotEvaluated
            try:
                found = await evaluate_on(bench, wanted) if isinstance(wanted, EvaluationRequest) else wanted
            except EspalierError as error:
                found = _NotEvaluated(str(file), str(error))
            statuses.append(printed(file, found, printer))
    return statuses


def _lines(found: Evaluation) -> list[Line]:
    best = found.best
    lines = v.lines(best.verdict, best.trial.verification, best.trial.timed, found.preparation)
    if len(found.variants) > 1:
        lines = [line(), *lines]
    if found.against is not None:
        lines += head_to_head_lines(best.verdict, found.against)
    if found.taken is not None:
        lines.append(line(f"a @require line forbids the default values of the tunables: measured with {tunables(found.taken)}"))
    if found.trouble:
        lines.append(line(Span(found.trouble, Tone.BAD)))
    return lines


def _json_object(evaluation: Evaluation) -> dict[str, object]:
    plain: dict[str, object] = as_data(evaluation.verdict)
    if evaluation.taken is not None:
        plain["tunables"] = evaluation.taken
    if evaluation.variants:
        plain["variants"] = [{"tunables": one.tunables, **as_data(one.verdict)} for one in evaluation.variants]
    if evaluation.against is not None:
        plain["against"] = evaluation.against
    elif evaluation.trouble:
        plain["against"] = {"error": evaluation.trouble}
    return plain
