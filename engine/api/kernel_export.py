"""Exports a kernel of a recorded session, as ``espalier export`` does: as a module, and for other projects' formats."""

from __future__ import annotations

from pathlib import Path

from engine.domain import columns, corroboration, queries
from engine.domain.errors import KernelCodeError, ProblemError
from engine.domain.model import FailureKind, Signature, Workload
from engine.domain.state import Kernel, SessionState
from engine.export import formats
from engine.export import module as exporting
from engine.journal import journal
from engine.problem import catalog
from engine.report.text.lines import counted, duration_interval, policy_words, times, tunables
from engine.report.text.tree import outcome
from engine.session.seeds import kernel_of, recorded_code


def choose(state: SessionState, folder: Path, name: str | None) -> Kernel:
    """The kernel with this name, by default the incumbent. Raises KernelCodeError if there is none."""
    if name is not None:
        return kernel_of(state, name, folder)
    best = queries.incumbent(state)
    if best is None:
        none = "kernel whose time is corroborated" if corroboration.doubted(state) else "verified kernel"
        raise KernelCodeError(f"session {folder.name} has no {none} to export: choose one with --kernel")
    return best


def require_build(kernel: Kernel) -> None:
    """Raises KernelCodeError for a kernel whose compiler refused it: the format's own evaluation could only fail."""
    failure = kernel.failure
    if failure is not None and failure.kind is FailureKind.BUILD_FAILED:
        reason = failure.reason.splitlines()[0] if failure.reason else "the compiler refused it"
        raise KernelCodeError(f"{kernel.id} does not build: {reason}; choose another kernel with --kernel")


def module_text(state: SessionState, folder: Path, kernel: Kernel, file: str, *, for_format: bool = False) -> str:
    """The kernel as a Python module, whose name will be ``file``. Raises ProblemError if the session was never prepared.

    ``for_format``: for the harness of another project, which may call it on other shapes: there it runs the reference.
    """
    if state.opened is None or state.preparation is None or state.device is None:
        raise ProblemError(f"session {folder.name} has not been prepared yet: nothing to export")
    workload = catalog.workload_for(state.opened.problem, state.opened.settings.workload)
    exported = exporting.Exported(
        state.opened.problem, workload, state.preparation.signature, state.device, recorded_code(folder, kernel),
        kernel.tunables, _remarks(state, folder, kernel), state.preparation.gate, file, _other_shapes(state), for_format,
    )  # fmt: skip
    return exporting.module(exported)


def for_format(state: SessionState, folder: Path, kernel: Kernel, file: str) -> formats.FormatExport:
    """What the formats of other projects are written from. Raises what ``module_text`` raises."""
    text = module_text(state, folder, kernel, file, for_format=True)
    assert state.opened is not None, "checked with the module"
    assert state.device is not None, "checked with the module"
    return formats.FormatExport(
        state.opened.problem, columns.workloads(state), kernel, text, kernel.author.name, state.device, state.opened.versions,
        queries.ranking_baseline(state), journal.read(folder).entries[-1].at,
    )  # fmt: skip


def _other_shapes(state: SessionState) -> tuple[tuple[Workload, Signature], ...]:
    """The workloads of a suite after the first, as far as the journal has their signatures."""
    assert state.preparation is not None, "checked by the caller"
    known = {one.workload: one.signature for one in state.preparation.by_workload}
    others = ((one, known.get(one.name)) for one in columns.workloads(state)[1:])
    return tuple((workload, signature) for workload, signature in others if signature is not None)


def _remarks(state: SessionState, folder: Path, kernel: Kernel) -> tuple[str, ...]:
    """What the head of a module says: where the kernel comes from, its figures with their conditions, and its doubts."""
    problem, workload = queries.problem_and_workload(state)
    chosen = f" with {tunables(kernel.tunables)}" if kernel.tunables else ""
    remarks = [f"{queries.title(state, kernel)}: kernel {kernel.id} of espalier session {folder.name}{chosen}."]
    measured, ratio = kernel.measurement, queries.speedup(state, kernel)
    doubts = "; ".join(corroboration.of_kernel(kernel))
    if corroboration.is_doubted(kernel):
        remarks.append(f"{outcome(kernel).upper()}, its time is no result: {doubts}.")
    elif doubts:
        remarks.append(f"Accepted by the engineer ({kernel.accepted}) in spite of: {doubts}.")
    if corroboration.is_quarantined(kernel):
        remarks.append(f"Problem {problem}, workload {workload}. What it claims as its time is not given here.")
    elif measured is not None and ratio is not None and state.device is not None:
        base = queries.ranking_baseline(state)
        remarks.append(
            f"Problem {problem}, workload {workload}. Measured on {state.device.name}: {duration_interval(measured.time_us)}, "
            f"{times(ratio)} {base} (95% intervals; {', '.join((measured.depth, *measured.conditions))}), "
            f"{kernel.contract.value} contract."
        )
    else:
        remarks.append(f"Problem {problem}, workload {workload}. Not verified on the session's device.")
    if (proof := kernel.verification) is not None:
        remarks.append(
            f"Verified under {policy_words(proof.policy)}: precision class {proof.precision_class.value}, "
            f"centred error {proof.rel_fro:.2g} of {proof.rel_fro_limit:.2g} allowed "
            f"in {counted(proof.trials, 'call')}; other shapes: {proof.holdouts}."
        )
        remarks += [f"Caveat: {caveat}." for caveat in proof.caveats]
    return tuple(remarks)
