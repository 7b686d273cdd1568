"""Outputs of a module belong to their caller: it may hold them, and write to them before it lets them go. Imports torch.

No later call may overwrite held outputs, and none may rely on what its process left in outputs that were let go.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from engine.trial.judge.runners.runner_memory import Outputs
from engine.trial.judge.runners.watch import Places
from engine.trial.shared.layout import POISONS

_HOLDING = 4
"""Calls of which one, at random, begins or ends holding its outputs."""
_FOR_GOOD = 4
"""Held outputs of which one, at random, is held until its process ends: many buffers in turn come round only then."""


@dataclass(frozen=True, slots=True)
class _ReturnedOutputs:
    """What a call returned, and the indices of outputs that are lent memory."""

    outputs: Outputs
    lent: Collection[int]


@dataclass(frozen=True, slots=True)
class _Held:
    """A few random elements of an output, as they were when its call had ended."""

    returned: _ReturnedOutputs
    index: int
    places: Places
    values: torch.Tensor

    def is_overwritten(self) -> bool:
        """Raises OSError if the memory is gone."""
        return not torch.equal(self.values, self.places.read_from(self.returned.outputs, self.index))


class HeldOutputs:
    """Which outputs of one runner are held: those of the first call, and at random those of one call in four of which no
    others are held; each for a random number of calls, or until the process ends, so that buffers used in turn are found too.

    The judge draws, once a call has ended, and says so in the next order: the runner then keeps its references. Nothing that
    a module does in its process decides whether the outputs are held, and the judge reads and writes them there itself.
    """

    def __init__(self, *, never: bool = False) -> None:
        """``never``: hold none, where there is no memory for them."""
        self._rng = torch.Generator().manual_seed(secrets.randbits(63))
        self._held: tuple[_Held, ...] = ()
        self._let_go: tuple[_ReturnedOutputs, ...] = ()
        self._is_first = True
        self._for_good = False
        self._never = never

    @property
    def holding(self) -> bool:
        """Whether the next order says that outputs are held."""
        return bool(self._held)

    def overwritten_by(self, outputs: Outputs, likes: Sequence[torch.Tensor], lent: Collection[int]) -> bool:
        """Whether the call that has just returned ``outputs`` overwrote held ones; draws what is held during the next.

        ``likes``: tensors of the outputs' shapes and types; ``lent``: indices of outputs that are memory of an input, a
        parameter or a buffer, which change with it. Raises OSError if held memory is gone.
        """
        if any(held.is_overwritten() for held in self._held):
            return True
        earlier, returned = self._held, _ReturnedOutputs(outputs, lent)
        if not (self._never or self._for_good) and (self._is_first or secrets.randbelow(_HOLDING) == 0):
            self._held = () if self._held else tuple(self._taken(returned, likes))
            self._for_good = self.holding and secrets.randbelow(_FOR_GOOD) == 0
        self._is_first = False
        kept = self._held[0].returned if self._held else None
        self._let_go = tuple(one for one in (*(held.returned for held in earlier[:1]), returned) if one is not kept)
        return False

    def overwrite_let_go(self, likes: Sequence[torch.Tensor]) -> None:
        """Fill the outputs that are held no longer with poison, as a caller may write to its own before it lets them go.

        All of them after every call: in time, what a module fills once and trusts later saves it nothing. ``likes`` as
        in ``overwritten_by``. Raises OSError if the memory is gone or cannot be written.
        """
        for returned in self._let_go:
            for index, like in enumerate(likes):
                if index not in returned.lent and like.numel():
                    returned.outputs.fill(index, like.numel() * like.element_size(), secrets.choice(POISONS))
        self._let_go = ()

    def _taken(self, returned: _ReturnedOutputs, likes: Sequence[torch.Tensor]) -> list[_Held]:
        places = [(index, Places(like, self._rng)) for index, like in enumerate(likes) if index not in returned.lent]
        return [_Held(returned, index, where, where.read_from(returned.outputs, index)) for index, where in places]
