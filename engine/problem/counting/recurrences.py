"""Recurrent operators (``lstm``, ``gru``, ``rnn_tanh``, ``rnn_relu``) while a forward is traced. Imports torch.

On a CPU they decompose into tens of thousands of operators, which take minutes on fake tensors. A signature needs the shapes
and the counts of one time step; a graph has no use for an unrolled recurrence at all.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from engine.problem.counting.bytes_read import ReadCounter
from engine.problem.counting.operation_count import OperationCounter

RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
MAX_STEPS = 16
"""Most time steps that a graph unrolls."""
MAX_CPU_S = 10.0
"""Processor seconds that tracing a graph may take; the largest network of KernelBench takes 5."""


class TracingStopped(Exception):
    """A forward that is not traced, and why; caught where the graph is made."""


class OneTimeStep(TorchFunctionMode):
    """Runs recurrent operators on one time step, counts it as often as there are steps, and returns outputs of the whole shape.

    For fake tensors: values of the outputs mean nothing.
    """

    def __init__(self, counter: OperationCounter, read: ReadCounter) -> None:
        super().__init__()
        self._counter = counter
        self._read = read

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        dim = _time_dimension(func, args)
        steps = args[0].shape[dim] if dim is not None else 0
        if dim is None or steps <= 1:
            return func(*args, **(kwargs or {}))
        self._read.count(args[0])
        before = Counter(self._counter.operations)
        first, *states = func(args[0].narrow(dim, 0, 1), *args[1:])
        for key, count in (self._counter.operations - before).items():
            self._counter.operations[key] += count * (steps - 1)
        shape = list(first.shape)
        shape[dim] = steps
        return (first.new_empty(shape), *states)


class TracingLimits(TorchFunctionMode):
    """Raises TracingStopped for a recurrence of many time steps, and for a forward that takes too long to trace."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.process_time()

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        dim = _time_dimension(func, args)
        if dim is not None and args[0].shape[dim] > MAX_STEPS:
            raise TracingStopped(f"aten.{func.__name__} over {args[0].shape[dim]} time steps")
        self.check()
        return func(*args, **(kwargs or {}))

    def check(self) -> None:
        """Raises TracingStopped if the time is over."""
        if time.process_time() - self._began > MAX_CPU_S:
            raise TracingStopped(f"a forward pass that takes more than {MAX_CPU_S:g} s to trace (a long loop in Python?)")


def _time_dimension(func: Any, args: Sequence[Any]) -> int | None:
    """The dimension of time in the first argument of a recurrent operator; ``None`` for other calls and packed sequences."""
    if getattr(func, "__name__", "") not in RECURRENT or len(args) < 9:
        return None
    packed = not isinstance(args[2], list | tuple)
    return None if packed or not isinstance(args[0], torch.Tensor) else int(bool(args[8]))
