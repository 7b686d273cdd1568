"""Runs a model in another floating-point type than its author chose. Imports torch.

Converts models, and keeps explicit casts inside a forward from narrowing again. Knows nothing of references.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import CellType, FunctionType, ModuleType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from engine.domain.memory_plan import KEPT_WIDE
from engine.problem.loading import plain_tensors
from engine.problem.torch_modes import batched_convolution
from engine.problem.torch_modes.operator_mode import OperatorMode

_NARROW = frozenset({torch.float32, torch.float16, torch.bfloat16})
_EIGHT_BITS = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
_NARROW_COMPLEX = frozenset({torch.complex64, torch.complex32})
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
"""Complex types by the type of their parts. Half precision has none: operators lack it."""


def cast_model(model: nn.Module, dtype: torch.dtype, device: torch.device | None = None) -> nn.Module:
    """A copy of ``model`` whose floating-point and complex parameters, buffers and tensor attributes are ``cast`` to ``dtype``.

    It is on ``device``, if given. Each tensor is converted as it is copied: there is no second copy in the old type.
    """
    held = {id(t): t for m in model.modules() for t in (*m._parameters.values(), *m._buffers.values()) if t is not None}
    held |= {id(t): t for m in model.modules() for _, t in plain_tensors(m)}
    memo: dict[int, Any] = {key: _converted(t, dtype, device) for key, t in held.items() if _is_plain(t)}
    converted = copy.deepcopy(model, memo)
    # Module.to() would drop imaginary parts.
    converted._apply(lambda t: cast(t, dtype).to(device or t.device))  # type: ignore[no-untyped-call]
    for module in converted.modules():
        for name, tensor in plain_tensors(module):
            vars(module)[name] = cast(tensor, dtype).to(device or tensor.device)
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType) and value.__closure__:
                vars(module)[name] = _of_copy(value, memo)
    return converted


class WideModels:
    """A small model in float64, kept as long as the model lives, or another takes its place.

    Copying the modules of a DenseNet takes longer than a call of it.
    """

    def __init__(self) -> None:
        self._model: ref[nn.Module] | None = None
        self._kept: tuple[torch.device, nn.Module, list[object]] | None = None

    def get(self, model: nn.Module, device: torch.device, convert: Callable[[], nn.Module]) -> tuple[nn.Module, bool]:
        """The model in float64 on the device, and whether it is kept: a call must leave its tensors as they were.

        Where a call left something else behind, as in a dictionary, it is converted again: each call is the first one.
        """
        if self._kept is not None and self._model is not None and self._model() is model:
            place, found, before = self._kept
            if place == device and _are_same(before, list(_contents(found))):
                return found, True
            del found, before
        self._forget()
        found = convert()
        held = [t for m in found.modules() for t in (*m._parameters.values(), *m._buffers.values()) if t is not None]
        held += [tensor for module in found.modules() for _, tensor in plain_tensors(module)]
        keep = len(held) >= _FEWEST_KEPT and sum(tensor.nbytes for tensor in held) <= KEPT_WIDE
        if keep:
            self._model, self._kept = ref(model, self._forget), (device, found, list(_contents(found)))
        return found, keep

    def _forget(self, _: object = None) -> None:
        self._model = self._kept = None


_FEWEST_KEPT = 8
"""Parameters, buffers and other tensors from which on converting a model takes time."""


def _contents(model: nn.Module) -> Iterator[object]:
    """What the modules' attributes hold: numbers, texts and, by identity, all else.

    ``ModelState`` restores tensors that are attributes; of those in lists and the like it counts whether they were written to.
    """
    for module in model.modules():
        for name, value in vars(module).items():
            if name not in _OF_EVERY_MODULE:
                yield name
                yield from (value,) if isinstance(value, Tensor) else _parts(value, _DEEPEST)


_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
_DEEPEST = 5
"""How far attributes are followed into what they hold."""


def _parts(value: object, deepest: int) -> Iterator[object]:
    inner: Collection[object] = ()
    match value:
        case None | int() | float() | str() | nn.Module() | type() | ModuleType() | FunctionType():
            yield value
            return
        case Tensor():
            yield from (value, 0 if value.is_inference() else value._version)
            return
        case dict():
            inner = [part for item in value.items() for part in item]
        case list() | tuple() | set() | frozenset() | deque():
            inner = value
        case _:
            yield value
            inner = [getattr(value, "__dict__", None)]
    yield len(inner)
    for part in inner if deepest else ():
        yield from _parts(part, deepest - 1)


def _are_same(before: Sequence[object], now: Sequence[object]) -> bool:
    def same(one: object, other: object) -> bool:
        return one is other or (isinstance(one, int | float | str) and type(one) is type(other) and one == other)

    return len(before) == len(now) and all(map(same, before, now))


def _is_plain(tensor: Tensor) -> bool:
    inexact = tensor.is_floating_point() or tensor.is_complex()
    return type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and inexact


def _converted(tensor: Tensor, dtype: torch.dtype, device: torch.device | None) -> Tensor:
    found = tensor.detach().to(device=device or tensor.device, dtype=_type_in(dtype, tensor), copy=True)
    return nn.Parameter(found, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else found


def _of_copy(function: FunctionType, memo: Mapping[int, Any]) -> FunctionType:
    """A function kept as an attribute, with the modules in its closure replaced by their copies.

    ``self.mlpf = lambda x: m.c_proj(x)`` would otherwise go on calling the original's layers.
    """
    cells = []
    for cell in function.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # a name that was never assigned
            cells.append(cell)
            continue
        cells.append(CellType(memo.get(id(held), held)) if isinstance(held, nn.Module) else cell)
    copied = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells))
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A floating-point tensor in ``dtype``, and a complex one with parts of it, where there are such; any other as it is."""
    return tensor.to(_type_in(dtype, tensor))


def _type_in(dtype: torch.dtype, tensor: Tensor) -> torch.dtype:
    """The type of a tensor once it is ``cast``."""
    if tensor.is_complex():
        return _COMPLEX.get(dtype, tensor.dtype)
    return dtype if tensor.is_floating_point() else tensor.dtype


_aten = torch.ops.aten
_MADE_RANDOM = frozenset({_aten.rand, _aten.randn, _aten.rand_like, _aten.randn_like, _aten.normal})
_FILLED_RANDOM = frozenset({_aten.uniform_, _aten.normal_, _aten.exponential_})
"""Operators that draw floating-point numbers: a generator gives others for float64 than for narrower types."""
_DRAWING = frozenset(str(packet).rpartition(".")[2].rstrip("_") for packet in _MADE_RANDOM | _FILLED_RANDOM)


def draws_numbers(operators: Collection[str]) -> bool:
    """Whether one of these operators draws floating-point numbers."""
    return any(name.rstrip("_") in _DRAWING for name in operators)


class _InFloat64(OperatorMode):  # type: ignore[no-untyped-call]
    """Operators with a ``dtype`` of float32 or narrower return float64 instead, and complex128 instead of narrower complex
    numbers. On a GPU torch's own convolutions run.

    With cuDNN's, calibrating one transposed convolution of KernelBench took more than a minute of an H200 (level 1, 68). Where
    torch's fail, for lack of memory for example, cuDNN's run. Batches of many small samples: see ``batched_convolution``.

    Random numbers are drawn in the type that the reference gives them, or in ``default``, and then widened.
    """

    def __init__(self, default: torch.dtype, narrow: frozenset[torch.dtype]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._default, self._narrow = default, narrow

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self._drawn(func, args, given)
        if (wanted := given.get("dtype")) in self._narrow or wanted in _NARROW_COMPLEX:
            given["dtype"] = torch.float64 if wanted in self._narrow else torch.complex128
        if func is torch.ops.aten.convolution.default and args[0].is_cuda:
            with suppress(RuntimeError), _without_cudnn():
                return _convolution(func, args, given)
        return func(*args, **given)

    def _drawn(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        family = func.overloadpacket
        if family in _MADE_RANDOM and not (family is _aten.normal and isinstance(args[0], Tensor)):
            return cast(func(*args, **{**given, "dtype": given.get("dtype") or self._default}), torch.float64)
        if family in _FILLED_RANDOM and args[0].dtype == torch.float64:
            return args[0].copy_(func(args[0].to(self._default), *args[1:], **given))
        return func(*args, **given)


def _convolution(func: Any, args: Sequence[Any], given: Mapping[str, object]) -> object:
    """The convolution, with its bias added last: in three dimensions torch copies the bias for each sample and channel.

    That took 46 of 59 ms of an H200 (KernelBench level 2, 90).
    """
    x, weight, bias, stride, padding, dilation, transposed, _, groups = args
    if not transposed and batched_convolution.suits(x, weight, stride, padding, dilation):
        return batched_convolution.convolution(x, weight, bias, stride, padding, dilation, groups)
    found = func(x, weight, None, *args[3:], **given)
    return found if bias is None else found.add_(bias.reshape(-1, *[1] * (weight.dim() - 2)))


@contextmanager
def _without_cudnn() -> Iterator[None]:
    """Within: torch's own operators run. Nothing else of cuDNN's settings is touched."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


@contextmanager
def float64_arithmetic(*, eight_bits: bool = False) -> Iterator[None]:
    """Within: tensors are float64 unless stated otherwise, and casts to a narrower floating-point type give float64.

    ``eight_bits``: those to eight-bit floats too. Where a forward quantises on its way, that is a step of its own, and stays.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _InFloat64(before, _NARROW | _EIGHT_BITS if eight_bits else _NARROW):
            yield
    finally:
        torch.set_default_dtype(before)
