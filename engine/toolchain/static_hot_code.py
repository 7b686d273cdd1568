"""The hot code of a kernel that cannot be sampled: its innermost loops, from its machine code alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from engine.domain.hot_code import LOOPS, HotCode, HotLoop, NoHotCode
from engine.domain.machine_listing import ListedInstruction
from engine.sandbox.confinement import Confinement
from engine.toolchain.build import BuildRequest
from engine.toolchain.inspection import Uninspected, count_sass
from engine.toolchain.listing import machine_listing
from engine.toolchain.loops import Loop, innermost_loops

_TOTAL = "total"


async def static_hot_code(
    request: BuildRequest, confinement: Confinement, store: Callable[[bytes], str]
) -> HotCode | NoHotCode:
    """The deepest loops of a CUDA or Triton kernel. Builds it with line tables; raises as ``build``."""
    listing = await machine_listing(request, confinement)
    if isinstance(listing, Uninspected):
        return NoHotCode(listing.reason)
    deepest = innermost_loops(listing.instructions)[:LOOPS]
    blob = store(msgspec.json.encode(listing))
    return HotCode(listing=blob, loops=tuple(hot_loop(listing.instructions, loop) for loop in deepest))


def hot_loop(instructions: Sequence[ListedInstruction], loop: Loop) -> HotLoop:
    """A loop with its source lines and its mix of instructions."""
    code = [instructions[place] for place in loop.places]
    lines = [one.line for one in code if one.line]
    mix = count_sass(f"/*0000*/ {one.text}" for one in code)
    families = {name: count for name, count in mix.items() if name != _TOTAL}
    return HotLoop(loop.function, loop.depth, min(lines, default=0), max(lines, default=0), len(code), families)
