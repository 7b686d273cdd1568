"""The test beds of one judge: the workload's and its hold-outs', within one memory plan. Imports torch."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from functools import partial

import torch

from engine.domain.errors import DeviceError, ProblemError
from engine.domain.memory_phases import judges_tensors
from engine.domain.memory_plan import MemoryPlan, TooLarge, TrialProcesses, WorkloadMemory
from engine.domain.memory_text import plan_note, refusal
from engine.domain.model import Device, Workload
from engine.problem.loading import is_out_of_memory
from engine.problem.reference import Reference
from engine.problem.reference_step import StepTooLong, steps_at_most
from engine.trial.judge.memory_room import independent_rows, plans_for, rehearse_calibration, release_unused
from engine.trial.judge.process_pool import ProcessPool
from engine.trial.judge.test_bed import TestBed
from engine.trial.judge.tolerance.calibration import Calibration
from engine.trial.judge.tolerance.known_calibrations import KnownCalibrations
from engine.trial.protocol import OpenRequest

_OTHER_S, _OTHERS_S = 3.0, 6.0
"""Seconds for tracing another workload of a problem, and all of them."""


class TestBeds:
    """Makes beds at first use. Where memory runs out although the plan fits, ``tighten`` goes on with a more frugal one."""

    def __init__(
        self,
        opened: OpenRequest,
        device: Device,
        reference: Reference,
        holdouts: Sequence[Reference],
        processes: TrialProcesses,
        pool: ProcessPool,
        calibrations: KnownCalibrations,
    ) -> None:
        self.calibrations = calibrations
        self._opened = opened
        self._device = device
        self._reference = reference
        self._holdouts = holdouts
        self._processes = processes
        self._pool = pool
        self._memory: WorkloadMemory | None = None
        self._before: WorkloadMemory | None = None
        self._holdout_calibrations: dict[Reference, Calibration] = {}
        self._beds: dict[Reference, TestBed] = {}

    @property
    def memory(self) -> WorkloadMemory:
        """What the workload needs, and the plan for it."""
        if self._memory is None:
            release_unused(self._device)  # what torch keeps of a suite's earlier workloads would not count as free
            limit = self._opened.memory_limit
            self._memory = plans_for(self._reference, self._device, limit, self._processes, runs=True)
            self._apply()
        return self._memory

    @property
    def plan(self) -> MemoryPlan:
        """The plan in use. Raises DeviceError where none fits."""
        found = self.memory.found
        if isinstance(found, TooLarge):
            raise DeviceError(refusal(self._opened.problem.name, self._reference.workload.name, found, self.other_workloads()))
        return found[0]

    def other_workloads(self) -> list[WorkloadMemory]:
        """The memory plans of the problem's other workloads, largest first.

        Of those whose reference need not run for it, and which are traced in a few seconds.
        """
        workloads = [w for w in self._opened.problem.workloads if w.name != self._reference.workload.name]
        references = [Reference(self._opened.problem, w, self._device.label) for w in workloads]
        without = TrialProcesses(self._processes.baselines, self._processes.interleaved, self._processes.pairs)
        found = [plans_for(r, self._device, self._opened.memory_limit, without) for r in _traced(references)]
        return sorted(found, key=lambda one: -one.needs.operands)

    @property
    def note(self) -> str:
        """A line on a plan that saves memory; empty for another."""
        return plan_note(self.plan)

    def tighten(self, *, fully: bool = False) -> bool:
        """Let all beds go, and use a more frugal plan from now on, or the most frugal one; false if there is none."""
        self.drop()
        found = self.memory.found
        if isinstance(found, TooLarge) or len(found) == 1:
            return False
        self._before = self.memory
        self._memory = self.memory.with_plans(found[-1:] if fully else found[1:])
        self._apply()
        return True

    def restore(self) -> None:
        """Let all beds go, and use the plan before the last ``tighten`` again."""
        self.drop()
        if self._before is not None:
            self._memory, self._before = self._before, None
            self._apply()

    def _apply(self) -> None:
        assert self._memory is not None
        if isinstance(self._memory.found, TooLarge):
            return
        plan = self._memory.found[0]
        for reference in (self._reference, *self._holdouts):
            reference.exact_on_host = plan.exact_on_host
        self._reference.exact_slices = plan.exact_slices
        self._pool.use(plan)

    def drop(self) -> None:
        """Free the memory of all beds."""
        for bed in self._beds.values():
            bed.close()
        self._beds.clear()
        release_unused(self._device)

    @property
    def in_use(self) -> bool:
        """Whether the workload's bed exists."""
        return self._reference in self._beds

    def release_unused(self) -> None:
        """Give back what torch keeps for later tensors, if that is more than the check of a kernel takes again.

        Giving back 30 GiB while processes create their contexts takes an H200 0.3 s.
        """
        if self._device.kind == "cuda" and torch.cuda.memory_reserved() > judges_tensors(self.plan, self.memory.needs):
            release_unused(self._device)

    def may_keep_unused(self) -> bool:
        """Whether what torch keeps after calibration may lie beside the bed: trivial models take it again.

        It may if the judge, the bed and the kernel's processes, which are starting, take no more with it than the plan does at
        its peak.
        """
        needs, plan = self.memory.needs, self.plan
        processes = (2 + plan.pairs_ahead) * self.memory.room.process
        kept = torch.cuda.memory_reserved() if self._device.kind == "cuda" else 0
        return kept + plan.slots * needs.operands + processes <= plan.device_bytes

    def allocate_ahead(self) -> None:
        """Take the memory of a large workload's calibration from a GPU before processes start there (``rehearse_check``).

        Raises DeviceError where no plan fits.
        """
        plan = self.plan
        if self._device.kind == "cuda" and not (plan.keeps_processes or plan.exact_on_host or self.calibrations.known):
            rehearse_calibration(self._reference)

    def main(self) -> TestBed:
        """The workload's bed, calibrated at first use. Raises DeviceError where it does not fit.

        Measuring errors takes more of the device than a plan for little memory leaves beside a kernel: it is done before.
        """
        plan = self.plan
        if self._reference not in self._beds:
            short = plan.exact_on_host or plan.exact_slices > 1
            calibration = self.calibrations.of_workload(self._reference, ahead=short)
            if not self.may_keep_unused():
                self.release_unused()
            self._beds[self._reference] = TestBed(self._reference, calibration, self._device, plan)
            self._beds[self._reference].complete = self.complete
        return self._beds[self._reference]

    def complete(self, distribution: str) -> Calibration:
        """Measure the reference's errors on a distribution, which the calibration lacks. Raises what ``calibrate`` does."""
        found = self.calibrations.complete(distribution)
        if self.in_use:
            self._beds[self._reference].calibration = found
        return found

    def _complete_holdout(self, reference: Reference, distribution: str) -> Calibration:
        """The same for a hold-out shape, whose limits on perturbed inputs are the workload's."""
        self.complete(distribution)
        found = self.calibrations.complete_holdout(reference, self._holdout_calibrations[reference], distribution)
        self._holdout_calibrations[reference] = found
        return found

    def holdout(self, workload: Workload) -> TestBed:
        """The bed of a hold-out shape, calibrated at first use, with what has been measured on the workload since."""
        reference = next(r for r in self._holdouts if r.workload.settings == workload.settings)
        if reference not in self._beds:
            if self.plan.exact_slices > 1 and reference.exact_slices == 1 and independent_rows(reference) > 1:
                reference.exact_slices = self.plan.exact_slices
            calibration = self._holdout_calibrations.get(reference)
            calibration = calibration or self.calibrations.of_holdout(reference, self.main().calibration)
            self._holdout_calibrations[reference] = calibration
            release_unused(self._device)
            self._beds[reference] = TestBed(reference, calibration, self._device, self.plan, self.plan.holdout_slots)
            self._beds[reference].complete = partial(self._complete_holdout, reference)
        bed = self._beds[reference]
        bed.calibration = self.calibrations.up_to_date(reference, bed.calibration)
        self._holdout_calibrations[reference] = bed.calibration
        return bed

    def calibrate_holdouts(self) -> None:
        """Make the beds of all hold-out shapes; where the plan saves memory, each is let go before the next."""
        for reference in self._holdouts:
            self.holdout(reference.workload)
            self.let_go(reference.workload)

    def let_go(self, workload: Workload) -> None:
        """Free a hold-out's bed, where the plan keeps only what is needed."""
        if self.plan.keeps_processes:
            return
        for reference in self._holdouts:
            if reference.workload.settings == workload.settings and reference in self._beds:
                self._beds.pop(reference).close()


def ran_out(error: BaseException) -> bool:
    """Whether memory ran out: in the judge, in a reference, or in a process that said so."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in (errno.ENOMEM, errno.ENOSPC):
        return True
    return "out of memory" in str(error).lower() or any(is_out_of_memory(e) for e in (error, cause) if e is not None)


def _traced(references: Sequence[Reference]) -> list[Reference]:
    """Those whose signature is soon known without running them: a loop over rows takes a minute to trace."""
    found: list[Reference] = []
    until = time.monotonic() + _OTHERS_S
    for one in references:
        try:
            with steps_at_most(max(0.01, min(_OTHER_S, until - time.monotonic()))):
                found += [one] if one.known_without_running() else []
        except StepTooLong:
            continue
        except ProblemError as error:
            if not isinstance(error.__cause__, StepTooLong):
                raise
    return found
