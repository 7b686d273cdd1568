"""A kernel's instruction mix and resources as one paragraph."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from engine.domain.instruction_mix import summary
from engine.domain.model import Resources, SpeedOfLight

NAIVE = {"total": 567, "LDG": 96, "STG": 5, "FFMA": 82, "MUFU": 17, "BAR": 4, "LDS": 2, "STS": 2}
TENSOR = {"total": 1570, "LDG": 24, "LDG.128": 24, "LDGSTS": 29, "HGMMA": 51, "LDSM": 8, "SYNCS": 6, "LDL": 3, "STL": 1}
MEMORY = SpeedOfLight("bytes", 50.0, 0.41)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ""),
        ({"sol": MEMORY},
         "far from the problem's limit, memory: 41% of copy bandwidth; likely cause: excess memory traffic or latency."),
        ({"sol": SpeedOfLight("bytes", 50.0, 0.93)}, "bound by memory: 93% of copy bandwidth."),
        ({"sol": SpeedOfLight("bytes", 50.0, 0.012)},
         "bound by instructions or latency, not by memory: 1.2% of copy bandwidth."),
        ({"sol": SpeedOfLight("bytes", 50.0, 0.01), "mix": {"total": 60, "xmm": 12}},
         "bound by instructions (no vectors wider than xmm), not by memory: 1% of copy bandwidth; nothing wider than xmm: 12 "
         "on xmm of 60 instructions; no fused multiply-adds."),
        ({"sol": SpeedOfLight("bytes", 50.0, 0.1), "mix": {"total": 60, "ymm": 12, "fma": 2}},
         "bound by instructions or latency, not by memory: 10% of copy bandwidth; 12 on ymm of 60 instructions; 2 fused "
         "multiply-adds."),
        ({"sol": SpeedOfLight("operations (tf32)", 50.0, 0.7)}, "bound by arithmetic: 70% of the peak of tf32."),
        ({"sol": SpeedOfLight("operations (vector)", 50.0, 0.7)},
         "bound by arithmetic: 70% of the peak of vector arithmetic."),
        ({"resources": (Resources("f", 64, 0, 0),)}, "64 registers, no spills, room for 32 warps a multiprocessor."),
        ({"resources": (Resources("f", 88, 0, 0),)}, "88 registers, no spills, room for 20 warps a multiprocessor."),
        ({"resources": (Resources("f", 40, 4096, 0, 96),)},
         "40 registers, no spills, 96 bytes of local arrays, 4096 bytes of static shared memory."),
        ({"resources": (Resources("a", 16, 0, 0), Resources("b", 255, 0, 44, 96))},
         "b: 255 registers, 44 bytes spilled, room for 8 warps a multiprocessor; a: 16 registers, no spills."),
        ({"mix": {"total": 10, "LDG": 4, "LDG.128": 1}}, "1 of 4 global loads are 128 bit."),
        ({"mix": NAIVE, "sol": MEMORY, "conditions": ("cold caches",)},
         "far from the problem's limit, memory: 41% of copy bandwidth; likely cause: excess memory traffic or latency; "
         "no wide loads: 0 of 96 global loads "
         "are 128 bit; no wide stores: 0 of 5 global stores are 128 bit; "
         "barriers: 4 of a block; 82 FFMA, 17 MUFU among 567 instructions; measured with cold caches."),
        ({"mix": TENSOR, "before": NAIVE},
         "24 of 24 global loads are 128 bit; 4 local memory instructions; asynchronous copies: 29 by cp.async; "
         "barriers: 6 on mbarriers; 51 warp-group tensor-core instructions (HGMMA); "
         "since its parent: FFMA 82 → 0, LDG 96 → 24, HGMMA 0 → 51, LDGSTS 0 → 29."),
        ({"mix": {"total": 60, "LDG": 4, "STS": 8, "LDS": 16, "FFMA": 32}},
         "no wide loads: 0 of 4 global loads are 128 bit; no asynchronous copies: 8 stores fill shared memory from registers; "
         "0 of 16 shared loads are 128 bit or ldmatrix; 32 FFMA among 60 instructions."),
        ({"mix": {"total": 60, "STS": 8, "LDS": 16, "LDS.128": 4, "FFMA": 24}, "counts": False},
         "1.5 FFMA for each shared load: by static counts, bandwidth of shared memory limits it; "
         "4 of 16 shared loads are 128 bit or ldmatrix."),
        ({"mix": {"total": 9, "LDG": 4, "STS": 8, "LDS": 2}}, "no wide loads: 0 of 4 global loads are 128 bit."),
        ({"mix": {"total": 9, "FFMA": 4}, "sol": SpeedOfLight("operations (fp16)", 1.0, 0.9)},
         "bound by arithmetic: 90% of the peak of fp16; no tensor-core instructions, although the SOL assumes fp16; 4 FFMA "
         "among 9 instructions."),
        ({"mix": {"total": 60, "xmm": 12, "call": 3}},
         "nothing wider than xmm: 12 on xmm of 60 instructions; no fused multiply-adds; calls: 3."),
        ({"mix": {"total": 397, "zmm": 152, "ymm": 32, "xmm": 118, "fma": 32, "fma.scalar": 2, "stream": 1, "stack": 5}},
         "152 on zmm, 32 on ymm, 118 on xmm of 397 instructions; 32 fused multiply-adds, 2 of them scalar; vector accesses to "
         "the stack: 5, non-temporal stores: 1."),
        ({"mix": NAIVE, "before": NAIVE, "conditions": ()}, "same instruction mix as its parent."),
        ({"before": NAIVE}, ""),
    ],
)  # fmt: skip
def test_summaries_of_instruction_mixes(given: Mapping[str, object], words: str) -> None:
    found = summary(**given)  # type: ignore[arg-type]
    if given.get("before") is NAIVE and given.get("mix") is NAIVE:
        assert found.endswith(words)
    else:
        assert found == words
