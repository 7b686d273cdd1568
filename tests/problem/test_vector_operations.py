"""Operations outside products: one element's weights, by operator and by what runs them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine.domain.model import Operand, Role, Signature
from engine.domain.preparation import Peaks
from engine.problem import catalog
from engine.problem.counting.operation_count import OperationCounter
from engine.problem.reference import Reference
from engine.trial.judge.timing import roofline

ROWS, WIDTH = 6, 8
ELEMENTS = ROWS * WIDTH


def counted(work: Callable[[torch.Tensor], object], x: torch.Tensor | None = None) -> float:
    counter = OperationCounter(torch.device("cpu"))
    with torch.no_grad(), counter:
        work(torch.ones(ROWS, WIDTH) if x is None else x)
    return counter.vector


@pytest.mark.parametrize(
    ("work", "an_element"),
    [
        (torch.relu, 1),
        (lambda x: x.relu_(), 1),
        (lambda x: x * 2 + 1, 2),
        (lambda x: x / 3, 4),
        (torch.exp, 8),
        (F.gelu, 12),
        (F.silu, 9),
        (lambda x: x > 0, 1),
        (lambda x: x.sum(), 1),
        (lambda x: x.amax(dim=1), 1),
        (lambda x: x.norm(), 2),
        (lambda x: x.var(dim=1), 3),
        (lambda x: torch.softmax(x, -1), 12),
        (lambda x: torch.log_softmax(x, -1), 12),
        (lambda x: F.layer_norm(x, (WIDTH,)), 7),
        (lambda x: torch.cumsum(x, 1), 1),
        (lambda x: x.clone(), 0),
        (lambda x: x.to(torch.float64), 0),
        (lambda x: x.t(), 0),
        (lambda x: x.sort(dim=1), 0),
        (lambda x: x.int() + 1, 0),
    ],
)
def test_operations_of_an_element(work: Callable[[torch.Tensor], object], an_element: int) -> None:
    assert counted(work) == an_element * ELEMENTS


def test_a_pooling_counts_its_window() -> None:
    images = torch.ones(1, 2, 6, 6)
    assert counted(lambda x: F.max_pool2d(x, 3, 3), images) == 9 * 2 * 4
    assert counted(lambda x: F.avg_pool2d(x, (2, 3)), images) == 6 * 2 * 6
    assert counted(lambda x: F.adaptive_avg_pool2d(x, 1), images) == 2 * 36


@pytest.mark.parametrize(("training", "an_element"), [(True, 7), (False, 2)])
def test_batch_normalisation_computes_statistics_only_in_training(training: bool, an_element: int) -> None:
    assert counted(nn.BatchNorm2d(2).train(training), torch.ones(3, 2, 4, 4)) == an_element * 3 * 2 * 16


def test_products_count_apart() -> None:
    assert counted(lambda x: x @ x.t()) == 0


def test_attention_counts_the_softmax_of_its_scores() -> None:
    query = torch.ones(1, 2, 16, 8)
    assert counted(lambda x: F.scaled_dot_product_attention(x, x, x), query) == 2 * 16 * 16 * 13


@pytest.mark.parametrize(("name", "an_element"), [("softmax", 12), ("layernorm", 7)])
def test_shipped_problems_without_products_are_counted(name: str, an_element: int) -> None:
    problem = catalog.find(name)
    signature = Reference(problem, catalog.workload_for(problem, "small")).signature()
    (out,) = signature.with_roles(Role.OUTPUT)
    assert signature.operations == 0
    assert signature.counted_operations == an_element * torch.Size(out.shape).numel()


VECTOR = (Operand("x", Role.INPUT, (1 << 20,), "float32"), Operand("out", Role.OUTPUT, (1 << 20,), "float32"))
PEAKS = Peaks(8 * (1 << 20) * 1e4, {"fp32": 1e12, "fp16": 8e12})
"""Gives 100 µs for the bytes."""


@pytest.mark.parametrize(
    ("products", "others", "bound", "floor_us"),
    [
        (0.0, 9e7, "bytes", 100.0),
        (0.0, 3e8, "operations (vector)", 300.0),
        (2e8, 3e8, "operations (vector)", 300.0),
        (4e8, 3e8, "operations (fp32)", 400.0),
    ],
)
def test_the_largest_of_three_bounds_holds(products: float, others: float, bound: str, floor_us: float) -> None:
    found = roofline.floor(Signature(VECTOR, {}, products, vector_operations=others), PEAKS)
    assert (found.bound, found.floor_us) == (bound, pytest.approx(floor_us))


def test_work_outside_products_makes_no_time_impossible() -> None:
    """A kernel may rewrite it: share subexpressions, skip what is not needed."""
    found = roofline.floor(Signature(VECTOR, {}, vector_operations=1e12), PEAKS)
    assert max(found.products_us, found.bytes_us) == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("rates", "bound", "operations_per_s"),
    [
        ({"fp32": 5e13, "tf32": 4e14, "bf16": 7.5e14}, "operations (fp32 by 3 passes of bf16)", 2.5e14),
        ({"fp32": 5e13, "bf16": 7.5e14, "fp8": 1.5e15}, "operations (fp32 by 1 pass of bf16 and 2 of 8 bits)", 3.75e14),
        ({"fp32": 5e13, "tf32": 1.8e14}, "operations (fp32 by 3 passes of tf32)", 6e13),
        ({"fp32": 5e13}, "operations (fp32)", 5e13),
    ],
    ids=["Ampere", "Hopper", "no bf16", "no tensor cores"],
)
def test_a_product_in_fp32_may_be_emulated(rates: dict[str, float], bound: str, operations_per_s: float) -> None:
    found = roofline.floor(Signature(VECTOR, {}, 1e14), Peaks(1e15, rates))
    assert (found.bound, found.floor_us) == (bound, pytest.approx(1e14 / operations_per_s * 1e6))
