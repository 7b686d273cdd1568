"""Python modules: a candidate's ``ModelNew``, and the reference itself as a baseline. Imports torch.

A module is called on the lent inputs themselves, which are mapped read-only unless the reference changes them. Its outputs stay
where it made them: on a CPU the judge reads them there, once the runner is frozen (where it cannot, they are copied to lent
memory); on a GPU they are in memory that the judge maps (``module_memory``).
"""

from __future__ import annotations

import ast
import ctypes
import secrets
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import nn

from engine.domain.model import Problem, Role, Workload
from engine.problem.arguments.constant_parameters import varied_constants
from engine.problem.arguments.values import OutputLayout, storage
from engine.problem.files.source_module import source_module
from engine.problem.reference import Reference
from engine.problem.torch_modes.large_draws import drawn_on
from engine.problem.torch_modes.randomness import seeded
from engine.trial.messages import ClaimedTimes, Fault, LoadKernel, RunKernel
from engine.trial.runner import lent_weights
from engine.trial.runner.calls import LentOperands, OutputError, Send, Timed, checked_output, rotated
from engine.trial.runner.returned import dense, flattened
from engine.trial.shared.argument_codec import Classes, decode_call, decode_value
from engine.trial.shared.layout import POISONS

if TYPE_CHECKING:
    from engine.trial.runner.module_memory import ModuleMemory

Forward = Callable[..., Any]


_loaded: dict[str, types.ModuleType] = {}
"""The module of this process, by its source: it is executed once, as by ``import``, and constructed again for each shape."""


def load_module(load: LoadKernel) -> Forward:
    """The candidate's ``ModelNew``, constructed as in KernelBench."""
    return construct_module(load).to(load.device)


def construct_module(load: LoadKernel) -> nn.Module:
    """The candidate's ``ModelNew`` as its constructor leaves it. Raises OutputError, and whatever the candidate raises."""
    module = _loaded.get(load.source) or _executed(load)
    factory = module.__dict__.get("ModelNew")
    if not callable(factory):
        raise OutputError("the module defines no class ModelNew")
    args, kwargs = (decode_value(part) for part in load.scalars[:2])
    device = torch.device(load.device)
    drawn = drawn_on(device, load.init_seed)
    varied = varied_constants(load.init_seed, load.varied_constants, device, alike=load.alike_constants)
    with seeded(load.init_seed, torch.device("cpu")), drawn, varied as finish:
        model = factory(*args, **kwargs)
        if not isinstance(model, nn.Module):
            raise OutputError("ModelNew is not a torch.nn.Module")
        finish(model)
    return model


def _executed(load: LoadKernel) -> types.ModuleType:
    module = source_module("espalier_kernel", load.filename, load.source)
    module.__dict__.update(load.tunables)
    exec(compile(load.source, load.filename, "exec"), module.__dict__)
    _loaded[load.source] = module
    return module


_WITHOUT_THREADS = {
    "torch", "math", "typing", "functools", "collections", "dataclasses", "itertools", "os", "sys", "time", "random",
    "__future__",
}  # fmt: skip
_THREADED_PARTS = ("fork", "cpp_extension", "load_inline", "multiprocessing", "numpy", "ctypes")


def may_start_threads(source: str) -> bool:
    """Whether a module may start threads besides torch's own, judged by its imports and names.

    Threads inherit the cores of the thread that starts them: where there may be others, the first is not pinned.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return False
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                parts = [name.name for name in names]
            case ast.ImportFrom(module, names):
                parts = [f"{module}.{name.name}" for name in names]
            case ast.Attribute(attr=attr):
                parts = [f"torch.{attr}"]
            case _:
                continue
        if any(one.partition(".")[0] not in _WITHOUT_THREADS or set(one.split(".")) & set(_THREADED_PARTS) for one in parts):
            return True
    return False


def defined_classes(load: LoadKernel) -> Classes:
    """The classes of objects among a module's arguments: the reference's own, from the part of its text that defines them.

    Where the module has a class of the same name, its objects are not of that one: the caller made them, not the module.
    """
    names, text = load.scalars[3:5] or ((), "")
    if not names:
        return {}
    definitions = source_module("espalier_argument_classes", "argument_classes.py", text)
    exec(compile(text, "argument_classes.py", "exec", dont_inherit=True), definitions.__dict__)
    return {name: vars(definitions)[name] for name in names}


def load_baseline(load: LoadKernel, lent: LentOperands) -> tuple[Forward, Classes]:
    """The reference as the named baseline runs it: ``eager``, ``eager_tf32``, ``compile`` or ``compile_max``.

    With its classes of objects among its arguments.
    """
    workload = Workload("baseline", load.settings)
    problem = Problem("reference", "", load.source, "", (workload,), {}, load.filename, attachments=load.attachments)
    reference = Reference(problem, workload, load.device)
    varied = varied_constants(load.init_seed, load.varied_constants, reference.device, alike=load.alike_constants)
    with varied as finish:
        model = reference.model(load.init_seed, sample=True)
        finish(model)
    lent_weights.take(model, lent, *lent_weights.WEIGHTS)
    classes = {name: vars(reference.module)[name] for name in (load.scalars[3] if load.scalars else ())}
    if load.baseline == "eager_tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    if load.baseline.startswith("compile"):
        # Without CUDA graphs, which would copy each call's fresh inputs into their own buffers first.
        mode = "max-autotune-no-cudagraphs" if load.baseline == "compile_max" else None
        return torch.compile(model, mode=mode), classes
    return model, classes


_PIECE = 31 << 20
"""Just below the size from which the C library uses mmap for an allocation."""


def warm_heap(size: int) -> None:
    """Fault in this many bytes of heap pages, more than a module will allocate at a time on the CPU, and fill them with poison.

    Otherwise eager PyTorch pays for fresh pages in some calls only (0.5 or 1.9 ms for an 8 MB softmax): too easy to beat. Fresh
    pages are also zero: a module that leaves a part of its output unwritten would be right wherever zeros are.
    """
    fill = secrets.choice(POISONS)
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    pieces = [libc.malloc(_PIECE) for _ in range(size // _PIECE + 1)]
    taken = [piece for piece in pieces if piece]
    for piece in taken:
        ctypes.memset(piece, fill, _PIECE)
    for piece in taken:
        libc.free(piece)


_REUSED = (
    "returned the memory of an earlier call's output, which its caller may still hold: return a copy (a CUDA graph, also of "
    "torch.compile with reduce-overhead, overwrites its outputs)"
)


@dataclass(frozen=True, slots=True)
class _Returned:
    """What one call returned."""

    outputs: list[Any]
    copied: Sequence[Any] = ()
    """What the module itself returned, where some were copied to memory that the judge can read."""


class ModuleLauncher:
    """Calls a module on the lent inputs of a slot."""

    def __init__(
        self, load: LoadKernel, lent: LentOperands, model: Forward, timed: Timed, send: Send | None = None,
        classes: Classes | None = None,
    ) -> None:  # fmt: skip
        """``classes``: of objects among the arguments."""
        self._classes = classes or {}
        self._model = model
        self._lent = lent
        self._timed = timed
        self._device = load.device
        self._arguments = load.scalars[2] if load.scalars else [["tensor"]] * len(lent.operands(0, Role.INPUT))
        self._layout: OutputLayout = decode_value(load.scalars[5]) if load.scalars[5:] else 0
        self._takes_inputs_only = all(mark == ["tensor"] for mark in self._arguments)
        self._is_kernel = load.contract == "module"
        module = model if isinstance(model, nn.Module) else None
        weighted = module if self._is_kernel else None
        if weighted is not None:
            lent_weights.move_plain(weighted, lent, torch.device(load.device))
        self.unmatched = lent_weights.unmatched(weighted, lent) if weighted is not None else ()
        """Lent parameters and buffers that the module cannot take."""
        self.different = lent_weights.different(weighted, lent) if weighted is not None and load.own_weights else ()
        """Those of which a module that keeps its own has other values, once the judge has drawn them."""
        self._takes_weights = weighted if not load.own_weights else None
        """The module whose own parameters are yet to be replaced by lent ones: the judge draws these while it loads."""
        self._delivers = load.contract != "baseline"
        self._copies_outputs = load.copies_outputs
        stateful = module if load.stateful else None
        self._reset = None
        if stateful is not None:
            self._reset = lent_weights.resetting(stateful, lent, own=load.own_weights, parameters=load.changes_parameters)
        self._inputs = [lent.tensors(slot, Role.INPUT) for slot in range(len(lent.slots))]
        self._returned: deque[_Returned] = deque()
        self._made: list[Any] = []
        """The last order's outputs, and the copies of those that the judge could not read where they are."""
        self._held: list[Any] = []
        self._memory: ModuleMemory | None = None
        if load.device != "cpu" and send is not None and self._is_kernel:
            from engine.trial.runner.module_memory import ModuleMemory

            self._memory = ModuleMemory.of_process(torch.device(load.device).index or 0, send)
        if load.device == "cpu":
            warm_heap(load.warm_bytes)

    def call(self, order: RunKernel) -> ClaimedTimes | Fault:
        model = self._model
        slots = [order.slot] if order.calls == 1 else rotated(range(len(self._inputs)), order)
        rows = self._rows(slots)
        self._held = (self._held or self._made) if order.holding else []
        self._made = []
        if self._takes_weights is not None:
            lent_weights.take(self._takes_weights, self._lent, *lent_weights.WEIGHTS)
            self._takes_weights = None
        if self._reset is not None:
            self._reset()
        # Those of the last calls of a burst, one for each slot: its caller may look at all of them.
        kept: deque[_Returned] = deque(maxlen=len(self._inputs))
        self._returned = kept

        def once(arguments: Any) -> None:
            if self._memory is None:
                kept.append(_Returned([dense(leaf) for leaf in flattened(model(*arguments), self._layout)]))
                return
            with self._memory.in_use():
                made = [dense(leaf) for leaf in flattened(model(*arguments), self._layout)]
                kept.append(_Returned([*map(self._memory.held, made)], made))

        def work() -> None:
            for row in rows:
                once(row)

        def addresses() -> tuple[int, ...]:
            if self._memory is None:
                return ()
            return tuple(t.data_ptr() for t in kept[-1].outputs if isinstance(t, torch.Tensor))

        with torch.no_grad():
            called = self._timed(work, order, addresses)
            if isinstance(called, Fault):
                return called
            # A baseline's too: where a call waits for the device, the judge's clock runs until the reply.
            delivered = self._delivered(called, order, kept)
            if self._delivers:
                return delivered
            self._made = []
            return called

    def plain_call(self) -> None:
        """A module's outputs are checked."""

    def _delivered(self, called: ClaimedTimes, order: RunKernel, kept: Sequence[_Returned]) -> ClaimedTimes | Fault:
        """The reply with the outputs of the last calls, which are checked and, where the judge cannot read them, copied."""
        slots = [(order.slot + order.calls - 1 - back) % len(self._inputs) for back in reversed(range(len(kept)))]
        outputs: list[torch.Tensor] = []
        for slot, returned in zip(slots, kept, strict=True):
            expected = self._lent.operands(slot, Role.OUTPUT)
            if len(returned.outputs) != len(expected):
                return Fault("mismatch", f"returned {len(returned.outputs)} tensors instead of {len(expected)}")
            for operand, value in zip(expected, returned.outputs, strict=True):
                outputs.append(checked_output(self._as_tensor(value), operand, self._device))
                if self._copies_outputs:
                    self._lent.outputs.tensor(operand).copy_(outputs[-1])
        # The very objects too: a module may count references to its outputs before it uses their memory again.
        self._made = [*(value for returned in kept for value in (*returned.copied, *returned.outputs)), *outputs]
        if self._reuses_held_memory(self._made, slots[-1]) and self._is_kernel:
            return Fault("rejected", _REUSED)
        if not self._copies_outputs:
            return msgspec.structs.replace(called, outputs=tuple(value.data_ptr() for value in outputs))
        if self._device != "cpu":
            torch.cuda.synchronize()
        return called

    def _rows(self, slots: Sequence[int]) -> Sequence[list[Any]]:
        """The arguments of each call, made before the first: fresh objects for each call, which may change them."""
        if self._classes:
            return [self._given(slot) for slot in slots]
        made = {slot: self._given(slot) for slot in dict.fromkeys(slots)}
        return [made[slot] for slot in slots]

    def _given(self, slot: int) -> list[Any]:
        """The arguments of a call: the lent inputs as fresh tensor objects, with what else it takes."""
        inputs = [tensor.detach() for tensor in self._inputs[slot]]
        return inputs if self._takes_inputs_only else decode_call(self._arguments, inputs, self._classes)

    def _as_tensor(self, value: Any) -> Any:
        """A number as a 0-dim tensor, as the reference's outputs are."""
        return torch.tensor(value, device=self._device) if type(value) in (bool, int, float) else value

    def _reuses_held_memory(self, values: list[torch.Tensor], slot: int) -> bool:
        """Whether this call's outputs use the memory of an earlier call's that are held, as its order said.

        Inputs, and parameters and buffers that are lent, do not count. The judge checks by itself that held outputs keep their
        values.
        """
        if (held := places_of(self._held)) is None:
            return True
        places = held - {storage(tensor) for tensor in self._persistent_tensors(slot)}
        return any(storage(tensor) in places for tensor in values if _has_memory(tensor))

    def _persistent_tensors(self, slot: int) -> Iterator[torch.Tensor]:
        """Tensors that keep their memory across calls, and whose values the judge knows: the reference may return them too."""
        yield from self._inputs[slot]
        if isinstance(self._model, nn.Module):
            yield from lent_weights.taking(self._model, self._lent)


def _has_memory(value: Any) -> bool:
    """Whether ``value`` has memory: empty tensors and numbers have none."""
    return isinstance(value, torch.Tensor) and value.numel() > 0


def places_of(values: Sequence[Any]) -> set[int] | None:
    """The addresses of those that have memory; ``None`` where torch lets nobody read one, because a CUDA graph overwrote it."""
    try:
        return {storage(value) for value in values if _has_memory(value)}
    except RuntimeError:
        return None
