"""Summarises the instruction mix and the resources of a built kernel in one paragraph, for prompts and the terminal UI. Pure.

A mix maps instruction families to counts; ``engine.toolchain.inspection`` defines the families.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from engine.domain.model import Resources, SpeedOfLight

_REGISTER_FILE = 65536
_MOST_WARPS = 64
_WARPS = 48
"""Warps that a multiprocessor of every architecture holds; fewer are reported."""
_FAR = 0.6
"""Below this share of SOL, something else limits the kernel."""
_NOT_MEMORY = 0.25
"""Below this share of copy bandwidth, memory is not what limits a kernel."""
_FUNCTIONS = 3
_MOVES = 4
_TENSOR = {
    "UTCMMA": "block-wide tensor-core", "HGMMA": "warp-group tensor-core", "HMMA": "tensor-core",
    "IMMA": "integer tensor-core", "DMMA": "double-precision tensor-core",
}  # fmt: skip
_VECTOR_REGISTERS = ("zmm", "ymm", "xmm")
_TENSOR_UNITS = re.compile(r"tf32|fp16|bf16|fp8|int8")
_TILE_LOADS = 16
"""A kernel with this many shared loads works on tiles; one with fewer only exchanges partial results."""
_FFMA_A_LOAD = 2
"""A multiprocessor starts two to four FFMA in the time of one shared load: with fewer, shared memory limits a loop."""


def summary(
    resources: Sequence[Resources] = (),
    mix: Mapping[str, int] | None = None,
    sol: SpeedOfLight | None = None,
    conditions: Sequence[str] = (),
    before: Mapping[str, int] | None = None,
    *,
    counts: bool = True,
) -> str:
    """One paragraph on what limits a kernel; empty if nothing is known.

    Args:
        resources: of each function, as the compiler reports them.
        mix: instruction family → occurrences in the machine code.
        sol: the kernel's speed of light.
        conditions: those of the measurement.
        before: the parent's mix.
        counts: whether the arithmetic instructions are counted; not where the mix itself is shown beside the summary.
    """
    known = mix or {}
    facts = [*_limit(sol, known), *_resources(resources), *_instructions(known, sol)]
    facts += [*(_arithmetic_counts(known) if counts else ()), *_changes(known, before)]
    if conditions:
        facts.append(f"measured with {', '.join(conditions)}")
    return f"{'; '.join(facts)}." if facts else ""


def limit(sol: SpeedOfLight | None, mix: Mapping[str, int]) -> str:
    """What limits a kernel: memory, arithmetic, or neither but its instructions; empty if its speed of light is not known."""
    return "; ".join(_limit(sol, mix))


def _limit(sol: SpeedOfLight | None, mix: Mapping[str, int]) -> Iterator[str]:
    if sol is None:
        return
    memory = sol.bound == "bytes"
    if memory and sol.fraction < _NOT_MEMORY:
        yield f"{_instead_of_memory(mix)}: {sol.fraction * 100:.2g}% of copy bandwidth"
        return
    unit = sol.bound.partition("(")[2].rstrip(")") or "its unit"
    unit = "vector arithmetic" if unit == "vector" else unit
    share = f"{sol.fraction * 100:.0f}% of {'copy bandwidth' if memory else f'the peak of {unit}'}"
    limit = "memory" if memory else "arithmetic"
    if sol.fraction < _FAR:
        why = "excess memory traffic or latency" if memory else "another unit, latency or excess work"
        yield f"far from the problem's limit, {limit}: {share}; likely cause: {why}"
    else:
        yield f"bound by {limit}: {share}"


def _instead_of_memory(mix: Mapping[str, int]) -> str:
    """What limits a kernel that moves bytes at a fraction of copy bandwidth."""
    native = bool(mix.get("total")) and not any(family.isupper() for family in mix)
    if native and not (mix.get("zmm") or mix.get("ymm")):
        return "bound by instructions (no vectors wider than xmm), not by memory"
    return "bound by instructions or latency, not by memory"


def warps_by_registers(registers: int) -> int:
    """Warps that fit in a multiprocessor's 65,536 registers: allocated in steps of eight a thread, over four schedulers."""
    return min(_MOST_WARPS, _REGISTER_FILE // (32 * -(-registers // 8) * 8) // 4 * 4) if registers else _MOST_WARPS


def _resources(resources: Sequence[Resources]) -> Iterator[str]:
    """Registers, spills, stack and shared memory of each function, worst first."""
    ranked = sorted(resources, key=lambda used: (-used.spill_bytes, -used.registers))
    for used in ranked[:_FUNCTIONS]:
        facts = [f"{used.registers} registers", f"{used.spill_bytes} bytes spilled" if used.spill_bytes else "no spills"]
        if used.stack_bytes and not used.spill_bytes:
            facts.append(f"{used.stack_bytes} bytes of local arrays")
        if used.shared_bytes:
            facts.append(f"{used.shared_bytes} bytes of static shared memory")
        if (warps := warps_by_registers(used.registers)) < _WARPS:
            facts.append(f"room for {warps} warps a multiprocessor")
        yield (f"{used.function}: " if len(resources) > 1 else "") + ", ".join(facts)
    if len(ranked) > _FUNCTIONS:
        yield f"{len(ranked) - _FUNCTIONS} more functions with fewer registers"


def _instructions(mix: Mapping[str, int], sol: SpeedOfLight | None) -> Iterator[str]:
    if any(family.isupper() for family in mix):
        yield from _global_memory(mix)
        yield from _staging(mix)
        yield from _device_arithmetic(mix, sol)
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
        yield f"{local} local memory instructions"
    if atomic := mix.get("ATOM", 0):
        yield f"{atomic} atomics"


def _staging(mix: Mapping[str, int]) -> Iterator[str]:
    """Copies to shared memory, loads from it, and barriers."""
    copies = [f"{mix[family]} by {how}" for family, how in (("TMA", "TMA"), ("LDGSTS", "cp.async")) if mix.get(family)]
    if copies:
        yield f"asynchronous copies: {', '.join(copies)}"
    loads = mix.get("LDS", 0) + mix.get("LDSM", 0)
    tiles = loads >= _TILE_LOADS
    if not copies and tiles and mix.get("STS") and mix.get("LDG"):
        yield f"no asynchronous copies: {mix['STS']} stores fill shared memory from registers"
    if tiles:
        if 0 < mix.get("FFMA", 0) < _FFMA_A_LOAD * loads and not any(mix.get(family) for family in _TENSOR):
            yield f"{mix['FFMA'] / loads:.2g} FFMA for each shared load: by static counts, bandwidth of shared memory limits it"
        wide = mix.get("LDS.128", 0) + mix.get("LDSM", 0)
        yield f"{wide} of {loads} shared loads are 128 bit or ldmatrix"
    waits = [f"{mix[family]} {what}" for family, what in (("BAR", "of a block"), ("SYNCS", "on mbarriers")) if mix.get(family)]
    if waits:
        yield f"barriers: {', '.join(waits)}"


def _device_arithmetic(mix: Mapping[str, int], sol: SpeedOfLight | None) -> Iterator[str]:
    tensor = [f"{mix[family]} {name} instructions ({family})" for family, name in _TENSOR.items() if mix.get(family)]
    if tensor:
        yield ", ".join(tensor)
    elif sol is not None and sol.bound != "bytes" and (unit := _TENSOR_UNITS.search(sol.bound)):
        yield f"no tensor-core instructions, although the SOL assumes {unit[0]}"


def _arithmetic_counts(mix: Mapping[str, int]) -> Iterator[str]:
    plain = [f"{mix[family]} {family}" for family in ("FFMA", "HFMA2", "DFMA", "MUFU") if mix.get(family)]
    if plain and mix.get("total"):
        yield f"{', '.join(plain)} among {mix['total']} instructions"


def _vectors(mix: Mapping[str, int]) -> Iterator[str]:
    """Vector and fused instructions of the code, by register width."""
    total = mix["total"]
    used = [f"{mix[name]} on {name}" for name in _VECTOR_REGISTERS if mix.get(name)]
    if used:
        narrow = "" if mix.get("zmm") or mix.get("ymm") else "nothing wider than xmm: "
        yield f"{narrow}{', '.join(used)} of {total} instructions"
    fused, scalar = mix.get("fma", 0), mix.get("fma.scalar", 0)
    if fused:
        yield f"{fused} fused multiply-adds" + (f", {scalar} of them scalar" if scalar else "")
    elif used:
        yield "no fused multiply-adds"


def _native_memory(mix: Mapping[str, int]) -> Iterator[str]:
    labels = {
        "stack": "vector accesses to the stack", "gather": "gathers", "scatter": "scatters", "prefetch": "prefetches",
        "stream": "non-temporal stores", "call": "calls",
    }  # fmt: skip
    found = [f"{name}: {mix[family]}" for family, name in labels.items() if mix.get(family)]
    if found:
        yield ", ".join(found)


def _changes(mix: Mapping[str, int], before: Mapping[str, int] | None) -> Iterator[str]:
    """The families that changed most since the parent: ranked by squared change divided by the larger count."""
    if not mix or before is None:
        return
    moves: dict[str, float] = {}
    for family in dict.fromkeys((*mix, *before)):
        was, now = before.get(family, 0), mix.get(family, 0)
        if was != now:
            moves[family] = (now - was) ** 2 / max(was, now)
    ranked = [family for family in sorted(moves, key=lambda family: (-moves[family], family)) if family != "total"][:_MOVES]
    changes = [f"{family} {before.get(family, 0)} → {mix.get(family, 0)}" for family in ranked]
    yield f"since its parent: {', '.join(changes)}" if changes else "same instruction mix as its parent"
