"""References that write several values to one element are refused; those that write each element once are judged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.domain.errors import ProblemError
from engine.domain.model import Workload
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge.devices import describe
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.judged_calls import CheckTally, judge_outputs
from engine.trial.judge.test_bed import TestBed as Bed
from engine.trial.judge.tolerance.calibration import calibrate
from engine.trial.judge.tolerance.repeated_writes import OrderedWrites

MODEL = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x, i, v):
        {}
def get_inputs():
    i = {}
    return [torch.rand(64, 8), i, torch.rand(32, 8)]
def get_init_inputs():
    return []
"""
REPEATED, DISTINCT = "torch.randint(0, 8, (32,))", "torch.randperm(64)[:32]"
PUT = "x[i] = v; return x"
WIDE = "i.reshape(32, 1).expand(32, 8)"
WRITES = {
    "index_put_": PUT,
    "index_put": "return x.index_put((i,), v)",
    "index_copy_": "return x.clone().index_copy_(0, i, v)",
    "index_copy": "return x.index_copy(0, i, v)",
    "scatter_": f"return x.clone().scatter_(0, {WIDE}, v)",
    "scatter": f"return x.scatter(0, {WIDE}, v)",
    "put_": f"return x.clone().put_(8 * {WIDE} + torch.arange(8), v)",
}


def reference_of(folder: Path, forward: str, indices: str) -> Reference:
    file = folder / "writes.py"
    file.write_text(MODEL.format(forward, indices))
    return Reference(catalog.find(str(file)), Workload("full", {}))


@pytest.mark.parametrize(("operator", "forward"), WRITES.items())
def test_several_values_for_one_element_are_refused(operator: str, forward: str, tmp_path: Path) -> None:
    told = rf"writes: the reference writes several values to one element with {operator}: which .* distinct indices"
    with pytest.raises(ProblemError, match=told):
        calibrate(reference_of(tmp_path, forward, REPEATED), "class")


@pytest.mark.parametrize("forward", WRITES.values())
def test_distinct_indices_are_judged(forward: str, tmp_path: Path) -> None:
    assert calibrate(reference_of(tmp_path, forward, DISTINCT), "class").policy.limit("own").rel_fro < 1e-3


@pytest.mark.parametrize(
    "forward",
    [
        "x[i] = 0.5; return x",
        "x[i] = v[:1]; return x",
        "x[i] = v.sum(0) * 0 + i[:, None]; return x",
        "return x.index_put((i,), v, accumulate=True)",
        "return x.index_add(0, i, v)",
        f"return x.scatter_reduce(0, {WIDE}, v, 'amax')",
        "x[i] = v; return x[8:] * 2",
        "x[x > 0.5] = 0.25; return x",
        "x[(x > 0.5)[:, 0]] = v[0]; return x",
        "x[:, :4] = v[0, :4]; return x",
    ],
)
def test_repeated_indices_that_decide_nothing_are_judged(forward: str, tmp_path: Path) -> None:
    assert calibrate(reference_of(tmp_path, forward, REPEATED), "class").distributions


@pytest.mark.parametrize("first", [True, False])
def test_the_first_or_the_last_value_stays(first: bool) -> None:
    indices, values = torch.tensor([[2, 0, 2], [1, 2, 0]]), torch.arange(6.0).view(2, 3)
    x = torch.zeros(3, 4).t()
    with OrderedWrites(first=first):
        x[indices, 1] = values
    assert x[:, 1].tolist() == [1.0 if first else 5.0, 3.0, 0.0 if first else 4.0, 0.0]
    assert not x[:, [0, 2]].any()


@pytest.mark.parametrize(("distribution", "passes"), [("own", False), ("x64", True)])
def test_a_call_with_repeated_indices_is_no_mismatch(distribution: str, passes: bool, tmp_path: Path) -> None:
    calibration = calibrate(reference_of(tmp_path, WRITES["index_put"], DISTINCT), "class")
    bed = Bed(reference_of(tmp_path, WRITES["index_put"], REPEATED), calibration, describe("cpu"))
    bed.refill(0, distribution)
    found = bed.check(0, distribution)
    bed.close()
    assert found.ruling.passed is passes
    if not passes:
        with pytest.raises(TrialFailed, match=r"call 1 cannot be judged: the reference writes .* index_put: which .* distinct"):
            judge_outputs(found, CheckTally(), distribution)
