"""A few elements of inputs change between bursts, and the structure of the inputs stays."""

from __future__ import annotations

import random

import pytest
import torch

from engine.trial.judge.inputs.swaps import swap_few, with_swaps


def test_swaps_keep_a_triangle() -> None:
    given = torch.triu(torch.rand(200, 200) + 1)
    for seed in range(50):
        (moved,) = with_swaps((given,), (seed,))
        assert isinstance(moved, torch.Tensor)
        assert torch.equal(torch.triu(moved), moved)
        assert not torch.equal(moved, given)


def test_swaps_move_the_few_numbers_of_a_sparse_tensor() -> None:
    given = torch.eye(100)[torch.randperm(100)]
    assert any(not torch.equal(with_swaps((given,), (seed,))[0], given) for seed in range(100))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_swaps_move_a_few_elements_and_are_the_same_in_place_and_in_a_copy(dtype: torch.dtype) -> None:
    given = (torch.randn(300, 40).to(dtype).t(), torch.arange(5), 0.5, [torch.zeros(0), torch.randn(())])
    moved = with_swaps(given, (3, 4))
    x = given[0].contiguous()
    for seed in (3, 4):
        swap_few(x, random.Random(seed))
    assert torch.equal(x.view(torch.uint8), moved[0].view(torch.uint8))
    assert 1 <= int((moved[0].float() != given[0].float()).sum()) <= 12
    assert torch.equal(moved[0].float().flatten().sort()[0], given[0].float().flatten().sort()[0])
    assert torch.equal(moved[1], given[1])
    assert moved[2] == given[2]
    assert with_swaps(given, ()) is given


def moved_by(given: torch.Tensor, seed: int) -> torch.Tensor:
    """``given`` after a swap in a copy, which is the same as one in place."""
    (moved,) = with_swaps((given,), (seed,))
    assert isinstance(moved, torch.Tensor)
    swap_few(copy := given.clone(), random.Random(seed))
    assert torch.equal(copy.view(torch.uint8), moved.view(torch.uint8))
    return moved


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float8_e5m2])
def test_swaps_keep_symmetry(dtype: torch.dtype) -> None:
    random_numbers = torch.randn(2, 50, 50)
    given = (random_numbers + random_numbers.mT).to(dtype)
    for seed in range(50):
        moved, before = moved_by(given, seed).float(), given.float()
        assert torch.equal(moved, moved.mT)
        assert 1 <= int((moved != before).sum()) <= 12
        assert torch.equal(moved.flatten().sort()[0], before.flatten().sort()[0])
        assert torch.equal(moved.diagonal(dim1=1, dim2=2), before.diagonal(dim1=1, dim2=2))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_swaps_keep_matrices_positive_definite(dtype: torch.dtype) -> None:
    factors = torch.randn(3, 64, 64, dtype=dtype)
    given = factors @ factors.mT + 1e-2 * torch.eye(64, dtype=dtype)
    given = (given + given.mT) / 2
    least = float(torch.linalg.eigvalsh(given.double()).min())
    moved = given
    for seed in range(50):
        before, moved = moved, moved_by(moved, seed)
        assert torch.equal(moved, moved.mT)
        assert 1 <= int((moved != before).sum()) <= 12
        assert float(torch.linalg.eigvalsh(moved.double()).min()) > 0.5 * least


def test_swaps_keep_the_zeros_of_a_symmetric_band() -> None:
    band = torch.randn(40, 40).tril(2).triu(-2)
    given = band + band.mT - 8 * torch.eye(40)
    for seed in range(50):
        moved = moved_by(given, seed)
        assert torch.equal(moved, moved.mT)
        assert torch.equal(moved == 0, given == 0)
