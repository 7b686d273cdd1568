"""Varies parameters and buffers that a model's constructor fills with one number, or as an identity. Imports torch.

Affine weights of ones, zero biases, running statistics and weights that copy their input hide a kernel that leaves them out.
While a model is constructed, every such tensor gets random values near its number instead. Parameters, as the weights of norms,
take either sign where the reference stays finite, since a maximum or ReLU commutes with positive factors only. The
values depend on the seed, the number, the count of elements, the trial's device, on which they are drawn, and the tensor's
place among those of as many elements in the order of registration: a kernel that takes one constant for another is wrong. A
module with other names gets the same ones, and one that prepares its weights in the constructor prepares these. For a module
that registers them in another order they are ``alike``: the place does not count, and ones stay positive.

Parameters that start as copies of one another, as the layers of ``nn.TransformerEncoder`` do, vary too: each element of a copy
by a share of itself. They stay copies where constants are alike. So do parameters that start as the norms of another one's
slices, as weight normalisation's do, which the direction alone would replace.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from engine.domain.errors import ProblemError
from engine.problem.arguments.values import finite_elements

_SHARE = 0.25
"""Values lie within this share of the constant."""
_AROUND_ZERO = 0.5
_SEEDS = 2**63
_NORMS_RTOL = 1e-3
"""Norms in fp32 of slices of millions of elements; half precision is not looked into."""
COPIED = math.inf
"""Stands for the number of a parameter that starts as a copy of another one. Constants are finite."""
NORMS = -math.inf
"""The same for one that starts as the norms of another one's slices."""
FACTORS = sys.float_info.max
"""The same for one of several ones that may take either sign."""
OTHERS = -FACTORS
"""The same for one of another number, or with one element."""
_NEGATED = FACTORS / 2
"""The same for one of these whose elements all change sign, on which the reference is tried."""
_NEGATIVE, _ALONE = 0.25, 0.5
"""The share of factors that become negative; how often one does that has one element."""


class Varied(StrEnum):
    """What constant parameters and buffers hold in a judged model."""

    APART = "apart"
    """Each other values."""
    ALIKE = "alike"
    """Those of the same number and count of elements the same values, copies the same too."""
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
    """The constant parameters and buffers of a model and those that are copies, and how many there are of each kind."""
    tensors = (*model.parameters(), *model.buffers())
    found = Counter((number, t.numel()) for t in tensors if (number := _constant_of(t)) is not None)
    for group in _equal(filter(_can_be_trained, model.parameters())):
        if len(group) > 1 and _constant_of(group[0]) is None:
            found[COPIED, group[0].numel()] += len(group)
    found.update((NORMS, norms.numel()) for owner in model.modules() for norms in _norms_in(owner))
    found.update((kind, t.numel()) for t in model.parameters() if (kind := _factors(t, _constant_of(t))) is not None)
    return found


def _factors(tensor: Tensor, number: float | None) -> float | None:
    """What stands for the ``number`` of this tensor if it may change its sign: not in a buffer, as a variance."""
    if not isinstance(tensor, nn.Parameter) or not number:
        return None
    return FACTORS if number == 1 and tensor.numel() > 1 else OTHERS


def with_usable_signs(
    constants: Counter[Constant], outputs: Callable[[Counter[Constant]], Iterable[Tensor]]
) -> Counter[Constant]:
    """``constants``, of which those keep their sign with others of which the ``outputs`` are not finite.

    They are not for a logarithm or a root of a negative parameter, or an exponent. ``outputs`` of a model in which they vary.
    """
    for kept in ((), (OTHERS,), (FACTORS,), (OTHERS, FACTORS)):
        found = Counter({one: count for one, count in constants.items() if one[0] not in kept})
        signs = {number for number, _ in found} & {OTHERS, FACTORS}
        if not signs:
            break
        tried = [found]
        if OTHERS in signs:
            tried.append(Counter({(_NEGATED if n == OTHERS else n, size): count for (n, size), count in found.items()}))
        if all(_are_finite(one, outputs) for one in tried):
            break
    return found


def _are_finite(constants: Counter[Constant], outputs: Callable[[Counter[Constant]], Iterable[Tensor]]) -> bool:
    try:
        return all(bool(finite_elements(output).all()) for output in outputs(constants))
    except ProblemError:
        return False


def _norms_in(owner: nn.Module) -> Iterator[Tensor]:
    """The parameters of a module, its children's excepted, that are the norms of another one's slices."""
    own = [parameter for parameter in owner.parameters(recurse=False) if _can_be_trained(parameter)]
    for norms in own:
        if any(_are_norms(norms, other) for other in own if other is not norms) and _constant_of(norms) is None:
            yield norms


def _are_norms(norms: Tensor, other: Tensor) -> bool:
    """Whether one tensor has the norms of the other's slices along one dimension. The first slice is looked at first."""
    if other.dim() < 2 or norms.dtype != other.dtype or norms.device != other.device:
        return False
    values, flat = other.detach(), norms.detach().flatten()
    along = (values.movedim(dim, 0).flatten(1) for dim, size in enumerate(values.shape) if size == flat.numel())
    return any(_has_norms(slices[:1], flat[:1]) and _has_norms(slices, flat) for slices in along)


def _has_norms(slices: Tensor, norms: Tensor) -> bool:
    return torch.allclose(slices.norm(dim=1), norms, rtol=_NORMS_RTOL, atol=0.0)


def _equal(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Groups of tensors with the same values, each in memory of its own, in order."""
    groups: list[list[Tensor]] = []
    by_first: dict[tuple[torch.Size, torch.dtype, float], list[list[Tensor]]] = {}
    for tensor in tensors:
        first = float(tensor.detach()[(0,) * tensor.dim()])
        similar = by_first.setdefault((tensor.shape, tensor.dtype, first), [])
        if any(tensor.data_ptr() == one.data_ptr() for group in similar for one in group):
            continue
        group = next((group for group in similar if torch.equal(group[0], tensor)), None)
        if group is None:
            similar.append(group := [])
            groups.append(group)
        group.append(tensor)
    return groups


def _can_be_trained(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter that training changes, with numbers of its own. Types of one byte have no arithmetic."""
    if not (isinstance(tensor, nn.Parameter) and tensor.requires_grad) or _is_special(tensor) or tensor.is_meta:
        return False
    return tensor.is_floating_point() and tensor.dtype.itemsize > 1 and tensor.numel() > 0


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
    varied: set[int] = field(default_factory=set)
    """The memory of the tensors that were varied."""
    scaled: Counter[Constant] = field(default_factory=Counter)
    """How many copies and norms were given other values."""

    def _place(self, tensor: Tensor, owner: nn.Module | None, name: str) -> int:
        """The tensor's place among the floating-point ones of as many elements; one that replaces another has that one's."""
        known = self.registered.setdefault(tensor.numel(), [])
        for place, one in enumerate(known):
            if one.tensor.data_ptr() == tensor.data_ptr() or (owner is not None and one.owner is owner and one.name == name):
                if one.tensor.data_ptr() != tensor.data_ptr():  # its memory may become another tensor's
                    self.varied.discard(one.tensor.data_ptr())
                one.tensor = tensor.detach()
                return place
        known.append(_Registered(tensor.detach(), owner, name))
        return len(known) - 1

    def vary(self, tensor: Tensor | None, owner: nn.Module | None = None, name: str = "") -> None:
        """Vary a tensor in place if it is one of the constants. ``owner``: the module that registers it under ``name``."""
        if tensor is None or _is_special(tensor) or not self._may_be_constant(tensor):
            return  # before all of a large weight is read, which its constructor has not filled yet
        if not tensor.is_floating_point() or tensor.is_meta:
            return
        place, number = self._place(tensor, owner, name), _constant_of(tensor)
        if number is None or (number, tensor.numel()) not in self.constants:
            return
        drawn_by = (self.seed, number, tensor.numel(), 0 if self.alike else place)
        draws = self._draws(tensor, drawn_by)
        values = number * (1 + _SHARE * draws) if number else _AROUND_ZERO * draws
        if share := self._negative_share(tensor, number):
            shares = (self._draws(tensor, (*drawn_by, FACTORS)) + 1) / 2
            values = torch.where(shares < share, -values, values)
        with torch.no_grad(), contextlib.suppress(RuntimeError):  # elements that share memory, as of expand(), stay
            tensor.copy_(values)
            self.varied.add(tensor.data_ptr())

    def _negative_share(self, tensor: Tensor, number: float) -> float:
        """How many of the elements change their sign."""
        kind, size = _factors(tensor, number), tensor.numel()
        if self.alike or kind is None:
            return 0.0
        if kind == OTHERS and (_NEGATED, size) in self.constants:
            return 1.0
        return (_ALONE if size == 1 else _NEGATIVE) if (kind, size) in self.constants else 0.0

    def _may_be_constant(self, tensor: Tensor) -> bool:
        return any(tensor.numel() == count and math.isfinite(number) for number, count in self.constants)

    def _draws(self, tensor: Tensor, drawn_by: tuple[float, ...]) -> Tensor:
        """A random number from −1 to 1 for each element, the same for the same ``drawn_by``."""
        generator = torch.Generator(self.device).manual_seed(hash(drawn_by) % _SEEDS)
        draws = torch.rand(tensor.numel(), generator=generator, dtype=torch.float64, device=self.device) * 2 - 1
        return draws.reshape(tensor.shape)

    @property
    def _parts(self) -> bool:
        """Whether copies get other values, among them those of constants."""
        return not self.alike and any(number == COPIED for number, _ in self.constants)

    def part(self, copy: Tensor, original: Tensor) -> None:
        """Give a copy other values, in place, if it is one of a parameter or of a buffer that was varied."""
        if not self._parts or not (_can_be_trained(copy) or original.data_ptr() in self.varied):
            return
        self._scale(copy, COPIED)

    def _scale(self, tensor: Tensor, kind: float) -> None:
        """Multiply each element by a random factor, in place."""
        place = 0 if self.alike else self.scaled[kind, tensor.numel()]
        self.scaled[kind, tensor.numel()] += 1
        factors = 1 + _SHARE * self._draws(tensor, (self.seed, kind, tensor.numel(), place)).to(tensor.device)
        with torch.no_grad(), contextlib.suppress(RuntimeError):
            tensor.copy_(tensor * factors)

    def vary_norms(self, owner: nn.Module) -> None:
        """Give a module's parameters that are the norms of another one's slices other values, in place."""
        sizes = [count for number, count in self.constants if number == NORMS]
        for norms in [norms for norms in _norms_in(owner) if norms.numel() in sizes] if sizes else ():
            self._scale(norms, NORMS)

    def finish(self, model: nn.Module) -> None:
        """Vary what a finished model still holds constant, and part what it still holds twice."""
        for tensor in (*model.parameters(), *model.buffers()):
            self.vary(tensor)
        for owner in model.modules():
            self.vary_norms(owner)
        if self._parts:
            buffers = (buffer for buffer in model.buffers() if buffer.data_ptr() in self.varied)
            for original, *copies in _equal((*filter(_can_be_trained, model.parameters()), *buffers)):
                for copy in copies:
                    self.part(copy, original)


@contextmanager
def varied_constants(
    seed: int, constants: Collection[Constant], device: torch.device, *, alike: bool = False
) -> Iterator[Callable[[nn.Module], None]]:
    """Within: parameters and buffers that are among ``constants`` vary as a model is constructed, for a trial on ``device``.

    ``alike``: those of the same number and count of elements get the same values (``Varied.ALIKE``). Copies are parted as
    ``copy.deepcopy`` makes them: a module that prepares its weights in the constructor prepares the parted ones. Yields a
    function that does the same to what a finished model still holds. Random generators are left unchanged.
    """
    variation = _Variation(seed, constants, device, alike)
    originals = [(owner, name, getattr(owner, name), varying) for owner, name, varying in _CONSTRUCTING]
    try:
        for owner, name, original, varying in originals:
            setattr(owner, name, varying(variation, original))
        yield variation.finish
    finally:
        for owner, name, original, _ in originals:
            setattr(owner, name, original)


def _filling(variation: _Variation, original: Any) -> Any:
    """A function of ``nn.init`` that varies the tensor that it has filled."""

    def filled(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        found = original(tensor, *args, **kwargs)
        variation.vary(tensor)
        return found

    return filled


def _registering(variation: _Variation, original: Any) -> Any:
    """A method of ``nn.Module`` that varies what it registers."""

    def register(module: nn.Module, name: str, value: Tensor | None, *args: Any, **kwargs: Any) -> Any:
        variation.vary(value, module, name)
        found = original(module, name, value, *args, **kwargs)
        variation.vary_norms(module)
        return found

    return register


def _resetting(variation: _Variation, original: Any) -> Any:
    """``reset_running_stats`` of normalisations, varying the statistics."""

    def reset(module: _NormBase) -> None:
        original(module)
        if module.track_running_stats:
            variation.vary(module.running_mean)
            variation.vary(module.running_var)

    return reset


def _copying(variation: _Variation, original: Any) -> Any:
    """``__deepcopy__`` of a tensor that parts the copy from the tensor."""

    def copied(tensor: Tensor, memo: dict[int, Any]) -> Any:
        is_known = id(tensor) in memo
        found = original(tensor, memo)
        if not is_known:
            variation.part(found, tensor)
        return found

    return copied


_CONSTRUCTING: tuple[tuple[Any, str, Callable[[_Variation, Any], Any]], ...] = (
    (nn.init, "_no_grad_fill_", _filling),
    (nn.init, "_no_grad_zero_", _filling),
    (nn.init, "eye_", _filling),
    (nn.init, "dirac_", _filling),
    (nn.Module, "register_parameter", _registering),
    (nn.Module, "register_buffer", _registering),
    (_NormBase, "reset_running_stats", _resetting),
    (nn.Parameter, "__deepcopy__", _copying),
    (Tensor, "__deepcopy__", _copying),
)
"""What a constructor makes tensors with, and how each is replaced."""
