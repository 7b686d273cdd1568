"""Which tensors operators wrote to, also where the values stayed the same. Imports torch."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


class Versions:
    """The version counters of tensors. Torch increments a counter whenever an operator writes to the tensor or to a view of it.

    An operator in place may leave the values of one call as they were (``relu_`` of positive numbers) and change the next ones.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._counted = [(tensor, _version(tensor)) for tensor in tensors]

    def written(self) -> list[bool]:
        """For each of the tensors whether it was written to since."""
        return [_version(tensor) != version for tensor, version in self._counted]


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # torch counts no versions of tensors made for inference
