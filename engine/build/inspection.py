"""What machine code came out: how often each family of instructions occurs in a built kernel.

Reads the listings of ``cuobjdump`` or ``nvdisasm`` (cubins) and ``objdump`` (shared objects for the CPU). Counts
instructions as they stand in the code, not as they are executed.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.build.confinement import Confinement, run_confined
from engine.build.toolchain import find_nvcc
from engine.domain.errors import ToolchainError

_DISASSEMBLERS = (("cuobjdump", "--dump-sass"), ("nvdisasm", "--print-code"))
_LISTING = 64 << 20
"""Bytes of a listing that are read."""

_SASS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z][A-Z0-9_]*)(?P<rest>[.\w]*)")
_SASS_FAMILIES: Mapping[str, str] = {
    "HGMMA": "HGMMA", "QGMMA": "HGMMA", "IGMMA": "HGMMA", "BGMMA": "HGMMA",
    "HMMA": "HMMA", "IMMA": "HMMA", "DMMA": "HMMA", "BMMA": "HMMA",
    "FFMA": "FFMA", "FADD": "FADD", "FMUL": "FMUL", "HFMA2": "HFMA2", "DFMA": "DFMA",
    "MUFU": "MUFU", "SHFL": "SHFL", "BAR": "BAR", "SYNCS": "SYNCS",
    "LDG": "LDG", "STG": "STG", "LDS": "LDS", "STS": "STS", "LDSM": "LDSM", "STSM": "STSM",
    "LDGSTS": "LDGSTS", "UBLKCP": "TMA", "UTMALDG": "TMA", "UTMASTG": "TMA", "UTMAREDG": "TMA",
    "LDL": "LDL", "STL": "STL", "RED": "ATOM", "REDG": "ATOM", "ATOM": "ATOM", "ATOMG": "ATOM", "ATOMS": "ATOM",
    "BRA": "BRA",
}  # fmt: skip
_WIDE = ("LDG", "STG", "LDS", "STS")
"""Families whose 128-bit form is worth a count of its own, e.g. ``LDG.128``."""
_PADDING = ("NOP",)

_NATIVE = re.compile(r"^\s+[0-9a-f]+:\s+(?P<opcode>[a-z][\w.]*)(?P<operands>[^#]*)")
_REGISTERS = ("zmm", "ymm", "xmm")
_FMA = re.compile(r"v?fn?m(?:add|sub|la|ls)")


@dataclass(frozen=True, slots=True)
class InstructionMix:
    """Family → how many instructions of it the code holds; ``total`` is all of them, padding left out.

    Families of device code: ``HGMMA`` (warp-group tensor cores), ``HMMA`` (tensor cores), ``FFMA``, ``LDG``, ``LDG.128``,
    ``LDGSTS``, ``TMA``, ``MUFU``, ``BAR`` … Families of CPU code: ``zmm``, ``ymm``, ``xmm`` (by the widest register an
    instruction names), ``fma``, ``call``.
    """

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Uninspected:
    """Why the machine code could not be looked at, one line."""

    reason: str


async def inspect(binary: Path, confinement: Confinement) -> InstructionMix | Uninspected:
    """Count the instructions of a built kernel: a ``.cubin``, or a ``.so`` (of which the CPU's half is counted)."""
    if binary.suffix == ".cubin":
        tools = await _cubin_tools()
        missing = "cuobjdump and nvdisasm are missing: install the CUDA toolkit's binary utilities"
        count = count_sass
    elif binary.suffix == ".so":
        found = shutil.which("objdump")
        tools = [[found, "-d", "--no-show-raw-insn", "-j", ".text"]] if found else []
        missing = "objdump is missing: install binutils"
        count = count_native
    else:
        return Uninspected(f"{binary.name} holds no machine code")
    if not tools:
        return Uninspected(missing)
    tool = Path(tools[0][0])
    try:
        with TemporaryDirectory(prefix="espalier-inspect-") as folder:
            result = await run_confined(
                [*tools[0], str(binary)], confinement, Path(folder), (binary, tool), output_bytes=_LISTING
            )
    except OSError as error:
        return Uninspected(f"{tool.name} cannot be run: {error.strerror}")
    counts = count(result.output.splitlines())
    if result.status != 0 or not counts["total"]:
        return Uninspected(f"{tool.name} cannot read {binary.name}: exit status {result.status}")
    return InstructionMix(dict(counts))


async def _cubin_tools() -> list[list[str]]:
    try:
        folder = str((await find_nvcc()).folder)
    except ToolchainError:
        folder = ""
    found = [(shutil.which(tool, path=folder) or shutil.which(tool), flag) for tool, flag in _DISASSEMBLERS]
    return [[executable, flag] for executable, flag in found if executable]


def count_sass(lines: Iterable[str]) -> Counter[str]:
    """Families of the instructions in a SASS listing."""
    counts: Counter[str] = Counter()
    for line in lines:
        match = _SASS.match(line)
        if match is None or match["opcode"] in _PADDING:
            continue
        counts["total"] += 1
        if family := _SASS_FAMILIES.get(match["opcode"]):
            counts[family] += 1
            if family in _WIDE and ".128" in match["rest"]:
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
        if widest := next((register for register in _REGISTERS if register in match["operands"]), None):
            counts[widest] += 1
        if _FMA.match(match["opcode"]):
            counts["fma"] += 1
        if match["opcode"].startswith("call") or match["opcode"] == "bl":
            counts["call"] += 1
    return counts
