"""Judges one KernelBench file in this process: its own model, its naive port, or a candidate."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.kernelbench_files import candidate
from engine.codegen import scaffold
from engine.domain import corroboration
from engine.domain import work as w
from engine.domain.errors import EspalierError, KernelCodeError, ProblemError
from engine.domain.model import Dialect, Measurement, Problem, Signature, Workload
from engine.domain.preparation import CorrectnessCheck
from engine.fleet.places import ranges
from engine.problem import catalog
from engine.problem.formats import solutions
from engine.problem.graph_ir import TracedShape
from engine.session.seeds import kernel_spec, read_kernel, seed_of
from engine.session.workbench import KernelTrial, open_workbench
from engine.toolchain.kernel_file import KernelCode, classify
from engine.trial.bench import Assignment, TrialBench
from engine.trial.client import JudgeClient

GIB = 1 << 30
OWN, PORT = "own", "port"
_BYTES = {"float64": 8, "int64": 8, "complex64": 8, "float16": 2, "bfloat16": 2, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}


class Status(StrEnum):
    """How a file ended. The first four are verdicts on a right kernel, then those on a wrong one."""

    RIGHT = "right"
    """Its outputs are; it was not timed."""
    MEASURED = "measured"
    NOT_CORROBORATED = "not_corroborated"
    QUARANTINED = "quarantined"
    BUILD_FAILED = "build_failed"
    MISMATCH = "mismatch"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    REJECTED = "rejected"
    UNSTABLE = "unstable"
    REFUSED = "refused"
    """The problem cannot be judged: random outputs, a trivial model passes, no naive port …"""
    OUT_OF_MEMORY = "out_of_memory"
    TIME_LIMIT = "time_limit"
    SKIPPED = "skipped"
    """Larger than the memory limit, or without a candidate."""
    FAILED = "failed"
    """The judging itself failed."""


@dataclass(frozen=True, slots=True)
class Request:
    """One file and how to judge it."""

    path: str
    name: str
    device: str
    kernel: str
    """``own``, ``port``, a kernel's file, or a folder of candidates."""
    workload: str
    settings: Mapping[str, float]
    memory_limit: float
    """GiB of operands; 0: no limit."""
    cores: tuple[int, ...] = ()
    """The machine's cores to measure on, instead of all of them."""
    suite: str = ""
    """The suite of workloads to judge on, instead of ``workload``."""
    accept_unverifiable: bool = False
    """Judge also where a trivial model passes the correctness check; the result names it."""
    check_only: bool = False
    """Check outputs, and time nothing."""


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the results file."""

    name: str
    device: str
    kernel: str
    status: Status
    reason: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0
    operand_bytes: int = 0
    """Inputs, parameters, buffers and outputs."""
    time_us: float = 0.0
    speedup: tuple[float, float, float] | None = None
    """Over eager: value, low, high. With the model itself as the kernel it is an A/A interval."""
    stages_s: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, float] = field(default_factory=dict)
    """Settings that were replaced."""
    workloads: int = 1
    worst: str = ""
    """Of a suite: the workload with the lowest speedup, and that speedup with its interval."""

    @property
    def waited_s(self) -> float:
        """Seconds of ``seconds`` in which others held the device."""
        return self.stages_s.get("wait", 0.0)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @staticmethod
    def from_json(plain: dict[str, Any]) -> Result:
        """The inverse of ``to_json``. Raises KeyError, TypeError, ValueError."""
        ratio = plain.get("speedup")
        return Result(**{**plain, "status": Status(plain["status"]), "speedup": tuple(ratio) if ratio else None})

    @property
    def sort_key(self) -> tuple[str, int, str]:
        """By level, then by number."""
        level, _, stem = self.name.rpartition("/")
        digits = re.match(r"\d+", stem)
        return level, int(digits.group()) if digits else 0, stem

    @property
    def reason_class(self) -> str:
        """The reason without what differs from file to file; at a time limit, the last step."""
        reason = self.reason.rpartition("; ")[2] if self.status is Status.TIME_LIMIT else self.reason
        return re.sub(r"\d[\d.e+-]*", "N", re.sub(r"^(?:call \d+|\S+\.py:?|\w+:|[\d.]+ s) ", "", reason))[:90]


async def judge(
    request: Request, client: JudgeClient | None = None, answer: Callable[[Result], None] = lambda _: None
) -> Result:
    """The result, whatever happens in judging. ``client``: a judge that was started before, for its device.

    ``answer`` gets the verdict before the processes are ended that gave it, if it comes to one.
    """
    base = Result(request.name, request.device, request.kernel, Status.FAILED)
    try:
        problem, workloads = find_problem(request)
        base = replace(base, workloads=len(workloads))
        cores = tuple(request.cores)
        if cores:
            os.sched_setaffinity(0, cores)
        assignment = replace(assigned(problem, workloads, request), cores=cores, unit=ranges(cores))
        text = candidate_text(request, problem) if request.kernel != PORT else None
        if request.kernel not in (OWN, PORT) and text is None:
            return replace(base, status=Status.SKIPPED, reason="no candidate in the folder")
        if text is None or request.memory_limit:
            signature, text = await _described(replace(assignment, device="cpu"), request, text)
            base = replace(base, operand_bytes=operand_bytes(signature))
        if request.memory_limit and base.operand_bytes > request.memory_limit * GIB:
            size = f"{base.operand_bytes / GIB:.1f} GiB of operands, the limit is {request.memory_limit:g}"
            return replace(base, status=Status.SKIPPED, reason=size)
        seed = seed_of(text, {})
        assignment = replace(assignment, contract=seed.kernel.contract)
        accepted, say = request.accept_unverifiable, _steps_since(time.monotonic())
        async with open_workbench(assignment, say, accept_unverifiable=accepted, judge=client) as bench:
            base = replace(base, operand_bytes=operand_bytes(bench.signature))
            kernel = kernel_spec(seed.kernel, seed.tunables)
            if request.check_only:
                found = _checked(base, await bench.check(kernel))
            else:
                found = result_of(base, await bench.attempt(kernel))
            found = _with_trivial(found, bench.preparation.gate)
            answer(found)
            return found
    except (ProblemError, KernelCodeError) as error:
        return replace(base, status=refusal(str(error)), reason=short(str(error)))
    except EspalierError as error:
        status = Status.OUT_OF_MEMORY if lacks_memory(str(error)) else Status.FAILED
        return replace(base, status=status, reason=short(str(error)))


def _checked(base: Result, wrong: w.Failed | None) -> Result:
    if wrong is None:
        return replace(base, status=Status.RIGHT)
    return replace(base, status=Status(wrong.failure.kind.value), reason=short(wrong.failure.reason))


def _with_trivial(found: Result, check: CorrectnessCheck) -> Result:
    """The result, naming the trivial models that pass the correctness check too."""
    if check.verifiable:
        return found
    passed = f"a trivial model passes too: {', '.join(model.name for model in check.nulls if model.passed)}"
    return replace(found, reason=short("; ".join(filter(None, (found.reason, passed)))))


def _steps_since(began: float) -> Callable[[str], None]:
    """Prints each step to standard error, with the seconds since ``began``."""
    return lambda step: print(f"{time.monotonic() - began:.1f} s {step}", file=sys.stderr, flush=True)


def refusal(reason: str) -> Status:
    """The status of a problem that cannot be judged."""
    return Status.OUT_OF_MEMORY if lacks_memory(reason) else Status.REFUSED


def lacks_memory(reason: str) -> bool:
    """Whether the problem is larger than the device: torch found out, or the judge before."""
    return "out of memory" in reason.lower() or "does not fit" in reason


def find_problem(request: Request) -> tuple[Problem, tuple[Workload, ...]]:
    """The problem of a file, and its workloads with the replaced settings: those of the suite, if the problem has it."""
    problem = catalog.find(request.path)
    suite = request.suite if request.suite in problem.suites else ""
    chosen = catalog.workloads_for(problem, "" if suite else request.workload, suite, request.workload)
    return problem, tuple(_replaced(workload, request.settings) for workload in chosen)


def _replaced(workload: Workload, settings: Mapping[str, float]) -> Workload:
    known = {name: value for name, value in settings.items() if name in workload.settings}
    return replace(workload, settings={**workload.settings, **known}) if known else workload


def assigned(problem: Problem, workloads: Sequence[Workload], request: Request) -> Assignment:
    """The assignment of a bench that judges on these workloads."""
    first, *rest = workloads
    suite = request.suite if rest else ""
    return Assignment(problem, first, request.device, prepared=True, rest=tuple(rest), suite=suite)


def candidate_text(request: Request, problem: Problem) -> KernelCode | None:
    """The kernel to judge; none if the folder has no candidate."""
    if request.kernel == OWN:
        return _kernel(solutions.own_module(problem, request.device), "model.py")
    given = Path(request.kernel)
    path = given if given.is_file() else candidate(given, request.name)
    return read_kernel(path, problem) if path is not None else None


def _kernel(text: str, name: str) -> KernelCode:
    return KernelCode(text, *classify(text, name), name)


async def _described(assignment: Assignment, request: Request, given: KernelCode | None) -> tuple[Signature, KernelCode]:
    """The signature, and the kernel: the naive port unless one is given. Raises ProblemError where there is no port."""
    bench = TrialBench(assignment, lambda _: "")
    try:
        _, signature = await bench.describe()
        if given is not None:
            return signature, given
        return signature, port_of(assignment, request.device, await bench.traced())
    finally:
        await bench.close()


def port_of(assignment: Assignment, device: str, shapes: Sequence[TracedShape]) -> KernelCode:
    """The naive port. Raises ProblemError where there is none."""
    dialect = Dialect.CPP if device == "cpu" else Dialect.CUDA
    text = scaffold.scaffold(assignment.problem, assignment.workloads, shapes, dialect)
    return _kernel(text, f"port.{'cpp' if dialect is Dialect.CPP else 'cu'}")


def operand_bytes(signature: Signature) -> int:
    """Bytes of every operand once."""
    return sum(math.prod(o.shape) * _BYTES.get(o.dtype, 4) for o in signature.operands)


def result_of(base: Result, tried: KernelTrial) -> Result:
    """The result of a file whose kernel was tried."""
    stages = {"build": tried.build_s, "verify": tried.verify_s or 0.0, "measure": tried.measure_s or 0.0, "wait": tried.wait_s}
    base = replace(base, stages_s={name: round(value, 3) for name, value in stages.items()})
    if isinstance(tried.final, w.Failed):
        return replace(base, status=Status(tried.final.failure.kind.value), reason=short(tried.final.failure.reason))
    timed = tried.final.measurement
    doubts = corroboration.combined(tried.final.evidence if isinstance(tried.final, w.Suspected) else (), timed)
    status = Status.QUARANTINED if isinstance(tried.final, w.Suspected) else Status.MEASURED
    if status is Status.MEASURED and doubts:
        status = Status.NOT_CORROBORATED
    if timed is None:
        return replace(base, status=status, reason=short("; ".join(doubts)))
    ratio = timed.speedup.get("eager")
    spread = (ratio.value, ratio.low, ratio.high) if ratio is not None else None
    return replace(
        base, status=status, reason=short("; ".join(doubts)), time_us=timed.time_us.value, speedup=spread, worst=_worst(timed)
    )  # fmt: skip


def _worst(timed: Measurement) -> str:
    """The workload of a suite with the lowest speedup over eager."""
    each = {one.workload: one.speedup["eager"] for one in timed.by_workload if "eager" in one.speedup}
    if not each:
        return ""
    name, ratio = min(each.items(), key=lambda pair: pair[1].value)
    return f"{name} {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def short(text: str) -> str:
    """Text on one line, of bounded length."""
    return " ".join(text.split())[:300]
