"""The weights in a test bed's lent memory: seen at once where they are many, and named where one was changed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from engine.domain.model import Workload
from engine.problem import catalog, precision
from engine.problem.reference import Reference
from engine.trial.judge import devices, lent_weights, test_bed
from engine.trial.judge.tolerance.calibration import calibrate

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


@pytest.mark.parametrize("slot", [0, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("which", [1, -1])
def test_a_weight_that_a_call_changed_is_named(bed: Bed, slot: int, which: int) -> None:
    bed.refill(slot)
    operand = bed._read_slots(slot)[which]
    bed._tensor(operand).view(-1)[-1].add_(1)
    assert not bed._weights.are_intact(slot)
    assert bed._weights.are_intact(1 + slot)
    assert bed.check(slot).violation == f"changed its parameter {operand.name}"


def test_a_weight_that_was_changed_before_the_image_was_made_is_named(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that constructs its own weights runs while the judge copies: to a GPU's memory it can write."""
    operand, raw = bed._weights._rows[0][2], bed._inputs.raw

    def written_to(start: int, end: int) -> torch.Tensor:
        bed._tensor(operand).fill_(7)
        return raw(start, end)

    bed.new_model(constructed=True)
    with monkeypatch.context() as patched:
        patched.setattr(bed._inputs, "raw", written_to)
        bed.draw_weights()
    assert answered(bed, 0) == f"changed its parameter {operand.name}"


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


@pytest.mark.parametrize(
    ("made", "used"),
    [
        ("self.held = {}", "self.held.setdefault('mean', x.mean())"),
        ("self.held = []", "(self.held.append(x.mean()) or self.held[0])"),
        ("self.held = [torch.zeros(5)]", "self.held[0].add_(x.mean())"),
        ("self.held = type('Held', (), {})()", "vars(self.held).setdefault('mean', x.mean())"),
    ],
)
def test_what_a_call_in_float64_leaves_behind_is_not_in_the_next(tmp_path: Path, made: str, used: str) -> None:
    """Tensors that are attributes are restored after a call; others are not."""
    file = tmp_path / "holding.py"
    source = LAYERS.replace("    def forward", f"        {made}\n    def forward")
    file.write_text(source.replace("return self.layers(x)", f"return self.layers(x) - {used}"))
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    one, other = reference.inputs(1), reference.inputs(2)
    assert reference.side_effects is not None
    model = reference.model(1)
    reference.exact(model, one)
    assert torch.equal(reference.exact(model, other).outputs[0], reference.exact(reference.model(1), other).outputs[0])


def test_a_model_with_large_tensors_as_plain_attributes_is_not_kept(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither parameters nor buffers, they are operands nevertheless, and count in the memory plan."""
    monkeypatch.setattr(precision, "KEPT_WIDE", 10_000)
    model, wide = bed.reference.model(1), precision.WideModels()
    convert = lambda: precision.cast_model(model, torch.float64)  # noqa: E731
    assert wide.get(model, torch.device("cpu"), convert)[1]
    model.table = torch.zeros(10_000)
    assert not precision.WideModels().get(model, torch.device("cpu"), convert)[1]


def test_a_model_that_equals_another_is_not_taken_for_it(bed: Bed) -> None:
    class Alike(torch.nn.Sequential):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Alike)

        def __hash__(self) -> int:
            return 1

    one, other = (Alike(*(torch.nn.Linear(2, 2) for _ in range(4))) for _ in range(2))
    wide = precision.WideModels()
    found = [wide.get(m, torch.device("cpu"), partial(precision.cast_model, m, torch.float64))[0] for m in (one, other)]
    assert torch.equal(next(found[1].parameters()), next(other.parameters()).double())


def test_a_model_in_float64_is_freed_with_its_model(bed: Bed) -> None:
    model = bed.reference.model(1)
    wide = precision.WideModels()
    made = weakref.ref(wide.get(model, torch.device("cpu"), partial(precision.cast_model, model, torch.float64))[0])
    assert made() is not None
    del model
    gc.collect()
    assert made() is None
