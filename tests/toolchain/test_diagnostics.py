"""Parsing compiler messages, on recorded output."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.model import Resources
from engine.toolchain.diagnostics import first_error, ptxas_resources, vectorised_loops
from engine.toolchain.inspection import count_native, count_sass

NVCC_TEMPLATE = """\
/usr/local/cuda/include/thing.h(40): error: no instance of overloaded function "f" matches the argument list
            argument types are: (S)
      f(v);
      ^
          detected during instantiation of "void g(T) [with T=S]" at line 9 of kernel.cu

1 error detected in the compilation of "kernel.cu".
"""


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("kernel.cu:3:5: error: oops\nkernel.cu:1:1: error: later\n", "mine.cu:3:5: error: oops"),
        ("kernel.cu:3:5: warning: oops\nkernel.cu:4:1: fatal error: late.h: none\n", "mine.cu:4:1: error: late.h: none"),
        ("/x/y/kernel.cu(12): error: expected a \";\"\n      a b\n        ^\n", 'mine.cu:12:7: error: expected a ";"'),
        ("kernel.cu(12): error #20: what\n", "mine.cu:12: error: what"),
        (NVCC_TEMPLATE, 'mine.cu:9: error: no instance of overloaded function "f" matches the argument list (in thing.h)'),
        ("elsewhere.h:7:1: error: bad\n", "elsewhere.h:7: error: bad"),
        ("ptxas fatal   : Ptx assembly aborted\n", "mine.cu: error: ptxas: Ptx assembly aborted"),
        ("ptxas /tmp/x.ptx, line 48; error   : Unknown modifier\n", "mine.cu: error: ptxas: Unknown modifier"),
        ("/tmp/cc1.s: Assembler messages:\n/tmp/cc1.s:6: Error: no such insn\n", "mine.cu: error: assembler: no such insn"),
        ("ld.lld: error: undefined symbol: launch\n", "mine.cu: error: no launch() with C linkage: "),
        ("x.c:(.text+0x5): undefined reference to `gone(int)'\n", "mine.cu: error: undefined reference to gone(int)"),
        ("cc1plus: out of memory allocating 65536 bytes\n", "mine.cu: cc1plus: out of memory allocating 65536 bytes"),
    ],
)  # fmt: skip
def test_the_first_error_in_the_kernels_own_file_is_named(output: str, expected: str) -> None:
    found = first_error(output, "kernel.cu", "mine.cu")
    assert found is not None
    assert found.startswith(expected)


def test_empty_output_has_no_error() -> None:
    assert first_error("all is well\n", "kernel.cu", "mine.cu") is None


@given(st.text(max_size=200))
def test_any_output_can_be_read(output: str) -> None:
    reason = first_error(output, "kernel.cu", "mine.cu")
    assert reason is None or len(reason.splitlines()) == 1
    ptxas_resources(output)


PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    96 bytes stack frame, 40 bytes spill stores, 44 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 96 bytes cumulative stack size, 4096 bytes smem, 376 bytes cmem[0]
ptxas info    : Function properties for _Z6helperf
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
"""


def test_registers_shared_memory_and_spills_are_read_from_ptxas() -> None:
    assert ptxas_resources(PTXAS) == (Resources("first", 255, 4096, 44, 96), Resources("second", 10, 0, 0, 0))


def test_the_vectorisation_report_keeps_the_kernel_s_lines() -> None:
    report = (
        "kernel.cpp:5:1: optimized: loop vectorized using 64 byte vectors\n"
        "/usr/include/c++/12/bits/x.h:9:1: optimized: loop vectorized using 16 byte vectors\n"
        "kernel.cpp:5:1: optimized: loop vectorized using 64 byte vectors\n"
    )
    assert vectorised_loops(report, "kernel.cpp") == "kernel.cpp:5:1: optimized: loop vectorized using 64 byte vectors"


SASS = """\
	.headerflags	@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                       /* 0x00000a00ff017b82 */
        /*0010*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;    /* 0x0000000402047981 */
        /*0020*/              @!P0 LDG.E R4, desc[UR4][R2.64] ;                 /* 0x0000000402047981 */
        /*0030*/                   FFMA R0, R4, R5, R0 ;                        /* 0x0000000504007223 */
        /*0040*/             @!UP0 UTMALDG.2D [UR8], [UR4] ;                    /* 0x00000008040075b4 */
        /*0050*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], R24 ;   /* 0x01e00000041879f0 */
        /*0060*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;                /* 0x0000000000007b1d */
        /*0070*/                   NOP;                                         /* 0x0000000000007918 */
"""
NATIVE = """\
0000000000001130 <launch>:
    1130:	vmovups (%rdi),%zmm0
    1136:	vfmadd231ps %zmm0,%zmm1,%zmm2
    113c:	vaddss %xmm0,%xmm1,%xmm2
    1140:	call   1030 <foo@plt>
    1145:	nopw   0x0(%rax,%rax,1)
    114b:	ret
"""


def test_device_code_is_counted_by_family() -> None:
    expected = {"total": 7, "LDG": 2, "LDG.128": 1, "FFMA": 1, "TMA": 1, "HGMMA": 1, "BAR": 1}
    assert count_sass(SASS.splitlines()) == expected


def test_cpu_code_is_counted_by_register_width() -> None:
    assert count_native(NATIVE.splitlines()) == {"total": 5, "zmm": 2, "xmm": 1, "fma": 1, "call": 1}
