"""Plausibility of times and outputs: doubts, one line each. Imports torch.

A doubt is not a failure: the kernel's outputs were right. The engineer decides on the evidence.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from engine.domain import stats
from engine.domain.model import Device, Signature, Verification
from engine.domain.preparation import Peaks
from engine.trial.judge import roofline
from engine.trial.judge.timing import NULL, PairTimes, ahead_us, hidden_us

_PLAUSIBLE = {"cuda": 0.8, "cpu": 0.25}
"""A time whose whole interval is below this share of the roofline floor is impossible. On a CPU a flush leaves part of a small
workload in the caches, and ceilings measured under CPU contention can be half of the real ones."""
_BLATANT_US, _BLATANT_SHARE = 300.0, 0.5
"""Hidden time, in microseconds and as a share of the claim, that quarantines a kernel. With less it is not corroborated."""
_AWAKE_US, _AWAKE_SHARE = 3000.0, 0.1
"""Allowed time between resumption and order: OpenMP threads spin after they are resumed, and on few cores the judge waits."""
_LONG_AWAKE_US = 15_000.0
"""Time between resumption and order, beyond the whole claim, that noise cannot explain. A kernel with hundreds of processes to
resume can do most of its work in less: it is then not corroborated."""
_AFTER_TIMES, _AFTER_US = 3.0, 300.0
_BUSY_SHARE = 0.2
_BUSY_US = 50.0


def timing_doubts(
    pairs: Sequence[PairTimes], signature: Signature, ceilings: Peaks, device: Device, *, cold: bool, sure: bool = False
) -> tuple[str, ...]:
    """Doubts about the kernel's times in these process pairs; ``sure``: only those that noise cannot explain."""
    times = [t for p in pairs for t in p.kernel]
    claimed = stats.median_interval([t.claimed_us for t in times])
    least = roofline.floor(signature, ceilings).plausible_us
    doubts: list[str] = []
    if cold and claimed.high < _PLAUSIBLE[device.kind] * least:
        doubts.append(f"faster than the device allows: {claimed.value:.1f} µs, roofline floor {least:.1f} µs")
    if hidden_us(pairs) > (max(_BLATANT_US, _BLATANT_SHARE * claimed.value) if sure else 0.0):
        doubts.append("not corroborated: the judge's clock measured more time than the runner claims")
    ahead = ahead_us(pairs)
    if ahead > (max(_BLATANT_US, _BLATANT_SHARE * claimed.value) if sure else 0.0):
        doubts.append(f"not corroborated: unannounced calls were {ahead:.0f} µs slower than the claim allows")
    if statistics.median(t.idle_us for t in times) > _BUSY_SHARE * claimed.value + _BUSY_US:
        doubts.append("the device was still busy after the kernel's last event")
    after = statistics.median(t.after_us for t in times)
    if after > _AFTER_TIMES * statistics.median(t.after_us for p in pairs for t in p.times[NULL]) + _AFTER_US:
        doubts.append(f"the device was still busy after the reply: the judge's next operation took {after:.0f} µs")
    awake = statistics.median(t.awake_us for t in times)
    usual = statistics.median(t.awake_us for p in pairs for t in p.times[NULL])
    allowed = claimed.value + _LONG_AWAKE_US if sure else _AWAKE_SHARE * claimed.value + _AWAKE_US
    if awake > usual + allowed:
        doubts.append(f"the process ran for {awake:.0f} µs before the call started: it may have worked ahead")
    return tuple(doubts)


def verification_doubts(doubts: Verification) -> tuple[str, ...]:
    """Doubts about right outputs: two calls on the same inputs that differ by more than the tolerance."""
    if doubts.jitter <= doubts.max_scaled_limit:
        return ()
    return (
        f"two calls on the same inputs differ by {doubts.jitter:.1e} of scale, the tolerance is "
        f"{doubts.max_scaled_limit:.1e}: data race?",
    )
