"""Judges one KernelBench file on a worker of a fleet, which may be on another machine."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from benchmarks.kernelbench_judging import (
    GIB,
    OWN,
    PORT,
    Request,
    Result,
    Status,
    assigned,
    candidate_text,
    find_problem,
    lacks_memory,
    operand_bytes,
    port_of,
    refusal,
    result_of,
    short,
)
from engine.domain import work as w
from engine.domain.errors import EspalierError, KernelCodeError, ProblemError
from engine.domain.model import ENGINE
from engine.domain.state import Kernel
from engine.fleet import messages as m
from engine.fleet.links import WorkerLauncher
from engine.fleet.member import ONCE, FleetWorker, KernelParcel
from engine.fleet.places import WorkerPlace
from engine.session.seeds import seed_of
from engine.session.workbench import KernelTrial
from engine.toolchain.kernel_file import KernelCode


async def judge_on(launcher: WorkerLauncher, place: WorkerPlace, request: Request) -> Result:
    """The result, whatever happens in judging. The worker starts for this file and ends with it."""
    base = Result(request.name, request.device, request.kernel, Status.FAILED)
    member = FleetWorker(place, launcher)
    try:
        return await _judged(member, base, request)
    except (ProblemError, KernelCodeError) as error:
        return replace(base, status=refusal(str(error)), reason=short(str(error)))
    except EspalierError as error:
        status = Status.OUT_OF_MEMORY if lacks_memory(str(error)) else Status.FAILED
        return replace(base, status=status, reason=short(f"{place.name}: {error}"))
    finally:
        await member.end()


async def _judged(member: FleetWorker, base: Result, request: Request) -> Result:
    problem, workloads = find_problem(request)
    assignment = assigned(problem, workloads, request)
    code = candidate_text(request, problem) if request.kernel != PORT else None
    if request.kernel not in (OWN, PORT) and code is None:
        return replace(base, status=Status.SKIPPED, reason="no candidate in the folder")
    base = replace(base, workloads=len(workloads))
    opened = await member.begin(assignment, ceilings=True)
    base = replace(base, operand_bytes=operand_bytes(opened.signature))
    if request.memory_limit and base.operand_bytes > request.memory_limit * GIB:
        size = f"{base.operand_bytes / GIB:.1f} GiB of operands, the limit is {request.memory_limit:g}"
        return replace(base, status=Status.SKIPPED, reason=size)
    if code is None:
        traced, _ = await member.ask("trace", m.TraceProblem, _silent)
        code = port_of(assignment, request.device, traced.shapes)
    prepared = await _done(member, w.WorkKind.PREPARE)
    passed = [model.name for model in prepared.preparation.gate.nulls if model.passed]
    if not prepared.preparation.gate.verifiable:
        raise ProblemError(
            f"{problem.name} is not verifiable: a trivial model passes the correctness check ({', '.join(passed)})"
        )
    return result_of(base, await _tried(member, code))


async def _tried(member: FleetWorker, code: KernelCode) -> KernelTrial:
    """Build, verify and measure one kernel there."""
    seed = seed_of(code, {})
    source = hashlib.sha256(code.text.encode()).hexdigest()
    kernel = Kernel("k1", "", None, 0, ENGINE, code.name, code.dialect, code.contract, source, seed.tunables, False)
    built = await _done(member, w.WorkKind.BUILD, (kernel, code.text))
    if isinstance(built, w.Failed):
        return KernelTrial(built, None, built.seconds, None, None)
    verified = await _done(member, w.WorkKind.VERIFY, (kernel, code.text))
    if not isinstance(verified, w.Verified):
        return KernelTrial(verified, getattr(verified, "verification", None), built.seconds, verified.seconds, None)
    measured = await _done(member, w.WorkKind.MEASURE, (kernel, code.text))
    return KernelTrial(measured, verified.verification, built.seconds, verified.seconds, measured.seconds)


async def _done(member: FleetWorker, kind: w.WorkKind, *kernels: tuple[Kernel, str]) -> Any:
    """The result of one work item. Raises EspalierError for one that this worker cannot do."""
    found = await member.work(kind, [KernelParcel(*one) for one in kernels], ONCE, _silent, _forget)
    if isinstance(found, w.Impossible):
        raise EspalierError(found.reason)
    return found


def _silent(_: str) -> None:
    """No progress is shown."""


def _forget(payload: bytes) -> str:
    """The name of a payload, without storing it."""
    return hashlib.sha256(payload).hexdigest()
