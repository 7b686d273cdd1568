"""Parsing perf's output into metrics, and the reasons why there are none."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_perf import REFUSAL

from engine.domain.profile import METRICS
from engine.trial.messages import COUNTED_CALLS
from engine.trial.tools import perf_output

REAL = """# started on Sat Nov 21 22:58:46 2026

<not supported>,,instructions,0,100.00,,
399.87,msec,task-clock,399865982,100.00,0.240,CPUs utilized
81234567,,cycles:u,399865982,80.01,2.1,GHz
<not counted>,,branches,0,0.00,,
0,,LLC-load-misses,399865982,100.00,0.00,of all LL-cache accesses
15,,context-switches,399865982,100.00,37.513,/sec
"""
TWO_KINDS = """1000,,cpu_core/instructions/,5000,100.00,,
250,,cpu_atom/instructions/u,5000,20.00,,
700,,cpu_core/cycles/u,5000,100.00,,
<not counted>,,cpu_atom/cycles/u,0,0.00,,
<not supported>,,cpu_atom/branch-misses/,0,0.00,,
"""


def test_counts_are_read_and_events_without_a_count_are_named() -> None:
    found = perf_output.parse_perf(REAL)
    assert found.values == pytest.approx({"task-clock": 399870.0, "cycles": 81234567, "LLC-load-misses": 0})
    assert found.missing == {"instructions": "not supported", "branches": "not counted"}


def test_two_kinds_of_core_are_added_up() -> None:
    found = perf_output.parse_perf(TWO_KINDS)
    assert found.values == {"instructions": 1250, "cycles": 700}
    assert found.missing == {"branch-misses": "not supported"}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("5,,instructions", 5), ("5,,instructions,1,2,3,4,5,6", 5), (" 5 ,, instructions ,", 5), ("5,,instructions:ukh,", 5),
        ("5,,cpu/instructions/,", 5), ("-5,,instructions,", None), ("nan,,instructions,", None), ("inf,,instructions,", None),
        ("5,instructions", None), ("5;;instructions", None), ("5,,instruction,", None), ("5e3,,instructions,", 5000),
    ],
)  # fmt: skip
def test_other_lines_are_skipped(line: str, value: float | None) -> None:
    assert perf_output.parse_perf(line).values.get("instructions") == value


@pytest.mark.parametrize(("unit", "us"), [("nsec", 2e-3), ("usec", 2.0), ("msec", 2e3), ("sec", 2e6), ("fortnights", None)])
def test_times_are_converted_by_unit(unit: str, us: float | None) -> None:
    assert perf_output.parse_perf(f"2,{unit},task-clock:u,1,100.00,,").values.get("task-clock") == us


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (REFUSAL, "kernel.perf_event_paranoid is 4): as root, run sysctl kernel.perf_event_paranoid=2"),
        (REFUSAL.replace("setting is 4", "setting is 1"), "--cap-add PERFMON"),
        ("Error:\nYou may not have permission to collect stats.\n\nConsider tweaking /proc/sys/…", "only administrators"),
        ("The sys_perf_event_open() syscall returned with 13 (Permission denied) for event (cycles).", "only administrators"),
        ("The sys_perf_event_open() syscall returned with 38 (Function not implemented)", "no perf_event_open"),
        ("WARNING: perf not found for kernel 5.15.0-91\n\n  You may need to install the following packages", "linux-tools-"),
        ("  Error: unknown option `control'\n\n Usage: perf stat [<options>] [<command>]\n", "5.10 or newer"),
        ("event syntax error: 'nosuch'\n   \\___ parser error\n", "event syntax error: 'nosuch'"),
        ("bwrap: Creating new namespace failed: Operation not permitted\n", "bwrap: Creating new namespace failed"),
        ("", "no output"),
    ],
)  # fmt: skip
def test_why_nothing_was_counted(output: str, said: str) -> None:
    assert said in perf_output.why_not(output)
    assert "\n" not in perf_output.why_not(output)
    assert perf_output.parse_perf(output) == perf_output.Counted()


def test_the_last_reported_number_of_calls_counts() -> None:
    assert perf_output.calls_in(f"a\n{COUNTED_CALLS}7\nEvents disabled\n{COUNTED_CALLS}12\n") == 12
    for none in (
        "",
        COUNTED_CALLS,
        f"{COUNTED_CALLS}-1",
        f"{COUNTED_CALLS}1e9",
        f"x{COUNTED_CALLS}3",
        f"{COUNTED_CALLS}{'9' * 30}",
    ):
        assert perf_output.calls_in(none) == 0


def test_every_event_has_a_name_and_is_counted_once() -> None:
    assert sorted(event for group in perf_output.PASSES for event in group) == sorted(perf_output.METRICS)
    assert set(perf_output.METRICS.values()) <= set(METRICS)
    assert all(len(set(group) - {perf_output.CLOCK}) <= 4 for group in perf_output.PASSES)


_WORD = st.one_of(
    st.sampled_from([*perf_output.METRICS, "<not supported>", "<not counted>", "msec",
                      "", "1e999", "-0", "cpu_core/cycles/", "nan"]),
    st.text(max_size=12), st.integers().map(str), st.floats().map(str),
)  # fmt: skip


@given(st.lists(st.lists(_WORD, max_size=6).map(",".join), max_size=8).map("\n".join))
def test_any_output_can_be_parsed(output: str) -> None:
    found = perf_output.parse_perf(output)
    assert set(found.values) | set(found.missing) <= set(perf_output.METRICS)
    assert not set(found.values) & set(found.missing)
    assert all(math.isfinite(value) and value >= 0 for value in found.values.values())
    assert perf_output.why_not(output)
    assert perf_output.calls_in(output) >= 0


_COUNTS = st.dictionaries(
    st.sampled_from([event for event in perf_output.METRICS if event != perf_output.CLOCK]), st.integers(0, 1 << 62)
)


@given(_COUNTS, st.text("ukhpP", max_size=3))
def test_perf_output_round_trips(counts: dict[str, int], modifier: str) -> None:
    dressed = f":{modifier}" if modifier else ""
    output = "".join(f"{value},,{event}{dressed},1000,100.00,,\n" for event, value in counts.items())
    assert perf_output.parse_perf(output).values == pytest.approx(counts)
