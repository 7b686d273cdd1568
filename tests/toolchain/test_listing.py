"""Machine code as a listing: parsed with its source lines, compared without addresses and register numbers."""

from __future__ import annotations

import asyncio

import pytest

from engine.domain.machine_listing import ListedInstruction, MachineListing
from engine.domain.model import Contract, Dialect
from engine.sandbox.confinement import detect
from engine.toolchain.build import BuildRequest
from engine.toolchain.inspection import Uninspected
from engine.toolchain.listed_instructions import parse_native, parse_sass
from engine.toolchain.listing import listing_diff, machine_listing, normal_text

SASS = """
.text.softmax_rows:
        //## File "/tmp/build/kernel.cu", line 12
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        //## File "/usr/local/cuda/include/math.h", line 99
        /*0010*/              @!P0 BRA `(.L_x_0) ;
.L_x_0:
        //## File "/tmp/build/kernel.cu", line 14
        /*0020*/                   EXIT ;                     /* 0x000000000000794d */
        /*0030*/                   NOP ;
""".splitlines()

NATIVE = """
0000000000001080 <_init>:
    1080:\tret
0000000000001100 <launch>:
launch():
/tmp/build/kernel.cpp:3
    1100:\tmov    %rdi,%rax
/tmp/build/kernel.cpp:4 (discriminator 3)
    1103:\tvmovups (%rdi),%zmm1        # comment
/usr/include/c++/13/cmath:7
    1109:\tjmp    1100 <launch>
    110b:\tnopw   0x0(%rax,%rax,1)
""".splitlines()


def test_device_code_has_lines_of_the_kernels_own_file() -> None:
    assert list(parse_sass(SASS)) == [
        ListedInstruction("softmax_rows", 0x0, "LDC R1, c[0x0][0x28]", 12),
        ListedInstruction("softmax_rows", 0x10, "@!P0 BRA `(.L_x_0)", 0, target=0x20),
        ListedInstruction("softmax_rows", 0x20, "EXIT", 14),
    ]


INLINED = """
0000000000001100 <launch>:
launch():
/tmp/build/kernel.cpp:12
    1100:\tdec    %eax
_mm256_fmadd_ps():
/usr/lib/gcc/include/fmaintrin.h:65
inlined by /tmp/build/kernel.cpp:13 (launch)
    1102:\tvfmadd132ps %ymm0,%ymm1,%ymm0
inlined by /tmp/build/kernel.cpp:20 (launch)
    1107:\tvfmadd132ps %ymm0,%ymm1,%ymm0
helper():
/tmp/build/kernel.cpp:5 (discriminator 3)
inlined by /tmp/build/kernel.cpp:17 (launch)
    1110:\tvmulps %ymm0,%ymm1,%ymm0
std::max():
/usr/include/c++/12/bits/stl_algobase.h:260
inlined by /usr/include/c++/12/bits/stl_algobase.h:300 (launch)
inlined by /tmp/build/kernel.cpp:6 (launch)
inlined by /tmp/build/kernel.cpp:18 (launch)
    1114:\tvmaxss %xmm1,%xmm0,%xmm1
""".splitlines()


def test_inlined_code_counts_for_the_line_of_the_kernel_that_called_it() -> None:
    assert [(one.address, one.line) for one in parse_native(INLINED)] == [
        (0x1100, 12), (0x1102, 13), (0x1107, 20), (0x1110, 5), (0x1114, 6),
    ]  # fmt: skip


def test_processor_code_is_that_of_functions_with_a_line_of_the_kernel() -> None:
    assert list(parse_native(NATIVE)) == [
        ListedInstruction("launch", 0x1100, "mov %rdi,%rax", 3),
        ListedInstruction("launch", 0x1103, "vmovups (%rdi),%zmm1", 4),
        ListedInstruction("launch", 0x1109, "jmp 1100 <launch>", 0, target=0x1100),
    ]


ARM = """
0000000000001100 <launch>:
/tmp/build/kernel.cpp:3
    1100:\tfmov\ts1, #1.000000000000000000e+00
    1104:\ttbz\tw0, #5, 1100 <launch>
    1108:\tb.ne\t1104 <launch+0x4>  // b.any
    110c:\tmov\tw1, #0x10                  \t// #16
""".splitlines()


def test_immediate_operands_of_arm_processors_are_no_comments() -> None:
    assert [(one.text, one.target) for one in parse_native(ARM)] == [
        ("fmov s1, #1.000000000000000000e+00", None), ("tbz w0, #5, 1100 <launch>", 0x1100),
        ("b.ne 1104 <launch+0x4>", 0x1104), ("mov w1, #0x10", None),
    ]  # fmt: skip


@pytest.mark.parametrize("part", [" ", "<a+0x", "`("])
def test_a_name_of_megabytes_is_read_at_once(part: str) -> None:
    """A kernel can name a symbol so. For each part the rest of the line was looked at again."""
    name = f"a{part * 500_000}b"
    native = ["0000000000001100 <launch>:", "/tmp/build/kernel.cpp:3", f"    1100:\tjmp    1100 <{name}>"]
    sass = [".text.launch:", f"        /*0000*/                   BRA `({name}) ;"]
    found = [*parse_native(native), *parse_sass(sass)]
    assert [normal_text(one.text)[:5] for one in found] == ["jmp <", "BRA ."]
    assert max(len(one.text) for one in found) <= 500


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("FFMA R4, R8.reuse, R12, R4", "FFMA R7, R1, R2, R7", True),
        ("@!P0 BRA `(.L_x_0)", "@!P3 BRA `(.L_x_12)", True),
        ("BRA 0x1b0", "BRA 0x2c0", True),
        ("LDG.E.128.CONSTANT R12, desc[UR8][R40.64+0x10000]", "LDG.E.128.CONSTANT R4, desc[UR4][R2.64+0x20]", True),
        ("vmovups 0x40(%rdi),%zmm3", "vmovups 0x80(%rsi),%zmm12", True),
        ("jmp 1180 <launch+0x80>", "jmp 2200 <launch+0x10>", True),
        ("LDG.E.128 R4, desc[UR4][R2.64]", "LDG.E.64 R4, desc[UR4][R2.64]", False),
        ("vmovups (%rdi),%zmm1", "vmovups (%rdi),%ymm1", False),
        ("MOV R16, 0xff800000", "MOV R16, 0x3f800000", False),
        ("ISETP.GT.AND P4, PT, R2, 0xdfff, PT", "ISETP.LT.AND P4, PT, R2, 0xdfff, PT", False),
    ],
)
def test_only_registers_addresses_and_labels_are_left_out(first: str, second: str, same: bool) -> None:
    assert (normal_text(first) == normal_text(second)) is same


def listing(*texts: str) -> MachineListing:
    return MachineListing(tuple(ListedInstruction("f", 16 * n, text, n) for n, text in enumerate(texts)), "nvdisasm")


def test_a_diff_marks_what_only_one_kernel_has() -> None:
    before = listing("LDG.E R4, [R2]", "FADD R4, R4, R5", "STG.E [R2], R4")
    after = listing("LDG.E.128 R8, [R6]", "FADD R8, R8, R9", "STG.E [R6], R8")
    found = [(change.sign, change.instruction.text) for change in listing_diff(before, after)]
    assert found == [("-", "LDG.E R4, [R2]"), ("+", "LDG.E.128 R8, [R6]"), (" ", "FADD R8, R8, R9"), (" ", "STG.E [R6], R8")]


CODE = """#include "problem.h"
extern "C" void launch(const float* x, float* out, void* workspace) {
    for (int i = 0; i < 4096; ++i)
        out[i] = 2.0f * x[i];
}
"""


def test_a_kernel_of_the_processor_is_listed_with_its_lines() -> None:
    async def listed() -> MachineListing | Uninspected:
        request = BuildRequest(CODE, Dialect.CPP, Contract.HOST, "", {}, "", "double.cpp")
        return await machine_listing(request, await detect())

    found = asyncio.run(listed())
    assert isinstance(found, MachineListing)
    assert 4 in {one.line for one in found.instructions}
    assert {one.function for one in found.instructions} >= {"launch"}


def test_a_module_has_no_listing() -> None:
    async def listed() -> MachineListing | Uninspected:
        return await machine_listing(BuildRequest("", Dialect.PYTHON, Contract.MODULE, "", {}, "", "m.py"), await detect())

    assert asyncio.run(listed()) == Uninspected("m.py is a module: it compiles its kernels when it runs")
