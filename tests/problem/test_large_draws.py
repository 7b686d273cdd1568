"""Large weights are drawn on the device: the same for the judge's model and for a kernel's module."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from engine.problem.torch_modes import large_draws

HERE = torch.device("cpu")


class Model(nn.Module):
    """Layers that fill in place, and tensors that are made at once."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.bias = nn.Parameter(torch.randn(128))
        self.register_buffer("shift", torch.rand(3, 50))
        self.small = nn.Parameter(torch.randn(4))
        self.drawn = nn.Parameter(torch.empty(70).normal_(5.0, 0.1))


@pytest.fixture(autouse=True)
def small_tensors_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_draws, "LEAST", 50)


def made(seed: int, order: int = 0) -> Model:
    """A model whose large tensors are drawn by a generator of their own, here on the CPU."""
    torch.manual_seed(order)
    with large_draws._LargeDraws(HERE, seed):
        return Model()


def test_a_seed_gives_the_same_large_tensors_again() -> None:
    one, other, third = made(1), made(1, order=9), made(2)
    for name, tensor in one.state_dict().items():
        if name != "small":
            assert torch.equal(tensor, other.state_dict()[name]), name
            assert not torch.equal(tensor, third.state_dict()[name]), name
    assert not torch.equal(one.small, other.small)  # small ones come from the CPU's generator


def test_bounds_means_and_kinds_are_those_of_the_initialiser() -> None:
    model = made(3)
    assert 0 < float(model.linear.weight.detach().abs().max()) <= 64**-0.5
    assert isinstance(model.bias, nn.Parameter)
    assert model.bias.requires_grad
    assert float(model.drawn.detach().mean()) == pytest.approx(5.0, abs=0.2)
    assert model.get_buffer("shift").shape == (3, 50)
    assert 0 <= float(model.get_buffer("shift").min()) < float(model.get_buffer("shift").max()) < 1


def test_a_generator_of_the_callers_is_used_itself() -> None:
    own = torch.Generator().manual_seed(4)
    with large_draws._LargeDraws(HERE, 1):
        drawn = torch.rand(60, generator=own)
    assert torch.equal(drawn, torch.rand(60, generator=torch.Generator().manual_seed(4)))


def test_nothing_changes_on_a_cpu() -> None:
    torch.manual_seed(5)
    with large_draws.drawn_on(HERE, 1):
        inside = torch.rand(60)
    torch.manual_seed(5)
    assert torch.equal(inside, torch.rand(60))


@pytest.mark.slow
def test_what_a_constructor_compiles_stays_compiled() -> None:
    """Under a mode of a user's own, torch.compile skips a function, and goes on skipping it."""
    compiled: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        compiled.append(1)
        return graph.forward

    class Compiled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 64)
            self.compiled = torch.compile(self.linear.forward, backend=backend, fullgraph=True)
            self.compiled(torch.ones(2, 64))

    with large_draws._LargeDraws(HERE, 1):
        model = Compiled()
    assert compiled
    assert model.compiled(torch.ones(2, 64)).shape == (2, 64)
