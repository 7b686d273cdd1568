"""Varies parameters and buffers that a model's constructor fills with one number, or as an identity. Imports torch.

Affine weights of ones, zero biases, running statistics and weights that copy their input hide a kernel that leaves them out.
While a model is constructed, every such tensor gets random values near its number instead: nonzero ones keep their sign. The
values depend on the seed, the number, the count of elements, the trial's device, on which they are drawn, and the tensor's
place among those of as many elements in the order of registration: a kernel that takes one constant for another is wrong. A
module with other names gets the same ones, and one that prepares its weights in the constructor prepares these. For a module
that registers them in another order they are ``alike``: the place does not count.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

_SHARE = 0.25
"""Values lie within this share of the constant."""
_AROUND_ZERO = 0.5
_SEEDS = 2**63


class Varied(StrEnum):
    """What constant parameters and buffers hold in a judged model."""

    APART = "apart"
    """Each other values."""
    ALIKE = "alike"
    """Those of the same number and count of elements the same values."""
    KEPT = "kept"
    """The constructor's number."""


def _constant_of(tensor: Tensor | None) -> float | None:
    """The finite number that all elements of a floating-point tensor equal, ``None`` if they differ or there are none.

    Of a weight that copies its input it is 0, as most elements are.
    """
    if tensor is None or _is_special(tensor) or not tensor.is_floating_point() or tensor.numel() == 0 or tensor.is_meta:
        return None
    values = tensor.detach()
    first = float(values.reshape(-1)[0])
    if math.isfinite(first) and bool((values == first).all()):
        return first
    return 0.0 if isinstance(tensor, nn.Parameter) and tensor.requires_grad and _is_identity(values) else None


def _is_identity(tensor: Tensor) -> bool:
    """Whether a weight passes its input on, times one number: ``nn.init.eye_``, and ``dirac_`` with one element per channel."""
    if tensor.dim() < 2 or tensor.shape[0] != tensor.shape[1]:
        return False
    taps = tensor.flatten(2) if tensor.dim() > 2 else tensor[..., None]
    tap = int((taps[0, 0] != 0).int().argmax())
    diagonal = torch.eye(tensor.shape[0], dtype=tensor.dtype, device=tensor.device) * taps[0, 0, tap]
    return (
        bool(taps[0, 0, tap].isfinite()) and bool((taps[..., tap] == diagonal).all()) and int((taps != 0).sum()) == len(tensor)
    )


def _is_special(tensor: Tensor) -> bool:
    """Whether a tensor has no memory of its own elements yet, or is no plain one."""
    return nn.parameter.is_lazy(tensor) or tensor.layout is not torch.strided


Constant = tuple[float, int]
"""A number, and how many elements the tensor has."""


def counted_constants(model: nn.Module) -> Counter[Constant]:
    """The constant parameters and buffers of a model, and how many there are of each kind."""
    tensors = (*model.parameters(), *model.buffers())
    return Counter((number, t.numel()) for t in tensors if (number := _constant_of(t)) is not None)


@dataclass(slots=True)
class _Registered:
    """A tensor of a model that is being constructed. It is held: no other one gets its memory."""

    tensor: Tensor
    owner: nn.Module | None
    name: str


@dataclass(frozen=True, slots=True)
class _Variation:
    """Other values for some constants, the same for the same seed."""

    seed: int
    constants: Collection[Constant]
    device: torch.device
    alike: bool
    registered: dict[int, list[_Registered]] = field(default_factory=dict)
    """By count of elements, in order."""

    def _place(self, tensor: Tensor, owner: nn.Module | None, name: str) -> int:
        """The tensor's place among the floating-point ones of as many elements; one that replaces another has that one's."""
        known = self.registered.setdefault(tensor.numel(), [])
        for place, one in enumerate(known):
            if one.tensor.data_ptr() == tensor.data_ptr() or (owner is not None and one.owner is owner and one.name == name):
                one.tensor = tensor.detach()
                return place
        known.append(_Registered(tensor.detach(), owner, name))
        return len(known) - 1

    def vary(self, tensor: Tensor | None, owner: nn.Module | None = None, name: str = "") -> None:
        """Vary a tensor in place if it is one of the constants. ``owner``: the module that registers it under ``name``."""
        if tensor is None or _is_special(tensor) or all(tensor.numel() != count for _, count in self.constants):
            return  # before all of a large weight is read, which its constructor has not filled yet
        if not tensor.is_floating_point() or tensor.is_meta:
            return
        place, number = self._place(tensor, owner, name), _constant_of(tensor)
        if number is None or (number, tensor.numel()) not in self.constants:
            return
        drawn_by = (self.seed, number, tensor.numel(), 0 if self.alike else place)
        generator = torch.Generator(self.device).manual_seed(hash(drawn_by) % _SEEDS)
        draws = torch.rand(tensor.numel(), generator=generator, dtype=torch.float64, device=self.device) * 2 - 1
        values = number * (1 + _SHARE * draws) if number else _AROUND_ZERO * draws
        with torch.no_grad(), contextlib.suppress(RuntimeError):  # elements that share memory, as of expand(), stay
            tensor.copy_(values.reshape(tensor.shape))

    def finish(self, model: nn.Module) -> None:
        """Vary what a finished model still holds constant."""
        for tensor in (*model.parameters(), *model.buffers()):
            self.vary(tensor)


@contextmanager
def varied_constants(
    seed: int, constants: Collection[Constant], device: torch.device, *, alike: bool = False
) -> Iterator[Callable[[nn.Module], None]]:
    """Within: parameters and buffers that are among ``constants`` vary as a model is constructed, for a trial on ``device``.

    ``alike``: those of the same number and count of elements get the same values (``Varied.ALIKE``). Yields a function that
    varies what a finished model still holds constant. Random generators are left unchanged.
    """

    variation = _Variation(seed, constants, device, alike)
    vary = variation.vary

    def after(original: Any) -> Any:
        """Varies the tensor that a function of ``nn.init`` has filled."""

        def filled(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            found = original(tensor, *args, **kwargs)
            vary(tensor)
            return found

        return filled

    def registered(original: Any) -> Any:
        def register(module: nn.Module, name: str, value: Tensor | None, *args: Any, **kwargs: Any) -> Any:
            vary(value, module, name)
            return original(module, name, value, *args, **kwargs)

        return register

    def reset(module: _NormBase) -> None:
        before(module)
        if module.track_running_stats:
            vary(module.running_mean)
            vary(module.running_var)

    before = _NormBase.reset_running_stats
    places: list[tuple[Any, str, Any]] = [
        (nn.init, "_no_grad_fill_", after(nn.init._no_grad_fill_)),
        (nn.init, "_no_grad_zero_", after(nn.init._no_grad_zero_)),
        (nn.init, "eye_", after(nn.init.eye_)),
        (nn.init, "dirac_", after(nn.init.dirac_)),
        (nn.Module, "register_parameter", registered(nn.Module.register_parameter)),
        (nn.Module, "register_buffer", registered(nn.Module.register_buffer)),
        (_NormBase, "reset_running_stats", reset),
    ]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    try:
        for owner, name, changed in places:
            setattr(owner, name, changed)
        yield variation.finish
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
