"""The reference in the arithmetic of each precision class, for calibration. Imports torch.

fp32 is the reference with TF32 off. TF32 rounds the operands of every product to ten explicit mantissa bits, as tensor cores
do; on a GPU that has them their own result counts too. Half is the whole model in fp16 or bf16, whichever errs more. A plain
loop of a kernel adds one element after the other in fp32, which libraries avoid: ``with_plain_sums`` adds so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

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


class _RoundedProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Rounds the float32 operands of every matrix product, convolution and attention to TF32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if any(product in name for product in _PRODUCTS):
            args = tuple(_rounded(a) for a in args)
        return func(*args, **(kwargs or {}))


def _rounded(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
        return round_to_tf32(value)
    return value


@contextmanager
def tf32_allowed(allowed: bool) -> Iterator[None]:
    """The GPU's TF32 switches for products and convolutions, restored afterwards."""
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def in_fp32(call: Callable[[], Sequence[torch.Tensor]]) -> Sequence[torch.Tensor]:
    """``call`` with TF32 off."""
    with tf32_allowed(False):
        return call()


def in_tf32(call: Callable[[], Sequence[torch.Tensor]], device: str) -> Iterator[Sequence[torch.Tensor]]:
    """``call`` with TF32 arithmetic: with rounded operands, and on a GPU also on the real unit; one after the other.

    A library need not use the unit for every shape; its error would then be that of fp32.
    """
    if device != "cpu":
        with tf32_allowed(True):
            outputs = call()
        yield outputs
        del outputs
    with tf32_allowed(False), _RoundedProducts():  # type: ignore[no-untyped-call]
        outputs = call()
    yield outputs


_SUMS = (torch.ops.aten.sum.default, torch.ops.aten.sum.dim_IntList)
_CONTAIN_SUMS = ("_softmax", "_log_softmax", "logsumexp", "mean", "native_layer_norm", "native_group_norm")
_LONGEST_LOOP = 1 << 14
"""Additions in one loop; longer sums are several such loops side by side, as threads take them."""


def with_plain_sums(call: Callable[[], Sequence[torch.Tensor]]) -> Sequence[torch.Tensor]:
    """``call`` in fp32, each sum, mean, softmax or norm adding one element after the other."""
    with tf32_allowed(False), _PlainSums():  # type: ignore[no-untyped-call]
        return call()


class _PlainSums(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums of float32 in order. Products are left alone: libraries also accumulate them in long loops."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype is torch.float32:
            if func in _SUMS and options.get("dtype") in (None, torch.float32):
                return _sum_in_order(*args)
            if func.overloadpacket.__name__ in _CONTAIN_SUMS:
                from torch._decomp import decomposition_table  # takes a moment to import; few verdicts get here

                if func in decomposition_table:
                    with self:
                        return decomposition_table[func](*args, **options)
        return func(*args, **options)


def _sum_in_order(tensor: torch.Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> torch.Tensor:
    summed = sorted({d % tensor.dim() for d in dims}) if dims else list(range(tensor.dim()))
    kept = [d for d in range(tensor.dim()) if d not in summed]
    shape = [1 if d in summed else n for d, n in enumerate(tensor.shape) if keepdim or d in kept]
    count = math.prod(tensor.shape[d] for d in summed)
    terms = tensor.permute((*summed, *kept)).reshape(count, *(tensor.shape[d] for d in kept))
    return _in_loops(terms).reshape(shape)


def _in_loops(terms: torch.Tensor) -> torch.Tensor:
    """The sum over the first dimension."""
    if len(terms) > _LONGEST_LOOP:
        whole = len(terms) // _LONGEST_LOOP * _LONGEST_LOOP
        partial = terms[:whole].reshape(_LONGEST_LOOP, -1, *terms.shape[1:])
        return _in_loops(torch.cat((_in_loops(partial), terms[whole:])))
    total = terms.new_zeros(terms.shape[1:])
    for term in terms:
        total += term
    return total
