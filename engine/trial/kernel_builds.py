"""Builds of kernels for one problem: for the workload and, ahead of the device, for every hold-out shape. No torch."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from engine.domain.errors import EspalierError, KernelCodeError
from engine.domain.model import Blob, Contract, Device, Dialect, Signature, Workload
from engine.sandbox.confinement import detect
from engine.sandbox.include_trees import include_trees
from engine.toolchain.adopted import adopted
from engine.toolchain.build import Artefact, BuildFailure, build
from engine.toolchain.elf import starts_threads
from engine.toolchain.included import visible
from engine.toolchain.kernel_build import KernelBuild, for_shape
from engine.toolchain.kernel_file import KernelCode
from engine.toolchain.static_scan import static_scan
from engine.trial import protocol as p
from engine.trial.builds_ahead import BuildsAhead
from engine.trial.judge_session import Assignment, JudgeSession, OpenedProblem, Say, silent
from engine.trial.tools import module_compilers
from engine.trial.tools.kernel_case import KernelCase
from engine.trial.tools.module_compilers import ModuleCaches

Shape = tuple[Workload, Signature]
Binaries = tuple[tuple[Blob, ...], ...]
"""SHA-256 of each binary: for each workload its own, then those of its hold-outs; empty for a hold-out that is not built."""


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
    binaries: Binaries = ()


@dataclass(frozen=True, slots=True)
class BuildTarget:
    """What a kernel is built for. Travels to builders, which have no judge."""

    device: Device
    shapes: tuple[tuple[Shape, tuple[Shape, ...]], ...]
    """Each workload of the suite, with its hold-outs."""


CompileModule = Callable[[KernelSpec, Workload, Signature, Artefact], Awaitable[ModuleCaches | BuildFailure]]
Outcome = tuple[p.WorkloadBinary, Artefact] | BuildFailure


async def compile_kernel(
    kernel: KernelSpec, target: BuildTarget, compile_module: CompileModule | None = None
) -> BuiltKernel | BuildFailure:
    """Build for every workload and hold-out shape. ``compile_module`` runs the compilers of a module on the device.

    Raises ToolchainError, EspalierError.
    """
    jobs = [
        [asyncio.create_task(_compile_for(kernel, *shape, target.device, compile_module)) for shape in (own, *holdouts)]
        for own, holdouts in target.shapes
    ]
    found: list[list[Outcome]] = []
    try:
        for (own, _), (first, *others) in zip(target.shapes, jobs, strict=True):
            main = await first
            if isinstance(main, BuildFailure):
                several = len(target.shapes) > 1
                return replace(main, reason=f"for workload {own[0].name}: {main.reason}") if several else main
            found.append([main, *await asyncio.gather(*others)])
    finally:
        await _cancel([job for row in jobs for job in row])
    return _assembled(kernel, found)


def _assembled(kernel: KernelSpec, found: Sequence[Sequence[Outcome]]) -> BuiltKernel:
    """The kernel from its binaries: for each workload its own, then those of its hold-outs."""
    builds: list[p.WorkloadBuild] = []
    artefacts: list[Artefact] = []
    for main, *others in found:
        assert not isinstance(main, BuildFailure)
        holdouts = tuple(o[0] for o in others if not isinstance(o, BuildFailure))
        builds.append(p.WorkloadBuild(main[0], holdouts, len(others) - len(holdouts)))
        artefacts.append(main[1])
    one, *more = builds
    candidate = p.Candidate(
        kernel.contract.value, kernel.name, kernel.text, dict(kernel.tunables), one.built, one.holdouts, one.specialised,
        tuple(more),
    )  # fmt: skip
    outcomes = [outcome for row in found for outcome in row]
    binaries = tuple(tuple("" if isinstance(o, BuildFailure) else o[1].digest for o in row) for row in found)
    return BuiltKernel(candidate, artefacts[0], machine_code(kernel, outcomes), binaries)


async def _compile_for(
    kernel: KernelSpec, workload: Workload, signature: Signature, device: Device, compile_module: CompileModule | None
) -> Outcome:
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
    if kernel.dialect is not Dialect.PYTHON:
        return _binary(workload, plan, outcome, device), outcome
    if compile_module is None:
        raise EspalierError("python kernels are built where they run")
    caches = await compile_module(kernel, workload, signature, outcome)
    if isinstance(caches, BuildFailure):
        return caches
    trees = visible(include_trees()) if module_compilers.compiles(kernel.text, device) else ()
    artefact = replace(outcome, seconds=outcome.seconds + caches.seconds, included=trees)
    return p.WorkloadBinary(workload, caches.path, b"", plan), artefact


def _binary(workload: Workload, plan: bytes, artefact: Artefact, device: Device) -> p.WorkloadBinary:
    threads = device.kind == "cpu" and starts_threads(artefact.binary)
    return p.WorkloadBinary(workload, str(artefact.binary), b"", plan, threads)


def assemble(kernel: KernelSpec, target: BuildTarget, binaries: Binaries) -> BuiltKernel:
    """The kernel from binaries of a builder that are in this machine's cache; plans are resolved here.

    Raises EspalierError if they are not the target's, or not in the cache.
    """
    counts = [1 + len(holdouts) for _, holdouts in target.shapes]
    if [len(row) for row in binaries] != counts or not all(row[0] for row in binaries):
        raise EspalierError(f"the binaries of {kernel.name} are not those of this problem's shapes")
    found: list[list[Outcome]] = []
    for (own, holdouts), row in zip(target.shapes, binaries, strict=True):
        found.append([_adopted(kernel, shape, name, target.device) for shape, name in zip((own, *holdouts), row, strict=True)])
    return _assembled(kernel, found)


def _adopted(kernel: KernelSpec, shape: Shape, name: Blob, device: Device) -> Outcome:
    if not name:
        return BuildFailure("the builder could not build it", "", 0.0)
    workload, signature = shape
    artefact = adopted(name)
    if artefact is None:
        raise EspalierError(f"binary {name[:12]} of {kernel.name} is not in the build cache")
    try:
        plan = kernel_build(kernel, workload, signature, device).plan()
    except KernelCodeError as error:
        raise EspalierError(f"{kernel.name}: {error}") from error
    return _binary(workload, plan, artefact, device), artefact


class KernelBuilds:
    """What was built for one judge's problem; each kernel once."""

    def __init__(self, assignment: Assignment, judge: JudgeSession) -> None:
        self._assignment = assignment
        self._judge = judge
        self._built: dict[tuple[str, str], BuiltKernel] = {}
        self._ahead = BuildsAhead(self._build_silently, _key)

    def start(self, kernels: Iterable[KernelSpec]) -> None:
        """Build these ahead in this order. Not on a CPU, whose cores are measured, nor modules, which need inputs."""
        if self._assignment.device != "cpu":
            self._ahead.start(kernel for kernel in kernels if kernel.dialect is not Dialect.PYTHON)

    async def close(self) -> None:
        """End the builds that run ahead."""
        await self._ahead.close()

    async def build(self, kernel: KernelSpec, say: Say) -> BuiltKernel | BuildFailure:
        """Build for the workload and its hold-out shapes, or return what an earlier call built."""
        ahead = await self._ahead.take(kernel)
        found = await self._build(kernel, say) if ahead is None else ahead
        if isinstance(found, BuildFailure):
            return found
        return replace(found, candidate=msgspec.structs.replace(found.candidate, name=kernel.name))

    async def _build_silently(self, kernel: KernelSpec) -> BuiltKernel | BuildFailure:
        return await self._build(kernel, silent)

    async def _build(self, kernel: KernelSpec, say: Say) -> BuiltKernel | BuildFailure:
        key = _key(kernel)
        if key in self._built:
            return self._built[key]
        target = await self.target(say)
        async with self._compiling(say):
            say(f"building {kernel.name}")
            found = await compile_kernel(kernel, target, partial(self._compile_module, target.device))
            if isinstance(found, BuiltKernel):
                self._built[key] = found
            return found

    async def adopt(self, kernel: KernelSpec, binaries: Binaries, say: Say) -> None:
        """Use what a builder built. Raises EspalierError."""
        if (key := _key(kernel)) not in self._built:
            self._built[key] = assemble(kernel, await self.target(say), binaries)

    async def target(self, say: Say) -> BuildTarget:
        """What kernels are built for."""
        opened = await self._judge.open(say)
        return BuildTarget(opened.device, tuple((own, tuple(holdouts)) for own, holdouts in self.shapes(opened)))

    @asynccontextmanager
    async def _compiling(self, say: Say) -> AsyncIterator[None]:
        """Compilers use the cores: where those are what is measured, they run under the lease."""
        if self._assignment.device != "cpu":
            yield
            return
        async with self._judge.lease.held(say):
            yield

    async def _compile_module(
        self, device: Device, kernel: KernelSpec, workload: Workload, signature: Signature, built: Artefact
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


def _key(kernel: KernelSpec) -> tuple[str, str]:
    return kernel.text, repr(sorted(kernel.tunables.items()))


def case_of(kernel: KernelSpec, workload: Workload, signature: Signature, device: Device) -> KernelCase:
    """What the tools run outside a trial. Raises KernelCodeError."""
    return KernelCase(workload, signature, kernel_build(kernel, workload, signature, device).request())


def kernel_build(kernel: KernelSpec, workload: Workload, signature: Signature, device: Device) -> KernelBuild:
    """How a kernel is built for a workload: of a dispatch, the member for its shape. Raises KernelCodeError."""
    code = KernelCode(kernel.text, kernel.dialect, kernel.contract, kernel.name)
    member, tunables = for_shape(code, kernel.tunables, workload, signature)
    return KernelBuild(member, tunables, signature, workload.name, device)


def machine_code(kernel: KernelSpec, builds: Sequence[Outcome]) -> str:
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
