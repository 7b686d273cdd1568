"""The ranges of integers that a problem draws: as it states them, and only where nothing else follows from them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from trial.ground import tiny

from engine.problem.arguments.drawn_integers import Range, drawn_ranges
from engine.problem.reference import Reference

Made = Callable[[], object]


def lengths_and_mask() -> list[Tensor]:
    lengths = torch.randint(1, 9, (4,))
    return [lengths, torch.arange(8) < lengths[:, None]]


def lengths_and_longest() -> list[object]:
    lengths = torch.randint(1, 100, (4,))
    return [lengths, int(lengths.max())]


def overwritten() -> list[Tensor]:
    tokens = torch.randint(0, 50, (4, 4))
    tokens[:, 0] = 99
    return [tokens]


def sorted_ones() -> list[Tensor]:
    return [torch.randint(0, 50, (9,)).sort().values]


@pytest.mark.parametrize(
    ("make", "ranges"),
    [
        (lambda: [torch.randint(50, (3, 4))], ((0, 49),)),
        (lambda: [torch.randint(-5, 6, (3, 4), dtype=torch.int8)], ((-5, 5),)),
        (lambda: [torch.empty(6, dtype=torch.int64).random_(2, 9)], ((2, 8),)),
        (lambda: [torch.empty(6, dtype=torch.int64).random_(9)], ((0, 8),)),
        (lambda: [torch.randint(50, (3, 4)).view(2, 6).int().T], ((0, 49),)),
        (lambda: [torch.rand(5), torch.randint(7, (5,)), {"more": torch.randint(2, (5,))}, 3], (None, (0, 6), (0, 1))),
        (lambda: [torch.rand(5), torch.arange(5), torch.randint(7, (5,))], (None, None, (0, 6))),
        (lambda: [torch.rand(5)], (None,)),
        (lambda: [torch.randint(1, (5,))], (None,)),
        (lambda: [torch.randint(0, 50, (5,)).float()], (None,)),
        (lengths_and_mask, ()),
        (lengths_and_longest, ()),
        (overwritten, ()),
        (sorted_ones, ()),
        (lambda: [torch.randint(9, (99,)) + 1], ()),
        (lambda: [torch.randperm(99), torch.randint(9, (5,))], ()),
    ],
)
def test_ranges_are_those_that_the_problem_states(make: Made, ranges: tuple[Range | None, ...]) -> None:
    def draw(seed: int) -> list[object]:
        torch.manual_seed(seed)
        found = make()
        assert isinstance(found, list)
        return found

    with torch.random.fork_rng(devices=[]):
        assert drawn_ranges(draw) == ranges


def test_inputs_without_integers_are_not_drawn_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two more draws of many GiB would take time and memory."""
    reference = Reference(tiny(), tiny().workloads[0])
    reference.signature()
    monkeypatch.setattr(reference, "inputs", lambda seed: pytest.fail("drawn"))
    assert reference.integer_ranges() == ()
