"""Builds of kernels for one problem: for the workload and, ahead of the device, for every hold-out shape. No torch."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from engine.domain.errors import KernelCodeError
from engine.domain.model import Contract, Device, Dialect, Signature, Workload
from engine.sandbox.confinement import detect
from engine.sandbox.include_trees import include_trees
from engine.toolchain.build import Artefact, BuildFailure, build
from engine.toolchain.elf import starts_threads
from engine.toolchain.included import visible
from engine.toolchain.kernel_build import KernelBuild, for_shape
from engine.toolchain.kernel_file import KernelCode
from engine.toolchain.static_scan import static_scan
from engine.trial import protocol as p
from engine.trial.judge_session import Assignment, JudgeSession, OpenedProblem, Say
from engine.trial.tools import module_compilers
from engine.trial.tools.kernel_case import KernelCase
from engine.trial.tools.module_compilers import ModuleCaches

Shape = tuple[Workload, Signature]


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel's code, and how to build and launch it."""

    name: str
    text: str
    dialect: Dialect
    contract: Contract
    tunables: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A built kernel: what the judge needs, and the compiler's artefact."""

    candidate: p.Candidate
    artefact: Artefact
    machine_code: str = ""
    """Digest of what runs, for the workload and all hold-out shapes: binaries, launch plans, contract.

    Empty for ``module``, whose code is not all compiled, and for suspicious code.
    """


class KernelBuilds:
    """What was built for one judge's problem; each kernel once."""

    def __init__(self, assignment: Assignment, judge: JudgeSession) -> None:
        self._assignment = assignment
        self._judge = judge
        self._built: dict[tuple[str, str], BuiltKernel] = {}

    async def build(self, kernel: KernelSpec, say: Say) -> BuiltKernel | BuildFailure:
        """Build for the workload and its hold-out shapes, or return what an earlier call built."""
        key = (kernel.text, repr(sorted(kernel.tunables.items())))
        if key in self._built:
            known = self._built[key]
            return replace(known, candidate=msgspec.structs.replace(known.candidate, name=kernel.name))
        opened = await self._judge.open(say)
        async with self._compiling(say):
            return await self._build_all(kernel, opened, key, say)

    @asynccontextmanager
    async def _compiling(self, say: Say) -> AsyncIterator[None]:
        """Compilers use the cores: where those are what is measured, they run under the lease."""
        if self._assignment.device != "cpu":
            yield
            return
        async with self._judge.lease.held(say):
            yield

    async def _build_all(
        self, kernel: KernelSpec, opened: OpenedProblem, key: tuple[str, str], say: Say
    ) -> BuiltKernel | BuildFailure:
        say(f"building {kernel.name}")
        shapes = self.shapes(opened)
        jobs = [
            [asyncio.create_task(self._build_for(kernel, *shape, opened.device)) for shape in (own, *holdouts)]
            for own, holdouts in shapes
        ]
        builds: list[p.WorkloadBuild] = []
        artefacts: list[Artefact] = []
        outcomes: list[tuple[p.WorkloadBinary, Artefact] | BuildFailure] = []
        try:
            for (own, _), (first, *others) in zip(shapes, jobs, strict=True):
                main = await first
                if isinstance(main, BuildFailure):
                    return replace(main, reason=f"for workload {own[0].name}: {main.reason}") if len(shapes) > 1 else main
                found = await asyncio.gather(*others)
                built, artefact = main
                holdouts = tuple(o[0] for o in found if not isinstance(o, BuildFailure))
                builds.append(p.WorkloadBuild(built, holdouts, len(found) - len(holdouts)))
                artefacts.append(artefact)
                outcomes += [main, *found]
        finally:
            await _cancel([job for row in jobs for job in row])
        one, *more = builds
        candidate = p.Candidate(
            kernel.contract.value, kernel.name, kernel.text, dict(kernel.tunables), one.built, one.holdouts, one.specialised,
            tuple(more),
        )  # fmt: skip
        self._built[key] = BuiltKernel(candidate, artefacts[0], machine_code(kernel, outcomes))
        return self._built[key]

    async def _build_for(
        self, kernel: KernelSpec, workload: Workload, signature: Signature, device: Device
    ) -> tuple[p.WorkloadBinary, Artefact] | BuildFailure:
        if kernel.dialect is not Dialect.PYTHON and not signature.scalar_only:
            reason = "this problem has arguments that are neither tensors nor numbers: only the python dialect can be used"
            return BuildFailure(reason, reason, 0.0)
        try:
            wanted = kernel_build(kernel, workload, signature, device)
            plan, request = wanted.plan(), wanted.request()
        except KernelCodeError as error:
            return BuildFailure(f"{kernel.name}: {error}", str(error), 0.0)
        outcome = await build(request, await detect())
        if isinstance(outcome, BuildFailure):
            return outcome
        if kernel.dialect is Dialect.PYTHON:
            caches = await self._compile_module(kernel, workload, signature, device, outcome)
            if isinstance(caches, BuildFailure):
                return caches
            trees = visible(include_trees()) if module_compilers.compiles(kernel.text, device) else ()
            artefact = replace(outcome, seconds=outcome.seconds + caches.seconds, included=trees)
            return p.WorkloadBinary(workload, caches.path, b"", plan), artefact
        binary = str(outcome.binary)
        threads = device.kind == "cpu" and starts_threads(outcome.binary)
        return p.WorkloadBinary(workload, binary, b"", plan, threads), outcome

    async def _compile_module(
        self, kernel: KernelSpec, workload: Workload, signature: Signature, device: Device, built: Artefact
    ) -> ModuleCaches | BuildFailure:
        """What the module's own compilers make for a workload; its hold-out shapes use it too."""
        if workload not in self._assignment.workloads or not module_compilers.compiles(kernel.text, device):
            return ModuleCaches("", 0.0)
        scalars = await self._judge.scalars(workload)
        case = case_of(kernel, workload, signature, device)
        return await module_compilers.compile_module(case, device, built, scalars, self._judge.draw, await detect())

    def shapes(self, opened: OpenedProblem) -> list[tuple[Shape, list[Shape]]]:
        """Each workload of the suite, with its hold-outs."""
        a = self._judge.assignment
        return [
            ((workload, known.signature), list(zip(a.holdouts_of(workload), known.holdouts, strict=True)))
            for workload, known in zip(a.workloads, opened.workloads, strict=True)
        ]


def case_of(kernel: KernelSpec, workload: Workload, signature: Signature, device: Device) -> KernelCase:
    """What the tools run outside a trial. Raises KernelCodeError."""
    return KernelCase(workload, signature, kernel_build(kernel, workload, signature, device).request())


def kernel_build(kernel: KernelSpec, workload: Workload, signature: Signature, device: Device) -> KernelBuild:
    """How a kernel is built for a workload: of a dispatch, the member for its shape. Raises KernelCodeError."""
    code = KernelCode(kernel.text, kernel.dialect, kernel.contract, kernel.name)
    member, tunables = for_shape(code, kernel.tunables, workload, signature)
    return KernelBuild(member, tunables, signature, workload.name, device)


def machine_code(kernel: KernelSpec, builds: Sequence[tuple[p.WorkloadBinary, Artefact] | BuildFailure]) -> str:
    """``BuiltKernel.machine_code``. Whole files count, symbols and constants too, so nothing hides from the digest."""
    if kernel.contract is Contract.MODULE or kernel.dialect is Dialect.PYTHON or any(static_scan(kernel.text, kernel.dialect)):
        return ""
    parts = [f"{kernel.dialect}:{kernel.contract}".encode()]
    for built in builds:
        parts += [b""] if isinstance(built, BuildFailure) else [built[1].digest.encode(), built[0].plan]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()


async def _cancel(jobs: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel the running ones of ``jobs`` and wait for them."""
    running = [job for job in jobs if not job.done()]
    for job in running:
        job.cancel()
    if running:
        await asyncio.wait(running)
