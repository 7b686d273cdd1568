"""Plausibility of times and outputs: doubts, one line each. Imports torch.

A doubt is not a failure: the kernel's outputs were right. The engineer decides on the evidence.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from engine.domain import stats
from engine.domain.model import Device, Interval, Signature, Verification
from engine.domain.preparation import Peaks
from engine.trial.judge.timing import roofline
from engine.trial.judge.timing.pair_times import NULL, PairTimes, busy_after, hidden_us

_PLAUSIBLE = 0.8
"""A time whose whole interval is below this share of the floor by bytes is impossible: faster than 1.25 times SOL."""
_UNSURE = 3.0
"""Times the jitter of a call's cost, by which a random error may shorten a time."""
_BLATANT_US, _BLATANT_SHARE = 300.0, 0.5
"""Hidden time, in microseconds and as a share of the claim, that quarantines a kernel. With less it is not corroborated."""
_RESOLVED_TIMES, _RESOLVED_US = 20.0, 1000.0
"""A time is resolved if its interval, with the error of what was subtracted, ends below this multiple of it, or no more than so
many microseconds above it."""
_BUSY_SHARE, _BUSY_US = 0.2, 50.0
"""How long the device may be busy after the kernel's last event: a share of the kernel's time, and microseconds."""


def timing_doubts(
    pairs: Sequence[PairTimes], signature: Signature, ceilings: Peaks, device: Device, *, cold: bool, sure: bool = False
) -> tuple[str, ...]:
    """Doubts about the kernel's times in these process pairs; ``sure``: only those that noise cannot explain."""
    times = [t for p in pairs for t in p.kernel]
    counted = stats.median_interval([t.counted_us for t in times])
    unsure_us = _UNSURE * max(p.cost.jitter_us for p in pairs)
    surely = replace(counted, high=counted.high + unsure_us)
    doubts = [impossible] if cold and (impossible := faster_than_possible(surely, signature, ceilings, device)) else []
    if not sure and surely.high > max(_RESOLVED_TIMES * counted.value, counted.value + _RESOLVED_US):
        doubts.append(
            f"not corroborated: the time is not resolved, {counted.value:.1f} µs with errors up to {surely.high:.0f} µs"
        )
    claim_counts = not any(p.cost.median_us for p in pairs)
    blatant_us = max(_BLATANT_US, _BLATANT_SHARE * counted.value)
    if claim_counts and hidden_us(pairs) > (blatant_us if sure else 0.0):
        doubts.append("not corroborated: the judge's clock measured more time than the kernel's process reports")
    if statistics.median(t.idle_us for t in times) > _BUSY_SHARE * counted.value + _BUSY_US:
        doubts.append("the device was still busy after the kernel's last event")
    rest_us = statistics.median(t.after_us for p in pairs for t in p.times[NULL])
    if busy := busy_after(statistics.median(t.after_us for t in times), rest_us):
        doubts.append(busy)
    return tuple(doubts)


def faster_than_possible(counted: Interval, signature: Signature, ceilings: Peaks, device: Device) -> str:
    """A message on a time in which the operands cannot be moved; empty for a possible one.

    Arithmetic can be saved by rewriting it (``fewer_operations``). On a CPU what the cores' second-level caches hold may not
    have been evicted, and is not counted.
    """
    least = roofline.floor(signature, ceilings)
    floor_us = least.bytes_us
    if device.kind == "cpu":
        kept = device.units * sum(device.core_caches[1:])
        floor_us *= max(0.0, 1.0 - kept / max(1, least.bytes_moved))
    if counted.high >= _PLAUSIBLE * floor_us:
        return ""
    return f"faster than the device allows: {counted.value:.1f} µs, moving the operands takes {floor_us:.1f} µs"


def fewer_operations(counted: Interval, signature: Signature, ceilings: Peaks) -> str:
    """A note on a time in which the reference's products cannot be computed; empty for another.

    A product with a diagonal matrix, or a sum over a product, takes a kernel a fraction of them.
    """
    products_us = roofline.floor(signature, ceilings).products_us
    if counted.high >= _PLAUSIBLE * products_us:
        return ""
    return f"fewer operations than the reference: its products alone take {products_us:.1f} µs in the device's fastest unit"


def verification_doubts(verification: Verification) -> tuple[str, ...]:
    """Doubts about right outputs: two calls on the same inputs that differ by more than the tolerance."""
    if verification.jitter <= verification.max_scaled_limit:
        return ()
    return (
        f"two calls on the same inputs differ by {verification.jitter:.1e} of scale, the tolerance is "
        f"{verification.max_scaled_limit:.1e}: data race?",
    )
