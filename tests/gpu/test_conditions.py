"""NVML on a real device: plausible readings."""

from __future__ import annotations

import os

import pytest

from engine.trial.judge import devices
from engine.trial.judge.timing import conditions
from engine.trial.judge.timing.conditions import GpuMonitor, describe

pytestmark = pytest.mark.gpu


def test_a_busy_device_reports_clocks_and_processes() -> None:
    import torch

    torch.ones(1, device="cuda:0").sum().item()
    device = devices.describe("cuda:0")
    watcher = conditions.monitor_for(device, devices.bus_id)
    assert isinstance(watcher, GpuMonitor), "NVML is there"
    watcher.begin()
    a = torch.randn(4096, 4096, device="cuda:0")
    for _ in range(5):
        (a @ a).sum().item()
        watcher.sample()
    seen = watcher.end()
    readings = [one for one in seen.readings if one.sm_mhz is not None]
    assert readings
    assert all(100 <= (one.sm_mhz or 0) <= 4000 for one in readings)
    assert any(10 <= (one.celsius or 0) <= 110 for one in seen.readings)
    assert any(line.startswith("SM ") for line in describe([seen]))
    assert not any(line.startswith(f"{os.getpid()} ") for line in seen.others), "we are no stranger"
