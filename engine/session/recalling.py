"""Verdicts that another session has recorded, given again to the same kernels: the other half of a what-if.

Only for the same problem, workload, policy and device; a verdict so given says among its conditions where it comes from, and
``espalier again`` measures afresh. Builds are done all the same: the cache has them. Only what was read from the machine code
then is said again: prompts tell it, and recorded replies are found by the words of a prompt, whatever this machine can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engine.domain import queries, races
from engine.domain import work as w
from engine.domain.events import SessionOpened
from engine.domain.model import Device, Failure, FailureKind, Measurement
from engine.domain.state import Kernel, SessionState, Stage
from engine.session.ports import Bench, Say

_LASTING = (FailureKind.MISMATCH, FailureKind.REJECTED)
"""Failures that say something about the kernel whenever it is tried."""

_Identity = tuple[str, tuple[tuple[str, int], ...]]


@dataclass(slots=True)
class RecallingBench:
    """A bench that answers from ``recorded`` where it can, and asks ``bench`` where it cannot.

    ``name`` is the recorded session's, for people.
    """

    bench: Bench
    recorded: SessionState
    name: str
    _known: Mapping[_Identity, Kernel] = field(init=False)

    def __post_init__(self) -> None:
        self._known = {_identity(k): k for k in self.recorded.kernels.values() if _settled_here(self.recorded, k)}

    async def prepare(self, say: Say) -> w.Prepared | w.Impossible:
        return await self.bench.prepare(say)

    async def build(self, kernel: Kernel, source: str, say: Say) -> w.Built | w.Failed | w.Impossible:
        built = await self.bench.build(kernel, source, say)
        known = self._found(kernel)
        return replace(built, instructions=known.instructions) if known is not None and isinstance(built, w.Built) else built

    async def verify(self, kernel: Kernel, source: str, say: Say) -> w.Verified | w.Suspected | w.Failed | w.Impossible:
        known = self._found(kernel)
        if known is not None and known.failure is not None:
            return w.Failed(Failure(known.failure.kind, known.failure.reason))
        if known is not None and known.verification is not None and known.measurement is not None:
            return w.Verified(known.verification, self._marked(known.measurement), 0.0)
        return await self.bench.verify(kernel, source, say)

    async def measure(self, kernel: Kernel, source: str, say: Say) -> w.Measured | w.Suspected | w.Failed | w.Impossible:
        known = self._found(kernel)
        if known is not None and known.measurement is not None and known.measurement.depth == "precise":
            return w.Measured(self._marked(known.measurement), 0.0)
        return await self.bench.measure(kernel, source, say)

    async def race(
        self, kernel: Kernel, source: str, other: Kernel, other_source: str, effort: int, say: Say
    ) -> w.Raced | w.Failed | w.Impossible:
        """A race that was run there between the same two is not run again; one on which more is to be spent is."""
        one, two = self._found(kernel), self._found(other)
        known = races.between(self.recorded, one.id, two.id) if one is not None and two is not None and not effort else None
        if one is None or known is None or known.ratio is None:
            return await self.bench.race(kernel, source, other, other_source, effort, say)
        ratio = known.ratio if known.kernel == one.id else races.turned(known.ratio)
        note = "; ".join(filter(None, (known.note, f"recorded in {self.name}")))
        sound = known.outcome is races.outcome(known.ratio)
        return w.Raced(ratio, known.pairs, known.samples, sound, note=note)

    async def sanitize(self, kernel: Kernel, source: str, say: Say) -> w.Sanitized | w.Impossible:
        return await self.bench.sanitize(kernel, source, say)

    async def close(self) -> None:
        await self.bench.close()

    def _found(self, kernel: Kernel) -> Kernel | None:
        """What was recorded of this source with these tunables; nothing for a kernel that is to be measured again."""
        return None if kernel.again else self._known.get(_identity(kernel))

    def _marked(self, measurement: Measurement) -> Measurement:
        """Its samples stay with the session that took them."""
        return replace(measurement, conditions=(*measurement.conditions, f"recorded in {self.name}"), raw="")


def _identity(kernel: Kernel) -> _Identity:
    return (kernel.source, tuple(sorted(kernel.tunables.items())))


def _settled_here(state: SessionState, kernel: Kernel) -> bool:
    """Whether the verdict belongs to the recorded session's last device, and would be the same again."""
    if kernel.epoch != state.epoch:
        return False
    lasting = kernel.failure is not None and kernel.failure.kind in _LASTING
    return kernel.stage is Stage.MEASURED or (kernel.stage is Stage.FAILED and lasting)


def comparable(recorded: SessionState, opened: SessionOpened, here: Device) -> bool:
    """Whether verdicts of the one session mean the same in the other on this device: problem, workload, policy, baseline and
    state of the caches are the same."""
    if recorded.opened is None or recorded.device is None or not queries.same_device(recorded.device, here):
        return False
    one, other = recorded.opened.settings, opened.settings
    same = all(getattr(one, name) == getattr(other, name) for name in ("workload", "tolerance", "baseline", "cold"))
    return same and recorded.opened.problem.digest == opened.problem.digest
