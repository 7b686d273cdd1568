"""The memory plan on a real device: what the judge takes is what it planned, and a small card's limit is kept."""

from __future__ import annotations

import pytest

from engine.domain.memory_plan import BLOCKS, MemoryPlan, TrialProcesses
from engine.domain.model import Workload
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge import devices
from engine.trial.judge.judged_calls import rehearse_check
from engine.trial.judge.memory_room import plans_for
from engine.trial.judge.test_bed import TestBed as Bed
from engine.trial.judge.tolerance.calibration import calibrate
from engine.trial.judge.tolerance.correctness_check import describe_check

pytestmark = pytest.mark.gpu

LARGE = Workload("large", {"batch_size": 1024, "dim": 65536})
"""Operands of 512 MiB."""
CARD = 16 * 10**9


@pytest.mark.parametrize("exact_on_host", [False, True])
@pytest.mark.parametrize("keeps_inputs", [False, True])
def test_a_check_takes_no_more_than_planned(exact_on_host: bool, keeps_inputs: bool) -> None:
    import torch

    reference = Reference(catalog.find("softmax"), LARGE, "cuda:0")
    reference.exact_on_host = exact_on_host
    device = devices.describe("cuda:0")
    operands = plans_for(reference, device, 0, TrialProcesses()).needs.operands
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    calibration = calibrate(reference, "class")
    describe_check(reference, calibration)
    assert torch.cuda.max_memory_allocated() <= 4.5 * operands
    plan = MemoryPlan(1, keeps_inputs, False, copies_on_host=not keeps_inputs, exact_on_host=exact_on_host)
    bed = Bed(reference, calibration, device, plan)
    torch.cuda.reset_peak_memory_stats()
    for distribution in ("own", "zeros"):
        bed.refill(0, distribution)
        bed.poison(0)
        for output, right in zip(bed.outputs(0), reference.call(bed.draw_weights(), bed._given(0)), strict=True):
            output.copy_(right)
        found = bed.check(0, distribution, bed.take_outputs(0, alone=True))
        assert found.ruling.passed
        assert found.violation == ""
    # Lent memory is outside of torch's allocator.
    most = 2.5 if exact_on_host else 4.0
    assert torch.cuda.max_memory_allocated() <= most * operands + BLOCKS
    bed.close()


def test_what_a_check_needs_is_taken_before_it() -> None:
    import torch

    reference, device = Reference(catalog.find("softmax"), LARGE, "cuda:0"), devices.describe("cuda:0")
    plan = MemoryPlan(1, keeps_inputs=False, keeps_processes=False, copies_on_host=False, exact_on_host=False)
    bed = Bed(reference, calibrate(reference, "class", ahead=False), device, plan)
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    rehearse_check(bed)
    reserved = torch.cuda.memory_reserved()
    assert torch.cuda.memory_allocated() == held
    for distribution in ("own", "negated"):
        bed.refill(0, distribution)
        earlier = bed.take_outputs(0, alone=True)
        bed.expected(0)
        del earlier
        assert torch.cuda.memory_reserved() - reserved <= reserved // 64
    bed.close()


@pytest.mark.parametrize("name", catalog.shipped_names())
def test_shipped_problems_plan_into_a_card_of_16_gb(name: str) -> None:
    problem = catalog.find(name)
    full = next(w for w in problem.workloads if w.name == "full")
    holdouts = tuple(
        plans_for(Reference(problem, w, "cuda:0"), devices.describe("cuda:0"), 0, TrialProcesses()).needs.operands
        for w in problem.holdouts["full"]
    )
    processes = TrialProcesses(2, 2, 8, holdouts)
    found = plans_for(Reference(problem, full, "cuda:0"), devices.describe("cuda:0"), int(0.95 * CARD), processes)
    assert found.fits, found.found
