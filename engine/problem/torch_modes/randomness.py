"""Seeds random generators temporarily and restores their state. Imports torch.

Covers every generator that a reference may draw from.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SEED_BITS = 2**63


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Within: torch's generators (CPU's and ``device``'s), Python's and NumPy's, if loaded, start from ``seed``."""
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    with torch.random.fork_rng(devices=_devices(device), enabled=True):
        torch.default_generator.manual_seed(seed % _SEED_BITS)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed % _SEED_BITS)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)


def fingerprint(device: torch.device) -> tuple[object, ...]:
    """The state of all generators: it changes whenever a random number is drawn."""
    numpy = sys.modules.get("numpy")
    drawn: list[object] = [bytes(torch.get_rng_state().tolist()), random.getstate()]
    if device.type == "cuda":
        drawn.append(bytes(torch.cuda.get_rng_state(device).tolist()))
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        drawn.append((kind, keys.tobytes(), *rest))
    return tuple(drawn)


def _devices(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []
