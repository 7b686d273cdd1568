"""Clears memory that a reference asks for uninitialised. Imports torch.

An argument of ``torch.empty`` is a place for the output in some formats. Its contents are what was there before: inputs drawn
again from their seed differ then, or hold what the forward is about to write, so that it seems to change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from engine.problem.torch_modes.operator_mode import OperatorMode

_aten = torch.ops.aten
_UNINITIALISED = frozenset({_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided})


class ClearedMemory(OperatorMode):  # type: ignore[no-untyped-call]
    """``torch.empty`` and its like return zeros."""

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        made = func(*args, **given)
        if getattr(func, "overloadpacket", None) in _UNINITIALISED and made.device.type != "meta":
            made.zero_()
        return made
