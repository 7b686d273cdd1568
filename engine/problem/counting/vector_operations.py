"""Operations of pointwise, reduction, normalisation, softmax and pooling work, which vector units execute. Imports torch.

Weights are those of the Livermore loops (McMahon, 1986): 1 for an addition, a multiplication or a comparison, 4 for a division
or a square root, 8 for an exponential, a logarithm or a trigonometric function. A composite counts what its definition needs.
Copies, conversions, index arithmetic and sorting count nothing, and integer work neither: the total is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from engine.problem.arguments.values import tensors

_DIVISION, _FUNCTION = 4, 8
_PER_OUTPUT = {
    **dict.fromkeys(("clone", "detach", "real", "imag", "conj_physical", "isnan", "isinf", "isfinite"), 0),
    **dict.fromkeys(("div", "sqrt", "rsqrt", "reciprocal", "remainder", "fmod", "floor_divide", "hypot"), _DIVISION),
    **dict.fromkeys(
        ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh",
         "cosh", "tanh", "sigmoid", "erf", "erfc", "erfinv", "lgamma", "digamma", "pow"),
        _FUNCTION,
    ),
    **dict.fromkeys(("lerp", "addcmul", "clamp", "hardtanh", "leaky_relu", "prelu", "_prelu_kernel", "hardshrink"), 2),
    "addcdiv": _DIVISION + 1, "relu6": 2, "softshrink": 3, "hardsigmoid": 4, "hardswish": 5,
    "silu": _FUNCTION + 1, "glu": _FUNCTION + 1, "gelu": _FUNCTION + 4, "elu": _FUNCTION + 3,
    "log_sigmoid_forward": 2 * _FUNCTION,
    "logit": _FUNCTION + _DIVISION, "softplus": 2 * _FUNCTION + 1, "mish": 3 * _FUNCTION + 2,
}  # fmt: skip
"""Operations of an output element. Every other pointwise operator counts one."""
_PER_INPUT = {
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), 1),
    **dict.fromkeys(("adaptive_max_pool2d", "adaptive_max_pool3d"), 1),
    **dict.fromkeys(("norm", "linalg_vector_norm"), 2),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), 3),
    **dict.fromkeys(("mse_loss", "binary_cross_entropy"), 3),
    **dict.fromkeys(("smooth_l1_loss", "huber_loss"), 4),
    **dict.fromkeys(("_softmax", "_log_softmax", "_safe_softmax", "logsumexp", "logcumsumexp"), _FUNCTION + 4),
    "_fused_rms_norm": 4, "native_layer_norm": 7, "native_group_norm": 7,
    "_native_batch_norm_legit_no_training": 2, "cosine_similarity": 3,
}  # fmt: skip
"""Operations of an element of the first argument. Every other reduction counts one."""
_BATCH_NORMS = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit")
_TRAINED, _INFERRED = 7, 2
"""A batch normalisation with the batch's own statistics, and with given ones: a factor and a summand."""


def vector_operations(func: Any, args: Sequence[Any], out: object) -> int:
    """The operations of one call of an aten operator; 0 for products, copies and integers."""
    name = func._overloadpacket.__name__
    name = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    read = [t for t in tensors(list(args)) if t.is_floating_point()]
    if not read:
        return 0
    if name in _BATCH_NORMS:
        training = next((a for a in args[1:] if isinstance(a, bool)), False)
        return read[0].numel() * (_TRAINED if training else _INFERRED)
    if "attention" in name and len(read) > 1 and read[1].dim() > 1:
        scores = math.prod(read[0].shape[:-1]) * read[1].shape[-2]
        return scores * (_PER_INPUT["_softmax"] + 1)  # each score is scaled first
    if "_pool" in name and name not in _PER_INPUT:
        return _window(args) * _outputs(out)
    if name in _PER_INPUT or torch.Tag.reduction in func.tags:
        return read[0].numel() * _PER_INPUT.get(name, 1)
    if name in _PER_OUTPUT or torch.Tag.pointwise in func.tags:
        return _outputs(out) * _PER_OUTPUT.get(name, 1)
    return 0


def _outputs(out: object) -> int:
    """Elements of the first tensor that an operator returns."""
    return next((t.numel() for t in tensors([out])), 0)


def _window(args: Sequence[Any]) -> int:
    """Elements that a pooling window reads."""
    size = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else [1]
    spatial = args[0].dim() - 2
    return int(math.prod(size if len(size) != 1 else list(size) * max(1, spatial)))
