"""What the judge computes on a GPU by another way than torch's default: float64 convolutions and large weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from engine.domain.model import Problem, Workload
from engine.problem import precision
from engine.problem.reference import Reference

pytestmark = pytest.mark.gpu

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = {layer}

    def forward(self, x):
        return self.layer(x)

def get_inputs():
    return [torch.rand({shape})]

def get_init_inputs():
    return []
"""
LAYERS = {
    "1d": ("nn.Conv1d(8, 12, 5, stride=2, dilation=3)", "4, 8, 200"),
    "2d": ("nn.Conv2d(8, 12, 3, padding=1)", "4, 8, 33, 31"),
    "2d, dilated, in groups": ("nn.Conv2d(8, 12, 3, dilation=2, groups=4)", "4, 8, 33, 31"),
    "2d, depthwise": ("nn.Conv2d(8, 8, 3, groups=8)", "4, 8, 33, 31"),
    "2d, transposed": ("nn.ConvTranspose2d(8, 12, (3, 5), stride=2, output_padding=1)", "4, 8, 17, 13"),
    "2d, many small samples": ("nn.Conv2d(6, 16, 5, padding=2, groups=2)", "512, 6, 14, 15"),
    "3d": ("nn.Conv3d(4, 6, (3, 5, 2))", "2, 4, 12, 13, 9"),
    "3d, transposed, in groups": ("nn.ConvTranspose3d(4, 6, 3, stride=2, groups=2)", "2, 4, 6, 7, 5"),
    "linear": ("nn.Linear(2048, 1536)", "4, 2048"),
}


def reference(layer: str, shape: str, device: str) -> Reference:
    source = SOURCE.format(layer=layer, shape=shape)
    workload = Workload("full", {})
    return Reference(Problem("layer", "", source, "layer", (workload,), {}), workload, device)


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> tuple[str, str]:
    return LAYERS[request.param]


def test_float64_on_the_device_is_that_of_the_host(layer: tuple[str, str]) -> None:
    import torch

    here = reference(*layer, "cuda:0")
    model, inputs = here.model(3), here.inputs(4)
    (exact,) = here.exact(model, inputs).outputs
    here.exact_on_host = True
    (right,) = here.exact(model, inputs).outputs
    assert exact.dtype is torch.float64
    torch.testing.assert_close(exact.cpu(), right.cpu(), rtol=1e-12, atol=1e-13)


def test_a_recurrent_layer_is_right_as_shipped() -> None:
    """cuDNN computes it in TF32: KernelBench's own LSTM and GRU files were refused."""
    from engine.domain.model import PrecisionClass
    from engine.trial.judge.inputs.cases import default_class, make_case, output_names
    from engine.trial.judge.inputs.perturbations import OWN
    from engine.trial.judge.tolerance.calibration import calibrate

    here = reference("nn.LSTM(64, 96, 3)", "40, 5, 64", "cuda:0")
    assert default_class(here) is PrecisionClass.TF32
    policy, case = calibrate(here, "class").policy, make_case(here, OWN)
    assert policy.rule(here.call(case.model, case.inputs), case.expected, output_names(here), OWN).passed


def test_cudnn_computes_where_torch_s_own_convolution_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    x, w = (torch.rand(*shape, dtype=torch.float64, device="cuda") for shape in ((2, 3, 9, 9), (4, 3, 3, 3)))
    right = torch.nn.functional.conv2d(x, w)
    tried: list[bool] = []

    @contextmanager
    def failing() -> Iterator[None]:
        tried.append(True)
        raise torch.OutOfMemoryError
        yield

    monkeypatch.setattr(precision, "_without_cudnn", failing)
    with precision.float64_arithmetic():
        found = torch.nn.functional.conv2d(x, w)
    assert tried == [True]
    torch.testing.assert_close(found, right)


def test_settings_of_cudnn_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    x, w = (torch.rand(*shape, dtype=torch.float64, device="cuda") for shape in ((2, 3, 9, 9), (4, 3, 3, 3)))
    with precision.float64_arithmetic():
        torch.nn.functional.conv2d(x, w)
        assert torch.backends.cudnn.enabled
        assert torch.backends.cudnn.benchmark


def test_large_weights_are_drawn_alike_and_are_those_of_the_seed() -> None:
    import torch

    layer = "nn.Linear(2048, 1536)", "4, 2048"
    one, other = reference(*layer, "cuda:0"), reference(*layer, "cuda:0")
    first, again, third = one.model(3), other.model(3), one.model(5)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(first.parameters()), next(third.parameters()))
    assert float(next(first.parameters()).detach().abs().max()) <= 2048**-0.5
