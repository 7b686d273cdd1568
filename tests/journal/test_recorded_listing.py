"""The listing of machine code that a session holds: read whole, or refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from support import builders

from engine.domain.errors import JournalCorrupt
from engine.domain.machine_listing import ListedInstruction, MachineListing
from engine.journal import recorded_listing

LISTING = builders.machine_listing()


def first(change: Callable[[ListedInstruction], ListedInstruction]) -> bytes:
    """The listing with its first instruction changed."""
    return msgspec.json.encode(replace(LISTING, instructions=(change(LISTING.instructions[0]), *LISTING.instructions[1:])))


def test_a_listing_comes_back() -> None:
    assert recorded_listing.decode(msgspec.json.encode(LISTING), "k1") == LISTING


def test_what_an_older_version_left_out_has_its_default() -> None:
    old = b'{"instructions":[{"function":"f","address":16,"text":"ret","line":0}],"tool":"objdump"}'
    assert recorded_listing.decode(old, "k1") == MachineListing((ListedInstruction("f", 16, "ret", 0),), "objdump")


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"instructions":[{}],"tool":"objdump"}',
        first(lambda one: replace(one, samples=-1)), first(lambda one: replace(one, samples=10**6)),
        first(lambda one: replace(one, depth=-3)), first(lambda one: replace(one, line=-1)),
        msgspec.json.encode(LISTING).replace(b'"depth":1', b'"depth":' + b"9" * 400),
    ],
)  # fmt: skip
def test_what_is_no_listing_is_refused_in_one_line(payload: bytes) -> None:
    with pytest.raises(JournalCorrupt, match=r"^the listing of k1 is damaged \(.*\): profile the kernel again$"):
        recorded_listing.decode(payload, "k1")
