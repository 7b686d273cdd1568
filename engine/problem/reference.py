"""Runs a reference: its inputs, model and outputs, the outputs in float64, and its signature. Imports torch.

Loaded by judge and host processes only. Knows what a kernel is called with and compared against; nothing of tolerances, kernels
or clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch
from torch import Tensor, nn

from engine.domain.errors import ProblemError
from engine.domain.model import Problem, Role, Signature, Workload
from engine.problem import header
from engine.problem.arguments import row_slices
from engine.problem.arguments.constant_parameters import (
    Constant,
    Varied,
    counted_constants,
    varied_constants,
    with_usable_signs,
)
from engine.problem.arguments.drawn_integers import Range, drawn_ranges, takes_integers
from engine.problem.arguments.model_state import ModelState
from engine.problem.arguments.scalar_arguments import Change, usable_change, vary_scalars
from engine.problem.arguments.values import (
    OutputLayout,
    contiguous,
    equal_values,
    is_dense,
    map_arguments,
    tensors,
)
from engine.problem.counting.allocation_counter import ForwardMemory
from engine.problem.counting.forward_trace import ForwardTrace, trace_of_run, trace_on_fake_tensors
from engine.problem.counting.operation_count import OperationCounter
from engine.problem.formats.declared import check_outputs
from engine.problem.forward_outputs import ForwardOutputs, LentOutputs
from engine.problem.loading import Construction, LoadedReference, is_out_of_memory, use_device
from engine.problem.observed_call import ObservedCall
from engine.problem.operands import argument_rows, model_tensors, named_constants, named_operands
from engine.problem.precision import WideModels, cast, cast_model, float64_arithmetic
from engine.problem.side_effects import SideEffects
from engine.problem.torch_modes import device_asserts
from engine.problem.torch_modes.large_draws import drawn_on
from engine.problem.torch_modes.randomness import seeded

_FORWARD_SEED = 0
"""Seed for random numbers drawn by a forward, so that two calls agree."""


@dataclass(frozen=True, slots=True)
class Exact:
    """The outputs of a reference in float64. ``note`` gives the reason if they are not, else it is empty."""

    outputs: tuple[Tensor, ...]
    note: str = ""


class Reference:
    """One workload of a problem on one device (``cpu``, ``cuda:0``).

    The constructor executes the reference's file. Every method raises ProblemError when the reference raises or violates
    KernelBench's format, naming the file, its line and the exception.
    """

    def __init__(self, problem: Problem, workload: Workload, device: str = "cpu") -> None:
        self.problem = problem
        self.workload = workload
        self.device = use_device(device)
        self._loaded = LoadedReference(problem, workload)
        self.format_check = self._loaded.format_check
        self._side_effects: SideEffects | None = None
        self._outputs = ForwardOutputs(self._loaded.file)
        self._constants: Counter[Constant] | None = None
        self._scalars: Change | None = None
        self.exact_on_host = False
        """Whether float64 is computed on the host instead of the device."""
        self.exact_slices = 1
        """In how many slices of the first dimension float64 is computed, where ``independent_rows`` were found."""
        self._rows: row_slices.IndependentRows | None = None
        self._wide = WideModels()
        self.must_run = False
        """Whether fake tensors could not trace it: it may depend on the numbers that tensors hold. Known once it is traced."""
        self._traced: tuple[Signature, OperationCounter, ForwardMemory] | None = None
        self._compared: tuple[float, ...] | None = None
        self._ranges: tuple[Range | None, ...] | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats of this reference, for the report; complete after the first ``call``."""
        if self._side_effects is None:
            return ()
        return self._side_effects.caveats([o.name for o in self.signature().operands if o.role is Role.INPUT])

    @property
    def lent_outputs(self) -> LentOutputs:
        """Outputs that were memory of an input, a parameter or a buffer in a call."""
        return self._outputs.lent

    @property
    def output_layout(self) -> OutputLayout:
        """Where a call's result holds the outputs."""
        _ = self.side_effects  # known after a call
        return self._outputs.layout

    @property
    def side_effects(self) -> SideEffects:
        """The side effects of a call of the model, as seen in the first ``call``; one is made where there was none."""
        if self._side_effects is None:
            self.call(self.model(_FORWARD_SEED, sample=True), self.inputs(_FORWARD_SEED))
        assert self._side_effects is not None
        return self._side_effects

    def inputs(self, seed: int) -> tuple[object, ...]:
        """Fresh arguments of ``forward``, the same for the same seed, contiguous and on the device. No generator changes."""
        with seeded(seed, self.device):
            return self._loaded.make_inputs(self.device)

    def model(self, seed: int, *, sample: bool = False) -> nn.Module:
        """A new model on the device with the weights of ``seed``, in the mode that its constructor sets.

        A ``sample`` has others of the same distributions, which a GPU draws faster: for what no kernel's module must reproduce.
        """
        with seeded(seed, self.device), drawn_on(self.device, seed):
            return self._loaded.make_model(self.device, there=sample)

    def judged_model(self, seed: int, *, sample: bool = False, constants: Varied = Varied.APART) -> nn.Module:
        """``model``, with its constant parameters and buffers varied (see ``constant_parameters``)."""
        if constants is Varied.KEPT or not self.constants:
            return self.model(seed, sample=sample)
        varied = varied_constants(seed, self.constants, self.device, alike=constants is Varied.ALIKE)
        with seeded(seed, self.device), drawn_on(self.device, seed), varied as finish:
            model = self._loaded.make_model(self.device, there=sample)
            finish(model)
            return model

    @property
    def constants(self) -> Counter[Constant]:
        """The constant parameters and buffers that ``judged_model`` varies, and how many there are of each kind."""
        if self._constants is None:
            self._constants = with_usable_signs(counted_constants(self.model(_FORWARD_SEED, sample=True)), self._outputs_with)
        return self._constants

    def _outputs_with(self, constants: Counter[Constant]) -> tuple[Tensor, ...]:
        self._constants = constants
        return self.call(self.judged_model(_FORWARD_SEED, sample=True), self.inputs(_FORWARD_SEED))

    def keep_constants(self) -> None:
        """From now on ``judged_model`` varies nothing."""
        self._constants = Counter()

    def varied_scalars(self, inputs: tuple[object, ...], seed: int) -> tuple[object, ...]:
        """``inputs`` with the floating-point scalars of ``seed``; unchanged if the reference fails with others."""
        if self._scalars is None:
            call = partial(self.call, self.model(_FORWARD_SEED, sample=True))
            self._scalars = usable_change(call, self.inputs(_FORWARD_SEED))
        return vary_scalars(inputs, seed, self._scalars)

    def has_random_outputs(self, model: nn.Module, inputs: tuple[object, ...]) -> bool:
        """Whether the outputs depend on random numbers that ``forward`` draws, so that no kernel can reproduce them."""
        if self._side_effects is None:
            self.call(model, inputs)
        if self._side_effects is None or not self._side_effects.draws_random:
            return False
        one, other = (self.call(model, inputs, seed) for seed in (_FORWARD_SEED, _FORWARD_SEED + 1))
        return not all(map(equal_values, one, other))

    def call(
        self, model: nn.Module, inputs: tuple[object, ...], seed: int = _FORWARD_SEED, device: torch.device | None = None,
        rows: int | None = None, *, last: bool = False,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """The outputs of ``model(*inputs)``, in order, contiguous, sharing no memory.

        Tuples, lists and dictionaries are flattened, numbers become 0-dim tensors. ``inputs`` and the model's state are
        restored: the first call works on copies and records the side effects. Random numbers that the forward draws are
        those of ``seed``. ``device``: where model and inputs are, if elsewhere. ``rows``: how many rows ``inputs`` have, if not
        all of them. ``last``: the model is not called again, and keeps the state that this call leaves.
        """
        device, effects = device or self.device, self._side_effects
        with torch.no_grad(), ExitStack() as stack, self._loaded.explain_errors("forward()", device):
            if effects is None or effects.draws_random:
                stack.enter_context(seeded(seed, device))
            stack.enter_context(device_asserts.checked(self._traced[1].operators if self._traced else (), device))
            copies = effects is None or bool(effects.changed_inputs)
            given = map_arguments(lambda t: t.clone() if copies else t, inputs)  # a forward may change its objects
            observed = ObservedCall(model, inputs, given, device) if effects is None else None
            state = observed.state if observed is not None else None
            if effects is not None and effects.changes_state and not last:
                state = ModelState(model)
            if state is not None:
                stack.callback(state.restore)
            outputs = self._outputs.collect(model(*given), model, given, device, rows)
            if observed is not None:
                self._side_effects = observed.effects()
                if not self._side_effects.draws_random:
                    observed.state.check_counters(
                        self._loaded.file, inputs, outputs, lambda x: self._outputs.collect(model(*x), model, x, device, rows)
                    )
            return outputs

    def class_definitions(self, inputs: tuple[object, ...]) -> tuple[list[str], str]:
        """The names of the classes of the objects among ``inputs``, and the code that defines them."""
        return self._loaded.class_definitions(inputs)

    @property
    def module(self) -> ModuleType:
        """The module in which the reference is executed."""
        return self._loaded.module

    def construction(self, seed: int) -> Construction:
        """The constructor arguments of the model of ``seed``."""
        with seeded(seed, self.device):
            return self._loaded.construction()

    def arguments(self, model: nn.Module, inputs: tuple[object, ...]) -> tuple[Tensor, ...]:
        """The tensors that a kernel receives: inputs, parameters, buffers, in the order of ``signature``.

        Contiguous tensors of the model are not copied.
        """
        held = (tensor for _, _, tensor in model_tensors(model))
        return tuple(contiguous(tensor) for tensor in (*tensors(list(inputs)), *held))

    def cast(self, model: nn.Module, dtype: torch.dtype) -> nn.Module:
        """A copy of ``model`` in another floating-point type."""
        return self._cast(model, dtype, self.device)

    def _cast(self, model: nn.Module, dtype: torch.dtype, device: torch.device) -> nn.Module:
        with torch.no_grad(), self._loaded.explain_errors(f"converting the model to {dtype}", device):
            return cast_model(model, dtype, device)

    def cast_inputs(
        self, inputs: tuple[object, ...], dtype: torch.dtype, device: torch.device | None = None
    ) -> tuple[object, ...]:
        """``inputs`` with the floating-point tensors in another type; on ``device``, if given."""
        with self._loaded.explain_errors(f"converting the inputs to {dtype}", device or self.device):
            return map_arguments(lambda t: cast(t.to(device or t.device), dtype), inputs)

    def exact(self, model: nn.Module, inputs: tuple[object, ...]) -> Exact:
        """The outputs with all arithmetic in float64, casts to narrower types inside the forward included.

        Where an operator lacks float64, float32 is used and ``note`` says so.
        """
        return self.exact_of(model, lambda: inputs)

    def exact_of(self, model: nn.Module, draw: Callable[[], tuple[object, ...]]) -> Exact:
        """``exact`` for inputs that are drawn when they are needed: those in their own type are not held while it computes.

        With ``exact_on_host`` the outputs are the host's. Where the reference does not run there, they are the device's.
        """
        if self._side_effects is None:
            self.call(model, draw())  # on its own inputs: observing copies them
        if self.exact_on_host:
            try:
                return Exact(self._in_float64(model, draw, torch.device("cpu")))
            except ProblemError as error:
                if is_out_of_memory(error.__cause__ or error):
                    raise
        try:
            return Exact(self._in_float64(model, draw, self.device))
        except ProblemError as error:
            if is_out_of_memory(error.__cause__ or error):
                raise
            reason = str(error)
        outputs = self.call(self.cast(model, torch.float32), self.cast_inputs(draw(), torch.float32), last=True)
        return Exact(outputs, f"compared with float32, because float64 failed: {reason}")

    def independent_rows(self, most: int) -> row_slices.IndependentRows | None:
        """The arguments whose rows the forward treats independently, in ``most`` slices. Runs the model."""
        outputs, effects = [o.shape for o in self.signature().operands if o.role is Role.OUTPUT], self.side_effects
        if not (effects.changes_state or effects.changed_inputs or effects.draws_random):
            model = self.model(_FORWARD_SEED, sample=True)
            call: row_slices.Call = lambda given, rows: self.call(model, given, rows=rows)  # noqa: E731
            self._rows = row_slices.find(call, self.inputs(_FORWARD_SEED), outputs, most)
        return self._rows

    def _in_float64(self, model: nn.Module, draw: Callable[[], tuple[object, ...]], device: torch.device) -> tuple[Tensor, ...]:
        eight_bits = any(o.role is Role.OUTPUT and o.dtype.startswith("float8") for o in self.signature().operands)
        wide, keeps = self._wide.get(model, device, lambda: self._cast(model, torch.float64, device))
        if self.exact_slices > 1 and self._rows is not None and device == self.device:

            def on_rows(part: tuple[object, ...], count: int) -> tuple[Tensor, ...]:
                given = self.cast_inputs(part, torch.float64)
                with float64_arithmetic(eight_bits=eight_bits):
                    return self.call(wide, given, rows=count)

            return self._rows.joined(self.exact_slices, draw(), on_rows)
        given = self.cast_inputs(draw(), torch.float64, device)  # drawn in their own types
        with float64_arithmetic(eight_bits=eight_bits):
            return self.call(wide, given, device=device, last=not keeps)

    def signature(self) -> Signature:
        """The signature of kernels for this workload, traced on fake tensors where the forward allows it, else by a run."""
        return self._trace()[0]

    def ops_used(self) -> frozenset[str]:
        """Families of operators that the forward runs: ``convolution``, ``matmul``, ``attention``, ``softmax`` …"""
        return frozenset(self._trace()[1].families)

    def operators(self) -> frozenset[str]:
        """The aten operators that the forward runs: ``addmm``, ``_softmax``, ``relu_`` …"""
        return frozenset(self._trace()[1].operators)

    def rounds_to_half(self) -> bool:
        """Whether the forward has results of half precision, also where its outputs are wide again."""
        return self._trace()[1].rounds_to_half

    def compared_numbers(self) -> tuple[float, ...]:
        """The numbers at which the forward's result jumps (``compared_numbers``), in order."""
        if self._compared is None:
            seeds = (_FORWARD_SEED, _FORWARD_SEED + 1)
            models = (self.judged_model(seed, sample=True) for seed in seeds)  # made only where they are needed
            self._compared = tuple(sorted(self._trace()[1].compared.numbers(model_tensors(model) for model in models)))
        return self._compared

    def integer_ranges(self) -> tuple[Range | None, ...]:
        """The range that each input tensor is drawn from, ``None`` for other tensors; or nothing (``drawn_ranges``)."""
        if self._ranges is None:
            self._ranges = drawn_ranges(self.inputs) if takes_integers(self.signature()) else ()
        return self._ranges

    def memory(self) -> ForwardMemory:
        """What a forward pass allocates, from the same trace as the signature."""
        return self._trace()[2]

    def known_without_running(self) -> bool:
        """Whether signature and memory are known without a run of the forward, which may take long."""
        if self._traced is not None or self.must_run:
            return self._traced is not None
        with self._loaded.explain_errors("forward()", self.device):
            trace = trace_on_fake_tensors(self.problem, self.workload, self.device, _FORWARD_SEED)
        if trace is not None:
            self._traced = self._signature(trace), trace.operations, trace.memory
        self.must_run = self._traced is None
        return self._traced is not None

    def _trace(self) -> tuple[Signature, OperationCounter, ForwardMemory]:
        if not self.known_without_running():
            trace = self._run()
            self._traced = self._signature(trace), trace.operations, trace.memory
        assert self._traced is not None
        return self._traced

    def _run(self) -> ForwardTrace:
        inputs, model = self.inputs(_FORWARD_SEED), self.model(_FORWARD_SEED, sample=True)
        if self._side_effects is None:
            self.call(model, inputs)  # the first call also compares, which would be counted
        return trace_of_run(self.call, model, inputs, self.device)

    def _signature(self, trace: ForwardTrace) -> Signature:
        rows, scalars, plain = argument_rows(self._loaded.forward_names(len(trace.inputs)), trace.inputs)
        rows += trace.state
        rows += [("out" if len(trace.outputs) == 1 else f"out{i}", Role.OUTPUT, t) for i, t in enumerate(trace.outputs)]
        constants = named_constants(self._loaded.numbers(), self._loaded.init_arguments(), scalars)
        operands = named_operands(rows, constants)
        check_outputs(self.problem, self.workload, operands)
        return Signature(
            operands=operands,
            constants=constants,
            operations=trace.operations.total,
            unit=trace.operations.unit,
            vector_operations=trace.operations.vector,
            bytes_moved=trace.bytes_moved(rows),
            scalar_only=plain and all(is_dense(t) for _, _, t in rows) and all(map(header.has_type, operands)),
        )
