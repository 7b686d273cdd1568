"""What machine code came out: how often each family of instructions occurs in a built kernel, and what that says of it.

Reads the listings of ``nvdisasm`` or ``cuobjdump`` (cubins, and the device code in shared objects) and ``objdump`` (shared
objects for the CPU). Counts instructions as they stand in the code, not as they are executed. Both disassemblers come with
the CUDA toolkit, and with Triton.
"""

from __future__ import annotations

import contextlib
import importlib.util
import mmap
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.build.confinement import Confinement, run_confined
from engine.build.toolchain import find_nvcc
from engine.domain.errors import ToolchainError
from engine.domain.model import Resources, SpeedOfLight

_CUBIN_TOOLS = (("nvdisasm", "--print-code"), ("cuobjdump", "--dump-sass"))
_EMBEDDED_TOOLS = (("cuobjdump", "--dump-sass"),)
_NATIVE_TOOL = ("objdump", "-d", "--no-show-raw-insn", "-j", ".text")
_EMBEDDED = b".nv_fatbin"
"""The section of a shared object that holds device code."""
_TRITON_TOOLS = ("backends", "nvidia", "bin")
_LISTING = 64 << 20
"""Bytes of a listing that are read."""

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
"""Families whose 128-bit form is worth a count of its own, e.g. ``LDG.128``."""
_WIDTHS = (".128", ".256")
_NO_NUMBER = "-RZ, RZ, "
"""Operands of an ``HFMA2`` that only puts a constant into a register."""
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
    """Family → how many instructions of it the code holds; ``total`` is all of them, padding left out.

    Families of device code: ``UTCMMA``, ``HGMMA`` (tensor cores of a block, of a warp group), ``HMMA``, ``IMMA``, ``DMMA``
    (of a warp), ``FFMA``, ``MUFU``, ``LDG``, ``LDG.128`` (those of them that are wide), ``LDGSTS``, ``TMA`` (asynchronous
    copies), ``LDS``, ``LDSM``, ``LDL`` (local memory), ``BAR``, ``SYNCS`` … Families of CPU code: ``zmm``, ``ymm``, ``xmm``
    (by the widest register an instruction names), ``stack`` (vectors kept on the stack), ``fma``, ``fma.scalar``,
    ``gather``, ``scatter``, ``prefetch``, ``stream`` (non-temporal stores), ``call``.
    """

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Uninspected:
    """Why the machine code could not be looked at, one line."""

    reason: str


async def inspect(binary: Path, confinement: Confinement) -> InstructionMix | Uninspected:
    """Count the instructions of a built kernel: a ``.cubin``, or a ``.so`` (its device code where it holds any)."""
    device = binary.suffix == ".cubin" or (binary.suffix == ".so" and _embeds_device_code(binary))
    if not device and binary.suffix != ".so":
        return Uninspected(f"{binary.name} holds no machine code")
    if device:
        wanted = _CUBIN_TOOLS if binary.suffix == ".cubin" else _EMBEDDED_TOOLS
        tool = await _device_tool(wanted)
        absent = "cuobjdump and nvdisasm are" if len(wanted) > 1 else "cuobjdump is"
        missing = f"{absent} missing: install the CUDA toolkit's binary utilities"
    else:
        found = shutil.which(_NATIVE_TOOL[0])
        tool = (found, *_NATIVE_TOOL[1:]) if found else None
        missing = "objdump is missing: install binutils"
    if tool is None:
        return Uninspected(missing)
    return await _counted(tool, binary, confinement, device)


async def _counted(tool: tuple[str, ...], binary: Path, confinement: Confinement, device: bool) -> InstructionMix | Uninspected:
    """What ``tool`` lists of ``binary``. ``cuobjdump`` finds ``nvdisasm`` by /proc, and calls it."""
    program = Path(tool[0])
    within = confinement.for_programs(confinement.limits) if device else confinement
    try:
        with TemporaryDirectory(prefix="espalier-inspect-") as folder:
            readable = (binary, program, *([program.resolve().parent] if device else []))
            result = await run_confined(
                [*tool, str(binary)], within, Path(folder), readable, (program.resolve().parent,), _LISTING
            )
    except OSError as error:
        return Uninspected(f"{program.name} cannot be run: {error.strerror}")
    lines = result.output.splitlines()
    counts = count_sass(lines) if device else count_native(lines)
    if result.status != 0 or not counts["total"]:
        return Uninspected(f"{program.name} cannot read {binary.name}: exit status {result.status}")
    return InstructionMix(dict(counts))


def _embeds_device_code(binary: Path) -> bool:
    try:
        with binary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(_EMBEDDED) >= 0
    except (OSError, ValueError):
        return False


async def _device_tool(wanted: Sequence[tuple[str, str]]) -> tuple[str, ...] | None:
    """The first of these disassemblers that is beside nvcc, on the PATH, or beside Triton."""
    places: list[str | None] = [None]
    with contextlib.suppress(ToolchainError):
        places.insert(0, str((await find_nvcc()).folder))
    triton = importlib.util.find_spec("triton")
    if triton is not None and triton.origin:
        places.append(str(Path(triton.origin).parent.joinpath(*_TRITON_TOOLS)))
    found = ((shutil.which(tool, path=place), flag) for tool, flag in wanted for place in places)
    return next(((executable, flag) for executable, flag in found if executable), None)


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


_REGISTER_FILE = 65536
_WARPS = 48
"""Warps a multiprocessor holds at least, on every architecture: fewer than these are worth a word."""
_FAR = 0.6
"""Below this share of a limit, something else holds a kernel back."""
_FUNCTIONS = 3
_MOVES = 4
_TENSOR = {
    "UTCMMA": "block-wide tensor-core", "HGMMA": "warp-group tensor-core", "HMMA": "tensor-core",
    "IMMA": "integer tensor-core", "DMMA": "double-precision tensor-core",
}  # fmt: skip
_TENSOR_UNITS = re.compile(r"tf32|fp16|bf16|fp8|int8")
_THROUGH_REGISTERS = 4
"""Shared stores from which a kernel counts as one that fills tiles, not one that only exchanges partial results."""


def summary(
    resources: Sequence[Resources] = (),
    mix: Mapping[str, int] | None = None,
    light: SpeedOfLight | None = None,
    conditions: Sequence[str] = (),
    before: Mapping[str, int] | None = None,
) -> str:
    """One paragraph on what holds a kernel back, for a prompt and for the screen; empty where nothing is known.

    Args:
        resources: of each function, as the compiler states them.
        mix: ``InstructionMix.counts``.
        light: how near the kernel comes to the device's limit.
        conditions: those of the measurement, in words.
        before: the parent's mix.
    """
    said = [*_limit(light), *_used(resources), *_instructions(mix or {}, light), *_moved(mix or {}, before)]
    if conditions:
        said.append(f"measured with {', '.join(conditions)}")
    return f"{'; '.join(said)}." if said else ""


def _limit(light: SpeedOfLight | None) -> Iterator[str]:
    if light is None:
        return
    memory = light.bound == "bytes"
    unit = light.bound.partition("(")[2].rstrip(")") or "its unit"
    share = f"{light.fraction * 100:.0f} % of {'copy bandwidth' if memory else f'the peak of {unit}'}"
    why = ""
    if light.fraction < _FAR:
        why = ", so it moves more than it must or waits" if memory else ", so the unit waits or does more than it must"
    yield f"bound by {'memory' if memory else 'arithmetic'}: {share}{why}"


def _used(resources: Sequence[Resources]) -> Iterator[str]:
    """Registers, spills, stack and shared memory, those that use most registers first."""
    ranked = sorted(resources, key=lambda used: (-used.spill_bytes, -used.registers))
    for used in ranked[:_FUNCTIONS]:
        facts = [f"{used.registers} registers", f"{used.spill_bytes} bytes spilled" if used.spill_bytes else "no spills"]
        if used.stack_bytes and not used.spill_bytes:
            facts.append(f"{used.stack_bytes} bytes of local arrays")
        if used.shared_bytes:
            facts.append(f"{used.shared_bytes} bytes of static shared memory")
        warps = _REGISTER_FILE // (32 * -(-used.registers // 8) * 8) if used.registers else _WARPS
        if warps < _WARPS:
            facts.append(f"room for {warps} warps a multiprocessor")
        yield (f"{used.function}: " if len(resources) > 1 else "") + ", ".join(facts)
    if len(ranked) > _FUNCTIONS:
        yield f"{len(ranked) - _FUNCTIONS} more functions that use fewer registers"


def _instructions(mix: Mapping[str, int], light: SpeedOfLight | None) -> Iterator[str]:
    if any(family.isupper() for family in mix):
        yield from _global_memory(mix)
        yield from _staging(mix)
        yield from _device_arithmetic(mix, light)
    elif mix.get("total"):
        yield from _vectors(mix)
        yield from _native_memory(mix)


def _global_memory(mix: Mapping[str, int]) -> Iterator[str]:
    loads, wide = mix.get("LDG", 0), mix.get("LDG.128", 0)
    stores, wide_stores = mix.get("STG", 0), mix.get("STG.128", 0)
    if loads:
        yield ("" if wide else "no wide loads: ") + f"{wide} of {loads} global loads are 128 bit"
    if stores:
        yield ("" if wide_stores else "no wide stores: ") + f"{wide_stores} of {stores} global stores are 128 bit"
    if local := mix.get("LDL", 0) + mix.get("STL", 0):
        yield f"{local} instructions go to local memory"
    if atomic := mix.get("ATOM", 0):
        yield f"{atomic} atomic"


def _staging(mix: Mapping[str, int]) -> Iterator[str]:
    """How data gets into shared memory and out of it, and what waits for it."""
    copies = [f"{mix[family]} by {how}" for family, how in (("TMA", "TMA"), ("LDGSTS", "cp.async")) if mix.get(family)]
    if copies:
        yield f"asynchronous copies: {', '.join(copies)}"
    elif mix.get("STS", 0) >= _THROUGH_REGISTERS and mix.get("LDG"):
        yield f"no asynchronous copies: {mix['STS']} stores fill shared memory through registers"
    if loads := mix.get("LDS", 0) + mix.get("LDSM", 0):
        wide = mix.get("LDS.128", 0) + mix.get("LDSM", 0)
        yield f"{wide} of {loads} shared loads are 128 bit or by matrix"
    waits = [f"{mix[family]} {what}" for family, what in (("BAR", "of a block"), ("SYNCS", "on mbarriers")) if mix.get(family)]
    if waits:
        yield f"barriers: {', '.join(waits)}"


def _device_arithmetic(mix: Mapping[str, int], light: SpeedOfLight | None) -> Iterator[str]:
    tensor = [f"{mix[family]} {name} instructions ({family})" for family, name in _TENSOR.items() if mix.get(family)]
    if tensor:
        yield ", ".join(tensor)
    elif light is not None and light.bound != "bytes" and (unit := _TENSOR_UNITS.search(light.bound)):
        yield f"no tensor-core instructions, though the limit counts on {unit[0]}"
    plain = [f"{mix[family]} {family}" for family in ("FFMA", "HFMA2", "DFMA", "MUFU") if mix.get(family)]
    if plain and mix.get("total"):
        yield f"{', '.join(plain)} among {mix['total']} instructions"


def _vectors(mix: Mapping[str, int]) -> Iterator[str]:
    """What share of the code works on which registers."""
    total = mix["total"]
    used = [f"{mix[name]} on {name}" for name in _REGISTERS if mix.get(name)]
    if used:
        narrow = "" if mix.get("zmm") or mix.get("ymm") else "nothing wider than xmm: "
        yield f"{narrow}{', '.join(used)} of {total} instructions"
    fused, scalar = mix.get("fma", 0), mix.get("fma.scalar", 0)
    if fused:
        yield f"{fused} fused multiply-adds" + (f", {scalar} of them scalar" if scalar else "")
    elif used:
        yield "no fused multiply-adds"


def _native_memory(mix: Mapping[str, int]) -> Iterator[str]:
    words = {
        "stack": "vector accesses to the stack", "gather": "gathers", "scatter": "scatters", "prefetch": "prefetches",
        "stream": "non-temporal stores", "call": "calls",
    }  # fmt: skip
    found = [f"{name}: {mix[family]}" for family, name in words.items() if mix.get(family)]
    if found:
        yield ", ".join(found)


def _moved(mix: Mapping[str, int], before: Mapping[str, int] | None) -> Iterator[str]:
    """The families that changed most since the parent: by how many, weighted with the share of the larger count."""
    if not mix or before is None:
        return
    moves: dict[str, float] = {}
    for family in dict.fromkeys((*mix, *before)):
        was, now = before.get(family, 0), mix.get(family, 0)
        if was != now:
            moves[family] = (now - was) ** 2 / max(was, now)
    ranked = [family for family in sorted(moves, key=lambda family: (-moves[family], family)) if family != "total"][:_MOVES]
    told = [f"{family} {before.get(family, 0)} → {mix.get(family, 0)}" for family in ranked]
    yield f"since its parent: {', '.join(told)}" if told else "the families of instructions as in its parent"
