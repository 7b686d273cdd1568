"""Reads the listing of a kernel's machine code that a session holds."""

from __future__ import annotations

import msgspec

from engine.domain.errors import JournalCorrupt
from engine.domain.machine_listing import MachineListing

_MOST = 1 << 64
"""Larger numbers are no addresses, lines or counts."""
_DECODER = msgspec.json.Decoder(MachineListing)


def decode(payload: bytes, kernel: str) -> MachineListing:
    """Raises JournalCorrupt if it is no listing: a session from elsewhere can hold anything."""
    try:
        found = _DECODER.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(kernel, str(error)) from error
    numbers = (found.samples, *(n for one in found.instructions for n in (one.address, one.line, one.samples, one.depth)))
    if not all(0 <= number < _MOST for number in numbers):
        raise _damaged(kernel, "a number is out of range")
    if sum(one.samples for one in found.instructions) > found.samples:
        raise _damaged(kernel, "its instructions have more samples than all")
    return found


def _damaged(kernel: str, what: str) -> JournalCorrupt:
    return JournalCorrupt(f"the listing of {kernel} is damaged ({what}): profile the kernel again")
