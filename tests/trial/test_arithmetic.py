"""TF32 rounding, as tensor cores round."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from engine.trial.judge.rounding import arithmetic


def from_bits(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def oracle(value: float) -> float:
    """Nearest number with ten explicit mantissa bits, ties to even, by division in double (exact for powers of two)."""
    if value == 0 or not math.isfinite(value):
        return value
    exponent = max(math.frexp(value)[1] - 1, -126)
    step = 2.0 ** (exponent - 10)
    rounded = float(np.rint(value / step) * step)
    return math.copysign(math.inf, value) if abs(rounded) >= 2.0**128 else rounded


@given(st.integers(0, 2**32 - 1))
@example(0x7F7FFFFF)
@example(0x3F801000)
@example(0x3F803000)
@example(0x00000FFF)
@example(0x80001000)
def test_rounding_is_to_nearest_even_at_ten_bits(bits: int) -> None:
    value = from_bits(bits)
    found = float(arithmetic.round_to_tf32(torch.tensor([value], dtype=torch.float32)))
    wanted = oracle(value)
    assert found == wanted or (math.isnan(found) and math.isnan(wanted))
    assert math.copysign(1, found) == math.copysign(1, wanted) or math.isnan(wanted)


@given(st.integers(0, 2**32))
def test_rounding_is_idempotent(seed: int) -> None:
    x = torch.randn(100, generator=torch.Generator().manual_seed(seed))
    once = arithmetic.round_to_tf32(x)
    assert torch.equal(arithmetic.round_to_tf32(once), once)
    assert float(((once - x) / x).abs().max()) <= 2.0**-11


@pytest.mark.parametrize("product", [torch.mm, torch.matmul, lambda a, b: torch.nn.functional.linear(a, b.t())])
def test_only_operands_of_products_are_rounded(product: object) -> None:
    a, b = torch.randn(16, 32), torch.randn(32, 8)
    assert callable(product)
    (found,) = arithmetic.in_tf32(lambda: [product(a, b) + a[:, :8]], "cpu")
    wanted = product(arithmetic.round_to_tf32(a), arithmetic.round_to_tf32(b)) + a[:, :8]
    torch.testing.assert_close(found[0], wanted, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(found[0], product(a, b) + a[:, :8], rtol=1e-6, atol=1e-6)


def test_the_tf32_switches_are_restored() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with pytest.raises(ZeroDivisionError), arithmetic.tf32(allowed=not before[0]):
        raise ZeroDivisionError
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_the_values_of_sparse_factors_are_rounded(layout: torch.layout) -> None:
    dense = torch.tensor([[1 + 2.0**-12, 0.0], [0.0, 3.0]])
    with arithmetic._RoundedProducts():  # type: ignore[no-untyped-call]
        found = torch.mm(dense.to_sparse(layout=layout), torch.eye(2))
    assert found.tolist() == [[1.0, 0.0], [0.0, 3.0]]
