"""Reuses verdicts that another session recorded for the same kernels. With recalled replies, a fork repeats a session at no
cost.

Verdicts are reused only for the same problem, workload, tolerance policy and device. A reused verdict names its origin among
its conditions, and ``espalier kernel remeasure`` measures again. Kernels are always built. The recorded instruction mix is
reused too: prompts contain it, and recorded replies are looked up by prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engine.domain import queries, races
from engine.domain import work as w
from engine.domain.events import SessionOpened
from engine.domain.model import Device, FailureKind, Measurement
from engine.domain.profile import Profile
from engine.domain.regimes import Regime
from engine.domain.state import Kernel, SessionState, Stage
from engine.session.ports import Bench, Say

_REUSABLE_FAILURES = (FailureKind.MISMATCH, FailureKind.REJECTED)
"""Failures that repeat in every trial of the same kernel."""

_Identity = tuple[str, tuple[tuple[str, int], ...]]


@dataclass(slots=True)
class CachedVerdictBench:
    """A bench that returns recorded verdicts where there are any, else asks ``bench``. ``name`` names the recorded session."""

    bench: Bench
    recorded: SessionState
    name: str
    _known: Mapping[_Identity, Kernel] = field(init=False)

    def __post_init__(self) -> None:
        self._known = {_identity(k): k for k in self.recorded.kernels.values() if _is_reusable(self.recorded, k)}

    async def prepare(self, say: Say) -> w.Prepared | w.Impossible:
        return await self.bench.prepare(say)

    async def build(self, kernel: Kernel, code: str, say: Say) -> w.Built | w.Failed | w.NoVerdict:
        built = await self.bench.build(kernel, code, say)
        known = self._recorded(kernel)
        if known is None or not isinstance(built, w.Built):
            return built
        return replace(built, instructions=known.instructions, machine_code=known.machine_code)

    async def verify(self, kernel: Kernel, code: str, say: Say) -> w.Verified | w.Suspected | w.Failed | w.NoVerdict:
        known = self._recorded(kernel)
        if known is not None and known.failure is not None:
            return w.Failed(replace(known.failure, log=""))
        if known is not None and known.verification is not None and known.measurement is not None:
            return w.Verified(known.verification, self._with_origin(known.measurement), 0.0)
        return await self.bench.verify(kernel, code, say)

    async def measure(self, kernel: Kernel, code: str, say: Say) -> w.Measured | w.Suspected | w.Failed | w.NoVerdict:
        known = self._recorded(kernel)
        if known is not None and known.measurement is not None and known.measurement.depth == "precise":
            return w.Measured(self._with_origin(known.measurement), 0.0)
        return await self.bench.measure(kernel, code, say)

    async def sustain(self, kernel: Kernel, code: str, say: Say) -> w.BackToBack | w.Failed | w.NoVerdict:
        known = self._recorded(kernel)
        recorded = known.measurement.sustained if known is not None and known.measurement is not None else None
        if recorded is None:
            return await self.bench.sustain(kernel, code, say)
        return w.BackToBack(replace(recorded, conditions=(*recorded.conditions, f"recorded in {self.name}"), raw=""))

    async def race(
        self, kernel: Kernel, code: str, other: Kernel, other_code: str, effort: int, regime: Regime, say: Say
    ) -> w.Raced | w.Failed | w.NoVerdict:
        """Reuses a recorded race of the same two kernels in this regime, unless more effort is requested."""
        one, two = self._recorded(kernel), self._recorded(other)
        known = races.latest_race(self.recorded, one.id, two.id) if one is not None and two is not None and not effort else None
        if one is None or known is None or known.ratio is None or known.back_to_back is not (regime is Regime.SUSTAINED):
            return await self.bench.race(kernel, code, other, other_code, effort, regime, say)
        ratio = known.ratio if known.kernel == one.id else races.inverted(known.ratio)
        note = "; ".join(filter(None, (known.note, f"recorded in {self.name}")))
        sound = known.outcome is races.outcome(known.ratio)
        return w.Raced(ratio, known.pairs, known.samples, sound, note=note, regime=regime)

    async def sanitize(self, kernel: Kernel, code: str, say: Say) -> w.Sanitized | w.NoVerdict:
        return await self.bench.sanitize(kernel, code, say)

    async def read_counters(self, kernel: Kernel, code: str, say: Say) -> w.Profiled | w.NoVerdict:
        """Reuses what was read, or that nothing was: prompts contain it, and recorded replies are looked up by prompt."""
        known = self._recorded(kernel)
        if known is not None:
            found = known.profile or Profile(0, note=f"not read in {self.name}")
            hot = replace(found.hot, listing="") if found.hot is not None else None
            return w.Profiled(replace(found, log="", hot=hot))
        return await self.bench.read_counters(kernel, code, say)

    async def close(self) -> None:
        await self.bench.close()

    def _recorded(self, kernel: Kernel) -> Kernel | None:
        """The recorded kernel with the same code and tunables; ``None`` for a kernel that is remeasured."""
        return None if kernel.again else self._known.get(_identity(kernel))

    def _with_origin(self, measurement: Measurement) -> Measurement:
        """The measurement with its origin among the conditions and without samples, which are blobs of the recorded session.

        Sustained times are asked for on their own (``sustain``)."""
        return replace(measurement, conditions=(*measurement.conditions, f"recorded in {self.name}"), raw="", sustained=None)


def _identity(kernel: Kernel) -> _Identity:
    return (kernel.source, tuple(sorted(kernel.tunables.items())))


def _is_reusable(state: SessionState, kernel: Kernel) -> bool:
    """Whether the verdict belongs to the recorded session's last device and repeats in every trial."""
    if kernel.epoch != state.epoch:
        return False
    lasting = kernel.failure is not None and kernel.failure.kind in _REUSABLE_FAILURES
    return kernel.stage is Stage.MEASURED or (kernel.stage is Stage.FAILED and lasting)


def comparable(recorded: SessionState, opened: SessionOpened, here: Device) -> bool:
    """Whether verdicts of the recorded session are valid in ``opened`` on this device: device, problem, workload, tolerance,
    baseline and cache state agree."""
    if recorded.opened is None or recorded.device is None or not queries.same_device(recorded.device, here):
        return False
    one, other = recorded.opened.settings, opened.settings
    same = all(getattr(one, name) == getattr(other, name) for name in ("workload", "suite", "tolerance", "baseline", "cold"))
    return same and recorded.opened.problem.digest == opened.problem.digest
