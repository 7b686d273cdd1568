"""Judging infinite and NaN inputs: where the reference defines what a kernel must return. Imports torch.

Arithmetic defines it where the reference only adds, multiplies and normalises, at outputs that depend on the special inputs: a
kernel that returns a finite number there does not read them. 0 × ∞ is no dependency (``diag(A) @ B`` is a scaling of rows), and
∞ − ∞ depends on the order of summation, so any non-finite number will do. Where it normalises, all of them must be gone:
``x / fmaxf(norm, 1e-12f)`` loses the NaN of a norm, and keeps that of ``x``. Elsewhere honest kernels of the field differ from
PyTorch: ``fmaxf(x, 0)`` drops a NaN, and the usual vector exponential clamps its argument. Those are caveats, not failures.
Where the reference replaces NaN among its inputs or leaves it out (``nan_to_num``, ``nansum``, ``isnan``), what is finite there
must be right; so it must where the reference looks for infinities among them (``isinf``), and only computes and masks.
Booleans are defined where the reference only computes so and tests for equality, as ``isfinite`` does. Other integers are left
out: converting an infinity to one is undefined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.problem.arguments.values import comparable, finite_elements, storage, tensors
from engine.problem.counting.operation_count import INTEGER_DIV, operator_name
from engine.problem.torch_modes.operator_mode import OperatorMode
from engine.trial.judge.inputs.perturbations import INFINITIES, NANS, SPECIAL
from engine.trial.judge.outputs.blocks import in_blocks, read_numbers
from engine.trial.judge.outputs.fused_comparison import fused_pair

_ARITHMETIC = frozenset(
    "device add sub rsub mul div neg mm bmm addmm baddbmm addbmm mv addmv dot vdot linear convolution "
    "_convolution convolution_overrideable mkldnn_convolution sum mean cumsum avg_pool1d avg_pool2d avg_pool3d "
    "_adaptive_avg_pool2d _adaptive_avg_pool3d view reshape _reshape_alias _unsafe_view t transpose permute "
    "expand slice select squeeze unsqueeze clone copy _to_copy detach alias cat stack split split_with_sizes "
    "unbind chunk flip roll as_strided unfold narrow zeros ones zeros_like ones_like empty empty_like full "
    "full_like new_zeros new_empty arange scalar_tensor integer_pow square prod cumprod mse_loss "
    f"constant_pad_nd diag_embed diagonal tril triu eye lift_fresh fill movedim repeat addcmul lerp {INTEGER_DIV}".split()
)
"""Operators, without a trailing underscore, that add, multiply or move elements. ``integer_pow``: a power with a constant whole
exponent, as ``operation_count`` names it."""
_NORMALISING = frozenset(
    "sqrt rsqrt reciprocal abs norm linalg_vector_norm native_layer_norm native_group_norm native_batch_norm "
    "_native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm _fused_rms_norm".split()
)
"""Operators that divide by a norm, and those of which norms are made. A kernel may lose a NaN in the variance, which it keeps
from being negative, and has it again in what the variance divides: operators that return a variance are not among them."""
_ROOTS = frozenset("sqrt norm linalg_vector_norm".split())
_CANCELLING = frozenset("sub rsub".split())
_DIVIDING = _NORMALISING - _ROOTS - {"abs"} | {"div"}
"""By these a root of what cancels tells a normalisation from a distance."""
_SMOOTH = _NORMALISING | frozenset(
    "exp exp2 expm1 log log2 log10 log1p pow tanh sinh cosh sigmoid erf erfc sin cos silu gelu mish softplus softsign "
    "log_sigmoid_forward var var_mean std std_mean logsumexp _softmax _log_softmax scaled_dot_product_attention "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention leaky_relu prelu _prelu_kernel "
    "native_dropout addcdiv hypot atan".split()
)
"""Further operators that carry a NaN to their result."""
_SELECTING = frozenset(
    "relu clamp clamp_min clamp_max hardtanh hardswish hardsigmoid elu selu celu threshold maximum minimum max min amax "
    "amin max_pool1d max_pool2d_with_indices max_pool3d_with_indices where gt lt ge le eq ne masked_fill smooth_l1_loss "
    "huber_loss sign topk sort argmax argmin cummax cummin".split()
)
"""Operators that choose between elements: with NaN among them their result is open."""
_BOUNDING = frozenset("relu clamp clamp_min clamp_max hardtanh hardswish hardsigmoid elu selu celu threshold".split())
"""Those of them that compare each element with constants."""
_TESTING = frozenset(
    "eq ne isnan isinf isfinite abs all any logical_not logical_and logical_or logical_xor bitwise_not bitwise_and bitwise_or "
    "bitwise_xor".split()
)
"""Operators that say whether elements are finite, equal or not a number, and combine the answers: with NaN too."""

_REPLACING = frozenset("nan_to_num nansum isnan".split())
"""Operators that replace NaN, leave it out, or find it."""
_BY_MASK = frozenset("where masked_fill".split())
"""Operators that choose by a mask."""
_RECURRENT = frozenset(
    "unsafe_split unsafe_chunk mkldnn_rnn_layer _cudnn_rnn _thnn_fused_lstm_cell _thnn_fused_gru_cell".split()
)
"""Further operators of recurrent layers, which run on any numbers."""


def is_usable(distribution: str, operators: frozenset[str]) -> bool:
    """Whether a reference with these operators may be tried on the distribution.

    Operators of unknown kind may turn a number into an index, which is undefined for infinities and NaN; so is sorting NaN.
    """
    plain = {name.rstrip("_") for name in operators}
    smooth = _ARITHMETIC | _SMOOTH | _TESTING
    replacing = _REPLACING | _BY_MASK if plain & _REPLACING else frozenset()
    known = {INFINITIES: smooth | _SELECTING | {"nansum"}, NANS: smooth | replacing}
    return distribution not in SPECIAL or plain <= known[distribution]


def computes_on_any_numbers(operators: frozenset[str]) -> bool:
    """Whether a reference with these operators runs whatever numbers its inputs hold, with outputs of the same shapes."""
    plain = {name.rstrip("_") for name in operators}
    return plain <= (_ARITHMETIC | _SMOOTH | _SELECTING | _TESTING | _RECURRENT) - {INTEGER_DIV}


def only_computes(operators: frozenset[str]) -> bool:
    """Whether sums, products and norms decide every output.

    A root of what cancels must divide something: a kernel that keeps a squared distance from being negative loses a NaN there.
    """
    plain = {name.rstrip("_") for name in operators}
    return plain <= _ARITHMETIC | _NORMALISING and not (plain & _ROOTS and plain & _CANCELLING and not plain & _DIVIDING)


def normalises(operators: frozenset[str]) -> bool:
    """Whether there are norms among what decides."""
    return bool({name.rstrip("_") for name in operators} & _NORMALISING)


def carries_infinities(operators: frozenset[str]) -> bool:
    """Whether no operator chooses among elements: a maximum may start at the least number of its type."""
    return {name.rstrip("_") for name in operators} <= _ARITHMETIC | _SMOOTH | _BOUNDING


def only_computes_and_tests(operators: frozenset[str]) -> bool:
    """Whether arithmetic and tests for equality decide every boolean output."""
    return {name.rstrip("_") for name in operators} <= _ARITHMETIC | _TESTING


def only_computes_and_masks(operators: frozenset[str]) -> bool:
    """Whether arithmetic and masks decide every output."""
    return {name.rstrip("_") for name in operators} <= _ARITHMETIC | _TESTING | _BY_MASK


class InputTests(OperatorMode):  # type: ignore[no-untyped-call]
    """Whether a reference replaces NaN among its inputs, leaves it out or looks for it: it then says what a kernel must return.
    So it does for infinities that it looks for.

    What it does with those that it has computed is another matter: a softmax of a row that a mask leaves empty is NaN.
    """

    def __init__(self, inputs: tuple[object, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inputs = {storage(tensor) for tensor in tensors(list(inputs))}
        self._magnitudes: list[torch.Tensor] = []
        """The inputs' absolute values, of which ``isfinite`` asks whether they are infinite."""
        self.of_nan = self.of_infinities = False

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        name, found = operator_name(func, args).rstrip("_"), func(*args, **given)
        if args and isinstance(args[0], torch.Tensor) and self._is_input(args[0]):
            self.of_nan |= name in _REPLACING
            self._magnitudes += [found] if name == "abs" else []
            asks = name in ("eq", "ne") and isinstance(args[1], float) and math.isinf(args[1])
            self.of_infinities |= asks or name == "isinf"
        return found

    def _is_input(self, tensor: torch.Tensor) -> bool:
        return storage(tensor) in self._inputs or any(tensor is one for one in self._magnitudes)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One set of outputs on special inputs, compared with the reference's where either is not finite."""

    hidden: Sequence[torch.Tensor]
    """Flat masks of the elements that are finite, and not in the reference; of the booleans that differ."""
    exposed: int
    """Elements that are not finite where the reference's are."""
    different: int
    """Elements with another NaN or infinity than the reference, or another boolean."""
    count: int


def compare_special(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> Comparison:
    """Where outputs differ that are not finite in both, and where booleans do; integers are left out."""
    hidden = []
    different = count = exposed = 0
    for output, right in zip(outputs, expected, strict=True):
        mask = torch.zeros(output.numel(), dtype=torch.bool, device=output.device)
        hidden.append(mask)
        if output.dtype == torch.bool:
            count += output.numel()
            mask.copy_((output != right.to(output.device)).reshape(-1))
            different += int(mask.sum())
        if not output.dtype.is_floating_point:
            continue
        count += output.numel()
        fused = fused_pair(comparable(output), right, "unlike")
        if fused is not None and not any(fused.unlike()):
            continue
        counts: list[torch.Tensor] = []
        shown: list[torch.Tensor] = []
        for (mine, theirs), (here,) in zip(in_blocks(comparable(output), right), in_blocks(mask), strict=True):
            finite, right_finite = torch.isfinite(mine), torch.isfinite(theirs)
            here.copy_(finite & ~right_finite)
            same = (mine.double() == theirs.double()) | (mine.isnan() & theirs.isnan()) | (finite & right_finite)
            counts.append((~same).sum())
            shown.append((~finite & right_finite).sum())
        exposed += int(sum(read_numbers(shown)))
        different += int(sum(read_numbers(counts)))
    return Comparison(hidden, exposed, different, count)


def replaced(tensor: torch.Tensor, by: float) -> torch.Tensor:
    """A tensor with its infinities and NaN replaced by a finite number."""
    return torch.where(finite_elements(tensor), tensor, torch.full_like(tensor, by)) if tensor.is_floating_point() else tensor


def is_every_one(mask: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether the flat mask holds every element that is not finite."""
    return not any(read_numbers([(~(torch.isfinite(right) | here)).any() for right, here in in_blocks(expected, mask)]))


def saturated(
    masks: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Of the masked elements those with the largest number of their type, of either sign, where an infinity is expected.

    None of types of a small range, in which careful kernels bound what they store.
    """
    found = [torch.zeros_like(mask) for mask in masks]
    for kept, mask, output, right in zip(found, masks, outputs, expected, strict=True):
        most = torch.finfo(output.dtype).max if output.dtype.is_floating_point else 0.0
        for here, hidden, mine, theirs in in_blocks(kept, mask, output, right) if most > _WIDE_RANGE else ():
            here.copy_(hidden & (mine.abs() == most) & theirs.isinf())
    return found


_WIDE_RANGE = 1e30
"""Types that hold such numbers have the range of float32."""
REPLACEMENTS = (1.5, -2.25)
"""Finite numbers in place of special ones: outputs that are the same with both do not depend on them."""


def depends(mask: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether one of the masked elements differs by more than rounding in float64. The mask is flat."""
    found: list[torch.Tensor] = []
    for here, a, b in in_blocks(mask, one, other):
        x, y = a.double(), b.double()
        found.append((here & ((x - y).abs() > 1e-9 * (x.abs() + y.abs()) + 1e-300)).any())
    return any(read_numbers(found))
