"""How far limits on perturbed inputs are widened beyond the reference's own errors there. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.domain.model import PrecisionClass
from engine.trial.judge.inputs.perturbations import COPIES, EQUAL_ROWS, NEAR_ONE, WIDE_ONLY
from engine.trial.judge.outputs.relative_errors import RelativeErrors

_PERTURBED_MAX_SCALED = 5e-3
"""Lower bound on the error of a single element on perturbed inputs. The error of an unwritten element exceeds 0.5."""
_PERTURBED_REL_FRO = 1e-6
"""Lower bound on the error of a whole output in fp32 on perturbed inputs. Where an outlier is added to many small numbers, sums
in another order than the library's showed 60 times its error. TF32's error is a few hundred times this bound."""
_LARGE_REL_FRO = 1e-5
"""The same for inputs of about 1000: half a unit in their last place is 3e-5, and an exponential makes it a relative error of
the output. fp32 allows ten times this."""

_CANCELLING = (NEAR_ONE, COPIES, EQUAL_ROWS)
_CANCELLING_REL_FRO = 1e-3
"""The same for inputs near one and for copied rows, where differences and logarithms cancel: they show what is left out, not
how it is rounded."""


def _is_fp32(dtype: torch.dtype) -> bool:
    return dtype is torch.float32


def with_more_room(errors: RelativeErrors, dtypes: Sequence[torch.dtype], distribution: str) -> RelativeErrors:
    """The errors on perturbed inputs, widened: a single row can be ill-conditioned, for example by nearly tied scores."""
    least = _CANCELLING_REL_FRO if distribution in _CANCELLING else _PERTURBED_REL_FRO
    return errors.each(lambda i, one: one.wider(RelativeErrors(least * _is_fp32(dtypes[i]), _PERTURBED_MAX_SCALED)))


def with_common_limits(
    found: dict[str, dict[str, RelativeErrors]], dtypes: Sequence[torch.dtype]
) -> dict[str, dict[str, RelativeErrors]]:
    """The same errors for all distributions of large inputs: their intermediate results are rounded alike.

    A reference may be exact on one of them (a softmax with one outlier in each row), and a kernel that orders its products
    and sums otherwise, or scales its inputs first, is not. In fp32 the error is at least ``_LARGE_REL_FRO``.
    """
    large = [found[name] for name in WIDE_ONLY if name in found]
    common = {
        precision: one[precision].wider(*(other[precision] for other in large if precision in other))
        for one in large
        for precision in one
    }
    fp32 = PrecisionClass.FP32.value
    if fp32 in common:
        common[fp32] = common[fp32].each(lambda i, one: one.wider(RelativeErrors(_LARGE_REL_FRO * _is_fp32(dtypes[i]), 0.0)))
    return {name: dict(common) if name in WIDE_ONLY else errors for name, errors in found.items()}
