"""What the engine asks of the judge and what the judge answers. No torch: both sides import this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.domain.model import Device, Failure, Measurement, Problem, Signature, Verification, Workload
from engine.domain.preparation import Peaks, Preparation
from engine.trial.wire import Message

OTHER = "other"
"""The name of the second of two kernels that are measured against each other."""


class Built(Message, frozen=True):
    """One artefact for one workload: a binary's path (or none, for a module) and its resolved plan."""

    workload: Workload
    binary: str = ""
    plan: bytes = b""


class Candidate(Message, frozen=True):
    """A kernel as the judge needs it. Hold-outs that refused to compile are in ``specialised``."""

    contract: str
    name: str
    source: str
    tunables: Mapping[str, int]
    built: Built
    holdouts: tuple[Built, ...] = ()
    specialised: int = 0


class Open(Message, frozen=True):
    """Take on a problem. Answered by ``Opened``."""

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
    """Measure every baseline anew, whatever the cache knows of them."""
    peaks: Peaks | None = None
    """The device's ceilings, where they are known already."""


class Opened(Message, frozen=True):
    device: Device
    signature: Signature
    holdouts: tuple[Signature, ...]
    sandbox: str
    sandbox_reason: str


class Prepare(Message, frozen=True):
    """Calibrate, try the null models, measure baselines and ceilings. ``measure`` is off where only the gate is wanted."""

    measure: bool = True


class Prepared(Message, frozen=True):
    preparation: Preparation
    raw: bytes


class Trace(Message, frozen=True):
    """The reference's graph, for writing a naive kernel. Answered by ``Traced``."""


class Traced(Message, frozen=True):
    graph: str
    """``engine.problem.graph_ir`` as JSON."""


class Draw(Message, frozen=True):
    """Fresh inputs for one of the shapes, as files: for the sanitizers and the profilers, which run outside the trial."""

    workload: Workload
    folder: str
    calls: int
    module: bool = False
    """Whether it is also wanted how a module is made and called."""


class Drawn(Message, frozen=True):
    files: tuple[str, ...]
    scalars: tuple[Any, ...] = ()
    """As in a ``Load``, where it was asked for."""


class Verify(Message, frozen=True):
    candidate: Candidate


class Verified(Message, frozen=True):
    verification: Verification
    screen: Measurement
    raw: bytes
    evidence: tuple[str, ...] = ()
    """Why it is not believed, though no rule was broken."""


class Measure(Message, frozen=True):
    candidate: Candidate


class Versus(Message, frozen=True):
    """Two kernels against each other: the speedup of the first over the second, under the name ``other``."""

    candidate: Candidate
    other: Candidate
    effort: int | None = None
    """Bounds the cost, as a race for the lead is bounded; none: as much as a precise measurement takes."""


class Measured(Message, frozen=True):
    measurement: Measurement
    raw: bytes
    evidence: tuple[str, ...] = ()


class Refused(Message, frozen=True):
    """The kernel failed: a verdict."""

    failure: Failure
    log: str
    other: bool = False
    """Of two kernels against each other it was the second one."""


class Unable(Message, frozen=True):
    """The judge could not do it: no verdict. ``kind`` names the EspalierError it stands for."""

    kind: str
    reason: str


class Progress(Message, frozen=True):
    text: str


Request = Open | Prepare | Trace | Draw | Verify | Measure | Versus
Reply = Opened | Prepared | Traced | Drawn | Verified | Measured | Refused | Unable | Progress
