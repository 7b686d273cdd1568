"""Samples of the program counter: from addresses to instructions and source lines, and of real kernels in the sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.hot_code import HotCode
from engine.domain.machine_listing import ListedInstruction, MachineListing
from engine.domain.model import Contract, Dialect
from engine.domain.profile import Profile
from engine.problem import catalog
from engine.trial.bench import Assignment, KernelSpec, TrialBench
from engine.trial.messages import SAMPLED_ADDRESSES, SampledAddresses
from engine.trial.runner.sample_loop import Mapping, by_place, read_mappings
from engine.trial.tools.pc_sampling import hot_code, parse_samples, with_samples

HOT_LINE = "total += std::sin(row[i]) * std::cos(row[i]);"
KERNEL = f"""#include "problem.h"
#include <cmath>
extern "C" void launch(const x_t* x, out_t* out, void*)
{{
    #pragma omp parallel for
    for (long r = 0; r < X_DIM0; ++r) {{
        const float* row = x + r * X_DIM1;
        float total = 0.0f;
        for (int turn = 0; turn < 40; ++turn)
            for (long i = 0; i < X_DIM1; ++i)
                {HOT_LINE}
        for (long i = 0; i < X_DIM1; ++i)
            out[r * X_DIM1 + i] = total;
    }}
}}
"""
PURE = KERNEL.replace(HOT_LINE, "total = total * 0.999f + row[i];").replace("#include <cmath>\n", "")
THREADS = """#include "problem.h"
#include <thread>
static void fill(const x_t* x, out_t* out)
{
    for (int turn = 0; turn < 20; ++turn)
        for (long i = 0; i < X_NUMEL; ++i)
            out[i] = out[i] * 0.5f + x[i];
}
extern "C" void launch(const x_t* x, out_t* out, void*)
{
    std::thread(fill, x, out).join();
}
"""
CRASHES = '#include "problem.h"\nextern "C" void launch(const x_t*, out_t*, void*) { *(volatile int*) nullptr = 1; }\n'
SHORT = '#include "problem.h"\nextern "C" void launch(const x_t*, out_t*, void*) { }\n'

CODE = (
    ListedInstruction("launch", 0x1100, "mov", 3),
    ListedInstruction("launch", 0x1104, "vmovups", 4),
    ListedInstruction("launch", 0x1120, "jne", 4),
    ListedInstruction("other", 0x1200, "ret", 0),
)


@st.composite
def listings(draw: st.DrawFn) -> tuple[ListedInstruction, ...]:
    """Functions of instructions at rising addresses, with padding here and there."""
    found: list[ListedInstruction] = []
    address = 0x1000
    for function in range(draw(st.integers(1, 4))):
        for _ in range(draw(st.integers(1, 8))):
            found.append(ListedInstruction(f"f{function}", address, "op", draw(st.integers(0, 5))))
            address += draw(st.integers(1, 15))
        address += 32
    return tuple(found)


@given(listings(), st.data())
def test_every_sample_is_counted_once(code: tuple[ListedInstruction, ...], data: st.DataObject) -> None:
    places = st.integers(0xF00, code[-1].address + 64)
    inside = data.draw(st.dictionaries(places, st.integers(1, 50), max_size=30))
    sampled, other = with_samples(code, inside)
    assert sum(one.samples for one in sampled) + other == sum(inside.values())
    assert [(one.address, one.text, one.line) for one in sampled] == [(one.address, one.text, one.line) for one in code]


@given(listings(), st.data())
def test_a_sample_at_an_instruction_is_that_instructions(code: tuple[ListedInstruction, ...], data: st.DataObject) -> None:
    inside = data.draw(st.dictionaries(st.sampled_from([one.address for one in code]), st.integers(1, 50)))
    sampled, other = with_samples(code, inside)
    assert other == 0
    assert {one.address: one.samples for one in sampled if one.samples} == inside


def test_padding_in_a_function_counts_for_what_follows_and_code_outside_for_no_instruction() -> None:
    sampled, other = with_samples(CODE, {0x1110: 7, 0x1150: 2, 0x10F0: 3, 0x1300: 4})
    assert [one.samples for one in sampled] == [0, 0, 7, 0]
    assert other == 9


def test_lines_are_ordered_and_libraries_kept_apart() -> None:
    kept: list[bytes] = []
    sampled, other = with_samples(CODE, {0x1100: 5, 0x1104: 20, 0x1120: 10, 0x1200: 3, 0x1300: 2})
    listing = MachineListing(sampled, "objdump")

    def store(payload: bytes) -> str:
        kept.append(payload)
        return "blob"

    found = hot_code(listing, other, {"libm.so.6": 60}, "a\nb\n  third\n  fourth\n", store)
    assert isinstance(found, HotCode)
    assert found.samples == 100
    assert [(one.line, one.text, one.samples) for one in found.lines] == [(4, "fourth", 30), (3, "third", 5)]
    assert found.elsewhere == {"libm.so.6": 60, "other code": 5}
    assert msgspec.json.decode(kept[0], type=MachineListing) == MachineListing(sampled, "objdump", 100)


def test_samples_are_placed_by_file_and_idle_threads_left_out() -> None:
    maps = """
7f0000000000-7f0000001000 r--p 00000000 fe:00 11 /cache/kernel.so
7f0000001000-7f0000002000 r-xp 00001000 fe:00 11 /cache/kernel.so
7f0000010000-7f0000020000 r-xp 00000000 fe:00 12 /lib/libm.so.6
7f0000030000-7f0000040000 r-xp 00000000 fe:00 13 /usr/bin/python3.11
7f0000050000-7f0000060000 r-xp 00000000 00:00 0
""".strip().splitlines()
    mappings = read_mappings(maps)
    assert mappings[0] == Mapping(0x7F0000001000, 0x7F0000002000, 0x7F0000000000, "/cache/kernel.so")
    working, idle = 5, 6
    samples = [
        (0x7F0000001100, working), (0x7F0000001100, working), (0x7F0000010010, working), (0x7F0000030010, working),
        (0x7F0000050010, working), (0x7F0000010010, idle), (0x10, idle),
    ]  # fmt: skip
    assert by_place(samples, mappings, "/cache/kernel.so") == SampledAddresses({0x1100: 2}, {"libm.so.6": 1, "unknown": 1})


@pytest.mark.parametrize(
    "claim",
    [
        "", "nothing", '{"inside":{"1":-4},"elsewhere":{}}', '{"inside":{"1":900000},"elsewhere":{}}',
        '{"inside":{"x":1},"elsewhere":{}}', '{"inside":{},"elsewhere":{"a line\\nof words":1}}',
    ],
)  # fmt: skip
def test_an_implausible_claim_of_a_kernel_is_refused(claim: str) -> None:
    assert parse_samples(f"torch said\n{SAMPLED_ADDRESSES}{claim}\n") is None


def profiled(*sources: str) -> list[tuple[Profile, dict[str, bytes]]]:
    problem = catalog.find("softmax")
    blobs: dict[str, bytes] = {}

    def put(payload: bytes) -> str:
        name = hashlib.sha256(payload).hexdigest()
        blobs[name] = payload
        return name

    bench = TrialBench(Assignment(problem, catalog.workload_for(problem, "small"), "cpu", cold=False), put)

    async def work() -> list[Profile]:
        try:
            specs = [KernelSpec("kernel.cpp", code, Dialect.CPP, Contract.HOST) for code in sources]
            return [await bench.profile_kernel(spec, lambda _: None) for spec in specs]
        finally:
            await bench.close()

    return [(found, blobs) for found in asyncio.run(work())]


def hottest(found: Profile) -> Sequence[str]:
    assert found.hot is not None, found.note
    return [one.text for one in found.hot.lines]


def own_samples(hot: HotCode) -> int:
    """Those in source lines: on a busy machine threads mostly wait for each other, in OpenMP's library."""
    return sum(one.samples for one in hot.lines)


@pytest.mark.slow
def test_the_hottest_line_is_that_of_the_hot_loop() -> None:
    (called, _), (pure, blobs), (threads, _), (crashed, _), (short, _) = profiled(KERNEL, PURE, THREADS, CRASHES, SHORT)
    assert called.hot is not None
    assert called.hot.elsewhere["libm.so.6"] > own_samples(called.hot) / 3, "its time is that of sin and cos"
    assert hottest(pure)[0] in ("total = total * 0.999f + row[i];", "for (long i = 0; i < X_DIM1; ++i)")
    assert pure.hot is not None
    loop = [one.samples for one in pure.hot.lines if one.line in (9, 10)]
    assert pure.hot.samples >= 300
    assert sum(loop) > 0.8 * own_samples(pure.hot)
    listing = json.loads(blobs[pure.hot.listing])
    assert listing["samples"] == pure.hot.samples
    assert max(listing["instructions"], key=lambda one: one["samples"])["line"] in (9, 10)
    assert any("out[i] = out[i] * 0.5f + x[i];" in line for line in hottest(threads)[:2]), "a thread of the kernel's own"
    assert crashed.hot is None
    assert "did not finish while it was sampled" in crashed.note
    assert short.hot is None or own_samples(short.hot) < 100, "on a busy machine an empty call has samples in the C library"
    assert "calls are too short" in short.note
