"""Draws large random tensors of the CPU on a GPU, which is many times faster. Imports torch.

A model is constructed on the CPU, as KernelBench does it, by the judge and by a kernel's module alike, again for every process.
The weights of a level 3 MLP took a CPU 16 s each time. Both sides draw with the same generator in the same order, so
they get the same numbers; the tensors stay on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from engine.problem.torch_modes.operator_mode import OperatorMode

LEAST = 1 << 20
"""Elements from which a tensor is drawn on the device."""
_SEEDS = 2**63
_aten = torch.ops.aten
_FILLS = frozenset({_aten.uniform_.default, _aten.normal_.default})
_MAKES: Mapping[object, Callable[..., Tensor]] = {_aten.rand.default: Tensor.uniform_, _aten.randn.default: Tensor.normal_}


class _LargeDraws(OperatorMode):  # type: ignore[no-untyped-call]
    """``uniform_``, ``normal_``, ``rand`` and ``randn`` of large CPU tensors, without a generator of the caller's."""

    def __init__(self, device: torch.device, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator(device).manual_seed(seed % _SEEDS)

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        if func in _FILLS and given.get("generator") is None and self._takes(args[0]):
            drawn = torch.empty(args[0].shape, dtype=args[0].dtype, device=self._generator.device)
            return args[0].copy_(func(drawn, *args[1:], **{**given, "generator": self._generator}))
        if func not in _MAKES or not _is_large_on_cpu(args[0], given):
            return func(*args, **given)
        made = _aten.empty.memory_format(*args, **given)
        drawn = torch.empty(made.shape, dtype=made.dtype, device=self._generator.device)
        return made.copy_(_MAKES[func](drawn, generator=self._generator))

    def _takes(self, tensor: Tensor) -> bool:
        return tensor.device.type == "cpu" and tensor.is_floating_point() and tensor.numel() >= LEAST

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether torch.compile may compile within: a constructor may call what it has compiled."""
        return True


def _is_large_on_cpu(shape: Sequence[int], given: Mapping[str, Any]) -> bool:
    """Whether ``rand`` or ``randn`` is to make a large tensor of numbers on the CPU."""
    device, dtype = given.get("device"), given.get("dtype") or torch.get_default_dtype()
    return (device is None or torch.device(device).type == "cpu") and dtype.is_floating_point and math.prod(shape) >= LEAST


@contextmanager
def drawn_on(device: torch.device, seed: int) -> Iterator[None]:
    """Within: large random tensors of the CPU are drawn on ``device``, the same for the same seed. A CPU changes nothing."""
    if device.type == "cpu":
        yield
        return
    with _LargeDraws(device, seed):
        yield
