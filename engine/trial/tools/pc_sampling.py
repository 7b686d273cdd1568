"""The hot code of a kernel on a CPU: its program counter, sampled during many calls in the runner's sandbox.

The kernel is built with line tables, as for a listing, and that build runs: addresses need no translation. It is a run of its
own, outside every measurement. The sampler (``pc_sampler.cpp``) needs no counters and no privileges. No torch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from engine.domain.errors import ToolchainError
from engine.domain.hot_code import HOTTEST, HotCode, HotLine, NoHotCode
from engine.domain.machine_listing import ListedInstruction, MachineListing
from engine.domain.model import Contract, Dialect
from engine.sandbox.confinement import Confinement
from engine.sandbox.process import ProcessResult, run
from engine.sandbox.python_process import python_once
from engine.toolchain.build import BuildFailure, BuildOutcome, BuildRequest, build_with
from engine.toolchain.cache import Cache, cache_folder
from engine.toolchain.elf import starts_threads
from engine.toolchain.inspection import Uninspected
from engine.toolchain.listing import build_with_lines, list_binary
from engine.toolchain.recipes import recipe_for
from engine.trial.messages import SAMPLED_ADDRESSES, SampledAddresses
from engine.trial.tools.kernel_case import DumpInputs, Store, sandboxed, write_spec
from engine.trial.tools.ncu import ProfiledKernel
from engine.trial.tools.perf import FLUSHED

_SECONDS = 60.0
_SAMPLER = Path(__file__).with_name("pc_sampler.cpp")
_BINARY = "pc_sampler.so"
_OTHER_CODE = "other code"
"""Functions of libraries that were compiled into it, and instructions without a source line."""
_LONGEST_LINE = 100
_MOST_SAMPLES = 1 << 18
_LIBRARIES = 4
_LEAST_SAMPLES = 100
_LIBRARY = re.compile(r"[\w.+\[\]-]{1,64}")
_LAST_LINE = re.compile(rf"^{re.escape(SAMPLED_ADDRESSES)}(.*)$", re.MULTILINE)


async def sample_cpu(
    subject: ProfiledKernel, dump: DumpInputs, confinement: Confinement, store: Store, *, cold: bool
) -> HotCode | NoHotCode:
    """Where the kernel's threads were. Raises as ``build`` does, but not ToolchainError."""
    case, device = subject.case, subject.device
    try:
        sampler, built = await _build_sampler(confinement), await build_with_lines(case.request, confinement)
    except ToolchainError as error:
        return NoHotCode(str(error))
    if isinstance(sampler, BuildFailure):
        return NoHotCode(f"the sampler does not build: {sampler.reason}")
    if isinstance(built, BuildFailure):
        return NoHotCode(f"does not build: {built.reason}")
    listing = await list_binary(built, confinement)
    if isinstance(listing, Uninspected):
        return NoHotCode(listing.reason)
    with Cache(cache_folder()).build_folder() as folder:
        (inputs,) = await dump(case.workload, folder, 1)
        spec = write_spec(case, subject.plan, device, built, folder, subject.scalars)
        flush = FLUSHED * device.cache_bytes if cold else 0
        whole = str(int(starts_threads(built.binary)))
        arguments: list[Path | str] = [sampler.binary, whole, str(flush), spec, inputs]
        argv, environment = python_once(
            "engine.trial.runner.sample_loop", arguments, device.label, [], [folder, built.folder, sampler.folder],
            confined=sandboxed(confinement), threads=device.units,
        )  # fmt: skip
        result = await run(argv, seconds=_SECONDS, folder=Path("/"), environment=environment)
    taken = parse_samples(result.output)
    if taken is None:
        return NoHotCode(_why_not(result))
    sampled, other = with_samples(listing.instructions, taken.inside)
    return hot_code(replace(listing, instructions=sampled), other, taken.elsewhere, case.request.code, store)


async def _build_sampler(confinement: Confinement) -> BuildOutcome:
    recipe = await recipe_for(Dialect.CPP, Contract.HOST, "", {})
    argv = (recipe.argv[0], "-std=c++20", "-O2", "-fPIC", "-shared", "-o", _BINARY, recipe.code_file, "-lrt")
    request = BuildRequest(_SAMPLER.read_text(), Dialect.CPP, Contract.HOST, "", {}, "", _SAMPLER.name)
    return await build_with(request, replace(recipe, argv=argv, binary=_BINARY), confinement)


def parse_samples(output: str) -> SampledAddresses | None:
    """The samples in the output of ``sample_loop``; ``None`` if it did not finish, or if they are not plausible."""
    lines = _LAST_LINE.findall(output)
    try:
        found = msgspec.json.decode(lines[-1] if lines else "", type=SampledAddresses)
    except (msgspec.DecodeError, RecursionError):
        return None
    counts = (*found.inside.values(), *found.elsewhere.values())
    sound = all(count > 0 for count in counts) and sum(counts) <= _MOST_SAMPLES
    return found if sound and all(map(_LIBRARY.fullmatch, found.elsewhere)) else None


def with_samples(
    instructions: Sequence[ListedInstruction], inside: Mapping[int, int]
) -> tuple[tuple[ListedInstruction, ...], int]:
    """The instructions with their samples, and the number of samples in code that is not listed.

    A listing leaves padding out; samples in padding between two instructions of a function belong to the second.
    """
    counts: Counter[int] = Counter()
    pending = sorted(inside.items())
    other = 0
    order = sorted(range(len(instructions)), key=lambda index: instructions[index].address)
    place = 0
    for address, count in pending:
        while place < len(order) and instructions[order[place]].address < address:
            place += 1
        here = instructions[order[place]] if place < len(order) else None
        before = instructions[order[place - 1]] if place else None
        if here is not None and (here.address == address or (before is not None and before.function == here.function)):
            counts[order[place]] += count
        else:
            other += count
    sampled = tuple(replace(one, samples=counts[index]) for index, one in enumerate(instructions))
    return sampled, other


def hot_code(listing: MachineListing, other: int, elsewhere: Mapping[str, int], code: str, store: Store) -> HotCode | NoHotCode:
    """The samples by source line; ``other`` are those in the kernel's file outside the listing."""
    inside = sum(one.samples for one in listing.instructions) + other
    total = inside + sum(elsewhere.values())
    if not inside or total < _LEAST_SAMPLES:
        return NoHotCode(f"the kernel's calls are too short: {total} samples, at least {_LEAST_SAMPLES} are needed")
    source = code.splitlines()
    by_line: Counter[int] = Counter()
    for one in listing.instructions:
        by_line[one.line if 0 < one.line <= len(source) else 0] += one.samples
    unlined = other + by_line.pop(0, 0)
    lines = tuple(
        HotLine(line, source[line - 1].strip()[:_LONGEST_LINE], count) for line, count in by_line.most_common(HOTTEST) if count
    )
    outside = Counter({**elsewhere, _OTHER_CODE: unlined}) if unlined else Counter(elsewhere)
    blob = store(msgspec.json.encode(replace(listing, samples=total)))
    return HotCode(total, lines, dict(outside.most_common(_LIBRARIES)), blob)


def _why_not(result: ProcessResult) -> str:
    if result.timed_out:
        return f"the kernel did not finish within {_SECONDS:g} s while it was sampled"
    lines = [line.strip() for line in result.output.splitlines() if line.strip()]
    return (
        f"the kernel did not finish while it was sampled, status {result.status}: {lines[-1][:200] if lines else 'no output'}"
    )
