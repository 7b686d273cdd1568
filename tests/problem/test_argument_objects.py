"""Objects among forward's arguments: of which classes, what a kernel gets of them, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from engine.domain.errors import ProblemError
from engine.problem import catalog
from engine.problem.arguments import argument_objects
from engine.problem.arguments.scalar_arguments import Change, scalars, vary_scalars
from engine.problem.arguments.values import map_arguments, tensors
from engine.problem.reference import Reference

HEAD = """
from dataclasses import dataclass, field
import torch
from torch import nn
from typing import NamedTuple

WIDTH = 4
NARROW = torch.bfloat16
LIMIT = int(str(3))


def scaled(x):
    return x * SHARE


SHARE = 0.5
"""
CLASSES = """
@dataclass(frozen=True, slots=True)
class Config:
    width: int
    weight: torch.Tensor
    eps: float = 1e-3


class Cache(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.register_buffer("data", torch.zeros(rows, WIDTH, dtype=NARROW), persistent=False)
        self.scale = nn.Parameter(torch.ones(WIDTH, dtype=NARROW))
        self.seen = 0

    def forward(self, x):
        self.data[self.seen] = scaled(x)
        self.seen += 1
        return self.data * self.scale
"""
MODEL = """
class Model(nn.Module):
    def forward(self, config, x, cache):
        assert cache.seen == 0 and isinstance(cache, Cache) and isinstance(config, Config)
        return cache((x @ config.weight).to(NARROW) + config.eps)


def get_inputs():
    weight = torch.randn(WIDTH, WIDTH, dtype=NARROW)
    return [Config(WIDTH, weight), torch.randn(WIDTH, dtype=NARROW), Cache(3)]


def get_init_inputs():
    return []
"""


def reference(folder: Path, text: str) -> Reference:
    (folder / "objects.py").write_text(text)
    problem = catalog.find(str(folder / "objects.py"))
    return Reference(problem, problem.workloads[0])


def test_the_tensors_of_objects_are_operands(tmp_path: Path) -> None:
    made = reference(tmp_path, HEAD + CLASSES + MODEL)
    signature = made.signature()
    assert [o.name for o in signature.operands] == ["config_weight", "x", "cache_scale", "cache_data", "out"]
    assert not signature.scalar_only
    inputs = made.inputs(0)
    assert [t.shape for t in tensors(inputs)] == [o.shape for o in signature.operands if o.role == "input"]


def test_every_call_gets_fresh_objects_also_in_float64(tmp_path: Path) -> None:
    made = reference(tmp_path, HEAD + CLASSES + MODEL)
    model, inputs = made.model(0), made.inputs(0)
    first = made.call(model, inputs)
    assert made.side_effects.changed_inputs
    exact = made.exact(model, inputs)
    assert exact.note == ""
    assert exact.outputs[0].dtype is torch.float64
    assert torch.allclose(exact.outputs[0].to(torch.bfloat16), first[0], rtol=0.05, atol=0.05)
    assert torch.equal(made.call(model, inputs)[0], first[0])
    cache: Any = inputs[2]
    assert (cache.seen, float(cache.data.abs().sum())) == (0, 0.0)


def test_a_call_that_changes_no_tensor_gets_fresh_objects_too(tmp_path: Path) -> None:
    made = reference(
        tmp_path, HEAD + CLASSES + MODEL.replace("return cache(", "cache.seen += 1; return (").replace("seen == 0", "seen < 1")
    )
    model, inputs = made.model(0), made.inputs(0)
    one, other = made.call(model, inputs), made.call(model, inputs)
    assert not made.side_effects.changed_inputs
    assert torch.equal(one[0], other[0])


def test_an_object_is_made_again_as_it_was(tmp_path: Path) -> None:
    inputs = reference(tmp_path, HEAD + CLASSES + MODEL).inputs(0)
    again: Any = map_arguments(lambda t: t, inputs)
    config, _, cache = again
    assert isinstance(cache.scale, nn.Parameter)
    assert (list(cache.state_dict()), [n for n, _ in cache.named_buffers()]) == (["scale"], ["data"])
    assert (config.width, config.eps, config.weight is tensors_of(inputs)[0]) == (4, 1e-3, True)
    assert cache is not inputs[2]
    cache.register_forward_hook(lambda *_: None)
    assert argument_objects.unsupported([again]) == "Cache"


def tensors_of(inputs: tuple[object, ...]) -> list[torch.Tensor]:
    return list(tensors(inputs))


def test_numbers_in_objects_vary_as_others_do(tmp_path: Path) -> None:
    inputs = reference(tmp_path, HEAD + CLASSES + MODEL).inputs(0)
    assert 1e-3 in scalars(inputs)
    config: Any = vary_scalars(inputs, 1, Change.ZEROS_KEPT)[0]
    assert (config.width, config.eps != 1e-3, 0.7e-3 < config.eps < 1.3e-3) == (4, True, True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('return [Config(WIDTH, weight), torch.randn(WIDTH), nn.Linear(2, 2)]', "a Linear in the argument cache"),
        ('return [Config(WIDTH, weight), [torch.randn(WIDTH), {0: nn.ReLU()}], 1]', "a ReLU in the argument x"),
        ('Cache.inner = None; c = Cache(3); c.inner = nn.ReLU(); return [1, 2, c]', "a ReLU in the argument cache"),
        ('return [dataclass(type("Own", (), {}))(), 1, 2]', "a Own in the argument config"),
    ],
)  # fmt: skip
def test_an_object_of_another_class_is_refused(tmp_path: Path, change: str, said: str) -> None:
    text = HEAD + CLASSES + MODEL.replace("return [Config(WIDTH, weight), torch.randn(WIDTH, dtype=NARROW), Cache(3)]", change)
    if "Own" in change:
        text = (
            text.replace("dataclass(type", "_own(type")
            + "\ndef _own(kind):\n    kind.__module__ = 'elsewhere'\n    return dataclass(kind)\n"
        )
    with pytest.raises(ProblemError, match=rf"get_inputs\(\) returns {said}: only objects of dataclasses and torch modules"):
        reference(tmp_path, text).inputs(0)


def test_a_kernels_process_gets_the_classes_and_no_more(tmp_path: Path) -> None:
    made = reference(tmp_path, HEAD + CLASSES + MODEL)
    names, text = made.class_definitions(made.inputs(0))
    assert names == ["Cache", "Config"]
    assert all(word in text for word in ("class Cache", "class Config", "def scaled", "SHARE = 0.5", "WIDTH = 4", "NARROW = "))
    assert not any(word in text for word in ("Model", "get_inputs", "LIMIT", "NamedTuple", "field("))
    assert made.class_definitions((torch.ones(1), [1]))[1] == ""


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("SHARE = 0.5", "SHARE = float('0.5')", 16),
        ("self.seen = 0", "self.seen = LIMIT - 3", 9),
        ("SHARE = 0.5", "if True:\n    SHARE = 0.5", 16),
        ("import torch\n", "import torch\nfrom helpers import SHARE\n", 4),
        ("import torch\n", "import torch\nfrom helpers import *\n", 4),
    ],
)
def test_a_class_that_needs_more_is_refused(
    tmp_path: Path, old: str, new: str, line: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    helpers = ModuleType("helpers")
    vars(helpers)["SHARE"] = 0.5
    monkeypatch.setitem(sys.modules, "helpers", helpers)
    made = reference(tmp_path, (HEAD + CLASSES + MODEL).replace(old, new, 1))
    made._loaded._attached = frozenset({"helpers"})
    with pytest.raises(
        ProblemError, match=rf"objects.py, line {line}: the classes .*\(Cache, Config\) need this statement: only"
    ):
        made.class_definitions(made.inputs(0))
