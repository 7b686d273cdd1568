"""Random numbers without state: each is a function of a seed and a label. Pure.

SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014); normal values by Box and
Muller.
"""

from __future__ import annotations

import math
from zlib import crc32

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Draws:
    """A stream of random numbers. Two streams of one seed and label are equal."""

    def __init__(self, seed: int, label: str) -> None:
        data = label.encode()
        self._state = (seed * _GOLDEN + (crc32(data) << 32) + crc32(data, 0x5BD1E995)) & _MASK

    def uniform(self) -> float:
        """A number from 0 (inclusive) to 1 (exclusive)."""
        self._state = (self._state + _GOLDEN) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)

    def normal(self) -> float:
        """A number of the standard normal distribution."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return radius * math.cos(2.0 * math.pi * self.uniform())
