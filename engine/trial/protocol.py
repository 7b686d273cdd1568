"""Requests of the engine to the judge, and its replies. No torch: both sides import this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.domain.model import Device, Failure, Measurement, Problem, Signature, Verification, Workload
from engine.domain.preparation import Peaks, Preparation
from engine.problem.graph_ir import Graph, Unsupported
from engine.trial.messages import Message

OTHER = "other"
"""The name of the second of two compared kernels."""


class WorkloadBinary(Message, frozen=True):
    """The artefact for one workload: a binary's path (none for a module) and a resolved plan."""

    workload: Workload
    binary: str = ""
    plan: bytes = b""
    starts_threads: bool = False
    """Whether the binary imports functions that start threads, other than OpenMP's."""


class Candidate(Message, frozen=True):
    """A kernel as the judge needs it. ``specialised`` counts the hold-out shapes that it does not compile for."""

    contract: str
    name: str
    source: str
    tunables: Mapping[str, int]
    built: WorkloadBinary
    holdouts: tuple[WorkloadBinary, ...] = ()
    specialised: int = 0


class OpenRequest(Message, frozen=True):
    """Open a problem. Answered by ``OpenReply``."""

    problem: Problem
    workload: Workload
    holdouts: tuple[Workload, ...]
    device: str
    tolerance: str
    baseline: str
    others: tuple[str, ...]
    cold: bool
    cache: str
    same: tuple[float, float, float] | None = None
    fresh: bool = False
    """Measure every baseline again, even if it is cached."""
    peaks: Peaks | None = None
    """The device's ceilings, if already measured."""


class OpenReply(Message, frozen=True):
    device: Device
    signature: Signature
    holdouts: tuple[Signature, ...]
    sandbox: str
    sandbox_reason: str


class PrepareRequest(Message, frozen=True):
    """Calibrate, try the trivial models, measure baselines and ceilings. Without ``measure`` the baselines are left out."""

    measure: bool = True


class PrepareReply(Message, frozen=True):
    preparation: Preparation
    raw: bytes


class TraceRequest(Message, frozen=True):
    """The reference's graph, for writing a naive kernel. Answered by ``TraceReply``."""


class TraceReply(Message, frozen=True):
    graph: Graph | Unsupported


class DrawRequest(Message, frozen=True):
    """Fresh inputs for one workload, as files: for sanitizers and profilers, which run outside the trial."""

    workload: Workload
    folder: str
    calls: int
    module: bool = False
    """Whether to reply also how a module is constructed and called."""


class DrawReply(Message, frozen=True):
    files: tuple[str, ...]
    scalars: tuple[Any, ...] = ()
    """As in ``LoadKernel``, if requested."""


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


class CompareRequest(Message, frozen=True):
    """Compare two kernels: the speedup of the first over the second, under the name ``other``."""

    candidate: Candidate
    other: Candidate
    effort: int | None = None
    """Limits the cost like a race for the lead; ``None``: as a precise measurement."""


class MeasureReply(Message, frozen=True):
    measurement: Measurement
    raw: bytes
    evidence: tuple[str, ...] = ()


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


Request = OpenRequest | PrepareRequest | TraceRequest | DrawRequest | VerifyRequest | MeasureRequest | CompareRequest
Reply = (
    OpenReply | PrepareReply | TraceReply | DrawReply | VerifyReply | MeasureReply | FailedVerdict | JudgeFailed | JudgeProgress
)
