"""The lent memory that contestants write: outputs, and inputs that the reference changes. Imports torch.

On a CPU each judged kernel has its own. Whoever maps shared memory can take its pages away; the next one to write there would
be slowed by their return, and a kernel could win a race so. The trusted processes write only where the reference changes its
inputs, or where outputs have to be copied, and then have their own too. Device memory cannot be taken away, and is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from engine.trial.judge.timing.pair_times import KERNEL
from engine.trial.messages import ArenaHandle
from engine.trial.protocol import OTHER
from engine.trial.shared import arena

TRUSTED = "trusted"
"""The baselines and the null kernels."""


def party_of(contestant: str) -> str:
    """Whose memory a contestant writes."""
    return contestant if contestant in (KERNEL, OTHER) else TRUSTED


class WrittenMemory:
    """The arenas of one test bed, by party; that of ``KERNEL`` exists from the start. Raises DeviceError."""

    def __init__(self, device: str, size: int, pattern: int, prepare: Callable[[arena.Arena], None]) -> None:
        """``pattern``: the byte that new memory is filled with; then a further party's memory is ``prepare``-d."""
        self._device = device
        self._prepare = prepare
        self._size = size
        self._pattern = pattern
        self._arenas: dict[str, arena.Arena] = {KERNEL: arena.lend(device, size, writable=True)}
        self._turn = KERNEL

    @property
    def now(self) -> arena.Arena:
        """That of the party whose turn it is."""
        return self._arenas.get(self._turn, self._arenas[KERNEL])

    def __iter__(self) -> Iterator[arena.Arena]:
        return iter(self._arenas.values())

    def turn_to(self, contestant: str) -> None:
        """From now on this contestant's memory is meant."""
        self._turn = party_of(contestant)

    def handle(self, party: str, *, writes: bool) -> tuple[ArenaHandle, Sequence[int]]:
        """A handle for a runner of this party, and its descriptors; ``writes``: whether it needs memory to write."""
        if self._device != "cpu":
            return self._arenas[KERNEL].handle()
        if party == TRUSTED and not writes:
            handle, fds = self._arenas[KERNEL].handle()
            return replace(handle, writable=False), fds
        if party not in self._arenas:
            made = self._arenas[party] = arena.lend(self._device, self._size, writable=True)
            made.raw(0, self._size).fill_(self._pattern)
            self._prepare(made)
        return self._arenas[party].handle()

    def close(self) -> None:
        for one in self:
            one.close()
