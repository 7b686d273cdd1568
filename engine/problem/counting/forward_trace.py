"""Traces one forward pass, run or on fake tensors: what it says about a problem. Imports torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.domain.model import Problem, Role, Workload
from engine.problem.arguments.values import is_dense, map_arguments, output_tensors
from engine.problem.counting.allocation_counter import WIDENING, AllocationCounter, ForwardMemory, exact_bytes
from engine.problem.counting.bytes_read import ReadCounter
from engine.problem.counting.operation_count import OperationCounter
from engine.problem.counting.recurrences import OneTimeStep
from engine.problem.loading import LoadedReference
from engine.problem.operands import model_tensors
from engine.problem.torch_modes.fake_conversion import convertible_modules
from engine.problem.torch_modes.fake_norms import BatchNormShapes
from engine.problem.torch_modes.randomness import seeded


@dataclass(frozen=True, slots=True)
class ForwardTrace:
    """One forward pass, run or on fake tensors: everything that a signature needs."""

    state: list[tuple[str, Role, Tensor]]
    inputs: tuple[object, ...]
    outputs: tuple[Tensor, ...]
    operations: OperationCounter
    memory: ForwardMemory
    read: ReadCounter

    def bytes_moved(self, operands: Iterable[tuple[str, Role, Tensor]]) -> int:
        """As in ``Signature``. An output that is a view of an operand is a copy of it for a kernel."""
        rows = list(operands)
        for output in self.outputs:
            self.read.count(output)
        found = sum(t.nbytes if role is Role.OUTPUT else self.read.bytes_of(t) for _, role, t in rows)
        return found if found < sum(t.nbytes for _, _, t in rows) else 0


def trace_on_fake_tensors(problem: Problem, workload: Workload, device: torch.device, seed: int) -> ForwardTrace | None:
    """The forward on fake tensors, which computes nothing; ``None`` if it reads tensors' contents or leaves torch."""
    allocated, read, counter = AllocationCounter(), ReadCounter(), OperationCounter(device)
    try:
        # A separate module: objects at the module's top level must never hold fake tensors.
        loaded = LoadedReference(problem, workload)
        with ExitStack() as stack:
            stack.enter_context(seeded(seed, device))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            modes = FakeTensorMode(allow_non_fake_inputs=True), BatchNormShapes(), torch.no_grad(), convertible_modules()
            for mode in modes:
                stack.enter_context(mode)
            inputs = loaded.make_inputs(device, clears=False)
            with device:
                model = loaded.make_model(device)
            state = model_tensors(model)
            if device.type == "cpu":
                stack.enter_context(OneTimeStep(counter, read))
            with allocated, read, counter:
                returned = model(*map_arguments(lambda t: t, inputs))  # which may change objects
            outputs = tuple(output_tensors(returned, device))
            counter.compared.name(state)
            if not all(map(is_dense, outputs)) or not any(output.numel() for output in outputs):
                return None  # running it says so
            memory = ForwardMemory(allocated.peak, exact_bytes(model, inputs, allocated.peak))
            return ForwardTrace(state, inputs, outputs, counter, memory, read)
    except (Exception, SystemExit):  # whatever a reference raises on fake tensors; the caller uses real ones
        return None


def trace_of_run(
    call: Callable[[nn.Module, tuple[object, ...]], tuple[Tensor, ...]],
    model: nn.Module,
    inputs: tuple[object, ...],
    device: torch.device,
) -> ForwardTrace:
    """The forward as ``call`` runs it."""
    allocated, read, counter = AllocationCounter(), ReadCounter(), OperationCounter(device)
    with allocated, read, counter:
        outputs = call(model, inputs)
    peak, state = allocated.peak, model_tensors(model)
    counter.compared.name(state)
    return ForwardTrace(state, inputs, outputs, counter, ForwardMemory(peak, WIDENING * peak), read)
