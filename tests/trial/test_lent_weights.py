"""A module's own tensors and the lent ones: which belong together, whatever the module keeps its own in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from engine.domain.model import Role
from engine.trial.messages import LoadKernel, Slot
from engine.trial.runner import lent_weights
from engine.trial.runner.calls import LentOperands
from engine.trial.runner.modules import construct_module
from engine.trial.runner.profile_target import SeparateOperands
from engine.trial.shared.argument_codec import encode_value


def lending(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> LentOperands:
    rows = [(name, Role.PARAMETER, tensor) for name, tensor in parameters.items()]
    rows += [(name, Role.BUFFER, tensor) for name, tensor in buffers.items()]
    slots = [Slot(name, role.value, tuple(t.shape), str(t.dtype).removeprefix("torch."), 0, t.nbytes) for name, role, t in rows]
    memory = SeparateOperands({**parameters, **buffers})
    return LentOperands([slots], memory, memory)  # type: ignore[arg-type]


def take(model: nn.Module, lent: LentOperands) -> None:
    lent_weights.take(model, lent, *lent_weights.WEIGHTS)


def test_tensors_of_the_same_name_are_taken_whatever_holds_them() -> None:
    model = nn.Module()
    model.layer = nn.Linear(3, 2, bias=False)
    model.register_buffer("x", torch.zeros(4))
    model.state = torch.zeros(5)
    model.register_buffer("ones", torch.ones(1).expand(6))
    given = [torch.rand(2, 3), torch.rand(4), torch.rand(5), torch.rand(6)]
    lent = lending({"layer_weight": given[0]}, dict(zip(("x_", "state", "ones"), given[1:], strict=True)))
    assert lent_weights.different(model, lent) == ("layer_weight", "x_", "state", "ones")
    take(model, lent)
    for own, expected in zip((model.layer.weight, model.x, model.state, model.ones), given, strict=True):
        assert torch.equal(own, expected)
    assert not lent_weights.unmatched(model, lent)
    assert not lent_weights.different(model, lent)


def test_plain_tensors_that_match_are_moved_to_the_device() -> None:
    """KernelBench's VanillaRNN against itself was 0.59 on a GPU: its reset state went there in each call, eager's did not."""
    model = nn.Module()
    model.layer = nn.Module()
    model.layer.hidden = torch.ones(5)
    model.sizes = torch.ones(2)
    lent_weights.move_plain(model, lending({}, {"layer_hidden": torch.rand(5), "other": torch.rand(2)}), torch.device("meta"))
    assert model.layer.hidden.is_meta
    assert not model.sizes.is_meta, "the reference has no such tensor"


def test_weights_that_have_no_memory_yet_get_the_lent_ones() -> None:
    layer = nn.Sequential(nn.LazyLinear(2))
    given = {"0_weight": torch.rand(2, 3), "0_bias": torch.rand(2)}
    take(layer, lending({f"n{name}": values for name, values in given.items()}, {}))
    x = torch.rand(4, 3)
    assert torch.equal(layer(x), nn.functional.linear(x, given["0_weight"], given["0_bias"]))


def test_other_shapes_and_layouts_are_not_taken() -> None:
    model = nn.Module()
    model.register_buffer("table", torch.eye(3).to_sparse())
    model.register_buffer("row", torch.zeros(3))
    lent = lending({}, {"table": torch.rand(3, 3), "row": torch.rand(4), "other": torch.rand(1)})
    take(model, lent)
    assert lent_weights.unmatched(model, lent) == ("table", "row", "other")
    assert lent_weights.different(model, lent) == ()


@pytest.mark.parametrize("own", [False, True])
def test_what_a_call_changes_is_reset(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Module()
    model.register_buffer("mean", torch.zeros(3))
    model.register_buffer("mine", torch.ones(3))
    model.plain, model.cache = torch.full((2,), 2.0), None
    lent = lending({}, {"mean": torch.full((3,), 7.0)})
    reset = lent_weights.resetting(model, lent, own=own)
    monkeypatch.setattr(lent_weights, "_matched", lambda *_: pytest.fail("looked up again, within the time of a call"))
    model.mean.add_(1)
    reset()
    assert model.mean.tolist() == ([0.0] * 3 if own else [7.0] * 3)
    model.mean = model.mean + 1
    model.mine = model.mine + 1
    model.plain.mul_(5)
    model.cache = packed = torch.rand(4)
    reset()
    assert model.mean.tolist() == ([0.0] * 3 if own else [7.0] * 3)
    assert model.mine.tolist() == [1.0] * 3
    assert model.plain.tolist() == [2.0] * 2
    assert model.cache is packed, "prepared in a call, for all calls"


@pytest.mark.parametrize(
    ("parameters", "own", "after"),
    [(True, False, [7.0] * 3), (True, True, [1.0] * 3), (False, False, [6.0] * 3)],
)
def test_parameters_are_reset_where_the_reference_changes_its_own(parameters: bool, own: bool, after: list[float]) -> None:
    model = nn.Module()
    model.weight, model.bias = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(2))
    lent = lending({"weight": torch.full((3,), 7.0)}, {})
    reset = lent_weights.resetting(model, lent, own=own, parameters=parameters)
    model.weight.data.fill_(6.0)
    model.bias.data.fill_(6.0)
    reset()
    assert model.weight.tolist() == after
    assert model.bias.tolist() == [0.0 if parameters else 6.0] * 2


@pytest.mark.parametrize(
    "code",
    [
        "def ModelNew():\n    return nn.Linear(2, 2)\n",
        "ModelNew = lambda: nn.Linear(2, 2)\n",
        "class ModelNew(nn.Identity): ...\n",
        "ModelNew = lambda: nn.LazyLinear(2)\n",
    ],
)
def test_whatever_makes_a_module_is_called(code: str) -> None:
    no_memory: Any = None
    arguments = encode_value([]), encode_value({})
    load = LoadKernel("module", "cpu", (), no_memory, no_memory, 1, arguments, source=f"from torch import nn\n{code}")
    assert isinstance(construct_module(replace(load, varied_constants=((0.0, 2),))), nn.Module)
