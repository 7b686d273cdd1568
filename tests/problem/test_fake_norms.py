"""Batch normalisations on fake tensors: as torch finds their shapes."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from engine.domain.errors import ProblemError
from engine.domain.model import Workload
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.problem.torch_modes import fake_norms
from engine.problem.torch_modes.fake_norms import BatchNormShapes

LAYERS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
SHAPES = [(4, 3), (4, 3, 7), (4, 3, 5, 6), (2, 3, 4, 5, 6)]


def results(shape: tuple[int, ...], dtype: torch.dtype, *flags: bool, ours: bool) -> list[object]:
    """Shape, type and strides of everything that a normalisation returns on fake tensors."""
    trains, affine, tracks, channels_last = flags
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), BatchNormShapes() if ours else nullcontext():
        x = torch.empty(shape, dtype=dtype)
        if channels_last and x.dim() == 4:
            x = x.to(memory_format=torch.channels_last)
        layer = LAYERS[x.dim()](shape[1], affine=affine, track_running_stats=tracks, dtype=dtype).train(trains)
        found = torch.ops.aten.native_batch_norm.default(
            x, layer.weight, layer.bias, layer.running_mean, layer.running_var, trains or not tracks, 0.1, 1e-5
        )
        return [(one.shape, one.dtype, one.stride()) for one in (*found, layer(x))]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_results_look_like_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for flags in itertools.product((True, False), repeat=4):
        assert results(shape, dtype, *flags, ours=True) == results(shape, dtype, *flags, ours=False), flags


@pytest.mark.parametrize("trains", [True, False])
def test_those_of_cudnn_do_too(trains: bool) -> None:
    def found(ours: bool) -> list[object]:
        with FakeTensorMode(), BatchNormShapes() if ours else nullcontext():
            x, held = torch.empty(4, 3, 5, 6), [torch.empty(3) for _ in range(4)]
            each = torch.ops.aten.cudnn_batch_norm.default(x, *held, trains, 0.1, 1e-5)
            return [(one.shape, one.dtype, one.stride()) for one in each]

    assert found(ours=True) == found(ours=False)


def test_parameters_that_do_not_fit_are_left_to_torch() -> None:
    with FakeTensorMode(), BatchNormShapes(), pytest.raises(RuntimeError):
        torch.nn.functional.batch_norm(torch.empty(4, 3, 5), torch.empty(7), torch.empty(7), training=True)


REFERENCE = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, {}, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.BatchNorm2d(8, affine=False))
    def forward(self, x):
        return self.layers(x)
def get_inputs():
    return [torch.randn(2, 3, 9, 9)]
def get_init_inputs():
    return []
"""


def test_a_signature_is_the_same_as_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "norms.py"
    file.write_text(REFERENCE.format(8))
    found = [Reference(catalog.find(str(file)), Workload("full", {})) for _ in range(2)]
    quick = found[0].signature(), found[0].memory(), found[0].operators()
    monkeypatch.setattr(fake_norms, "_NORMS", ())
    assert (found[1].signature(), found[1].memory(), found[1].operators()) == quick


def test_a_model_whose_layers_do_not_fit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "norms.py"
    file.write_text(REFERENCE.format(6))
    with pytest.raises(ProblemError, match="norms"):
        Reference(catalog.find(str(file)), Workload("full", {})).signature()
