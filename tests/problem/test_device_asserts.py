"""Arguments on which a GPU's kernels would assert raise before."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.problem.counting.operation_count import OperationCounter
from engine.problem.torch_modes.device_asserts import checked

GPU = torch.device("cuda:0")
TABLE = torch.zeros(5, 3)
NAN = float("nan")

CALLS: Mapping[str, tuple[Callable[[Tensor], Tensor], list[float], list[list[float]]]] = {
    "a probability": (lambda x: F.binary_cross_entropy(x, torch.ones(2)), [0.0, 1.0], [[0.5, 1.1], [-0.1, 0.5], [NAN, 0.5]]),
    "the other probability": (lambda x: F.binary_cross_entropy(torch.ones(2), x), [0.0, 1.0], [[0.5, 1.1]]),
    "a row of a table": (lambda x: F.embedding(x.long(), TABLE), [0, 4], [[5, 0], [-1, 0]]),
    "rows of a bag": (lambda x: F.embedding_bag(x.long().view(1, -1), TABLE), [0, 4], [[5, 0], [-1, 0]]),
    "gathered": (lambda x: TABLE.gather(0, x.long().view(2, 1)), [0, 4], [[5, 0], [-1, 0]]),
    "selected": (lambda x: TABLE.index_select(-1, x.long()), [0, 2], [[3, 0], [-1, 0]]),
    "scattered": (lambda x: TABLE.scatter(0, x.long().view(2, 1), 1.0), [0, 4], [[5, 0]]),
    "added in place": (lambda x: TABLE.clone().index_add_(0, x.long(), torch.ones(2, 3)), [0, 4], [[5, 0]]),
    "indexed": (lambda x: TABLE[x.long()], [-5, 4], [[5, 0], [-6, 0]]),
    "indexed by two": (lambda x: TABLE[:, x.long()], [-3, 2], [[3, 0]]),
    "a mask": (lambda x: TABLE[:2][x > 0], [0, 4], []),
    "written": (lambda x: TABLE.index_put((x.long(),), torch.ones(3)), [-5, 4], [[5, 0]]),
    "taken": (lambda x: TABLE.take(x.long()), [-15, 14], [[15, 0], [-16, 0]]),
    "a class": (lambda x: F.cross_entropy(torch.zeros(2, 3), x.long()), [0, 2], [[3, 0], [-1, 0]]),
    "a class that is ignored": (lambda x: F.cross_entropy(torch.zeros(2, 3), x.long()), [-100, 2], []),
    "classes of pixels": (lambda x: F.nll_loss(torch.zeros(1, 3, 2, 1), x.long().view(1, 2, 1)), [0, 2], [[3, 0]]),
    "a margin's class": (lambda x: F.multi_margin_loss(torch.zeros(2, 3), x.long()), [0, 2], [[3, 0]]),
}  # fmt: skip
"""Calls by what they take: the numbers that they accept, and some that they do not."""


def operators_of(call: Callable[[Tensor], Tensor], numbers: list[float]) -> set[str]:
    counter = OperationCounter(torch.device("cpu"))
    with torch.no_grad(), counter:
        call(torch.tensor(numbers))
    return counter.operators


@pytest.mark.parametrize(("call", "right", "wrong"), CALLS.values(), ids=CALLS)
def test_numbers_out_of_range_raise_and_others_do_not(
    call: Callable[[Tensor], Tensor], right: list[float], wrong: list[list[float]]
) -> None:
    operators = operators_of(call, right)
    with torch.no_grad(), checked(operators, GPU):
        call(torch.tensor(right))
    for numbers in wrong:
        with torch.no_grad(), checked(operators, GPU), pytest.raises(RuntimeError, match="got a number outside of its range"):
            call(torch.tensor(numbers))


def test_nothing_is_checked_where_nothing_asserts() -> None:
    with checked({"addmm", "relu"}, GPU), torch.no_grad():
        assert F.embedding(torch.tensor([1]), TABLE).shape == (1, 3)
    call, _, (wrong, *_) = CALLS["a probability"]
    with checked({"binary_cross_entropy"}, torch.device("cpu")), pytest.raises(RuntimeError, match="between 0 and 1"):
        call(torch.tensor(wrong))
