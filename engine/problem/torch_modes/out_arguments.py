"""Calls with ``out=`` while a forward is traced. Imports torch.

Functionalisation knows ``out=`` of torch's basic operators only: it refuses ``torch.matmul(a, b, out=c)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode


class OutArguments(TorchFunctionMode):
    """Makes a call with ``out=`` a call without it, whose results are then copied there.

    Where a shape differs, torch would resize the memory; such a call stays as it is.
    """

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        places = given.pop("out", None)
        if places is None:
            return func(*args, **(kwargs or {}))
        found = func(*args, **given)
        pairs = [(places, found)] if isinstance(places, Tensor) else list(zip(places, found, strict=False))
        if any(place.shape != result.shape for place, result in pairs):
            return func(*args, **(kwargs or {}))
        for place, result in pairs:
            place.copy_(result)
        return places
