"""A reference at work: its inputs, its model, its outputs, the same in float64, and its signature. Imports torch.

Loaded by judge and host processes only. Knows what a kernel is to be called with and compared against; nothing of
tolerances, kernels or clocks.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.domain.errors import DeviceError, ProblemError
from engine.domain.model import Number, Operand, Problem, Role, Signature, Workload
from engine.problem import header, names, source
from engine.problem.census import Census
from engine.problem.loading import Construction, Loaded, plain_tensors
from engine.problem.precision import cast, cast_model, widened
from engine.problem.randomness import fingerprint, seeded
from engine.problem.values import contiguous, is_dense, map_arguments, results, same, tensors

_FORWARD_SEED = 0
"""A forward that draws random numbers starts from this seed, so that two calls agree."""


@dataclass(frozen=True, slots=True)
class Exact:
    """The outputs of a reference in float64, and what stood in the way of that: empty when nothing did."""

    outputs: tuple[Tensor, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Habits:
    """What the first call of a forward showed that it does besides returning something."""

    changes_inputs: bool
    changes_state: bool
    draws_random: bool


@dataclass(frozen=True, slots=True)
class _Trace:
    """One forward pass, run or imagined: all that a signature is made from."""

    held: list[tuple[str, Role, Tensor]]
    inputs: tuple[object, ...]
    outputs: tuple[Tensor, ...]
    census: Census


class Reference:
    """One workload of a problem on one device (``cpu``, ``cuda:0``).

    Making it executes the reference's file. Every method raises ProblemError when the reference itself raises or does
    not keep to KernelBench's format, naming the file, its line and the exception.
    """

    def __init__(self, problem: Problem, workload: Workload, device: str = "cpu") -> None:
        self.problem = problem
        self.workload = workload
        self.device = _device(device)
        self._loaded = Loaded(problem, workload)
        self._habits: _Habits | None = None
        self._shapes: tuple[tuple[int, ...], ...] | None = None
        self._traced: tuple[Signature, frozenset[str]] | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a sceptic must know of this reference; complete after the first ``call``."""
        habits = self._habits
        if habits is None:
            return ()
        found = []
        if habits.changes_inputs:
            found.append("the reference changes its inputs in place; kernels must not")
        if habits.changes_state:
            found.append("the reference changes its own state; every call starts from the initial state")
        if habits.draws_random:
            found.append("the reference draws random numbers in forward")
        return tuple(found)

    @property
    def stateful(self) -> bool:
        """Whether a call of the model changes it, by what the first ``call`` showed."""
        return self._habits is not None and self._habits.changes_state

    def inputs(self, seed: int) -> tuple[object, ...]:
        """Fresh arguments of ``forward``: the same for the same seed; tensors contiguous and on the device.

        No generator is left changed.
        """
        with seeded(seed, self.device):
            return self._loaded.make_inputs(self.device)

    def model(self, seed: int) -> nn.Module:
        """A freshly made model on the device, with the weights of ``seed``, in the mode its author left it."""
        with seeded(seed, self.device):
            return self._loaded.make_model(self.device)

    def left_to_chance(self, model: nn.Module, inputs: tuple[object, ...]) -> bool:
        """Whether the outputs depend on random numbers that ``forward`` draws: then no kernel can make the same."""
        if self._habits is None:
            self.call(model, inputs)
        if self._habits is None or not self._habits.draws_random:
            return False
        one, other = (self.call(model, inputs, seed) for seed in (_FORWARD_SEED, _FORWARD_SEED + 1))
        return not all(map(same, one, other))

    def call(self, model: nn.Module, inputs: tuple[object, ...], seed: int = _FORWARD_SEED) -> tuple[Tensor, ...]:
        """The outputs of ``model(*inputs)``, in order, contiguous, sharing memory with nothing.

        Tuples, lists and dictionaries are flattened, numbers become 0-dim tensors. ``inputs`` and the model's state are
        as before when it returns, whatever the forward does to them: the first call works on copies and looks. Random
        numbers that the forward draws are those of ``seed``.
        """
        habits = self._habits
        probing = habits is None
        with torch.no_grad(), ExitStack() as stack, self._loaded.explained("forward()", self.device):
            if habits is None or habits.draws_random:
                stack.enter_context(seeded(seed, self.device))
            copied = habits is None or habits.changes_inputs
            given = map_arguments(lambda t: t.clone(), inputs) if copied else inputs
            state = _State(model) if habits is None or habits.changes_state else None
            if state is not None:
                stack.callback(state.restore)
            before = fingerprint(self.device) if probing else ()
            outputs = self._outputs(model(*given), model, given)
            if probing and state is not None:
                self._habits = _Habits(
                    changes_inputs=not all(map(same, tensors(list(inputs)), tensors(list(given)))),
                    changes_state=state.changed(),
                    draws_random=fingerprint(self.device) != before,
                )
            return outputs

    def construction(self, seed: int) -> Construction:
        """What ``get_init_inputs`` says when the model of ``seed`` is made."""
        with seeded(seed, self.device):
            return self._loaded.construction()

    def arguments(self, model: nn.Module, inputs: tuple[object, ...]) -> tuple[Tensor, ...]:
        """The tensors that a kernel receives for these: inputs, parameters, buffers, as ``signature`` lists them.

        Those of the model that are contiguous are its own, not copies.
        """
        held = (tensor for _, _, tensor in _held(model))
        return tuple(contiguous(tensor) for tensor in (*tensors(list(inputs)), *held))

    def cast(self, model: nn.Module, dtype: torch.dtype) -> nn.Module:
        """A copy of ``model`` in another floating-point type."""
        with torch.no_grad(), self._loaded.explained(f"converting the model to {dtype}", self.device):
            return cast_model(model, dtype)

    def cast_inputs(self, inputs: tuple[object, ...], dtype: torch.dtype) -> tuple[object, ...]:
        """``inputs`` with the floating-point tensors in another type."""
        with self._loaded.explained(f"converting the inputs to {dtype}", self.device):
            return map_arguments(lambda t: cast(t, dtype), inputs)

    def double(self, model: nn.Module) -> nn.Module:
        """``cast`` to float64."""
        return self.cast(model, torch.float64)

    def doubled(self, inputs: tuple[object, ...]) -> tuple[object, ...]:
        """``cast_inputs`` to float64."""
        return self.cast_inputs(inputs, torch.float64)

    def exact(self, model: nn.Module, inputs: tuple[object, ...]) -> Exact:
        """The outputs with all arithmetic in float64, casts to narrower types inside the forward included.

        Where an operator has no float64 form, or memory does not suffice, float32 stands in and ``note`` says so.
        """
        try:
            with widened():
                return Exact(self.call(self.double(model), self.doubled(inputs)))
        except ProblemError as error:
            reason = str(error)
        outputs = self.call(self.cast(model, torch.float32), self.cast_inputs(inputs, torch.float32))
        return Exact(outputs, f"judged against float32, for in float64: {reason}")

    def signature(self) -> Signature:
        """What a kernel for this workload is called with: operands in the ABI's order, constants, operations.

        Found without computing anything where the forward allows it, else by running it once.
        """
        return self._trace()[0]

    def ops_used(self) -> frozenset[str]:
        """Families of operators that the forward runs: ``convolution``, ``matmul``, ``attention``, ``softmax`` …"""
        return self._trace()[1]

    def _trace(self) -> tuple[Signature, frozenset[str]]:
        if self._traced is None:
            trace = self._imagined() or self._run()
            self._traced = self._signature(trace), frozenset(trace.census.families)
        return self._traced

    def _imagined(self) -> _Trace | None:
        """The forward on tensors without contents; None where it looks at contents or leaves torch."""
        census = Census(self.device)
        try:
            # A module of its own: what a file keeps at module level must never hold tensors without contents.
            loaded = Loaded(self.problem, self.workload)
            with ExitStack() as stack:
                stack.enter_context(seeded(_FORWARD_SEED, self.device))
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
                stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
                stack.enter_context(torch.no_grad())
                inputs = loaded.make_inputs(self.device)
                with self.device:
                    model = loaded.make_model(self.device)
                held = _held(model)
                with census:
                    returned = model(*inputs)
                return _Trace(held, inputs, tuple(results(returned, self.device)), census)
        except Exception:
            return None

    def _run(self) -> _Trace:
        census = Census(self.device)
        inputs, model = self.inputs(_FORWARD_SEED), self.model(_FORWARD_SEED)
        with census:
            outputs = self.call(model, inputs)
        return _Trace(_held(model), inputs, outputs, census)

    def _outputs(self, returned: object, model: nn.Module, given: tuple[object, ...]) -> tuple[Tensor, ...]:
        found = tuple(results(returned, self.device))
        if not found:
            raise ProblemError(f"{self._loaded.file}: forward returns no tensor: there is nothing to compare")
        self._check_outputs(found)
        shared = {_storage(t) for t in (*tensors(list(given)), *(t for _, _, t in _held(model)))}
        outputs = []
        for tensor in found:
            output = contiguous(tensor.to(self.device))
            outputs.append(output.clone() if _storage(output) in shared else output)
            shared.add(_storage(outputs[-1]))
        return tuple(outputs)

    def _check_outputs(self, found: tuple[Tensor, ...]) -> None:
        """Raises ProblemError for outputs that cannot lie in memory made for them beforehand."""
        for tensor in found:
            if not is_dense(tensor):
                kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else "sparse"
                raise ProblemError(f"{self._loaded.file}: forward returns a {kind} tensor: only dense ones can be judged")
        shapes = tuple(tuple(tensor.shape) for tensor in found)
        if self._shapes not in (None, shapes):
            raise ProblemError(
                f"{self._loaded.file}: the shapes of forward's outputs depend on what its inputs hold ({self._shapes}, then "
                f"{shapes}): no memory can be lent for them"
            )
        self._shapes = shapes

    def _signature(self, trace: _Trace) -> Signature:
        labels = self._loaded.forward_names(len(trace.inputs))
        rows: list[tuple[str, Role, Tensor]] = []
        scalars: dict[str, Number] = {}
        plain = True
        for label, argument in zip(labels, trace.inputs, strict=True):
            match argument:
                case Tensor():
                    rows.append((label, Role.INPUT, argument))
                case bool() | int() | float():
                    scalars[label] = argument
                case _:
                    plain = False
                    rows += [(f"{label}{i}", Role.INPUT, t) for i, t in enumerate(tensors(argument))]
        rows += trace.held
        alone = len(trace.outputs) == 1
        rows += [("out" if alone else f"out{i}", Role.OUTPUT, t) for i, t in enumerate(trace.outputs)]
        constants = _constants(self._numbers(), self._loaded.init_arguments(), scalars)
        operands = _operands(rows, constants)
        return Signature(
            operands=operands,
            constants=constants,
            operations=trace.census.total,
            unit=trace.census.unit,
            scalar_only=plain and all(is_dense(t) for _, _, t in rows) and all(map(header.has_type, operands)),
        )

    def _numbers(self) -> dict[str, object]:
        assigned = source.assigned_names(self._loaded.tree)
        values = vars(self._loaded.module)
        return {name: value for name, value in values.items() if name in assigned and not name.startswith("_")}


class _State:
    """All tensors that a model holds, as they were: restored as the same objects in the same places with their values."""

    def __init__(self, model: nn.Module) -> None:
        self._places: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._values: list[tuple[Tensor, Tensor]] = []
        for module in model.modules():
            places: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
            for place in places:
                self._places.append((place, dict(place)))
                self._values += [(t.detach(), t.detach().clone()) for t in place.values() if isinstance(t, Tensor)]

    def changed(self) -> bool:
        """Whether a tensor was replaced, came, went, or holds other values than before."""
        moved = any(_moved(place, before) for place, before in self._places)
        return moved or not all(same(tensor, copy) for tensor, copy in self._values)

    def restore(self) -> None:
        """Put every tensor back and its values into it; take away those that came."""
        for place, before in self._places:
            for name in _moved(place, before):
                if name in before:
                    place[name] = before[name]
                else:
                    del place[name]
        for tensor, copy in self._values:
            tensor.copy_(copy)


def _moved(place: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Names in either table that stand for another object than in the other one, where one of the two is a tensor."""
    known = dict.fromkeys((*before, *place))
    pairs = ((name, before.get(name), place.get(name)) for name in known)
    return [name for name, old, new in pairs if old is not new and (isinstance(old, Tensor) or isinstance(new, Tensor))]


def _device(label: str) -> torch.device:
    try:
        device = torch.device(label)
    except RuntimeError as error:
        raise DeviceError(f"no device is called {label!r}: give cpu or cuda:0") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise DeviceError(f"device {label} cannot be used: PyTorch finds no CUDA device; check the driver or use cpu")
        device = torch.device("cuda", device.index or 0)
        if device.index >= torch.cuda.device_count():
            raise DeviceError(f"there is no device {label}: PyTorch finds {torch.cuda.device_count()} CUDA device(s)")
    return device


def _held(model: nn.Module) -> list[tuple[str, Role, Tensor]]:
    """Parameters, then buffers, then tensors kept as plain attributes, each in the model's order."""
    rows: list[tuple[str, Role, Tensor]] = [(n, Role.PARAMETER, p) for n, p in model.named_parameters()]
    rows += [(n, Role.BUFFER, b) for n, b in model.named_buffers()]
    for prefix, module in model.named_modules():
        rows += [(f"{prefix}.{n}".strip("."), Role.BUFFER, t) for n, t in plain_tensors(module)]
    return rows


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if is_dense(tensor) and tensor.numel() else id(tensor)


def _constants(*tables: dict[str, object] | dict[str, Number]) -> dict[str, Number]:
    """Every finite number of the tables under an upper-case name, sequences' as NAME_0, NAME_1 …; earlier tables win.

    A later number whose name is taken by a different value gets ``_`` behind its name.
    """
    found: dict[str, Number] = {}
    for table in tables:
        for label, value in table.items():
            for name, number in _numbers_in(label, value):
                free = names.macro(name)
                while found.get(free, number) != number:
                    free += "_"
                found.setdefault(free, number)
    return found


def _numbers_in(label: str, value: object) -> Iterable[tuple[str, Number]]:
    match value:
        case bool():
            yield label, int(value)
        case int() | float() if math.isfinite(value):
            yield label, value
        case list() | tuple():
            for i, inner in enumerate(value):
                if isinstance(inner, int | float):
                    yield from _numbers_in(f"{label}_{i}", inner)


def _operands(rows: list[tuple[str, Role, Tensor]], constants: dict[str, Number]) -> tuple[Operand, ...]:
    """Operands with names that C accepts and that differ even in upper case; outputs keep theirs."""
    taken = {label.upper() for label, role, _ in rows if role is Role.OUTPUT}
    operands = []
    for label, role, tensor in rows:
        name = names.identifier(label)
        if role is not Role.OUTPUT:
            name = names.free(name, lambda n: n.upper() in taken or n in constants)
            taken.add(name.upper())
        operands.append(Operand(name, role, tuple(int(s) for s in tensor.shape), str(tensor.dtype).split(".")[-1]))
    return tuple(operands)
