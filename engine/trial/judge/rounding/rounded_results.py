"""The reference with the results of its arithmetic moved in their last places. Imports torch.

A kernel rounds other intermediate results than the reference: it subtracts the mean of many terms from one, where the
reference has the mean of the differences, or takes an exponential of what a saved logarithm leaves. Where large numbers cancel,
the output then moves by far more than where the inputs alone are moved, of which each sum averages many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from engine.problem.arguments.values import tensors
from engine.problem.torch_modes.operator_mode import OperatorMode
from engine.trial.judge.inputs.perturbations import BY_CHANCE
from engine.trial.judge.outputs.blocks import in_blocks

_ROUNDING = frozenset(
    "add sub rsub mul div mm bmm addmm baddbmm addbmm mv addmv dot vdot linear convolution _convolution "
    "convolution_overrideable mkldnn_convolution sum mean cumsum cumprod prod square pow addcmul addcdiv lerp "
    "avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d mse_loss "
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal tanh sinh cosh sigmoid erf erfc sin cos silu gelu mish "
    "softplus softsign log_sigmoid_forward hypot atan var var_mean std std_mean norm linalg_vector_norm logsumexp _softmax "
    "_log_softmax native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit "
    "_native_batch_norm_legit_no_training _fused_rms_norm _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention".split()
)
"""Operators, without a trailing underscore, whose results are rounded. Others move, choose or compare numbers, which are then
exact, or are left alone."""
_SOFTMAX = torch.ops.aten._softmax.default
_UNITS = 4
"""Units in the last place, as where inputs are moved."""

_GOLDEN = 0.618
"""The parts of successive results by which they move are multiples of it, without their wholes: no few of them cancel."""


class RoundedResults(OperatorMode):  # type: ignore[no-untyped-call]
    """Moves each floating-point result of arithmetic by a random part of some units in the last place of a type.

    Half of the way is common to all elements of a result: a mean averages the rest away, and a kernel may round the mean.

    ``way``: or all elements by the same, up or down, and each result by another part: what ties then does not.
    """

    def __init__(self, units_of: torch.dtype, seed: int, way: float = BY_CHANCE) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._unit = _UNITS * torch.finfo(units_of).eps
        self._seed, self._way, self._results = seed, way, 0
        self._generators: dict[torch.device, torch.Generator] = {}

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        found = func(*args, **given)
        if func is _SOFTMAX:
            self._move_logarithms(found, *args)
        if func.overloadpacket.__name__.rstrip("_") in _ROUNDING:
            for tensor in tensors([found]):
                if tensor.is_floating_point() and tensor.layout is torch.strided:
                    self._move(tensor)
        return found

    def _move_logarithms(self, found: torch.Tensor, scores: torch.Tensor, dim: int, *_: object) -> None:
        """A softmax as the exponential of what its row's saved logarithm of the sum leaves, as backward passes compute it."""
        logarithm = torch.logsumexp(scores.to(found.dtype), dim, keepdim=True)
        moved = logarithm.clone()
        self._move(moved)
        found.mul_(torch.exp(logarithm - moved).nan_to_num(1.0))

    def _move(self, tensor: torch.Tensor) -> None:
        """With numbers of its own: the reference's random ones stay as they are."""
        if self._way:
            self._results += 1
            tensor.mul_(1 + self._way * self._unit * (1 + self._results * _GOLDEN % 1) / 2)
            return
        device = tensor.device
        if (generator := self._generators.get(device)) is None:
            generator = self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        common = torch.rand((), generator=generator, device=device, dtype=tensor.dtype)
        for (flat,) in in_blocks(tensor if tensor.is_contiguous() else tensor.permute(_by_stride(tensor)), own_type=True):
            by = torch.rand(flat.shape, generator=generator, device=device, dtype=flat.dtype)
            flat.mul_(by.add_(common).sub_(1).mul_(self._unit).add_(1))


def _by_stride(tensor: torch.Tensor) -> list[int]:
    """The dimensions in the order of memory, in which operators' results are contiguous."""
    return sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
