"""Runs a reference: its inputs, model and outputs, the outputs in float64, and its signature. Imports torch.

Loaded by judge and host processes only. Knows what a kernel is called with and compared against; nothing of tolerances, kernels
or clocks.
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
from engine.problem import header, names, reference_code
from engine.problem.loading import Construction, LoadedReference, plain_tensors
from engine.problem.operation_count import OperationCounter
from engine.problem.precision import cast, cast_model, float64_arithmetic
from engine.problem.randomness import fingerprint, seeded
from engine.problem.values import contiguous, equal_values, is_dense, map_arguments, output_tensors, tensors

_FORWARD_SEED = 0
"""Seed for random numbers drawn by a forward, so that two calls agree."""


@dataclass(frozen=True, slots=True)
class Exact:
    """The outputs of a reference in float64. ``note`` gives the reason if they are not, else it is empty."""

    outputs: tuple[Tensor, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class _SideEffects:
    """Side effects of a forward, observed in its first call."""

    changes_inputs: bool
    changes_state: bool
    draws_random: bool


@dataclass(frozen=True, slots=True)
class _Trace:
    """One forward pass, run or on fake tensors: everything that a signature needs."""

    state: list[tuple[str, Role, Tensor]]
    inputs: tuple[object, ...]
    outputs: tuple[Tensor, ...]
    operations: OperationCounter


class Reference:
    """One workload of a problem on one device (``cpu``, ``cuda:0``).

    The constructor executes the reference's file. Every method raises ProblemError when the reference raises or violates
    KernelBench's format, naming the file, its line and the exception.
    """

    def __init__(self, problem: Problem, workload: Workload, device: str = "cpu") -> None:
        self.problem = problem
        self.workload = workload
        self.device = _device(device)
        self._loaded = LoadedReference(problem, workload)
        self._side_effects: _SideEffects | None = None
        self._shapes: tuple[tuple[int, ...], ...] | None = None
        self._traced: tuple[Signature, frozenset[str]] | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats of this reference, for the report; complete after the first ``call``."""
        effects = self._side_effects
        if effects is None:
            return ()
        caveats = []
        if effects.changes_inputs:
            caveats.append("the reference changes its inputs in place; kernels must not")
        if effects.changes_state:
            caveats.append("the reference changes its own state; every call starts from the initial state")
        if effects.draws_random:
            caveats.append("the reference draws random numbers in forward")
        return tuple(caveats)

    @property
    def stateful(self) -> bool:
        """Whether a call of the model changes its state, as seen in the first ``call``."""
        return self._side_effects is not None and self._side_effects.changes_state

    def inputs(self, seed: int) -> tuple[object, ...]:
        """Fresh arguments of ``forward``: the same for the same seed; tensors contiguous and on the device.

        Random generators are left unchanged.
        """
        with seeded(seed, self.device):
            return self._loaded.make_inputs(self.device)

    def model(self, seed: int) -> nn.Module:
        """A new model on the device with the weights of ``seed``, in the mode that its constructor sets."""
        with seeded(seed, self.device):
            return self._loaded.make_model(self.device)

    def has_random_outputs(self, model: nn.Module, inputs: tuple[object, ...]) -> bool:
        """Whether the outputs depend on random numbers that ``forward`` draws, so that no kernel can reproduce them."""
        if self._side_effects is None:
            self.call(model, inputs)
        if self._side_effects is None or not self._side_effects.draws_random:
            return False
        one, other = (self.call(model, inputs, seed) for seed in (_FORWARD_SEED, _FORWARD_SEED + 1))
        return not all(map(equal_values, one, other))

    def call(self, model: nn.Module, inputs: tuple[object, ...], seed: int = _FORWARD_SEED) -> tuple[Tensor, ...]:
        """The outputs of ``model(*inputs)``, in order, contiguous, sharing no memory.

        Tuples, lists and dictionaries are flattened, numbers become 0-dim tensors. ``inputs`` and the model's state are
        restored, whatever the forward does to them: the first call works on copies and records the side effects. Random
        numbers that the forward draws are those of ``seed``.
        """
        effects = self._side_effects
        probing = effects is None
        with torch.no_grad(), ExitStack() as stack, self._loaded.explain_errors("forward()", self.device):
            if effects is None or effects.draws_random:
                stack.enter_context(seeded(seed, self.device))
            copied = effects is None or effects.changes_inputs
            given = map_arguments(lambda t: t.clone(), inputs) if copied else inputs
            state = _ModelState(model) if effects is None or effects.changes_state else None
            if state is not None:
                stack.callback(state.restore)
            before = fingerprint(self.device) if probing else ()
            outputs = self._outputs(model(*given), model, given)
            if probing and state is not None:
                self._side_effects = _SideEffects(
                    changes_inputs=not all(map(equal_values, tensors(list(inputs)), tensors(list(given)))),
                    changes_state=state.changed(),
                    draws_random=fingerprint(self.device) != before,
                )
            return outputs

    def construction(self, seed: int) -> Construction:
        """The constructor arguments of the model of ``seed``."""
        with seeded(seed, self.device):
            return self._loaded.construction()

    def arguments(self, model: nn.Module, inputs: tuple[object, ...]) -> tuple[Tensor, ...]:
        """The tensors that a kernel receives: inputs, parameters, buffers, in the order of ``signature``.

        Contiguous tensors of the model are not copied.
        """
        held = (tensor for _, _, tensor in _model_tensors(model))
        return tuple(contiguous(tensor) for tensor in (*tensors(list(inputs)), *held))

    def cast(self, model: nn.Module, dtype: torch.dtype) -> nn.Module:
        """A copy of ``model`` in another floating-point type."""
        with torch.no_grad(), self._loaded.explain_errors(f"converting the model to {dtype}", self.device):
            return cast_model(model, dtype)

    def cast_inputs(self, inputs: tuple[object, ...], dtype: torch.dtype) -> tuple[object, ...]:
        """``inputs`` with the floating-point tensors in another type."""
        with self._loaded.explain_errors(f"converting the inputs to {dtype}", self.device):
            return map_arguments(lambda t: cast(t, dtype), inputs)

    def exact(self, model: nn.Module, inputs: tuple[object, ...]) -> Exact:
        """The outputs with all arithmetic in float64, casts to narrower types inside the forward included.

        Where an operator lacks float64, or memory does not suffice, float32 is used and ``note`` says so.
        """
        try:
            with float64_arithmetic():
                return Exact(self.call(self.cast(model, torch.float64), self.cast_inputs(inputs, torch.float64)))
        except ProblemError as error:
            reason = str(error)
        outputs = self.call(self.cast(model, torch.float32), self.cast_inputs(inputs, torch.float32))
        return Exact(outputs, f"compared with float32, because float64 failed: {reason}")

    def signature(self) -> Signature:
        """The signature of kernels for this workload: operands in the ABI's order, constants, operation count.

        Traced on fake tensors where the forward allows it, else by running it once.
        """
        return self._trace()[0]

    def ops_used(self) -> frozenset[str]:
        """Families of operators that the forward runs: ``convolution``, ``matmul``, ``attention``, ``softmax`` …"""
        return self._trace()[1]

    def _trace(self) -> tuple[Signature, frozenset[str]]:
        if self._traced is None:
            trace = self._trace_fake() or self._run()
            self._traced = self._signature(trace), frozenset(trace.operations.families)
        return self._traced

    def _trace_fake(self) -> _Trace | None:
        """The forward on fake tensors; ``None`` if it reads tensors' contents or leaves torch."""
        counter = OperationCounter(self.device)
        try:
            # A separate module: objects at the module's top level must never hold fake tensors.
            loaded = LoadedReference(self.problem, self.workload)
            with ExitStack() as stack:
                stack.enter_context(seeded(_FORWARD_SEED, self.device))
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
                stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
                stack.enter_context(torch.no_grad())
                inputs = loaded.make_inputs(self.device)
                with self.device:
                    model = loaded.make_model(self.device)
                state = _model_tensors(model)
                with counter:
                    returned = model(*inputs)
                return _Trace(state, inputs, tuple(output_tensors(returned, self.device)), counter)
        except Exception:  # whatever a reference raises on fake tensors; the caller uses real ones
            return None

    def _run(self) -> _Trace:
        counter = OperationCounter(self.device)
        inputs, model = self.inputs(_FORWARD_SEED), self.model(_FORWARD_SEED)
        with counter:
            outputs = self.call(model, inputs)
        return _Trace(_model_tensors(model), inputs, outputs, counter)

    def _outputs(self, returned: object, model: nn.Module, given: tuple[object, ...]) -> tuple[Tensor, ...]:
        returned_tensors = tuple(output_tensors(returned, self.device))
        if not returned_tensors:
            raise ProblemError(f"{self._loaded.file}: forward returns no tensor: there is nothing to compare")
        self._check_outputs(returned_tensors)
        shared = {_storage(t) for t in (*tensors(list(given)), *(t for _, _, t in _model_tensors(model)))}
        outputs = []
        for tensor in returned_tensors:
            output = contiguous(tensor.to(self.device))
            outputs.append(output.clone() if _storage(output) in shared else output)
            shared.add(_storage(outputs[-1]))
        return tuple(outputs)

    def _check_outputs(self, outputs: tuple[Tensor, ...]) -> None:
        """Raises ProblemError for outputs that memory cannot be allocated for in advance."""
        for tensor in outputs:
            if not is_dense(tensor):
                kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else "sparse"
                raise ProblemError(f"{self._loaded.file}: forward returns a {kind} tensor: only dense tensors are supported")
        shapes = tuple(tuple(tensor.shape) for tensor in outputs)
        if self._shapes not in (None, shapes):
            raise ProblemError(
                f"{self._loaded.file}: the shapes of forward's outputs depend on its inputs' values ({self._shapes}, then "
                f"{shapes}): only fixed shapes are supported"
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
        rows += trace.state
        alone = len(trace.outputs) == 1
        rows += [("out" if alone else f"out{i}", Role.OUTPUT, t) for i, t in enumerate(trace.outputs)]
        constants = _constants(self._numbers(), self._loaded.init_arguments(), scalars)
        operands = _operands(rows, constants)
        return Signature(
            operands=operands,
            constants=constants,
            operations=trace.operations.total,
            unit=trace.operations.unit,
            scalar_only=plain and all(is_dense(t) for _, _, t in rows) and all(map(header.has_type, operands)),
        )

    def _numbers(self) -> dict[str, object]:
        assigned = reference_code.assigned_names(self._loaded.tree)
        values = vars(self._loaded.module)
        return {name: value for name, value in values.items() if name in assigned and not name.startswith("_")}


class _ModelState:
    """A snapshot of all tensors of a model: restores the same objects in the same places with their values."""

    def __init__(self, model: nn.Module) -> None:
        self._places: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._values: list[tuple[Tensor, Tensor]] = []
        for module in model.modules():
            places: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
            for place in places:
                self._places.append((place, dict(place)))
                self._values += [(t.detach(), t.detach().clone()) for t in place.values() if isinstance(t, Tensor)]

    def changed(self) -> bool:
        """Whether a tensor was replaced, added, removed, or holds other values than before."""
        moved = any(_replaced_names(place, before) for place, before in self._places)
        return moved or not all(equal_values(tensor, copy) for tensor, copy in self._values)

    def restore(self) -> None:
        """Restore every tensor and its values; remove added ones."""
        for place, before in self._places:
            for name in _replaced_names(place, before):
                if name in before:
                    place[name] = before[name]
                else:
                    del place[name]
        for tensor, copy in self._values:
            tensor.copy_(copy)


def _replaced_names(place: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Names whose objects differ between the two tables, where one of the two is a tensor."""
    known = dict.fromkeys((*before, *place))
    pairs = ((name, before.get(name), place.get(name)) for name in known)
    return [name for name, old, new in pairs if old is not new and (isinstance(old, Tensor) or isinstance(new, Tensor))]


def _device(label: str) -> torch.device:
    try:
        device = torch.device(label)
    except RuntimeError as error:
        raise DeviceError(f"unknown device {label!r}: use cpu or cuda:0") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise DeviceError(f"device {label} not found: PyTorch finds no CUDA device; check the driver or use cpu")
        device = torch.device("cuda", device.index or 0)
        if device.index >= torch.cuda.device_count():
            raise DeviceError(f"device {label} not found: PyTorch finds {torch.cuda.device_count()} CUDA device(s)")
    return device


def _model_tensors(model: nn.Module) -> list[tuple[str, Role, Tensor]]:
    """Parameters, then buffers, then tensors kept as plain attributes, each in the model's order."""
    rows: list[tuple[str, Role, Tensor]] = [(n, Role.PARAMETER, p) for n, p in model.named_parameters()]
    rows += [(n, Role.BUFFER, b) for n, b in model.named_buffers()]
    for prefix, module in model.named_modules():
        rows += [(f"{prefix}.{n}".strip("."), Role.BUFFER, t) for n, t in plain_tensors(module)]
    return rows


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if is_dense(tensor) and tensor.numel() else id(tensor)


def _constants(*tables: dict[str, object] | dict[str, Number]) -> dict[str, Number]:
    """Every finite number of the tables under an upper-case name, sequences as NAME_0, NAME_1 …; earlier tables win.

    A later number whose name is taken by a different value gets ``_`` appended.
    """
    constants: dict[str, Number] = {}
    for table in tables:
        for label, value in table.items():
            for name, number in _numbers_in(label, value):
                free = names.macro(name)
                while constants.get(free, number) != number:
                    free += "_"
                constants.setdefault(free, number)
    return constants


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
    """Operands with valid C names that are unique case-insensitively; outputs keep theirs."""
    taken = {label.upper() for label, role, _ in rows if role is Role.OUTPUT}
    operands = []
    for label, role, tensor in rows:
        name = names.identifier(label)
        if role is not Role.OUTPUT:
            name = names.unused_name(name, lambda n: n.upper() in taken or n in constants)
            taken.add(name.upper())
        operands.append(Operand(name, role, tuple(int(s) for s in tensor.shape), str(tensor.dtype).split(".")[-1]))
    return tuple(operands)
