"""Calls of judged kernels: watched for work before and after them, their outputs received and checked. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from engine.domain.model import Contract, FailureKind, Role
from engine.domain.problem_format import FormatVerdict
from engine.problem.reference import Reference
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.inputs.cases import fresh_seed
from engine.trial.judge.inputs.perturbations import OWN
from engine.trial.judge.memory_room import rehearse_float64
from engine.trial.judge.outputs.comparison import NO_ERROR, Errors
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.outputs.taken_outputs import Left, largest_difference
from engine.trial.judge.runners.runner_client import RunnerClient
from engine.trial.judge.runners.runner_memory import Outputs, RunnerMemory
from engine.trial.judge.runners.watch import Watch
from engine.trial.judge.test_bed import TestBed
from engine.trial.judge.timing.call_times import CallHook, Timing
from engine.trial.judge.tolerance.findings import Findings
from engine.trial.judge.tolerance.policy import CheckResult, within
from engine.trial.judge.tolerance.repeated_writes import DISTINCT
from engine.trial.messages import RunKernel
from engine.trial.protocol import Candidate
from engine.trial.shared.layout import nbytes


@dataclass(slots=True)
class CheckTally:
    """The checks of all calls of one trial: their number, the worst errors and the widest limit that was applied."""

    trials: int = 0
    errors: Errors = NO_ERROR
    limit: RelativeErrors | None = None
    caveats: list[str] = field(default_factory=list)
    format_verdict: FormatVerdict | None = None

    def add(self, ruling: CheckResult) -> None:
        self.trials += 1
        self.errors = self.errors.worst(ruling.errors)
        if ruling.limit is not None:
            self.limit = ruling.limit if self.limit is None else self.limit.wider(ruling.limit)


def fresh_call(
    bed: TestBed, runner: RunnerClient, slot: int, tally: CheckTally, distribution: str = OWN, *, partly: bool = False
) -> None:
    """``judged_call`` on newly drawn inputs. A gated call copies them to lent memory itself."""
    bed.draw(slot, distribution, partly=partly)
    bed.draw_weights()
    if not runner.checks_gated:
        bed.release(slot)
    judged_call(bed, runner, slot, tally, distribution)


def judged_call(bed: TestBed, runner: RunnerClient, slot: int, tally: CheckTally, distribution: str = OWN) -> Timing:
    """Poison (``poison_for``), call, check. Raises TrialFailed when the output is wrong or a rule of the trial was broken."""
    bed.turn_to(runner.party)
    bed.renew(slot)
    poison_for(bed, runner, slot)
    if runner.checks_gated:
        timing = watched_gated_call(bed, runner, slot, lambda: None)
    else:
        watch = bed.watch(slot)
        bed.settle()
        timing = watched(bed, watch, runner, RunKernel(slot))
    judge_outputs(bed.check(slot, distribution), tally, distribution)
    return timing


def poison_for(bed: TestBed, runner: RunnerClient, slot: int, *, alone: bool = True) -> None:
    """Poison the outputs of ``slot``, unless all of them will be overwritten from where a module makes them.

    ``alone``: whether no other judged kernel is called on these inputs. On a GPU its outputs lie where this one can read them.
    """
    if not (runner.delivers and alone):
        bed.poison(slot)


def rehearse_check(bed: TestBed) -> None:
    """Allocate what a check allocates, so that torch takes this memory from a GPU before other processes start there.

    While those create their contexts, mapping a few GiB takes a second on an H200; before they start, 18 GiB take 0.07 s. One
    allocation of that size is not enough: tensors that exist at the same time need blocks of their own sizes. The weights and
    other tensors that outlive a check must not take part of a large block: the first allocation is a block for them. Raises
    ProblemError.
    """
    reference = bed.reference
    if reference.device.type == "cuda" and not reference.exact_on_host:
        weights = sum(nbytes(o) for o in bed.signature.operands if o.role in (Role.PARAMETER, Role.BUFFER))
        outlives = torch.empty(weights + _OUTLIVES, dtype=torch.uint8, device=reference.device)
        earlier = bed.take_outputs(0, alone=True)
        kept = [reference.inputs(fresh_seed()) for _ in range(min(bed.slots, _KEPT) if bed.keeps_inputs else 0)]
        rehearse_float64(reference)
        del outlives, earlier, kept


_OUTLIVES = 64 << 20
"""Bytes for tensors that outlive a check, besides the weights."""
_KEPT = 2
"""Inputs of other slots that are kept during a check, where the memory plan keeps inputs: those of earlier calls."""


def difference_of_calls(bed: TestBed, runner: RunnerClient, slot: int, tally: CheckTally) -> float:
    """The largest difference, in units of the output's scale, between the last call on ``slot`` and another on its inputs."""
    earlier = bed.take_outputs(slot, alone=True)
    judged_call(bed, runner, slot, tally)
    if isinstance(earlier, Left):
        if not bed.have_changed(slot, earlier):
            return 0.0
        earlier = bed.copy_outputs(slot)
        judged_call(bed, runner, slot, tally)
    return largest_difference(bed.outputs(slot), earlier)


def check_workspace(runner: RunnerClient, candidate: Candidate) -> None:
    """Raises TrialFailed for a kernel that wrote past its workspace; after its calls on one shape. Modules have none."""
    if candidate.contract != Contract.MODULE:
        runner.check_workspace()


def watched(bed: TestBed, watch: Watch, runner: RunnerClient, order: RunKernel, *others: CallHook) -> Timing:
    """A call as ordered, its outputs watched and received. Raises TrialFailed."""
    timing = runner.call(order, (*others, watch.of_runner(lambda: runner.delivered)))
    _receive_outputs(bed, watch, runner, order.slot)
    return timing


def watched_gated_call(bed: TestBed, runner: RunnerClient, slot: int, flush: Callable[[], None]) -> Timing:
    """A gated call of a judged kernel; inputs are withdrawn before it and released within it."""
    watch = bed.watch(slot).of_runner(lambda: runner.delivered)
    bed.withdraw(slot)
    timing = runner.gated_call(slot, releasing(bed, slot, flush), watch)
    _receive_outputs(bed, watch, runner, slot)
    return timing


def _receive_outputs(bed: TestBed, watch: Watch, runner: RunnerClient, slot: int) -> None:
    """Check that nothing was written after the call, and take a module's outputs from where it made them."""
    with unreadable_outputs_fail():
        if watch.outputs_changed():
            raise still_written()
        receive_delivered(bed, runner, slot)


def still_written() -> TrialFailed:
    """The failure of a kernel that went on after its reply."""
    return TrialFailed(FailureKind.REJECTED, "outputs were still being written after the call returned")


@contextmanager
def unreadable_outputs_fail() -> Iterator[None]:
    """A kernel whose outputs cannot be read has failed."""
    try:
        yield
    except OSError as error:
        raise TrialFailed(FailureKind.REJECTED, f"its output cannot be read: {error.strerror}") from error


def receive_delivered(bed: TestBed, runner: RunnerClient, slot: int) -> None:
    """Take a module's outputs from where it made them, and check that those of earlier calls that are held have stayed.

    Those that are held no longer are overwritten there. Raises TrialFailed, OSError.
    """
    if runner.delivered is None:
        if runner.delivers:
            raise TrialFailed(FailureKind.REJECTED, "its reply does not say where its outputs are: did the kernel forge it?")
        return
    bed.receive(slot, runner.delivered)
    likes, lent = bed.outputs(slot), lent_outputs(bed.reference, runner.delivered)
    if runner.held.overwritten_by(runner.delivered, likes, lent):
        raise TrialFailed(FailureKind.REJECTED, _overwritten(runner.delivered, lent))
    try:
        runner.held.overwrite_let_go(likes)
    except OSError as error:
        raise TrialFailed(FailureKind.REJECTED, f"a caller cannot write to its output: {error.strerror}") from error
    bed.settle()


def lent_outputs(reference: Reference, delivered: Outputs) -> frozenset[int]:
    """Indices of outputs that are memory of an input, a parameter or a buffer, and change with it.

    Where the reference returns an input's memory, a module may return memory of its own: that belongs to its caller.
    """
    lent = reference.lent_outputs
    if not isinstance(delivered, RunnerMemory):
        return lent.of_model | lent.of_inputs
    return lent.of_model | frozenset(filter(delivered.is_lent, lent.of_inputs))


def _overwritten(delivered: Outputs, lent: Collection[int]) -> str:
    """Why held outputs have changed. ``lent``: indices of outputs for which the reference returns lent memory too."""
    own = [index for index in range(len(delivered.addresses)) if index not in lent]
    if isinstance(delivered, RunnerMemory) and (inside := [index for index in own if delivered.is_lent_input(index)]):
        return f"output {inside[0]} lies in the memory of an input, which later calls overwrite: return a copy"
    return "overwrote the memory of an earlier call's output, which is still held"


def judge_outputs(findings: Findings, tally: CheckTally, distribution: str) -> None:
    """Add one check to the tally, or raise TrialFailed."""
    if findings.violation:
        raise TrialFailed(FailureKind.REJECTED, findings.violation)
    errors = findings.ruling.errors
    tally.add(findings.ruling)
    if findings.ruling.caveat:
        tally.caveats.append(findings.ruling.caveat)
    if not findings.ruling.passed:
        kind = f"{distribution}, in some of the inputs" if findings.partly else distribution
        on = "" if distribution == OWN else f" on perturbed inputs ({kind})"
        what = errors.flaw or _beyond(findings.ruling)
        if findings.ruling.undefined:
            reason = f"call {tally.trials}{on} cannot be judged: {findings.ruling.undefined}: {DISTINCT}"
            raise TrialFailed(FailureKind.REJECTED, reason)
        if (own := findings.ruling.own_errors) is not None:
            raise TrialFailed(
                FailureKind.REJECTED,
                f"call {tally.trials}{on} cannot be judged: {what}; the reference's own arithmetic errs by {own.rel_fro:.2e} "
                "here, because its outputs differ by little more than rounding: give it inputs that spread them",
            )
        evidence = tuple(replace(one, inputs=kind, call=tally.trials) for one in findings.ruling.evidence)
        raise TrialFailed(FailureKind.MISMATCH, f"call {tally.trials}{on}: {what}", evidence=evidence)


def _beyond(ruling: CheckResult) -> str:
    """The errors of the outputs, or of the wrong one of several, each with its limit where the policy has one."""
    errors, limit = ruling.errors, ruling.limit
    if errors.by_output and limit is not None:
        first = next((i for i, one in enumerate(errors.by_output) if not within(one, limit.for_output(i))), 0)
        return f"{ruling.output}: {_beyond(CheckResult(errors.for_output(first), passed=False, limit=limit.for_output(first)))}"
    if errors.of_zeros:
        return f"all expected elements are 0, the largest error is {errors.max_abs:.2e}"
    most_centred, most_scaled = (limit.rel_fro, limit.max_scaled) if limit is not None else (math.inf, math.inf)
    return (
        f"centred error {errors.rel_fro:.2e}{_with_limit(most_centred)}, worst element {errors.max_scaled:.2e} of its "
        f"scale{_with_limit(most_scaled)}, largest absolute error {errors.max_abs:.2e}"
    )


def _with_limit(limit: float) -> str:
    return f" (limit {limit:.1e})" if math.isfinite(limit) else ""


def releasing(bed: TestBed, slot: int, flush: Callable[[], None]) -> Callable[[], None]:
    """What a gated call enqueues after the judge's first event: its inputs, and the flush of the caches."""

    def release() -> None:
        bed.release_inputs(slot)
        flush()

    return release
