"""Requests of the engine to the judge, and its replies. No torch: both sides import this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.domain.memory_plan import WorkloadMemory
from engine.domain.model import Contract, Device, Failure, Measurement, Problem, Signature, Verification, Workload
from engine.domain.preparation import Peaks, Preparation
from engine.domain.regimes import Regime, Sustained
from engine.problem.graph_ir import TracedShape
from engine.trial.messages import Message

OTHER = "other"
"""The name of the second of two compared kernels."""


class WorkloadBinary(Message, frozen=True):
    """The artefact for one workload: a binary's path (none for a module) and a resolved plan."""

    workload: Workload
    binary: str = ""
    content: bytes = b""
    """The binary itself, in requests to the judge, which sees no file of the user's."""
    plan: bytes = b""
    starts_threads: bool = False
    """Whether the binary imports functions that start threads, other than OpenMP's."""


class WorkloadBuild(Message, frozen=True):
    """A kernel built for one workload. ``specialised`` counts the hold-out shapes that it does not compile for."""

    built: WorkloadBinary
    holdouts: tuple[WorkloadBinary, ...] = ()
    specialised: int = 0


class Candidate(Message, frozen=True):
    """A kernel as the judge needs it, built for the first workload; ``more`` has its builds for the others of a suite."""

    contract: str
    name: str
    source: str
    tunables: Mapping[str, int]
    built: WorkloadBinary
    holdouts: tuple[WorkloadBinary, ...] = ()
    specialised: int = 0
    more: tuple[WorkloadBuild, ...] = ()

    def each(self) -> tuple[Candidate, ...]:
        """The kernel on each workload of the suite, in its order."""
        own = msgspec.structs.replace(self, more=())
        others = (
            msgspec.structs.replace(own, built=one.built, holdouts=one.holdouts, specialised=one.specialised)
            for one in self.more
        )
        return (own, *others)


class DeviceRequest(Message, frozen=True):
    """Describe a device. The first request: no reference has run yet, so the reply can be trusted."""

    device: str


class DeviceReply(Message, frozen=True):
    device: Device
    bus_id: str = ""
    """PCI bus id of a GPU."""


class PeaksRequest(Message, frozen=True):
    """Measure the device's ceilings, which all problems share: before any reference has run."""

    device: str


class PeaksReply(Message, frozen=True):
    peaks: Peaks
    quiet: bool = True
    """Whether no other work used a CPU's cores meanwhile, as far as that can be seen."""


class SuiteMember(Message, frozen=True):
    """A further workload of a suite, as the fields of ``OpenRequest`` describe the first."""

    workload: Workload
    holdouts: tuple[Workload, ...] = ()
    same: tuple[float, float, float] | None = None
    cached: bytes = b""
    calibrations: bytes = b""


class OpenRequest(Message, frozen=True):
    """Open a problem on a workload and the further ones of its suite, in a judge that has opened no other problem.

    Answered by ``OpenReply``.
    """

    problem: Problem
    workload: Workload
    holdouts: tuple[Workload, ...]
    device: str
    tolerance: str
    baseline: str
    further_baselines: tuple[str, ...]
    cold: bool
    confined: bool
    """Whether hosts run in bubblewrap."""
    same: tuple[float, float, float] | None = None
    fresh: bool = False
    """Measure every baseline again, even if it is cached."""
    peaks: Peaks | None = None
    """The device's ceilings, if already measured."""
    cached: bytes = b""
    """The cached baselines of this problem, as ``judge.baseline_cache`` encodes them."""
    calibrations: bytes = b""
    """Known calibrations of this problem, as ``judge.preparation_cache`` encodes them."""
    memory_limit: int = 0
    """Most bytes of the device's memory to plan with; 0: what is free."""
    more: tuple[SuiteMember, ...] = ()
    prepares: bool = False
    """Whether ``PrepareRequest`` or a kernel follows at once: the hosts start while the problem is loaded."""
    contract: Contract | None = None
    """The contract of the kernel that is judged first, if known."""

    def each(self) -> tuple[OpenRequest, ...]:
        """The request for each workload of the suite alone, in its order."""
        own = msgspec.structs.replace(self, more=())
        others = (
            msgspec.structs.replace(
                own, workload=one.workload, holdouts=one.holdouts, same=one.same, cached=one.cached,
                calibrations=one.calibrations,
            )
            for one in self.more
        )  # fmt: skip
        return (own, *others)


class WorkloadSignatures(Message, frozen=True):
    """What a kernel is called with on one workload, and on its hold-out shapes."""

    signature: Signature
    holdouts: tuple[Signature, ...]


class OpenReply(Message, frozen=True):
    """``workloads``: in the suite's order."""

    workloads: tuple[WorkloadSignatures, ...]


class PrepareRequest(Message, frozen=True):
    """Calibrate, try the trivial models, measure baselines. Without ``measure`` the baselines are left out."""

    peaks: Peaks
    cached: Mapping[str, bytes] = {}
    """Workload → as in ``OpenRequest``."""
    measure: bool = True
    known: tuple[str, ...] = ()
    """Workloads whose preparation the engine has: they are left out."""


class PreparedWorkload(Message, frozen=True):
    """``preparation`` says nothing about the sandbox: the engine knows better."""

    preparation: Preparation
    cached: bytes = b""
    """The baselines to cache for this problem; empty: no change."""
    calibrations: bytes = b""
    """As in ``OpenRequest``; complete only if baselines were measured."""


class PrepareReply(Message, frozen=True):
    """``workloads``: by name, without those that are known."""

    workloads: Mapping[str, PreparedWorkload]


class PlanRequest(Message, frozen=True):
    """The memory plans of all workloads, the opened one's first. Answered by ``PlanReply``."""


class PlanReply(Message, frozen=True):
    workloads: tuple[WorkloadMemory, ...]


class TraceRequest(Message, frozen=True):
    """The reference's graph on every workload, for writing a naive kernel. Answered by ``TraceReply``."""


class TraceReply(Message, frozen=True):
    shapes: tuple[TracedShape, ...]
    """In the suite's order."""


class DrawRequest(Message, frozen=True):
    """Fresh inputs for one workload, for sanitizers and profilers, which run outside the trial.

    One call's inputs are written to each descriptor that comes with the request."""

    workload: Workload
    module: bool = False
    """Whether to reply also how a module is constructed and called."""


class DrawReply(Message, frozen=True):
    scalars: tuple[Any, ...] = ()
    """As in ``LoadKernel``, if requested."""


class CheckRequest(Message, frozen=True):
    """Check a kernel's outputs, without timing it: all that can be checked before baselines are measured."""

    candidate: Candidate


class CheckReply(Message, frozen=True):
    """The kernel is right. A wrong one is answered by ``FailedVerdict``."""


class VerifyRequest(Message, frozen=True):
    candidate: Candidate


class VerifyReply(Message, frozen=True):
    verification: Verification
    screen: Measurement
    raw: bytes
    evidence: tuple[str, ...] = ()
    """Reasons to doubt it although no rule was broken."""


class MeasureRequest(Message, frozen=True):
    candidate: Candidate


class SustainRequest(Message, frozen=True):
    """Measure a kernel in the sustained regime. Answered by ``SustainReply``."""

    candidate: Candidate


class SustainReply(Message, frozen=True):
    """``sustained`` is ``None`` where calls cannot follow each other; ``note`` says why."""

    sustained: Sustained | None
    raw: bytes = b""
    evidence: tuple[str, ...] = ()
    note: str = ""


class CompareRequest(Message, frozen=True):
    """Compare two kernels: the speedup of the first over the second, under the name ``other``."""

    candidate: Candidate
    other: Candidate
    effort: int | None = None
    """Limits the cost like a race for the lead; ``None``: as a precise measurement."""
    regime: Regime = Regime.SINGLE


class MeasureReply(Message, frozen=True):
    measurement: Measurement
    raw: bytes
    evidence: tuple[str, ...] = ()
    regime: Regime = Regime.SINGLE
    """The regime of the measurement: of a comparison that the problem allows only of single calls, not the requested one."""


class FailedVerdict(Message, frozen=True):
    """The kernel failed: a verdict."""

    failure: Failure
    log: str
    other: bool = False
    """Whether it was the second of two compared kernels."""


class JudgeFailed(Message, frozen=True):
    """The request failed without a verdict. ``kind`` names the EspalierError to raise."""

    kind: str
    reason: str


class JudgeProgress(Message, frozen=True):
    text: str


Request = (
    DeviceRequest | PeaksRequest | OpenRequest | PlanRequest | PrepareRequest | TraceRequest | DrawRequest
    | CheckRequest | VerifyRequest | MeasureRequest | SustainRequest | CompareRequest
)  # fmt: skip
Reply = (
    DeviceReply | PeaksReply | OpenReply | PlanReply | PrepareReply | TraceReply | DrawReply
    | CheckReply | VerifyReply | MeasureReply | SustainReply | FailedVerdict | JudgeFailed | JudgeProgress
)  # fmt: skip
ANSWERS: Mapping[type[Request], type[Message] | tuple[type[Message], ...]] = {
    DeviceRequest: DeviceReply, PeaksRequest: PeaksReply, OpenRequest: OpenReply, PlanRequest: PlanReply,
    PrepareRequest: PrepareReply, TraceRequest: TraceReply, DrawRequest: DrawReply,
    CheckRequest: (CheckReply, FailedVerdict), VerifyRequest: (VerifyReply, FailedVerdict),
    MeasureRequest: (MeasureReply, FailedVerdict), SustainRequest: (SustainReply, FailedVerdict),
    CompareRequest: (MeasureReply, FailedVerdict),
}  # fmt: skip
"""What may answer a request, beside progress and ``JudgeFailed``."""
