"""The weights in a test bed's lent memory: seen at once where they are many, and named where one was changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.domain.model import Workload
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge import devices, lent_weights, test_bed
from engine.trial.judge.calibration import calibrate

Bed = test_bed.TestBed  # a name that pytest does not collect
LAYERS = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(6)))
    def forward(self, x):
        return self.layers(x)
def get_inputs():
    return [torch.randn(3, 5)]
def get_init_inputs():
    return []
"""


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    file = tmp_path / "layers.py"
    file.write_text(LAYERS)
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    made = Bed(reference, calibrate(reference, "class"), devices.describe("cpu"))
    yield made
    made.close()


def answered(bed: Bed, slot: int) -> str:
    """The violation of a right answer on fresh inputs."""
    bed.refill(slot)
    bed.poison(slot)
    for output, right in zip(bed.outputs(slot), bed.reference.call(bed.draw_weights(), bed._given(slot)), strict=True):
        output.copy_(right)
    return bed.check(slot).violation


@pytest.mark.parametrize("new_model", [False, True])
def test_twelve_weights_are_compared_at_once_in_every_slot(bed: Bed, new_model: bool) -> None:
    if new_model:
        bed.new_model()
    assert [answered(bed, slot) for slot in range(bed.slots)] == [""] * bed.slots
    assert all(bed._weights.are_intact(slot) for slot in range(bed.slots))


@pytest.mark.parametrize("slot", [0, 3])
@pytest.mark.parametrize("which", [1, 7, -1])
def test_a_weight_that_a_call_changed_is_named(bed: Bed, slot: int, which: int) -> None:
    bed.refill(slot)
    operand = bed._read_slots(slot)[which]
    bed._tensor(operand).view(-1)[-1].add_(1)
    assert not bed._weights.are_intact(slot)
    assert bed._weights.are_intact(1 + slot)
    assert bed.check(slot).violation == f"changed its parameter {operand.name}"


def test_of_large_weights_no_image_is_kept(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent_weights, "_LARGEST", 1000)
    bed.new_model()
    assert answered(bed, 0) == ""
    assert not bed._weights.are_intact(0)


def test_a_model_in_float64_is_converted_once(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, converted = bed.reference, []
    plain = Reference._cast
    monkeypatch.setattr(Reference, "_cast", lambda *given: converted.append(1) or plain(*given))
    one, other = (reference.judged_model(seed) for seed in (1, 2))
    given = reference.inputs(3)
    first = reference.exact(one, given).outputs
    assert torch.equal(reference.exact(one, given).outputs[0], first[0])
    assert len(converted) == 1
    assert not torch.equal(reference.exact(other, given).outputs[0], first[0])
    assert torch.equal(reference.exact(one, given).outputs[0], first[0])
    assert len(converted) == 3, "only the last is kept"


def test_a_model_in_float64_that_is_kept_loses_no_state(tmp_path: Path) -> None:
    """The running statistics of a batch normalisation change in every call."""
    file = tmp_path / "norms.py"
    file.write_text(LAYERS.replace("nn.Tanh()", "nn.BatchNorm1d(5)"))
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    model = reference.judged_model(1)
    given = reference.inputs(2)
    outputs = [reference.exact(model, given).outputs[0] for _ in range(3)]
    assert torch.equal(outputs[0], outputs[1])
    wide, kept = reference._wide.get(model, reference.device, lambda: model)
    assert kept
    assert wide is not model
    assert all(int(buffer) == 0 for name, buffer in wide.named_buffers() if name.endswith("num_batches_tracked"))
