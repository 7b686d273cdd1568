"""Counts a forward pass: families of operators, and floating-point operations by arithmetic unit. Imports torch.

Operations of products are counted apart from those of all other work (``vector_operations``). Knows operators and their counts;
nothing of references, device peaks or times.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from engine.problem.arguments.values import tensors
from engine.problem.counting.compared_numbers import ComparedNumbers
from engine.problem.counting.vector_operations import vector_operations
from engine.problem.torch_modes.operator_mode import OperatorMode

CONVOLUTION, MATMUL, ATTENTION, RECURRENT = "convolution", "matmul", "attention", "recurrent"
SHIPPED_WITH_TF32 = frozenset({CONVOLUTION, RECURRENT})
"""Families that use TF32 for float32 operands on a GPU: PyTorch as shipped lets cuDNN use it, and cuBLAS not."""

_FAMILIES = {
    ATTENTION: ("attention",),
    CONVOLUTION: ("convolution", "conv1d", "conv2d", "conv3d", "conv_depthwise2d", "conv_depthwise3d"),
    RECURRENT: ("rnn", "lstm", "gru"),
    MATMUL: ("mm", "addmm", "bmm", "baddbmm", "addbmm", "linear", "dot", "vdot", "mv", "addmv", "addr", "cdist"),
    "normalisation": ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"),
    "softmax": ("softmax", "logsumexp"),
    "pooling": ("max_pool", "avg_pool", "avg_pool2d", "avg_pool3d", "max_pool2d", "max_pool3d"),
    "embedding": ("embedding",),
    "loss": ("nll_loss", "nll_loss2d", "smooth_l1", "mse_loss", "huber_loss"),
    "scan": ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"),
    "sort": ("sort", "argsort", "topk", "kthvalue", "median"),
    "reduction": ("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "prod", "norm", "var", "std"),
}
_IN_TORCHS_TABLE = (ATTENTION, CONVOLUTION, MATMUL)
_CUDNN_RNN, _MKLDNN_RNN = "_cudnn_rnn", "mkldnn_rnn_layer"
_SCALED_PRODUCT = "_scaled_mm_v2"
_VECTOR = "vector"
HALVES = (torch.float16, torch.bfloat16)
_NARROW = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8"}


def family(operator: str) -> str:
    """The family of an aten operator's name (``addmm`` → ``matmul``), or ``other``."""
    padded = f"_{operator.strip('_')}_"
    for name, marks in _FAMILIES.items():
        if any(f"_{mark}_" in padded for mark in marks):
            return name
    return "other"


_INTEGER_POW = "integer_pow"
"""The name of a power with a constant whole exponent: a product of its argument with itself."""


def _is_integer_pow(func: Any, args: Sequence[object]) -> bool:
    if func not in (torch.ops.aten.pow.Tensor_Scalar, torch.ops.aten.pow_.Scalar):
        return False
    exponent = args[1]
    return isinstance(exponent, int | float) and exponent >= 0 and float(exponent).is_integer()


INTEGER_DIV = "integer_div"
"""The name of a division of integers by a tensor, with rounding: on a CPU one by zero raises an exception."""


def _is_integer_div(func: Any, args: Sequence[object]) -> bool:
    if func not in (torch.ops.aten.div.Tensor_mode, torch.ops.aten.div_.Tensor_mode):
        return False
    return all(isinstance(one, Tensor) and not one.is_floating_point() for one in args)


_ISNAN = "isnan"
"""The name of a comparison of a tensor with itself, which is also a part of ``isfinite``."""


def operator_name(func: Any, args: Sequence[object]) -> str:
    """The name of an operator as ``OperationCounter.operators`` has it."""
    if _is_integer_pow(func, args):
        return _INTEGER_POW
    if _is_integer_div(func, args):
        return INTEGER_DIV
    if func in (torch.ops.aten.eq.Tensor, torch.ops.aten.ne.Tensor) and args[0] is args[1]:
        return _ISNAN
    return str(func._overloadpacket.__name__)


class OperationCounter(OperatorMode):  # type: ignore[no-untyped-call]
    """Counts the operators that run within: ``operators`` and ``families`` seen, and ``operations`` by (family, unit).

    ``compared``: the numbers at which the result jumps. ``rounds_to_half``: whether a result is of half precision.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.operators: set[str] = set()
        self.families: set[str] = set()
        self.compared = ComparedNumbers()
        self.rounds_to_half = False
        self.operations: Counter[tuple[str, str]] = Counter()

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        out = func(*args, **given)
        packet = func._overloadpacket
        name = family(packet.__name__)
        self.operators.add(operator_name(func, args))
        self.families.add(name)
        self.compared.see(func, args, given, out)
        self.rounds_to_half |= any(result.dtype in HALVES for result in tensors([out]))
        formula = _formula(packet) if name in _IN_TORCHS_TABLE else None
        count = int(formula(*args, **given, out_val=out)) if formula is not None else _count(packet, args)
        if count:
            self.operations[name, self._unit(name, args)] += count
        if count := vector_operations(func, args, out):
            self.operations[name, _VECTOR] += count
        return out

    @property
    def total(self) -> float:
        """Operations of products; a multiply-add is two."""
        return float(sum(count for (_, unit), count in self.operations.items() if unit != _VECTOR))

    @property
    def vector(self) -> float:
        """Operations of pointwise, reduction, normalisation, softmax and pooling work."""
        return float(sum(count for (_, unit), count in self.operations.items() if unit == _VECTOR))

    @property
    def unit(self) -> str:
        """The unit with most of the products' operations: ``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8``; else ``fp32``."""
        units: Counter[str] = Counter()
        for (_, unit), count in self.operations.items():
            if unit != _VECTOR:
                units[unit] += count
        return units.most_common(1)[0][0] if units else "fp32"

    def _unit(self, name: str, args: Sequence[object]) -> str:
        kinds = [t.dtype for t in tensors(list(args)) if t.is_floating_point()]
        if kinds and kinds[0] in _NARROW:
            return _NARROW[kinds[0]]
        shipped_tf32 = self._device.type == "cuda" and name in SHIPPED_WITH_TF32
        return "tf32" if shipped_tf32 and torch.float32 in kinds else "fp32"


def _formula(packet: Any) -> Callable[..., Any] | None:
    """Torch's own formula for the operations of a product. Imported when it is needed: it imports Triton, where it is there."""
    from torch.utils.flop_counter import flop_registry

    found: Callable[..., Any] | None = flop_registry.get(packet)
    return found


def _count(packet: Any, args: Sequence[Any]) -> int:
    """Operations of one call of some products that torch's table lacks; 0 for all others."""
    name = packet.__name__
    if name == "_scaled_dot_product_flash_attention_for_cpu":
        query, key, value = args[:3]
        return int(2 * math.prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1]))
    if name in (_CUDNN_RNN, _MKLDNN_RNN):
        return _count_recurrent(args[0], args[1] if name == _CUDNN_RNN else args[1:3])
    if name == _SCALED_PRODUCT:
        return 2 * int(args[0].numel()) * int(args[1].shape[-1])
    if name in ("mv", "dot", "vdot"):
        return 2 * int(args[0].numel())
    if name == "addmv":
        return 2 * int(args[1].numel())
    return 0


def _count_recurrent(sequence: Tensor, weights: Sequence[Tensor]) -> int:
    """Each step multiplies its vectors once with every weight matrix: 2 x steps x the matrices' elements."""
    steps = math.prod(sequence.shape[:-1])
    return 2 * steps * sum(w.numel() for w in weights if w.dim() > 1)
