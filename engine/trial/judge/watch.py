"""Watches memory around one call: inputs withheld until the order, outputs read right after the reply. Imports torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch

from engine.trial.judge.runner_memory import Outputs

_PLACES = 128
"""Elements per operand that a ``Watch`` withholds or reads: it detects a late write of 1 % of an output in 3 of 4 calls."""


class Watch:
    """Detects work before the order or after the reply, while the kernel is not frozen.

    A few random elements of every input hold other values until the order to run, and a few random elements of every output
    are read right after the reply. Each takes a few microseconds.
    """

    def __init__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], rng: torch.Generator) -> None:
        self._withheld = [Places(t, rng) for t in inputs if t.numel()]
        self._read_places = [Places(t, rng) for t in outputs]
        self._withheld_values = [p.read() for p in self._withheld]
        self._values_at_reply: list[torch.Tensor] = []
        self._on_gpu = any(places.on_gpu for places in (*self._withheld, *self._read_places))
        self._delivered: Callable[[], Outputs | None] = lambda: None
        for places, right in zip(self._withheld, self._withheld_values, strict=True):
            places.write(right.roll(1))

    def of_runner(self, delivered: Callable[[], Outputs | None]) -> Watch:
        """The same for a runner that may keep its outputs in its own memory."""
        self._delivered = delivered
        return self

    def before(self) -> None:
        """Restore the withheld values."""
        for places, right in zip(self._withheld, self._withheld_values, strict=True):
            places.write(right)
        if self._on_gpu:
            torch.cuda.synchronize()

    def after(self) -> None:
        """Read the sampled elements of the outputs; on a GPU once the device has done what was enqueued before."""
        with contextlib.suppress(OSError):
            self._values_at_reply = self._read()

    def _read(self) -> list[torch.Tensor]:
        memory = self._delivered()
        if memory is None or len(memory.addresses) != len(self._read_places):
            return [places.read() for places in self._read_places]
        return [places.read_from(memory, index) for index, places in enumerate(self._read_places)]

    def outputs_changed(self) -> bool:
        """Whether something was written after the reply. Raises OSError if the outputs cannot be read."""
        return not all(map(torch.equal, self._values_at_reply, self._read()))


class Places:
    """A few random elements of a tensor, as bits."""

    def __init__(self, tensor: torch.Tensor, rng: torch.Generator) -> None:
        self._flat = tensor.view(-1).view(_WORDS.get(tensor.element_size(), torch.int64))
        count = self._flat.numel()
        self._where = torch.randint(max(1, count), (_PLACES if count else 0,), generator=rng).to(tensor.device)
        self.on_gpu = tensor.device.type != "cpu"

    def read(self) -> torch.Tensor:
        return torch.index_select(self._flat, 0, self._where)

    def read_from(self, outputs: Outputs, index: int) -> torch.Tensor:
        """The same elements of an output where its module made it. Raises OSError."""
        return outputs.elements(index, self._where, self._flat)

    def write(self, values: torch.Tensor) -> None:
        self._flat.index_copy_(0, self._where, values)


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Integers as wide as an element."""
