"""A reference is called to see how it fits only where it may fit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from engine.domain.memory_phases import judges_tensors
from engine.domain.memory_plan import GIB, ROOMY, MemoryNeeds, MemoryRoom, TooLarge, TrialProcesses, WorkloadMemory
from engine.domain.memory_planning import plans
from engine.domain.model import Device
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge import test_beds
from engine.trial.judge.devices import describe
from engine.trial.judge.memory_room import plans_for

TEXT = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return (x.exp().sin() + x.cos()).exp()

def get_inputs():
    return [torch.randn(4096, 1024)]

def get_init_inputs():
    return []
"""
OPERANDS = 2 * 4096 * 1024 * 4


@pytest.mark.parametrize(
    ("limit", "fits", "called"), [(OPERANDS // 2, False, 0), (34 * OPERANDS, False, 1), (50 * OPERANDS, True, 0)]
)
def test_what_cannot_fit_is_never_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, fits: bool, called: int
) -> None:
    """A tensor of 16 GiB was made, and used, for 80 s on a machine of 23 GiB before it was refused."""
    (tmp_path / "large.py").write_text(TEXT)
    problem = catalog.find(str(tmp_path / "large.py"))
    reference = Reference(problem, problem.workloads[0])
    calls: list[int] = []
    monkeypatch.setattr(Reference, "independent_rows", lambda self, most: calls.append(most))
    found = plans_for(reference, describe("cpu"), limit, TrialProcesses(), runs=True)
    assert found.fits == fits
    assert len(calls) == called


@pytest.mark.parametrize(("kind", "more", "released"), [("cuda", 0, 0), ("cuda", 1, 1), ("cpu", 1, 0)])
def test_memory_that_a_check_takes_again_is_not_given_back(
    monkeypatch: pytest.MonkeyPatch, kind: str, more: int, released: int
) -> None:
    """Of a ReLU on 6 GiB, 30 GiB were given back and taken again: 0.4 s of 8.5 on an H200."""
    needs = MemoryNeeds(6 * GIB, 0, 6 * GIB, 6 * GIB, 12 * GIB, 12 * GIB, 0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: judges_tensors(ROOMY, needs) + more)
    calls: list[Device] = []
    monkeypatch.setattr(test_beds, "release_unused", calls.append)
    beds = SimpleNamespace(_device=Device(kind, 0, "", "", 1, 0, 0, ""), plan=ROOMY, memory=SimpleNamespace(needs=needs))
    test_beds.TestBeds.release_unused(cast(test_beds.TestBeds, beds))
    assert len(calls) == released


@pytest.mark.parametrize(
    ("device_gib", "kept_gib", "may"), [(132, 39, True), (132, 60, False), (66, 39, True), (66, 50, False)]
)
def test_what_calibration_leaves_lies_beside_the_bed_within_the_plans_peak(
    monkeypatch: pytest.MonkeyPatch, device_gib: int, kept_gib: int, may: bool
) -> None:
    """Of the same ReLU, 39 GiB were given back after calibration, while processes created contexts, and taken again: 0.5 s."""
    needs = MemoryNeeds(6 * GIB, 0, 6 * GIB, 6 * GIB, 12 * GIB, 12 * GIB, 0, 12 * GIB)
    room = MemoryRoom(device_gib * GIB, 100 * GIB, 600 << 20)
    found = plans(needs, room, TrialProcesses(pairs=8))
    assert not isinstance(found, TooLarge)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: kept_gib * GIB)
    memory = WorkloadMemory("full", needs, room, found)
    beds = SimpleNamespace(_device=Device("cuda", 0, "", "", 1, 0, 0, ""), plan=found[0], memory=memory)
    assert test_beds.TestBeds.may_keep_unused(cast(test_beds.TestBeds, beds)) is may


def test_what_torch_keeps_of_an_earlier_workload_is_free_for_the_next_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite's workloads are planned one after the other, each once the one before was calibrated."""
    done: list[str] = []
    monkeypatch.setattr(test_beds, "release_unused", lambda _: done.append("released"))
    monkeypatch.setattr(test_beds, "plans_for", lambda *_, **__: done.append("planned"))
    fields = ("_memory", "_device", "_reference", "_processes")
    beds = SimpleNamespace(**dict.fromkeys(fields), _opened=SimpleNamespace(memory_limit=0), _apply=lambda: None)
    test_beds.TestBeds.memory.__get__(cast(test_beds.TestBeds, beds))
    assert done == ["released", "planned"]
