"""Telemetry of a measurement: device and machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.gpus import CLOCKS_SET, HARD_HEAT, HARDWARE, HEAT, IDLE, POWER_CAP, FakeNvml

from engine.domain.model import Device
from engine.trial.judge import nvml
from engine.trial.judge.timing import conditions
from engine.trial.judge.timing.conditions import CpuMonitor, GpuMonitor, PairConditions, descends, describe, stolen_ticks

ME = 100


def watched(library: FakeNvml, samples: int = 4, ours: tuple[int, ...] = ()) -> PairConditions:
    watcher = GpuMonitor(library.gpu(), is_ours=lambda pid: pid in ours, own_pid=ME)
    watcher.begin()
    for _ in range(samples):
        watcher.sample()
    return watcher.end()


def test_clocks_temperature_and_power_are_one_line() -> None:
    found = describe([watched(FakeNvml(pids=[ME]))])
    assert found == ("SM 1980 MHz, memory 3201 MHz, 41 °C, 121 W",)


def test_a_range_covers_all_pairs_without_the_idle_clock() -> None:
    library = FakeNvml(pids=[ME])
    watcher = GpuMonitor(library.gpu(), is_ours=lambda _: False, own_pid=ME)
    library.clocks[1] = 345
    watcher.begin()
    library.clocks[1] = 1755
    watcher.sample()
    first = watcher.end()
    (line,) = describe([first, watched(FakeNvml(pids=[ME]))])
    assert line.startswith("SM 1755–1980 MHz, ")


def test_samples_taken_while_throttled_are_counted_with_the_reason() -> None:
    library = FakeNvml(pids=[ME])
    watcher = GpuMonitor(library.gpu(), own_pid=ME)
    watcher.begin()
    for reasons in (IDLE, POWER_CAP, CLOCKS_SET, POWER_CAP | HEAT):
        library.reasons = [reasons]
        watcher.sample()
    library.reasons = [IDLE]
    seen = watcher.end()
    assert seen.slowed == (1, 3)
    assert describe([seen, watched(FakeNvml(pids=[ME]))])[0] == "throttled: power cap, heat in 2 of 8 samples"


def test_a_slow_library_is_queried_at_the_ends_of_a_pair_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "_SLOW_QUERY_S", 0.0)
    hot, cool = FakeNvml(pids=[ME], reasons=[HEAT]), FakeNvml(pids=[ME])
    assert describe([watched(hot), watched(cool)])[0] == "throttled: heat in 1 of 2 pairs"


def test_idle_and_user_set_clocks_are_not_throttling() -> None:
    assert nvml.slowed_by(IDLE | CLOCKS_SET) == ()
    assert nvml.slowed_by(HARDWARE) == ("hardware slowdown",)
    assert nvml.slowed_by(HARDWARE | HARD_HEAT | HEAT) == ("heat",)


def test_other_processes_on_the_device_are_named() -> None:
    stranger = os.getpid()
    found = describe([watched(FakeNvml(pids=[ME, 101, stranger]), ours=(101,))])
    assert found[0].startswith(f"1 other process on the device ({stranger} ")


def test_many_other_processes_are_counted() -> None:
    found = describe([watched(FakeNvml(pids=[ME, 4_000_001, 4_000_002, 4_000_003, 4_000_004]))])
    assert found[0] == "4 other processes on the device (4000001, 4000002, 4000003 …)"


@pytest.mark.parametrize("pids", [None, [], [7, 8]])
def test_other_processes_are_unknown_if_our_own_is_not_listed(pids: list[int] | None) -> None:
    found = describe([watched(FakeNvml(pids=pids))])
    assert "other processes on the device unknown: not visible from here" in found
    assert not any("(7" in line for line in found)


def test_unreadable_throttling_is_reported_as_unknown() -> None:
    found = describe([watched(FakeNvml(pids=[ME], reasons=None))])
    assert "throttling unknown: the driver does not report it" in found


def test_older_nvml_functions_are_used_as_a_fallback() -> None:
    library = FakeNvml()
    older = {name: getattr(library, name) for name in dir(library) if name.startswith(("nvml", "NVML"))}
    older["nvmlDeviceGetCurrentClocksThrottleReasons"] = lambda _: POWER_CAP
    del older["nvmlDeviceGetCurrentClocksEventReasons"]
    gpu = nvml.open_with(type("Older", (), {k: staticmethod(v) if callable(v) else v for k, v in older.items()}), 0)
    assert gpu.slowed_by() == ("power cap",)


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    device = Device("cuda", 0, "GPU", "sm_90a", 132, 1 << 20, 1 << 30, "driver 1")
    watcher = conditions.monitor_for(device)
    watcher.begin()
    watcher.sample()
    (line,) = describe([watcher.end(), watcher.end()])
    assert line == "clocks, throttling and other processes unknown: nvidia-ml-py is not installed: pip install 'espalier[gpu]'"


def test_a_missing_driver_is_one_line() -> None:
    with pytest.raises(nvml.NvmlMissing, match="Driver Not Loaded"):
        nvml.open_with(FakeNvml(missing="Driver\nNot Loaded"), 0)


def test_a_device_is_found_by_bus_id_uuid_or_index(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml()
    for which, found in ((3, 3), ("GPU-abc", ("uuid", "GPU-abc")), ("0000:1B:00.0", ("bus", "0000:1B:00.0"))):
        nvml.open_with(library, which)
        assert library.looked_for == found
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    device = Device("cuda", 0, "GPU", "sm_90a", 132, 1 << 20, 1 << 30, "driver 1")

    def silent(_: int) -> str:
        raise OSError("the driver does not say")

    conditions.monitor_for(device, silent)
    assert library.looked_for == 5
    conditions.monitor_for(device, lambda index: f"0000:0{index}:00.0")
    assert library.looked_for == ("bus", "0000:00:00.0")


def test_the_physical_device_of_an_index() -> None:
    assert nvml.physical_device(1, "") == 1
    assert nvml.physical_device(1, "3, 5") == 5
    assert nvml.physical_device(0, "GPU-abc") == "GPU-abc"


def test_only_descendants_are_ours() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert descends(child.pid, os.getpid())
        assert not descends(os.getpid(), child.pid)
        child.communicate(b"\n")
    assert not descends(child.pid, os.getpid())


STAT = """cpu  10 0 10 100 0 0 0 37 0 0
cpu0 5 0 5 50 0 0 0 30 0 0
cpu1 5 0 5 50 0 0 0 7 0 0
intr 5
"""


def test_steal_time_is_that_of_our_cores() -> None:
    assert stolen_ticks(None, STAT) == 37
    assert stolen_ticks({0}, STAT) == 30
    assert stolen_ticks({0, 1}, STAT) == 37
    assert stolen_ticks({9}, STAT) is None
    assert stolen_ticks(None, "cpu 1 2") is None


def test_steal_time_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([0, 0, 10**6])
    monkeypatch.setattr(conditions, "stolen_ticks", lambda _: next(taken))
    watcher = CpuMonitor(2)
    watcher.begin()
    found = describe([watcher.end(), PairConditions(stolen=0.0, pinned=2)])
    assert found[0] == "2 pinned threads"
    assert found[1].startswith("steal time: up to ")


def test_little_steal_time_is_not_reported() -> None:
    assert describe([PairConditions(stolen=0.0004, pinned=1)]) == ("one pinned thread",)


def test_unreadable_steal_time_is_reported_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "stolen_ticks", lambda _: None)
    assert describe([CpuMonitor(1).end()]) == ("one pinned thread", "steal time unknown: /proc/stat cannot be read")
