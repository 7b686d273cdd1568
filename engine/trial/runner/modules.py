"""Python modules: a candidate's ``ModelNew``, and the reference itself as a baseline. Imports torch.

A module is called on private tensors, into which the inputs are copied before each call: fresh values arrive at fixed
addresses. Its outputs are copied to lent memory afterwards. Neither copy is timed.
"""

from __future__ import annotations

import ctypes
import linecache
import secrets
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from engine.domain.model import Problem, Role, Workload
from engine.problem.randomness import seeded
from engine.problem.reference import Reference
from engine.trial.messages import ClaimedTimes, Fault, LoadKernel
from engine.trial.runner.calls import LentOperands, OutputError, Timed, checked_output, compare_inputs_now, same_bits
from engine.trial.shared.argument_codec import decode_call, decode_value

Forward = Callable[..., Any]


def load_module(load: LoadKernel, lent: LentOperands) -> Forward:
    """The candidate's ``ModelNew``, constructed as in KernelBench; lent parameters replace its own of the same name."""
    module = types.ModuleType("espalier_kernel")
    module.__file__ = load.filename
    module.__dict__.update(load.tunables)
    # inspect.getsource, torch.jit and Triton's compiler read a function's source through these two tables.
    sys.modules[module.__name__] = module
    linecache.cache[load.filename] = (len(load.source), None, load.source.splitlines(keepends=True), load.filename)
    exec(compile(load.source, load.filename, "exec"), module.__dict__)
    factory = module.__dict__.get("ModelNew")
    if not isinstance(factory, type):
        raise OutputError("the module defines no class ModelNew")
    args, kwargs = (decode_value(part) for part in load.scalars[:2])
    with seeded(load.init_seed, torch.device("cpu")):
        model = factory(*args, **kwargs)
    if not isinstance(model, nn.Module):
        raise OutputError("ModelNew is not a torch.nn.Module")
    model = model.to(load.device)
    _take(model, lent, Role.PARAMETER, Role.BUFFER)
    return model


def _take(model: nn.Module, lent: LentOperands, *roles: Role) -> None:
    """Copy lent operands of these roles into the model's tensors of the same name and shape."""
    own = {name.replace(".", "_"): tensor for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    with torch.no_grad():
        for operand in lent.operands(0, *roles):
            tensor = own.get(operand.name)
            if tensor is not None and tuple(tensor.shape) == operand.shape:
                tensor.copy_(lent.inputs.tensor(operand))


def load_baseline(load: LoadKernel, lent: LentOperands) -> Forward:
    """The reference as the named baseline runs it: ``eager``, ``eager_tf32``, ``compile`` or ``compile_max``."""
    workload = Workload("baseline", load.settings)
    problem = Problem("reference", "", load.source, "", (workload,), {}, load.filename)
    reference = Reference(problem, workload, load.device)
    model = reference.model(load.init_seed)
    _take(model, lent, Role.PARAMETER, Role.BUFFER)
    if load.baseline == "eager_tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    if load.baseline.startswith("compile"):
        # Without CUDA graphs, which would copy each call's fresh inputs into their own buffers first.
        mode = "max-autotune-no-cudagraphs" if load.baseline == "compile_max" else None
        return torch.compile(model, mode=mode)
    return model


_PIECE = 31 << 20
"""Just below the size from which the C library uses mmap for an allocation."""
_MOST_WARM = 1 << 30


def warm_heap(needed: int) -> None:
    """Fault in heap pages for four times what a module will allocate on the CPU (``needed`` bytes).

    Otherwise eager PyTorch pays for fresh pages in some calls only (0.5 or 1.9 ms for an 8 MB softmax): too easy to beat.
    """
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    pieces = [libc.malloc(_PIECE) for _ in range(min(4 * needed, _MOST_WARM) // _PIECE + 1)]
    taken = [piece for piece in pieces if piece]
    for piece in taken:
        ctypes.memset(piece, 0, _PIECE)
    for piece in taken:
        libc.free(piece)


class ModuleLauncher:
    """Calls a module on private copies of the slot's inputs."""

    def __init__(self, load: LoadKernel, lent: LentOperands, model: Forward, timed: Timed) -> None:
        self._model = model
        self._lent = lent
        self._timed = timed
        self._device = load.device
        self._arguments = load.scalars[2]
        self._is_baseline = load.contract == "baseline"
        self._stateful = model if load.stateful and isinstance(model, nn.Module) else None
        self._private = [torch.empty_like(tensor) for tensor in lent.tensors(0, Role.INPUT)]
        self._calls = 0
        self._held: list[Any] = []
        if load.device == "cpu":
            warm_heap(sum(operand.nbytes for operand in lent.slots[0]))

    def call(self, slot: int, hold_us: float) -> ClaimedTimes | Fault:
        lent_inputs = self._lent.tensors(slot, Role.INPUT)
        private = self._private
        for mine, theirs in zip(private, lent_inputs, strict=True):
            mine.copy_(theirs)
        arguments = decode_call(self._arguments, private)
        returned: list[Any] = []
        model = self._model
        if self._stateful is not None:
            _take(self._stateful, self._lent, Role.BUFFER)

        def work() -> None:
            returned.append([dense(leaf) for leaf in flattened(model(*arguments))])

        with torch.no_grad():
            called = self._timed(work, hold_us)
            if isinstance(called, Fault) or self._is_baseline:
                return called
            outputs = self._lent.operands(slot, Role.OUTPUT)
            values = returned[-1]
            if len(values) != len(outputs):
                return Fault("mismatch", f"returned {len(values)} tensors instead of {len(outputs)}")
            for operand, value in zip(outputs, map(self._as_tensor, values), strict=True):
                self._lent.outputs.tensor(operand).copy_(checked_output(value, operand, self._device))
            if self._device != "cpu":
                torch.cuda.synchronize()
        if self._reuses_output_memory(values):
            return Fault("rejected", "returned the memory of an earlier call's output, which its caller may still hold")
        if self._calls > _ALWAYS_COMPARED and not compare_inputs_now():
            return called
        inputs = zip(self._lent.operands(slot, Role.INPUT), lent_inputs, private, strict=True)
        changed = [operand.name for operand, a, b in inputs if not same_bits(a, b)]
        if changed:
            return Fault("rejected", f"changed its input {', '.join(changed)}")
        return called

    def _as_tensor(self, value: Any) -> Any:
        """A number as a 0-dim tensor, as the reference's outputs are."""
        return torch.tensor(value, device=self._device) if type(value) in (bool, int, float) else value

    def _reuses_output_memory(self, values: list[Any]) -> bool:
        """Whether this call's outputs use the memory of the previous call's, if those are still held.

        The outputs of the first call are held, and at random those of one call in four. Inputs, parameters and buffers do not
        count.
        """
        self._calls += 1
        held, self._held = self._held, values if self._calls == 1 or secrets.randbelow(4) == 0 else []
        places = {_address(tensor) for tensor in held if _has_memory(tensor)} - {
            _address(tensor) for tensor in self._persistent_tensors()
        }
        return any(_address(tensor) in places for tensor in values if _has_memory(tensor))

    def _persistent_tensors(self) -> Iterator[torch.Tensor]:
        """Tensors that keep their memory across calls."""
        yield from self._private
        if isinstance(self._model, nn.Module):
            yield from self._model.parameters()
            yield from self._model.buffers()


def _has_memory(value: Any) -> bool:
    """Whether ``value`` has memory: empty tensors and numbers have none."""
    return isinstance(value, torch.Tensor) and value.numel() > 0


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


_ALWAYS_COMPARED = 3
"""Calls at the start of a process after which the inputs are always compared."""


def dense(value: Any) -> Any:
    """A contiguous output: a strided view is copied on the kernel's own time."""
    if type(value) is torch.Tensor and value.layout == torch.strided and not torch.Tensor.is_contiguous(value):
        return torch.Tensor.contiguous(value)
    return value


def flattened(value: Any) -> list[Any]:
    """A module's result as a flat list, in the order of the reference's outputs, without ``None``."""
    if value is None:
        return []
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in flattened(item)]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in flattened(item)]
    return [value]
