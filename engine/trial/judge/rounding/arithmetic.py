"""The reference in the arithmetic of each precision class, for calibration. Imports torch.

fp32 is the reference with TF32 off. TF32 rounds the operands of every product to ten explicit mantissa bits, as tensor cores
do; on a GPU that has them their own result counts too. Half is the whole model in bf16, or in fp16 where an
operator lacks that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from engine.problem.torch_modes.operator_mode import OperatorMode

_PRODUCTS = (
    "mm", "bmm", "addmm", "baddbmm", "convolution", "_scaled_dot_product", "scaled_dot_product", "linear", "mkldnn", "addmv",
    "mv", "dot",
)  # fmt: skip
_TF32_DROPPED_BITS = 13


def round_to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """float32 rounded to nearest (ties to even) at TF32's ten explicit mantissa bits, still stored as float32."""
    bits = tensor.detach().contiguous().view(torch.int32)
    last = (bits >> _TF32_DROPPED_BITS) & 1
    rounded = (bits + ((1 << (_TF32_DROPPED_BITS - 1)) - 1) + last) & ~((1 << _TF32_DROPPED_BITS) - 1)
    return torch.where(torch.isfinite(tensor), rounded.view(torch.float32), tensor)


class _RoundedProducts(OperatorMode):  # type: ignore[no-untyped-call]
    """Rounds the operands of every matrix product, convolution and attention to TF32: float32 ones, and parts of complex64."""

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        name = func.overloadpacket.__name__
        if any(product in name for product in _PRODUCTS):
            args = tuple(_rounded(a) for a in args)
        return func(*args, **given)


def _rounded(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.layout != torch.strided:
        return _with_rounded_values(value) if value.dtype in (torch.float32, torch.complex64) else value
    if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
        return round_to_tf32(value)
    if isinstance(value, torch.Tensor) and value.dtype == torch.complex64:
        return torch.complex(round_to_tf32(value.real), round_to_tf32(value.imag))
    return value


def _with_rounded_values(sparse: torch.Tensor) -> torch.Tensor:
    made = sparse.clone()
    values = made._values() if made.layout == torch.sparse_coo else made.values()
    values.copy_(_rounded(values))
    return made


@contextmanager
def tf32(*, allowed: bool) -> Iterator[None]:
    """The GPU's TF32 switches for products and convolutions, restored afterwards."""
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def in_fp32(call: Callable[[], Sequence[torch.Tensor]]) -> Sequence[torch.Tensor]:
    """``call`` with TF32 off."""
    with tf32(allowed=False):
        return call()


def in_tf32(call: Callable[[], Sequence[torch.Tensor]], device: str) -> Iterator[Sequence[torch.Tensor]]:
    """``call`` with TF32 arithmetic: with rounded operands, and on a GPU also on the real unit; one after the other.

    A library need not use the unit for every shape; its error would then be that of fp32.
    """
    if device != "cpu":
        with tf32(allowed=True):
            outputs = call()
        yield outputs
        del outputs
    with tf32(allowed=False), _RoundedProducts():  # type: ignore[no-untyped-call]
        outputs = call()
    yield outputs
