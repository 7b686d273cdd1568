"""What is wrong with a time that no rule forbids: reasons not to believe it, one line each. Imports torch.

A doubt is no failure: the kernel's answers were right. It goes to the engineer with what was seen.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from engine.domain import stats
from engine.domain.model import Device, Signature, Verification
from engine.domain.preparation import Peaks
from engine.trial import light
from engine.trial.times import NULL, PairTimes, ahead_us, hidden_us

_PLAUSIBLE = {"cuda": 0.8, "cpu": 0.25}
"""Whoever needs less than this share of the speed of light, with the whole interval, did not do the work. On a CPU a flush
leaves part of a small workload in the caches, and ceilings that were measured beside other work are half of what they are."""
_BLATANT_US, _BLATANT_SHARE = 300.0, 0.5
"""Hidden time from which on a kernel is suspected; less than that and it is not corroborated, which is said and cannot lead."""
_AWAKE_US, _AWAKE_SHARE = 3000.0, 0.1
"""Threads of OpenMP spin for a while after they are let run, and on few cores the judge waits for its turn."""
_LONG_AWAKE_US = 15_000.0
"""What no noise explains, beside the whole of a claim. In less a kernel that has hundreds of processes to be woken before the
order to run can be given may do most of its work as well: it is not corroborated."""
_AFTER_TIMES, _AFTER_US = 3.0, 300.0
_BUSY_SHARE = 0.2
_BUSY_US = 50.0


def of_times(
    pairs: Sequence[PairTimes], signature: Signature, ceilings: Peaks, device: Device, *, cold: bool, sure: bool = False
) -> tuple[str, ...]:
    """Doubts about the kernel's times in these process pairs; ``sure``: only what is beyond all question."""
    times = [t for p in pairs for t in p.kernel]
    claimed = stats.median_interval([t.claimed_us for t in times])
    least = light.floor(signature, ceilings).plausible_us
    found: list[str] = []
    if cold and claimed.high < _PLAUSIBLE[device.kind] * least:
        found.append(f"faster than the device allows: {claimed.value:.1f} us against a floor of {least:.1f} us")
    if hidden_us(pairs) > (max(_BLATANT_US, _BLATANT_SHARE * claimed.value) if sure else 0.0):
        found.append("not corroborated: the judge's clock saw more time than the runner claims")
    ahead = ahead_us(pairs)
    if ahead > (max(_BLATANT_US, _BLATANT_SHARE * claimed.value) if sure else 0.0):
        found.append(
            f"not corroborated: with no moment between waking and its order it took {ahead:.0f} us more than can be explained"
        )
    if statistics.median(t.idle_us for t in times) > _BUSY_SHARE * claimed.value + _BUSY_US:
        found.append("the device was still busy after the kernel's last event")
    after = statistics.median(t.after_us for t in times)
    if after > _AFTER_TIMES * statistics.median(t.after_us for p in pairs for t in p.times[NULL]) + _AFTER_US:
        found.append(f"the device was not free once it had answered: the judge's next work took {after:.0f} us")
    awake = statistics.median(t.awake_us for t in times)
    usual = statistics.median(t.awake_us for p in pairs for t in p.times[NULL])
    allowed = claimed.value + _LONG_AWAKE_US if sure else _AWAKE_SHARE * claimed.value + _AWAKE_US
    if awake > usual + allowed:
        found.append(
            f"it ran for {awake:.0f} us before the judge could give the order: work may have been done ahead of the call"
        )
    return tuple(found)


def of_verification(found: Verification) -> tuple[str, ...]:
    """Doubts about answers that were right: two on the same bytes that differ by more than a right one may be off."""
    if found.jitter <= found.max_scaled_limit:
        return ()
    return (
        f"two calls on the same bytes differ by {found.jitter:.1e} of scale, and a right answer may be off by "
        f"{found.max_scaled_limit:.1e}: a race?",
    )
