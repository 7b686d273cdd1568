"""A reference is called to see how it fits only where it may fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.domain.memory_plan import TrialProcesses
from engine.problem import catalog
from engine.problem.reference import Reference
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
