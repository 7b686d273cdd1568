"""Parsing Nsight Compute's tables into metrics, and the reasons why there are none."""

from __future__ import annotations

import pytest

from engine.trial.tools.ncu_output import parse_ncu, why_not

HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",'
    '"gpu__time_duration.sum","sm__throughput.avg.pct_of_peak_sustained_elapsed",'
    '"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed","lts__t_sector_hit_rate.pct",'
    '"sm__warps_active.avg.pct_of_peak_sustained_active","launch__registers_per_thread",'
    '"launch__shared_mem_per_block_static","launch__shared_mem_per_block_dynamic","launch__grid_size",'
    '"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",'
    '"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",'
    '"smsp__average_warps_issue_stalled_selected_per_issue_active.ratio"'
)
UNITS = (
    '"","","","","","","","","","","","nsecond","%","%","%","%","register/thread","byte/block","byte/block","",'
    '"inst","inst","inst"'
)
ROW = (
    '"0","4242","python3.11","127.0.0.1","softmax_rows(const float *, float *)","1","7","(256, 1, 1)","(4096, 1, 1)","0","9.0",'
    '"812,345","31.25","86.5","12.1","74.0","32","1,024","2048","4,096","6.0","3.0","1.0"'
)
NOISE = (
    '==PROF== Connected to process 4242 (/usr/bin/python3.11)\n==PROF== Profiling "softmax_rows" - 0: 0%....100% - 9 passes\n'
)


def page(*rows: str, header: str = HEADER, units: str = UNITS) -> str:
    return NOISE + "\n".join([header, units, *rows]) + "\n==PROF== Disconnected from process 4242\n"


def shaped(unit: str) -> str:
    """The row of units as some versions write it, with ratios without a unit."""
    return UNITS.replace('"inst"', f'"{unit}"')


def test_metrics_have_our_names_and_units() -> None:
    found = parse_ncu(page(ROW))
    assert found is not None
    assert found.launches == 1
    assert found.metrics == pytest.approx(
        {
            "duration_us": 812.345, "sm_percent": 31.25, "dram_percent": 86.5, "l2_hit_percent": 12.1,
            "occupancy_percent": 74.0, "registers": 32.0, "shared_bytes": 3072.0,
        }
    )  # fmt: skip


@pytest.mark.parametrize("unit", ["", "inst", "warp", "ratio"])
def test_stall_reasons_are_in_per_cent(unit: str) -> None:
    found = parse_ncu(page(ROW, units=shaped(unit)))
    assert found is not None
    assert found.stalls == pytest.approx({"long scoreboard": 60.0, "barrier": 30.0}), "an issuing warp is not stalled"


@pytest.mark.parametrize(("text", "unit", "us"), [("812.3", "usecond", 812.3), ("0.8", "msecond", 800.0), ("2", "s", 2e6)])
def test_units_are_converted(text: str, unit: str, us: float) -> None:
    found = parse_ncu(page(ROW.replace("812,345", text), units=UNITS.replace("nsecond", unit)))
    assert found is not None
    assert found.metrics["duration_us"] == pytest.approx(us)


def test_several_launches_are_combined() -> None:
    second = ROW.replace('"0","4242"', '"1","4242"').replace("812,345", "2,437,035").replace('"86.5"', '"46.5"')
    second = second.replace('"32","1,024"', '"40","0"').replace('"6.0","3.0"', '"3.0","6.0"')
    found = parse_ncu(page(ROW, second))
    assert found is not None
    assert found.launches == 2
    assert found.metrics["duration_us"] == pytest.approx(812.345 + 2437.035)
    assert found.metrics["dram_percent"] == pytest.approx(0.25 * 86.5 + 0.75 * 46.5), "weighted by duration"
    assert found.metrics["registers"] == 40
    assert found.metrics["shared_bytes"] == 3072
    assert found.stalls["barrier"] == pytest.approx(0.25 * 30 + 0.75 * 60)


def test_unknown_values_are_skipped() -> None:
    for odd in ('"n/a"', '""', '"nan"', '"inf"', '"-5"'):
        found = parse_ncu(page(ROW.replace('"86.5"', odd)))
        assert found is not None
        assert "dram_percent" not in found.metrics
        assert found.metrics["sm_percent"] == 31.25
    found = parse_ncu(page(ROW, units=UNITS.replace("nsecond", "fortnight")))
    assert found is not None
    assert "duration_us" not in found.metrics


def test_alternative_metric_names_are_accepted() -> None:
    header = HEADER.replace("gpu__dram_throughput", "dram__throughput").replace("launch__grid_size", "new__metric.sum")
    found = parse_ncu(page(ROW, header=header))
    assert found is not None
    assert found.metrics["dram_percent"] == 86.5


def test_truncated_rows_and_kernel_output_are_skipped() -> None:
    found = parse_ncu(page(ROW, ROW[: len(ROW) // 2]))
    assert found is not None
    assert found.launches == 1
    assert parse_ncu("hello from the kernel\n") is None
    assert parse_ncu("") is None
    assert parse_ncu(HEADER) is None
    assert parse_ncu(page()) is None


REFUSED = """==PROF== Connected to process 7
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target device 0.
==PROF== Disconnected from process 7
"""


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (REFUSED, "only administrators"),
        ("==WARNING== No kernels were profiled.\n", "launched nothing"),
        ("==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool …", "another tool"),
        ("x\n==ERROR== The application returned an error code (1).\n", "The application returned an error code (1)."),
        ("bwrap: no such file\n", "bwrap: no such file"),
        ("", "no output"),
    ],
)
def test_why_no_counters_were_read(output: str, said: str) -> None:
    assert said in why_not(output)
    assert parse_ncu(output) is None
