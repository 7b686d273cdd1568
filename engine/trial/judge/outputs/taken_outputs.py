"""Outputs between their call and their check: copied, or left where they are and known by their fingerprint. Imports torch.

A kernel must not finish or change its outputs after its call. A copy rules that out, but takes as much memory as they do, or
seconds on its way to the host. Where memory is short, a sum of the outputs under secret keys is taken instead, and again
after their check.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from engine.trial.judge.outputs.blocks import as_integers, in_blocks, moments, on_host, read_numbers

_WORDS = 1 << 22
"""Words of a block: their keys and products stay in a GPU's cache."""
_BYTES = 4


@dataclass(frozen=True, slots=True)
class Left:
    """Outputs that were left where the kernel wrote them."""

    fingerprint: tuple[int, ...]


Taken = Sequence[torch.Tensor] | Left


class OutputTaker:
    """Takes outputs right after their call."""

    def __init__(self, *, saves_memory: bool, leaves: bool) -> None:
        """``saves_memory``: no copies on the device; ``leaves``: outputs may stay where they are if none else writes there."""
        self._on_host, self._leaves = saves_memory, saves_memory and leaves
        self._fingerprints = Fingerprints()

    def take(self, outputs: Sequence[torch.Tensor], *, alone: bool) -> Taken:
        """Copies, or a fingerprint; ``alone``: whether no other kernel writes there before the check."""
        return Left(self._fingerprints.compute(outputs)) if alone and self._leaves else self.copies(outputs)

    def copies(self, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """On the host where memory is short."""
        return [on_host(one) if self._on_host else one.clone() for one in outputs]

    def have_changed(self, outputs: Sequence[torch.Tensor], taken: Taken | None) -> bool:
        """Whether these are other outputs than were left there."""
        return isinstance(taken, Left) and self._fingerprints.compute(outputs) != taken.fingerprint


class Fingerprints:
    """Sums of 32-bit words, each multiplied by a secret 64-bit key, modulo 2⁶⁴.

    Multilinear hashing (Carter and Wegman, 1979). Keys are odd, and repeat block by block; each block's sum has a key, too. A
    word's difference d has at most 31 trailing zeros. In one block, two different outputs agree with a probability of at most
    2⁻³². In several, the sum of d times block key over the blocks can have k > 31 zeros, with 2³²⁻ᵏ, and then agrees with
    2ᵏ⁻⁶³: over all k, less than 2⁻²⁵.
    """

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(secrets.randbits(63))
        self._keys = torch.empty(0, dtype=torch.int64)

    def compute(self, outputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """The fingerprint of each output."""
        return tuple(self._of_one(output) for output in outputs)

    def _of_one(self, output: torch.Tensor) -> int:
        found = output.contiguous().reshape(-1).view(torch.uint8)
        whole = found.numel() // _BYTES * _BYTES
        words, rest = found[:whole].view(torch.int32), found[whole:]
        blocks = [*(words[at : at + _WORDS] for at in range(0, len(words), _WORDS)), rest]
        keys = self._keys_on(output.device)
        sums = torch.stack([(block * keys[: block.numel()]).sum() for block in blocks])
        return int((sums * self._drawn(len(sums), whole + 1).to(output.device)).sum())

    def _keys_on(self, device: torch.device) -> torch.Tensor:
        if self._keys.device != device or not len(self._keys):
            self._keys = self._drawn(_WORDS, 0).to(device)
        return self._keys

    def _drawn(self, count: int, name: int) -> torch.Tensor:
        """Random odd keys, the same ones for the same name."""
        generator = torch.Generator().manual_seed((self._generator.initial_seed() + name) % (1 << 63))
        return torch.randint(-(1 << 63), (1 << 63) - 1, (count,), generator=generator, dtype=torch.int64) | 1


def _magnitudes(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Of complex numbers; others as they are: their moments have the same root mean square."""
    for (block,) in in_blocks(tensor):
        yield block.abs() if block.is_complex() else block


def largest_difference(now: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> float:
    """The largest difference between two calls' outputs, in units of the output's scale; 0.0: bitwise equal."""
    worst = 0.0
    for output, earlier in zip(now, before, strict=True):
        if torch.equal(as_integers(output), as_integers(earlier.to(output.device))):
            continue
        rms = moments(partial(_magnitudes, earlier)).rms
        found: list[torch.Tensor] = []
        for mine, other in in_blocks(output, earlier):
            a, b = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (mine, other))
            apart = (a - b).abs() / (b.abs() + rms + 1e-300)
            found.append(apart.nan_to_num(nan=float("inf")).max())
        worst = max([worst, *read_numbers(found)])
    return worst
