"""Machine code inspection: counts of each instruction family in a built kernel.

Parses listings of ``nvdisasm`` or ``cuobjdump`` (cubins, and device code in shared objects) and ``objdump`` (shared objects for
the CPU). Counts are static, not executed instructions. Both CUDA disassemblers come with the CUDA toolkit and with Triton.
"""

from __future__ import annotations

import contextlib
import importlib.util
import mmap
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.domain.errors import EspalierError, ToolchainError
from engine.sandbox.confinement import Confinement, detect, run_confined
from engine.toolchain.compilers import find_nvcc
from engine.toolchain.device_images import cubins

_CUBIN_TOOLS = (("nvdisasm", "--print-code"), ("cuobjdump", "--dump-sass"))
_EMBEDDED_TOOLS = (("cuobjdump", "--dump-sass"),)
_NATIVE_TOOL = ("objdump", "-d", "--no-show-raw-insn", "-j", ".text")
_EMBEDDED = b".nv_fatbin"
"""The section of a shared object that holds device code."""
_TRITON_TOOLS = ("backends", "nvidia", "bin")
_LISTING_BYTES = 64 << 20
"""Bytes of the longest listing that is read."""

_SASS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z][A-Z0-9_]*)(?P<rest>[.\w]*)(?P<operands>[^;]*)")
_SASS_FAMILIES: Mapping[str, str] = {
    "HGMMA": "HGMMA", "QGMMA": "HGMMA", "IGMMA": "HGMMA", "BGMMA": "HGMMA",
    "UTCHMMA": "UTCMMA", "UTCQMMA": "UTCMMA", "UTCIMMA": "UTCMMA", "UTCOMMA": "UTCMMA",
    "HMMA": "HMMA", "QMMA": "HMMA", "OMMA": "HMMA", "IMMA": "IMMA", "BMMA": "IMMA", "DMMA": "DMMA",
    "FFMA": "FFMA", "FFMA2": "FFMA", "FADD": "FADD", "FADD2": "FADD", "FMUL": "FMUL", "FMUL2": "FMUL",
    "HFMA2": "HFMA2", "HADD2": "HADD2", "HMUL2": "HMUL2", "DFMA": "DFMA", "MUFU": "MUFU",
    "SHFL": "SHFL", "REDUX": "SHFL", "BAR": "BAR", "UCGABAR_ARV": "BAR", "UCGABAR_WAIT": "BAR", "SYNCS": "SYNCS",
    "LDG": "LDG", "STG": "STG", "LDS": "LDS", "STS": "STS", "LDSM": "LDSM", "STSM": "STSM",
    "LDGSTS": "LDGSTS", "UBLKCP": "TMA", "UTMALDG": "TMA", "UTMASTG": "TMA", "UTMAREDG": "TMA", "UTMAPF": "TMA",
    "LDL": "LDL", "STL": "STL", "RED": "ATOM", "REDG": "ATOM", "ATOM": "ATOM", "ATOMG": "ATOM", "ATOMS": "ATOM",
    "BRA": "BRA",
}  # fmt: skip
_WIDE = ("LDG", "STG", "LDS", "STS")
"""Families whose 128-bit form is counted separately, e.g. ``LDG.128``."""
_WIDTHS = (".128", ".256")
_NO_NUMBER = "-RZ, RZ, "
"""Operands of an ``HFMA2`` that only loads a constant into a register."""
_PADDING = ("NOP",)

_NATIVE = re.compile(r"^\s+[0-9a-f]+:\s+(?P<opcode>[a-z][\w.]*)(?P<operands>[^#]*)")
_REGISTERS = ("zmm", "ymm", "xmm")
_STACK = re.compile(r"\(%r[sb]p\)")
_NATIVE_FAMILIES = (
    ("fma", re.compile(r"v?fn?m(?:add|sub|la|ls)")),
    ("fma.scalar", re.compile(r"vfn?m(?:add|sub)\d+s[sd]")),
    ("gather", re.compile(r"vp?gather")),
    ("scatter", re.compile(r"vp?scatter")),
    ("prefetch", re.compile(r"prefetch|prfm")),
    ("stream", re.compile(r"v?movnt|stnp")),
    ("call", re.compile(r"call|bl$")),
)


@dataclass(frozen=True, slots=True)
class InstructionMix:
    """Family → number of its instructions in the code; ``total`` is all of them, without padding.

    Families of device code: ``UTCMMA``, ``HGMMA`` (tensor cores of a block, of a warp group), ``HMMA``, ``IMMA``, ``DMMA``
    (of a warp), ``FFMA``, ``MUFU``, ``LDG``, ``LDG.128`` (those of them that are wide), ``LDGSTS``, ``TMA`` (asynchronous
    copies), ``LDS``, ``LDSM``, ``LDL`` (local memory), ``BAR``, ``SYNCS`` … Families of CPU code: ``zmm``, ``ymm``, ``xmm``
    (by the widest register an instruction names), ``stack`` (vectors kept on the stack), ``fma``, ``fma.scalar``,
    ``gather``, ``scatter``, ``prefetch``, ``stream`` (non-temporal stores), ``call``.
    """

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Uninspected:
    """Why the machine code could not be inspected, one line."""

    reason: str


async def inspect(binary: Path, confinement: Confinement) -> InstructionMix | Uninspected:
    """Count the instructions of a built kernel: ``.cubin``, ``.images``, or ``.so`` (its device code if it contains any)."""
    if binary.suffix == ".images":
        return await _inspect_images(binary, confinement)
    device = binary.suffix == ".cubin" or (binary.suffix == ".so" and _embeds_device_code(binary))
    if not device and binary.suffix != ".so":
        return Uninspected(f"{binary.name} holds no machine code")
    if device:
        wanted = _CUBIN_TOOLS if binary.suffix == ".cubin" else _EMBEDDED_TOOLS
        tool = await _device_tool(wanted)
        absent = "cuobjdump and nvdisasm are" if len(wanted) > 1 else "cuobjdump is"
        missing = f"{absent} missing: install the CUDA toolkit's binary utilities"
    else:
        objdump = shutil.which(_NATIVE_TOOL[0])
        tool = (objdump, *_NATIVE_TOOL[1:]) if objdump else None
        missing = "objdump is missing: install binutils"
    if tool is None:
        return Uninspected(missing)
    return await _count(tool, binary, confinement, device)


async def _inspect_images(binary: Path, confinement: Confinement) -> InstructionMix | Uninspected:
    """The sum over all device images of an artefact."""
    counts: Counter[str] = Counter()
    with TemporaryDirectory(prefix="espalier-inspect-") as folder:
        for number, cubin in enumerate(cubins(binary.read_bytes())):
            place = Path(folder) / f"image{number}.cubin"
            place.write_bytes(cubin)
            found = await inspect(place, confinement)
            if isinstance(found, Uninspected):
                return found
            counts.update(found.counts)
    return InstructionMix(dict(counts))


async def _count(tool: tuple[str, ...], binary: Path, confinement: Confinement, device: bool) -> InstructionMix | Uninspected:
    """Run ``tool`` on ``binary`` and count. ``cuobjdump`` locates ``nvdisasm`` through /proc and calls it."""
    program = Path(tool[0])
    within = confinement.for_programs(confinement.limits) if device else confinement
    try:
        with TemporaryDirectory(prefix="espalier-inspect-") as folder:
            readable = (binary, program, *([program.resolve().parent] if device else []))
            result = await run_confined(
                [*tool, str(binary)], within, Path(folder), readable, (program.resolve().parent,), _LISTING_BYTES
            )
    except OSError as error:
        return Uninspected(f"{program.name} cannot be run: {error.strerror}")
    lines = result.output.splitlines()
    counts = count_sass(lines) if device else count_native(lines)
    if result.status != 0 or not counts["total"]:
        return Uninspected(f"{program.name} cannot read {binary.name}: exit status {result.status}")
    return InstructionMix(dict(counts))


async def listing_tool(binary: Path) -> tuple[str, ...] | Uninspected:
    """The command that lists a binary's instructions with their source lines, where its format and the tool have them."""
    if binary.suffix == ".so" and not _embeds_device_code(binary):
        objdump = shutil.which(_NATIVE_TOOL[0])
        return (
            (objdump, "-l", "--inlines", "-C", *_NATIVE_TOOL[1:])
            if objdump
            else Uninspected("objdump is missing: install binutils")
        )
    found = await _device_tool(_CUBIN_TOOLS if binary.suffix == ".cubin" else _EMBEDDED_TOOLS)
    if found is None:
        return Uninspected("nvdisasm is missing: install the CUDA toolkit's binary utilities")
    return (found[0], "--print-line-info-inline", found[1]) if Path(found[0]).name.startswith("nvdisasm") else found


def _embeds_device_code(binary: Path) -> bool:
    try:
        with binary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(_EMBEDDED) >= 0
    except (OSError, ValueError):
        return False


async def _device_tool(wanted: Sequence[tuple[str, str]]) -> tuple[str, ...] | None:
    """The first of these disassemblers found beside nvcc, on the PATH, or beside Triton."""
    folders: list[str | None] = [None]
    with contextlib.suppress(ToolchainError):
        folders.insert(0, str((await find_nvcc()).folder))
    triton = importlib.util.find_spec("triton")
    if triton is not None and triton.origin:
        folders.append(str(Path(triton.origin).parent.joinpath(*_TRITON_TOOLS)))
    executables = ((shutil.which(tool, path=place), flag) for tool, flag in wanted for place in folders)
    return next(((executable, flag) for executable, flag in executables if executable), None)


def count_sass(lines: Iterable[str]) -> Counter[str]:
    """Families of the instructions in a SASS listing."""
    counts: Counter[str] = Counter()
    for line in lines:
        match = _SASS.match(line)
        if match is None or match["opcode"] in _PADDING:
            continue
        counts["total"] += 1
        family = _SASS_FAMILIES.get(match["opcode"])
        if family is None or (family == "HFMA2" and _NO_NUMBER in match["operands"]):
            continue
        counts[family] += 1
        if family in _WIDE and any(width in match["rest"] for width in _WIDTHS):
            counts[f"{family}.128"] += 1
    return counts


def count_native(lines: Iterable[str]) -> Counter[str]:
    """Families of the instructions in an ``objdump`` listing."""
    counts: Counter[str] = Counter()
    for line in lines:
        match = _NATIVE.match(line)
        if match is None or match["opcode"].startswith(("nop", "data16", "cs")):
            continue
        counts["total"] += 1
        operands = match["operands"]
        if widest := next((register for register in _REGISTERS if register in operands), None):
            counts[widest] += 1
            if _STACK.search(operands):
                counts["stack"] += 1
        counts.update(family for family, pattern in _NATIVE_FAMILIES if pattern.match(match["opcode"]))
    return counts


async def instruction_counts(binary: Path) -> Mapping[str, int]:
    """The instruction mix of machine code; empty if there is none, or no installed tool reads it.

    It is recorded with the build: later the artefact may be deleted, or the session on another machine.
    """
    try:
        outcome = await inspect(binary, await detect())
    except EspalierError:
        return {}
    return dict(sorted(outcome.counts.items())) if isinstance(outcome, InstructionMix) else {}
