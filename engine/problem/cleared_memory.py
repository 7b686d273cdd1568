"""Clears memory that a reference asks for uninitialised. Imports torch.

An argument of ``torch.empty`` is a place for the output in some formats. Its contents are what was there before: inputs drawn
again from their seed differ then, or hold what the forward is about to write, so that it seems to change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_UNINITIALISED = frozenset({_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided})


class ClearedMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """``torch.empty`` and its like return zeros."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        made = func(*args, **(kwargs or {}))
        if getattr(func, "overloadpacket", None) in _UNINITIALISED and made.device.type != "meta":
            made.zero_()
        return made
