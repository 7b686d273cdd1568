"""Which references can be computed in slices of their rows, and what they are in float64 then."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.problem import catalog
from engine.problem.arguments.row_slices import IndependentRows
from engine.problem.reference import Reference

_TEMPLATE = """import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = {layer}

    def forward(self, {names}):
        return {returned}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""
_TWELVE = "torch.randn(12, 4, 6)"


def reference_of(
    folder: Path, returned: str, inputs: str = _TWELVE, names: str = "x", layer: str = "nn.Identity()"
) -> Reference:
    file = folder / "case.py"
    file.write_text(_TEMPLATE.format(returned=returned, inputs=inputs, names=names, layer=layer))
    problem = catalog.find(str(file))
    return Reference(problem, problem.workloads[0])


INDEPENDENT = {
    "swish": ("x * torch.sigmoid(x)", _TWELVE, "x", "nn.Identity()", (0,)),
    "softmax of rows": ("torch.softmax(x, 2)", _TWELVE, "x", "nn.Identity()", (0,)),
    "instance norm": ("self.layer(x)", _TWELVE, "x", "nn.InstanceNorm1d(4)", (0,)),
    "linear": ("self.layer(x)", "torch.randn(12, 12)", "x", "nn.Linear(12, 12)", (0,)),
    "two arguments": ("x + y", f"{_TWELVE}, torch.randn(12, 1, 6)", "x, y", "nn.Identity()", (0, 1)),
    "square product": ("x @ y", "torch.randn(12, 12), torch.randn(12, 12)", "x, y", "nn.Identity()", (0,)),
    "embedding": ("self.layer(x)", "torch.randint(0, 9, (12, 3))", "x", "nn.Embedding(9, 5)", (0,)),
    "uneven slices": ("torch.relu(x)", "torch.randn(13, 5)", "x", "nn.Identity()", (0,)),
    "two outputs": ("(x + 1, x.sum(1))", _TWELVE, "x", "nn.Identity()", (0,)),
}
DEPENDENT = {
    "softmax of columns": ("torch.softmax(x, 0)", _TWELVE, "x", "nn.Identity()"),
    "centred over the batch": ("x - x.mean(0, keepdim=True)", _TWELVE, "x", "nn.Identity()"),
    "the batch's size counts": ("x / x.shape[0]", _TWELVE, "x", "nn.Identity()"),
    "running sum": ("torch.cumsum(x, 0)", _TWELVE, "x", "nn.Identity()"),
    "flipped": ("x.flip(0)", _TWELVE, "x", "nn.Identity()"),
    "batch norm": ("self.layer(x)", _TWELVE, "x", "nn.BatchNorm1d(4)"),
    "batch norm without state": ("self.layer(x)", _TWELVE, "x", "nn.BatchNorm1d(4, track_running_stats=False)"),
    "one number": ("x.sum()", _TWELVE, "x", "nn.Identity()"),
    "no such dimension": ("x.transpose(0, 1)", _TWELVE, "x", "nn.Identity()"),
    "one row": ("x + 1", "torch.randn(1, 40)", "x", "nn.Identity()"),
    "indices": ("x.argmax(1)", _TWELVE, "x", "nn.Identity()"),
    "random": ("torch.dropout(x, 0.5, True)", _TWELVE, "x", "nn.Identity()"),
    "in a list": ("x[0] + 1", f"[{_TWELVE}]", "x", "nn.Identity()"),
    "in place": ("x.mul_(2)", _TWELVE, "x", "nn.Identity()"),
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_rows_are_found_and_give_the_same_in_float64(name: str, tmp_path: Path) -> None:
    returned, inputs, names, layer, arguments = INDEPENDENT[name]
    reference = reference_of(tmp_path, returned, inputs, names, layer)
    rows = reference.independent_rows(5)
    assert rows is not None
    assert rows.arguments == arguments
    model, given = reference.model(1), reference.inputs(2)
    whole = reference.exact(model, given).outputs
    reference.exact_slices = 5
    sliced = reference.exact(model, given)
    assert sliced.note == ""
    for one, other in zip(whole, sliced.outputs, strict=True):
        assert one.dtype == other.dtype == torch.float64
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", DEPENDENT)
def test_rows_that_may_depend_on_each_other_stay_together(name: str, tmp_path: Path) -> None:
    reference = reference_of(tmp_path, *DEPENDENT[name])
    assert reference.independent_rows(4) is None


@pytest.mark.parametrize(("count", "most"), [(12, 5), (13, 5), (7, 32), (64, 32), (2, 2)])
def test_slices_cover_every_row_once(count: int, most: int) -> None:
    found = list(IndependentRows((0,), count).slices(most))
    assert [row for part in found for row in range(count)[part]] == list(range(count))
    assert len(found) <= most


def test_inputs_that_the_reference_keeps_are_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "kept.py"
    text = _TEMPLATE.format(returned="torch.relu(x)", inputs="KEPT", names="x", layer="nn.Identity()")
    file.write_text(text.replace("class Model", "KEPT = torch.ones(12, 5)\n\nclass Model"))
    problem = catalog.find(str(file))
    reference = Reference(problem, problem.workloads[0])
    assert reference.independent_rows(4) is not None
    (after,) = reference.inputs(1)
    assert isinstance(after, torch.Tensor)
    assert bool((after == 1).all())
