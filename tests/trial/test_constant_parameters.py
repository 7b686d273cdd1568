"""Constant parameters and buffers vary in judged models: leaving them out shows, other names and early preparation do not."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from engine.domain import work as w
from engine.domain.model import Contract, Dialect, FailureKind, Workload
from engine.problem import catalog
from engine.problem.arguments.constant_parameters import COPIED, FACTORS, NORMS, OTHERS, counted_constants, varied_constants
from engine.problem.reference import Reference
from engine.trial.bench import Assignment, KernelSpec, TrialBench
from engine.trial.judge.tolerance.calibration import calibrate

REFERENCE = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.eval()

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.rand(64, 48)]


def get_init_inputs():
    return [48]
"""
HEAD = REFERENCE.partition("class Model")[0]
LEFT_OUT = (
    HEAD
    + """
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        return x / (1 + 1e-5) ** 0.5
"""
)
HONEST = {
    "the reference": REFERENCE.replace("class Model(", "class ModelNew("),
    "other names": HEAD
    + """
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(width, 1))
        self.gain = nn.Parameter(torch.ones(1, width))
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))

    def forward(self, x):
        return (x - self.centre) * torch.rsqrt(self.spread + 1e-5) * self.gain + self.shift.t()
""",
    "the order of the reference": HEAD
    + """
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1, width))
        self.shift = nn.Parameter(torch.zeros(width, 1))
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))

    def forward(self, x):
        return (x - self.centre) * torch.rsqrt(self.spread + 1e-5) * self.gain + self.shift.t()
""",
    "prepared in the constructor": HEAD
    + """
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        with torch.no_grad():
            self.gain = self.norm.weight * torch.rsqrt(self.norm.running_var + 1e-5)
            self.shift = self.norm.bias - self.norm.running_mean * self.gain

    def forward(self, x):
        return torch.addcmul(self.shift, x, self.gain)
""",
}
WITHOUT_PARAMETERS = LEFT_OUT.replace("        self.norm = nn.BatchNorm1d(width)\n", "")
SWAPPED = (
    HEAD
    + """
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        norm = self.norm
        return (x - norm.bias) * torch.rsqrt(norm.weight + 1e-5) * norm.running_var + norm.running_mean
"""
)
"""Takes the running statistics for the affine weights, and those for the statistics."""
OF_ANOTHER_SHAPE = LEFT_OUT.replace("return x ", "return x[:1] ")


class Everything(nn.Module):
    """Constants by every usual way, and what must not vary."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)
        nn.init.zeros_(self.layer.bias)
        self.norm = nn.BatchNorm1d(5)
        self.gain = nn.Parameter(torch.full((4, 1), -2.0))
        self.register_buffer("mask", torch.tril(torch.ones(3, 3)))
        self.register_buffer("bounds", torch.full((3,), float("-inf")))
        self.register_buffer("shared", torch.ones(1).expand(7))
        self.late = nn.Parameter(torch.rand(9))
        self.late.data.fill_(3.0)


def made(seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    constants = counted_constants(Everything())
    torch.manual_seed(seed)
    with varied_constants(seed, constants, torch.device("cpu")) as finish:
        model = Everything()
        finish(model)
    return dict(model.state_dict())


def test_constants_vary_with_the_seed_and_nothing_else_does() -> None:
    torch.manual_seed(1)
    plain = Everything().state_dict()
    varied, again, other = made(1), made(1), made(2)
    changed = {name for name in plain if not torch.equal(plain[name], varied[name])}
    assert changed == {"layer.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "gain", "late"}
    for name in changed:
        assert torch.equal(varied[name], again[name])
        assert not torch.equal(varied[name], other[name])
        assert varied[name].unique().numel() == varied[name].numel()
    assert bool((varied["norm.running_var"] > 0.7).all())
    assert bool((varied["gain"] < -1.4).all())
    assert float(varied["norm.running_mean"].abs().max()) > 0


class TwoNorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(5), nn.BatchNorm1d(5)


@pytest.mark.parametrize("alike", [False, True])
def test_constants_of_one_number_and_size_differ_unless_they_are_to_be_alike(alike: bool) -> None:
    constants = counted_constants(TwoNorms())
    assert constants == {(1.0, 5): 3, (0.0, 5): 3, (FACTORS, 5): 2}
    with varied_constants(1, constants, torch.device("cpu"), alike=alike) as finish:
        model = TwoNorms()
        finish(model)
    state = model.state_dict()
    for names in (
        ("first.weight", "second.weight", "second.running_var"),
        ("first.bias", "second.bias", "second.running_mean"),
    ):
        values = torch.stack([state[name] for name in names])
        assert values.unique().numel() == (5 if alike else 15), names


class Scaled(nn.Module):
    """Ones by several ways: factors, a single one, and variances."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(200)
        self.gain = nn.Parameter(torch.ones(20, 10))
        self.late = nn.Parameter(torch.rand(200))
        nn.init.constant_(self.late, 1.0)
        self.power = nn.Parameter(torch.ones(1))
        self.scale = nn.Parameter(torch.full((300,), 0.1))
        self.register_buffer("table", torch.full((300,), 0.2))


@pytest.mark.parametrize("alike", [False, True])
def test_parameters_take_either_sign_and_buffers_do_not(alike: bool) -> None:
    constants = counted_constants(Scaled())
    powers = []
    for seed in range(20):
        with varied_constants(seed, constants, torch.device("cpu"), alike=alike) as finish:
            model = Scaled()
            finish(model)
        powers.append(float(model.power.detach()))
    assert (min(powers) < 0 < max(powers)) == (not alike)
    factors = ((model.norm.weight, 1.0), (model.gain, 1.0), (model.late, 1.0), (model.scale, 0.1))
    for factor, number in ((parameter.detach(), number) for parameter, number in factors):
        assert float(factor.abs().min()) >= 0.74 * number
        assert 0.1 < float((factor < 0).float().mean()) < 0.4 or alike
        assert not (alike and bool((factor < 0).any()))
    assert float(model.state_dict()["norm.running_var"].min()) > 0
    assert float(model.state_dict()["table"].min()) > 0


@pytest.mark.parametrize(
    ("computed", "several", "others"),
    [
        ("x * self.gain * self.scale * self.power", True, True),
        ("x * self.gain * self.scale.sqrt()", True, False),
        ("x * self.gain * self.power.log().exp()", True, False),
        ("x * self.gain.sqrt() * self.scale", False, True),
    ],
)
def test_parameters_change_their_sign_where_the_reference_stays_finite(
    tmp_path: Path, computed: str, several: bool, others: bool
) -> None:
    file = tmp_path / "theirs.py"
    tensors = "torch.ones(width), torch.ones(width) / 8, torch.ones(1)"
    made = f"self.gain, self.scale, self.power = map(nn.Parameter, ({tensors}))"
    text = REFERENCE.replace("self.eval()", made)
    file.write_text(text.replace("return self.norm(x)", f"return {computed}"))
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    assert {number for number, _ in reference.constants if abs(number) > 2} == {*[FACTORS] * several, *[OTHERS] * others}
    models = [reference.judged_model(seed) for seed in range(12)]
    for name, varies in (("gain", several), ("scale", others), ("power", others)):
        assert any(bool((getattr(model, name) < 0).any()) for model in models) == varies, name


@pytest.mark.parametrize(("computed", "either"), [("x * self.gain", True), ("x * self.gain.sqrt()", False)])
def test_factors_stay_positive_where_the_reference_is_not_finite_else(tmp_path: Path, computed: str, either: bool) -> None:
    file = tmp_path / "theirs.py"
    text = REFERENCE.replace("self.eval()", "self.gain = nn.Parameter(torch.ones(width))")
    file.write_text(text.replace("return self.norm(x)", f"return {computed}"))
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    assert ((FACTORS, 48) in reference.constants) == either
    assert bool((reference.judged_model(3).gain < 0).any()) == either  # type: ignore[operator]
    assert (1.0, 48) in reference.constants


def cloned(count: int) -> nn.Module:
    """Layers that are copies of one, and whose constants are copies of varied ones."""
    block = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    return nn.ModuleList(copy.deepcopy(block) for _ in range(count))


def loaded(count: int) -> nn.Module:
    """The same, copied in another way."""
    layers = [nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)) for _ in range(count)]
    for layer in layers[1:]:
        layer.load_state_dict(layers[0].state_dict())
    return nn.ModuleList(layers)


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("make", [cloned, loaded])
def test_copies_differ_unless_they_are_to_be_alike(make: Callable[[int], nn.Module], alike: bool) -> None:
    torch.manual_seed(1)
    constants = counted_constants(make(3))
    assert constants[COPIED, 20] == constants[COPIED, 5] == 3
    made = []
    for _ in range(2):
        torch.manual_seed(1)
        with varied_constants(1, constants, torch.device("cpu"), alike=alike) as finish:
            model = make(3)
            finish(model)
        made.append(model.state_dict())
    state, again = made
    for name in ("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"):
        values = torch.stack([state[f"{layer}.{name}"] for layer in range(3)])
        assert values.unique().numel() == values[0].numel() * (1 if alike else 3), name
        assert torch.equal(values, torch.stack([again[f"{layer}.{name}"] for layer in range(3)])), name


def test_copies_are_parted_before_the_constructor_prepares_them() -> None:
    torch.manual_seed(1)
    constants = counted_constants(cloned(2))
    with varied_constants(1, constants, torch.device("cpu")) as finish:
        model = cloned(2)
        prepared = torch.stack([model[layer][0].weight for layer in range(2)])
        finish(model)
    assert torch.equal(prepared, torch.stack([model[layer][0].weight for layer in range(2)]))


@pytest.mark.parametrize(
    "other",
    [
        nn.Parameter(torch.arange(6.0), requires_grad=False), nn.Parameter(torch.arange(6.0, dtype=torch.float64)),
        nn.Parameter(torch.arange(6.0).view(2, 3)), nn.Parameter(torch.arange(6.0).neg()),
    ],
)  # fmt: skip
def test_other_types_shapes_values_and_fixed_tables_are_no_copies(other: nn.Parameter) -> None:
    model = nn.ParameterList([torch.arange(6.0), other])
    model.register_buffer("table", torch.arange(6.0))
    assert not counted_constants(model)


def test_shared_parameters_are_no_copies() -> None:
    weight = torch.rand(6)
    assert not counted_constants(nn.ParameterList([nn.Parameter(weight), nn.Parameter(weight)]))


class ByHand(nn.Module):
    """Weight normalisation with parameters of its own: directions first."""

    def __init__(self) -> None:
        super().__init__()
        self.directions = nn.Parameter(torch.randn(3, 4, 5))
        self.magnitudes = nn.Parameter(self.directions.detach().norm(dim=(1, 2)))


NORMALISED = {
    "a parametrization": lambda: parametrizations.weight_norm(nn.Linear(4, 3)),
    "by a hook": lambda: nn.utils.weight_norm(nn.Linear(4, 3)),
    "along another dimension": lambda: parametrizations.weight_norm(nn.Conv1d(3, 4, 5), dim=1),
    "by hand": ByHand,
}


@pytest.mark.parametrize("kind", NORMALISED)
def test_norms_of_another_parameter_vary(kind: str) -> None:
    make = NORMALISED[kind]
    torch.manual_seed(1)
    plain = make()
    constants = counted_constants(plain)
    assert [number for number, _ in constants] == [NORMS]
    torch.manual_seed(1)
    with varied_constants(1, constants, torch.device("cpu")) as finish:
        model = make()
        prepared = model.weight.detach().clone() if hasattr(model, "weight") else None
        finish(model)
    changed = [name for name, value in plain.state_dict().items() if not torch.equal(value, model.state_dict()[name])]
    assert len(changed) == 1
    (_, size), before, after = next(iter(constants)), plain.state_dict()[changed[0]], model.state_dict()[changed[0]]
    assert size == before.numel()
    assert 0 < float((after / before - 1).abs().max()) <= 0.25
    assert prepared is None or torch.equal(prepared, model.weight), "the constructor prepared another weight"


@pytest.mark.parametrize("second", [torch.ones(3), torch.rand(3), torch.rand(3, 4)])
def test_other_parameters_are_no_norms(second: Tensor) -> None:
    constants = counted_constants(nn.ParameterList([torch.rand(3, 4), second]))
    assert not any(number == NORMS for number, _ in constants)


def test_construction_is_restored_afterwards() -> None:
    made(1)
    assert bool((nn.BatchNorm1d(5).weight == 1).all())
    assert bool((nn.Parameter(torch.ones(4)) == 1).all())


def test_a_reference_that_fails_with_varied_constants_keeps_them(tmp_path: Path) -> None:
    file = tmp_path / "theirs.py"
    counting = REFERENCE.replace("self.eval()", 'self.register_buffer("times", torch.tensor(3.0))')
    file.write_text(counting.replace("return self.norm(x)", "return x * torch.ones(64, int(self.times * 16)).relu()"))
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    notes = calibrate(reference, "class").notes
    assert any("constant parameters stay as they are" in note for note in notes)
    assert not reference.constants


def verdicts(folder: Path, *kernels: str) -> list[object]:
    file = folder / "theirs.py"
    file.write_text(REFERENCE)
    problem = catalog.find(str(file))

    async def judge() -> list[object]:
        bench = TrialBench(Assignment(problem, problem.workloads[0], "cpu"), lambda _: "")
        specs = [KernelSpec(f"{i}.py", code, Dialect.PYTHON, Contract.MODULE, {}) for i, code in enumerate(kernels)]
        try:
            return [await bench.verify_kernel(spec, lambda _: None) for spec in specs]
        finally:
            await bench.close()

    return asyncio.run(judge())


@pytest.mark.slow
def test_modules_get_varied_constants(tmp_path: Path) -> None:
    left_out, swapped, without, of_another_shape, *honest = verdicts(
        tmp_path, LEFT_OUT, SWAPPED, WITHOUT_PARAMETERS, OF_ANOTHER_SHAPE, *HONEST.values()
    )
    assert isinstance(left_out, w.Failed)
    assert left_out.failure.kind is FailureKind.MISMATCH
    assert "right with the constructor's own: left out?" in left_out.failure.reason
    assert isinstance(swapped, w.Failed)
    assert "one taken for another?" in swapped.failure.reason
    assert isinstance(without, w.Verified)
    assert any("constant parameters were not varied" in line for line in without.verification.caveats)
    assert any("constant parameters were not varied" in line for line in without.screen.doubts)
    assert not without.screen.corroborated, "it may have left them out"
    assert isinstance(of_another_shape, w.Failed), "its process has ended: the judge failed as it called it again"
    assert "has shape" in of_another_shape.failure.reason
    for name, found in zip(HONEST, honest, strict=True):
        assert isinstance(found, w.Verified), (name, found)
        assert not any("constant parameters" in line for line in found.verification.caveats), name
        were_alike = any("were alike" in line for line in found.verification.caveats)
        assert were_alike == (name == "other names"), name


class Layers(nn.Module):
    def __init__(self, fill: object) -> None:
        super().__init__()
        self.square = nn.Linear(6, 6, bias=False)
        self.conv = nn.Conv1d(6, 6, 3, bias=False)
        fill(self)  # type: ignore[operator]


def with_init(model: Layers) -> None:
    nn.init.eye_(model.square.weight)
    nn.init.dirac_(model.conv.weight)


def with_values(model: Layers) -> None:
    model.square.weight = nn.Parameter(torch.eye(6))
    model.conv.weight = nn.Parameter(torch.eye(6)[..., None] * torch.tensor([0.0, 1.0, 0.0]))


@pytest.mark.parametrize("fill", [with_init, with_values])
def test_weights_that_copy_their_input_vary_whatever_made_them(fill: object) -> None:
    constants = counted_constants(Layers(with_init))
    assert set(constants) == {(0.0, 36), (0.0, 108)}
    made = []
    for one in (with_init, fill):
        with varied_constants(5, constants, torch.device("cpu")) as finish:
            made.append(Layers(one))
            finish(made[-1])
    expected, model = made
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert int((mine == 0).sum()) == 0


@pytest.mark.parametrize(
    "tensor",
    [
        nn.Parameter(torch.eye(5), requires_grad=False), torch.eye(5), nn.Parameter(torch.ones(5, 5).tril()),
        nn.Parameter(torch.eye(5, 4)), nn.Parameter(torch.diag(torch.arange(1.0, 6))), nn.Parameter(torch.eye(5).flip(0)),
        nn.Parameter(torch.eye(5)[..., None].expand(5, 5, 3).clone()), nn.Parameter(torch.eye(5) * torch.nan),
    ],
)  # fmt: skip
def test_fixed_transforms_and_other_patterns_stay(tensor: Tensor) -> None:
    model = nn.Module()
    if isinstance(tensor, nn.Parameter):
        model.weight = tensor
    else:
        model.register_buffer("table", tensor)
    assert not counted_constants(model)
