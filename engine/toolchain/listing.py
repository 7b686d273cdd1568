"""A kernel's machine code as a listing: instructions with the source line each came from, where the compiler says so.

Kernels are built without line tables: whatever differs in a comment would differ in the binary. A listing is built once more
with them, which changes no instruction. The disassemblers are those of ``inspection``.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.domain.machine_listing import ListedInstruction, MachineListing
from engine.domain.model import Dialect
from engine.sandbox.confinement import Confinement, run_confined
from engine.toolchain.build import Artefact, BuildFailure, BuildOutcome, BuildRequest, build_with
from engine.toolchain.device_images import cubins
from engine.toolchain.inspection import Uninspected, listing_tool
from engine.toolchain.listed_instructions import parse_native, parse_sass
from engine.toolchain.loops import with_depths
from engine.toolchain.recipes import recipe_for

_LINE_TABLES = {Dialect.CPP: "-g1", Dialect.CUDA: "-lineinfo"}
_MOST_BYTES = 16 << 20
_QUADRATIC = 3000
"""Instructions up to which a diff compares every pair."""

_NORMAL = (
    (re.compile(r"<[^>]*\+0x[0-9a-f]+>"), "<>"),
    (re.compile(r"\b[0-9a-f]+ <"), "<"),
    (re.compile(r"`?\(?\.L_x?_?\w+\)?"), ".L"),
    (re.compile(r"^((?:@!?U?P\w+ )?BRA\S* ).*"), r"\1.L"),
    (re.compile(r"%([xyz])mm\d+"), r"%\1mm"),
    (re.compile(r"%k\d"), "%k"),
    (re.compile(r"%r(?:[a-ds][ixp]|[a-d]x|bp|\d+)\b"), "%r"),
    (re.compile(r"%(?:e(?:[a-ds][ixp]|[a-d]x|bp)|r\d+d)\b"), "%e"),
    (re.compile(r"-?0x[0-9a-f]+\((%r)"), r"N(\1"),
    (re.compile(r"\.reuse\b"), ""),
    (re.compile(r"\b(UR|UP|R|P|B)\d+\b"), r"\1"),
    (re.compile(r"\+-?0x[0-9a-f]+\]"), "+N]"),
)
"""What two compilations may choose differently: addresses, labels, registers, offsets of operands in memory."""


@dataclass(frozen=True, slots=True)
class ListingChange:
    """A line of a diff: ``-``, ``+`` or a blank, and the instruction."""

    sign: str
    instruction: ListedInstruction


async def machine_listing(request: BuildRequest, confinement: Confinement) -> MachineListing | Uninspected:
    """Build the kernel with line tables, and list its instructions. Raises as ``build`` does."""
    if request.dialect is Dialect.PYTHON:
        return Uninspected(f"{request.name} is a module: it compiles its kernels when it runs")
    built = await build_with_lines(request, confinement)
    if isinstance(built, BuildFailure):
        return Uninspected(f"{request.name} does not build: {built.reason}")
    return await list_binary(built, confinement)


async def build_with_lines(request: BuildRequest, confinement: Confinement) -> BuildOutcome:
    """The kernel with line tables. Raises as ``build`` does."""
    recipe = await recipe_for(request.dialect, request.contract, request.arch, request.tunables)
    if flag := _LINE_TABLES.get(request.dialect, ""):
        recipe = replace(recipe, argv=(recipe.argv[0], flag, *recipe.argv[1:]))
    return await build_with(request, recipe, confinement)


async def list_binary(built: Artefact, confinement: Confinement) -> MachineListing | Uninspected:
    """The instructions of a built kernel."""
    if built.binary.suffix != ".images":
        return await _listed(built.binary, confinement)
    found: list[ListedInstruction] = []
    tool = ""
    with TemporaryDirectory(prefix="espalier-listing-") as folder:
        for number, image in enumerate(cubins(built.binary.read_bytes())):
            place = Path(folder) / f"image{number}.cubin"
            place.write_bytes(image)
            one = await _listed(place, confinement)
            if isinstance(one, Uninspected):
                return one
            found += one.instructions
            tool = one.tool
    return MachineListing(tuple(found), tool)


async def _listed(binary: Path, confinement: Confinement) -> MachineListing | Uninspected:
    tool = await listing_tool(binary)
    if isinstance(tool, Uninspected):
        return tool
    program, device = Path(tool[0]), "objdump" not in Path(tool[0]).name
    within = confinement.for_programs(confinement.limits) if device else confinement
    try:
        with TemporaryDirectory(prefix="espalier-listing-") as folder:
            readable = (binary, program, *([program.resolve().parent] if device else []))
            result = await run_confined(
                [*tool, str(binary)], within, Path(folder), readable, (program.resolve().parent,), _MOST_BYTES
            )
    except OSError as error:
        return Uninspected(f"{program.name} cannot be run: {error.strerror}")
    lines = result.output.splitlines()
    found = with_depths(tuple(parse_sass(lines) if device else parse_native(lines)))
    if result.status != 0 or not found:
        return Uninspected(f"{program.name} cannot read {binary.name}: exit status {result.status}")
    return MachineListing(found, program.name)


def normal_text(text: str) -> str:
    """The instruction without addresses, labels and the numbers of registers."""
    for pattern, plain in _NORMAL:
        text = pattern.sub(plain, text)
    return text


def listing_diff(before: MachineListing, after: MachineListing) -> tuple[ListingChange, ...]:
    """All instructions of both, those only in one marked. Addresses and register numbers make no difference."""
    old, new = before.instructions, after.instructions
    keys = [normal_text(one.text) for one in old], [normal_text(one.text) for one in new]
    matcher = difflib.SequenceMatcher(None, *keys, autojunk=len(old) + len(new) > _QUADRATIC)
    changes: list[ListingChange] = []
    for kind, a, a_end, b, b_end in matcher.get_opcodes():
        if kind == "equal":
            changes += [ListingChange(" ", one) for one in new[b:b_end]]
        else:
            changes += [ListingChange("-", one) for one in old[a:a_end]]
            changes += [ListingChange("+", one) for one in new[b:b_end]]
    return tuple(changes)
