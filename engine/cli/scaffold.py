"""``espalier scaffold``: a correct, naive kernel for a problem, in any dialect and contract."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

import click

from engine.cli import options as o
from engine.cli.drive import ProgressPrinter, drive
from engine.cli.output import STDOUT, refuse_target, show, write_output
from engine.cli.verbosity import quiet, verbosity
from engine.codegen import scaffold as writing
from engine.domain.device_waits import is_waiting
from engine.domain.model import Contract, Dialect
from engine.problem import catalog
from engine.report.text.shell import quoted
from engine.session import trust
from engine.session.devices import checked_device, default_workload
from engine.session.requirements import check_torch
from engine.trial.bench import Assignment, TrialBench

_GPU_DIALECTS = (Dialect.CUDA, Dialect.TRITON)
EPILOG = "\b\n" + f"{writing.GRAMMAR}\n{writing.TRITON_GRAMMAR}".replace("\n\n", "\n\n\b\n")


@click.command(epilog=EPILOG)
@click.argument("problem", type=o.PROBLEM)
@click.option("--dialect", type=o.KnownValue([d.value for d in Dialect]), help="Default: cuda with a GPU, else cpp.")
@click.option(
    "--contract", type=o.KnownValue([c.value for c in Contract]), help="Default: plan for cuda and triton; host for cpp."
)
@click.option("--empty", is_flag=True, help="Write the signature and the operands only; the kernel computes nothing.")
@o.workload_option
@click.option("--suite", type=o.NAME, metavar="NAME", help="One kernel for all workloads of this suite.")
@click.option("--output", "-o", type=o.OUTPUT, metavar="FILE", help="Write to FILE. Default: standard output (-).")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@verbosity
def scaffold(problem: str, **given: Any) -> None:
    """Write a correct, naive kernel for PROBLEM to start from."""
    chosen = catalog.find(problem)
    trust.require_problem(chosen)
    device = checked_device(None)
    dialect = Dialect(given["dialect"] or ("cpp" if device == "cpu" else "cuda"))
    contract = Contract(given["contract"]) if given["contract"] else None
    writing.contract_for(dialect, contract)  # refused before torch is loaded
    where_usual = "cuda:0" if dialect in _GPU_DIALECTS else "cpu"
    workload, *rest = catalog.workloads_for(chosen, given["workload"], given["suite"], default_workload(where_usual))
    target: Path = given["output"] or STDOUT
    refuse_target(target, given["force"])  # before torch is loaded, and before the device is awaited
    check_torch()

    async def work(printer: ProgressPrinter) -> str:
        def say(text: str) -> None:
            printer.show(f"{text}: the reference runs on the CPU, though nothing is measured" if is_waiting(text) else text)

        bench = TrialBench(Assignment(chosen, workload, "cpu", rest=tuple(rest), suite=given["suite"]), lambda _: "")
        try:
            printer.show("loading torch and the problem")
            _, signature = await bench.describe(say)
            if given["empty"]:
                return writing.empty_kernel(signature, dialect, contract)
            printer.show("tracing the reference")
            shapes = () if dialect is Dialect.PYTHON else await bench.traced()
            return writing.scaffold(chosen, (workload, *rest), shapes, dialect, contract)
        finally:
            await bench.close()

    text = drive(work)
    write_output(target, text)
    if target == STDOUT:
        return
    if quiet():
        return
    on_cpu = " --device cpu" if dialect is Dialect.CPP and device != "cpu" else ""
    elsewhere = ", on a machine with a GPU" if dialect in _GPU_DIALECTS and device == "cpu" else ""
    judged_on = f"--suite {quote(given['suite'])}" if given["suite"] else f"--workload {quote(workload.name)}"
    words = f"{quoted(problem)} {quoted(str(target))}{on_cpu} {judged_on}"
    show([f"wrote {target}; next{elsewhere}: espalier eval {words}"], err=True)
