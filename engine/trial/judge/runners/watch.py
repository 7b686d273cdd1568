"""Watches the outputs of an order: they are read right after the reply, and must not change any more. Imports torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

from engine.trial.judge.runners.runner_memory import Outputs

_PLACES = 128
"""Elements per output that a ``Watch`` reads: it detects a late write of 1% of an output in 3 of 4 calls."""


class Watch:
    """Detects work after the reply, while the kernel is not frozen: a ``call_times.CallHook``.

    A few random elements of every output are read right after the reply, which takes a few microseconds; of outputs of the same
    size the same ones.
    """

    def __init__(self, outputs: Sequence[torch.Tensor], rng: torch.Generator) -> None:
        drawn: dict[tuple[int, int], Places] = {}
        self._places: list[Places] = []
        for tensor in outputs:
            size = tensor.numel(), tensor.element_size()
            self._places.append(Places(tensor, rng, drawn.get(size)))
            drawn.setdefault(size, self._places[-1])
        self._values_at_reply: list[torch.Tensor] | OSError = []
        self._delivered: Callable[[], Outputs | None] = lambda: None

    def of_runner(self, delivered: Callable[[], Outputs | None]) -> Watch:
        """This watch, for a runner that may keep its outputs in its own memory."""
        self._delivered = delivered
        return self

    def before(self) -> None:
        """Nothing to do."""

    def after(self) -> None:
        """Read the sampled elements of the outputs; on a GPU once the device has done what was enqueued before."""
        try:
            self._values_at_reply = self._read()
        except OSError as error:
            self._values_at_reply = error

    def _read(self) -> list[torch.Tensor]:
        memory = self._delivered()
        if memory is None or len(memory.addresses) != len(self._places):
            return [places.read() for places in self._places]
        return [places.read_from(memory, index) for index, places in enumerate(self._places)]

    def outputs_changed(self) -> bool:
        """Whether something was written after the reply.

        Raises OSError if the outputs cannot be read now, or could not be read at the reply: then nothing says that they were
        finished.
        """
        if isinstance(self._values_at_reply, OSError):
            raise self._values_at_reply
        return not all(map(torch.equal, self._values_at_reply, self._read()))

    def left_out(self, poisons: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Calls of a burst that were perhaps left out: one whose outputs held their poison at the reply, or two with the same.

        ``poisons``: the bytes that may have filled each call's outputs. Right outputs can look so: check what is returned.
        """
        if isinstance(self._values_at_reply, OSError):
            return ()
        values, each = self._values_at_reply, len(self._values_at_reply) // len(poisons)
        calls = [torch.cat([one.view(torch.uint8) for one in values[c * each : (c + 1) * each]]) for c in range(len(poisons))]
        for call, some in enumerate(poisons):
            if calls[call].numel() and any(bool((calls[call] == poison).all()) for poison in some):
                return (call,)
        pairs = itertools.combinations(range(len(calls)), 2)
        return next(((one, other) for one, other in pairs if torch.equal(calls[one], calls[other])), ())


class Places:
    """A few random elements of a tensor, as bits."""

    def __init__(self, tensor: torch.Tensor, rng: torch.Generator, same: Places | None = None) -> None:
        """``same``: those of a tensor of the same size, whose places are taken."""
        self._flat = tensor.view(-1).view(_WORDS.get(tensor.element_size(), torch.int64))
        count = self._flat.numel()
        self._where: torch.Tensor
        if same is None:
            self._where = torch.randint(max(1, count), (_PLACES if count else 0,), generator=rng).to(tensor.device)
        else:
            self._where = same._where

    def read(self) -> torch.Tensor:
        return torch.index_select(self._flat, 0, self._where)

    def read_from(self, outputs: Outputs, index: int) -> torch.Tensor:
        """``read``, from where the module made the output. Raises OSError."""
        return outputs.elements(index, self._where, self._flat)


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Integers as wide as an element."""
