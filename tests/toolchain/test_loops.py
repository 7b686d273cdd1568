"""Loops in machine code: found from branches, nested, of real compilers; what only looks like one is none."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.hot_code import HotCode, NoHotCode
from engine.domain.machine_listing import ListedInstruction, MachineListing
from engine.domain.model import Contract, Dialect
from engine.sandbox.confinement import detect
from engine.toolchain.build import BuildRequest
from engine.toolchain.inspection import Uninspected, listing_tool
from engine.toolchain.listed_instructions import parse_native, parse_sass
from engine.toolchain.listing import machine_listing
from engine.toolchain.loops import innermost_loops, with_depths
from engine.toolchain.static_hot_code import hot_loop, static_hot_code

NESTED = """
.text.rows:
\t//## File "/tmp/build/kernel.cu", line 5
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/               @P0 EXIT ;
.L_x_3:
\t//## File "/tmp/build/kernel.cu", line 8
        /*0020*/               @P1 BRA `(.L_x_1) ;
.L_x_2:
\t//## File "/usr/include/math.h", line 3 inlined at "/tmp/build/kernel.cu", line 11
\t//## File "/tmp/build/kernel.cu", line 11
        /*0030*/                   MUFU.EX2 R12, R11 ;
\t//## File "/tmp/build/kernel.cu", line 4 inlined at "/tmp/build/kernel.cu", line 11
\t//## File "/tmp/build/kernel.cu", line 11
        /*0040*/                   LDG.E R7, [R6.64] ;
\t//## File "/tmp/build/kernel.cu", line 10
        /*0050*/              @!P2 BRA `(.L_x_2) ;
.L_x_1:
        /*0060*/                   BRA.U UP0, `(.L_x_3) ;
        /*0070*/                   BRA `(.L_x_6) ;
.L_x_5:
        /*0080*/                   FMUL R1, R1, R1 ;
        /*0090*/                   EXIT ;
.L_x_6:
        /*00a0*/                   BRA `(.L_x_5) ;
.L_x_4:
        /*00b0*/                   BRA `(.L_x_4) ;
        /*00c0*/                   NOP ;
""".splitlines()
"""Two nested loops, then a block that is laid out after where it goes, and the trap behind every kernel."""
DUMPED = [
    line.replace("`(.L_x_1)", "0x60").replace("`(.L_x_2)", "0x30").replace("`(.L_x_3)", "0x20")
    for line in NESTED
    if not line.startswith(".L") and "File" not in line
]
NATIVE = """
0000000000001100 <launch>:
/tmp/build/kernel.cpp:3
    1100:\txor    %eax,%eax
    1104:\tvfmadd132ps %ymm0,%ymm1,%ymm0
    1109:\tdec    %eax
    110b:\tjne    1104 <launch+0x4>
    110d:\tcmp    %rdx,%rcx
    1110:\tjmp    1118 <launch+0x18>
    1112:\tnopw   0x0(%rax,%rax,1)
    1118:\tjg     1104 <launch+0x4>
    111a:\tret
    111b:\tjmp    1104 <launch+0x4>
""".splitlines()
KERNEL = """extern "C" __global__ void rows(const float* x, float* out)
{
    for (int r = blockIdx.x; r < 4096; r += gridDim.x) {
        float s = 0.0f;
        #pragma unroll 1
        for (int i = threadIdx.x; i < 1000; i += blockDim.x)
            s += __expf(x[r * 1000 + i]);
        out[r * 1000 + threadIdx.x] = s;
    }
}
// @launch rows(x, out) grid(64) block(32)
"""


needs_tools = pytest.mark.skipif(
    not (shutil.which("nvcc") and isinstance(asyncio.run(listing_tool(Path("kernel.cubin"))), tuple)),
    reason="nvcc or nvdisasm is not installed",
)


def depths(code: Sequence[ListedInstruction]) -> dict[int, int]:
    return {one.address: one.depth for one in with_depths(code)}


def test_nested_loops_of_device_code() -> None:
    code = tuple(parse_sass(NESTED))
    (inner,) = innermost_loops(code)
    assert (inner.depth, [code[place].address for place in inner.places]) == (2, [0x30, 0x40, 0x50])
    assert [address for address, depth in depths(code).items() if depth == 2] == [0x30, 0x40, 0x50]
    assert [address for address, depth in depths(code).items() if depth == 1] == [0x20, 0x60]


def test_targets_are_addresses_where_the_disassembler_gives_no_labels() -> None:
    expected = depths(tuple(parse_sass(NESTED)))
    found = depths(tuple(parse_sass(DUMPED)))
    assert {address: found[address] for address in range(0, 0x80, 0x10)} == {a: expected[a] for a in range(0, 0x80, 0x10)}


def test_a_line_of_a_chain_of_inlined_calls_is_the_innermost_of_the_kernel() -> None:
    assert {one.address: one.line for one in parse_sass(NESTED) if one.address in (0x30, 0x40, 0x50)} == {
        0x30: 11, 0x40: 4, 0x50: 10,
    }  # fmt: skip


def test_a_loop_is_summed_up() -> None:
    code = tuple(parse_sass(NESTED))
    words = hot_loop(code, innermost_loops(code)[0]).words
    assert words == "loop depth 2 (static) of rows, lines 4–11: 3 instructions, MUFU 1, LDG 1, BRA 1"


def test_loops_of_processor_code_with_padding_and_dead_code() -> None:
    code = tuple(parse_native(NATIVE))
    assert [one.target for one in code if one.target] == [0x1104, 0x1118, 0x1104, 0x1104]
    (loop,) = innermost_loops(code)
    assert [code[place].address for place in loop.places] == [0x1104, 0x1109, 0x110B, 0x110D, 0x1110, 0x1118]


def instructions(shape: Sequence[tuple[str, int]]) -> tuple[ListedInstruction, ...]:
    """Each of an operation and the number of the instruction that it may branch to."""
    return tuple(
        ListedInstruction("f", 16 * n, f"{op} 0x{16 * to:x}" if "BRA" in op else op, 1, target=16 * to if "BRA" in op else None)
        for n, (op, to) in enumerate(shape)
    )


def followers(shape: Sequence[tuple[str, int]]) -> list[set[int]]:
    found = []
    for n, (op, to) in enumerate(shape):
        to_next = {n + 1} if op not in ("BRA", "EXIT") and n + 1 < len(shape) else set()
        found.append(to_next | ({to} if "BRA" in op and to < len(shape) else set()))
    return found


def reached(after: Sequence[set[int]], start: int, without: int = -1) -> set[int]:
    """The instructions on paths from ``start`` that do not go through ``without``."""
    found: set[int] = set()
    pending = [start] if start != without else []
    while pending:
        one = pending.pop()
        if one not in found:
            found.add(one)
            pending += after[one] - {without}
    return found


def natural_loops(shape: Sequence[tuple[str, int]]) -> list[set[int]]:
    """By their definition: what reaches a branch back to a dominator, without going through it. Of two or more instructions."""
    after = followers(shape)
    possible = reached(after, 0)
    loops: dict[int, set[int]] = {}
    for last in possible:
        for header in after[last]:
            if last not in reached(after, 0, header):
                body = {one for one in possible if last in reached(after, one, header)} | {header}
                loops[header] = loops.get(header, set()) | body
    return [body for body in loops.values() if len(body) > 1]


OPERATIONS = st.sampled_from(["ADD", "BRA", "@P0 BRA", "@P0 BRA", "EXIT"])


@given(st.lists(st.tuples(OPERATIONS, st.integers(0, 15)), min_size=1, max_size=16))
def test_loops_are_natural_loops(shape: list[tuple[str, int]]) -> None:
    code, loops = instructions(shape), natural_loops(shape)
    assert [one.depth for one in with_depths(code)] == [sum(n in body for body in loops) for n in range(len(code))]
    inner = [body for body in loops if not any(other < body for other in loops)]
    assert {loop.places for loop in innermost_loops(code)} == {tuple(sorted(body)) for body in inner}


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["nested", "in a row", "irreducible"])
def test_a_function_of_tens_of_thousands_of_blocks(shape: str) -> None:
    """A kernel may be written to have such a listing, which is analysed in the program's own process."""
    count = 30_000
    ops = {
        "nested": [("ADD", 0)] * count + [("@P0 BRA", count - n) for n in range(1, count)],
        "in a row": [("@P0 BRA", max(0, n - 2)) for n in range(2 * count)],
        "irreducible": [("@P0 BRA", count - n) for n in range(count)] + [("@P0 BRA", n) for n in range(count)],
    }
    code = instructions(ops[shape])
    deepest = max(one.depth for one in with_depths(code))
    assert deepest == max(loop.depth for loop in innermost_loops(code)) >= (count - 1 if shape == "nested" else 1)


def request(arch: str = "sm_90a") -> BuildRequest:
    return BuildRequest(KERNEL, Dialect.CUDA, Contract.PLAN, "", {}, arch, "rows.cu")


@needs_tools
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_the_loops_of_a_compiled_kernel(arch: str) -> None:
    listing = asyncio.run(_listing(arch))
    assert isinstance(listing, MachineListing), listing
    deepest = innermost_loops(listing.instructions)[0]
    assert deepest.depth == 2
    assert any("MUFU.EX2" in listing.instructions[place].text for place in deepest.places)
    assert {listing.instructions[place].line for place in deepest.places} <= {5, 6, 7, 8}


async def _listing(arch: str) -> MachineListing | Uninspected:
    return await machine_listing(request(arch), await detect())


@needs_tools
@pytest.mark.slow
def test_a_kernel_that_cannot_be_sampled_has_static_hot_code() -> None:
    kept: list[bytes] = []

    def store(payload: bytes) -> str:
        kept.append(payload)
        return "blob"

    async def found() -> HotCode | NoHotCode:
        return await static_hot_code(request(), await detect(), store)

    hot = asyncio.run(found())
    assert isinstance(hot, HotCode), hot
    assert hot.samples == 0
    assert hot.listing == "blob"
    assert hot.loops[0].depth == 2
    assert hot.loops[0].mix["MUFU"] >= 1
    assert b'"depth":2' in kept[0]
