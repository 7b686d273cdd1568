"""A fake NVML that answers from memory."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

from engine.trial.judge.nvml import Gpu, open_with

IDLE, CLOCKS_SET, POWER_CAP, HARDWARE, SYNC, HEAT, HARD_HEAT = 0x1, 0x2, 0x4, 0x8, 0x10, 0x20, 0x40


class FakeNvml:
    """Behaves like ``pynvml`` for one device. A value of ``None`` raises, as on a device without that reading."""

    class NVMLError(Exception):
        """The error of every call."""

    def __init__(self, *, pids: Iterable[int] | None = (), reasons: Iterable[int] | None = (), missing: str = "") -> None:
        """``reasons``: the masks of successive readings; the last one repeats."""
        self.pids = None if pids is None else list(pids)
        self.reasons = None if reasons is None else list(reasons)
        self.clocks = {1: 1980, 2: 3201}
        self.missing = missing
        self.looked_for: object = None

    def nvmlInit(self) -> None:
        if self.missing:
            raise self.NVMLError(self.missing)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        self.looked_for = index
        return "gpu"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.looked_for = ("uuid", uuid)
        return "gpu"

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> str:
        self.looked_for = ("bus", bus)
        return "gpu"

    def nvmlDeviceGetCurrentClocksEventReasons(self, _: str) -> int:
        if self.reasons is None:
            raise self.NVMLError("Not Supported")
        if not self.reasons:
            return IDLE
        return self.reasons.pop(0) if len(self.reasons) > 1 else self.reasons[0]

    def nvmlDeviceGetClockInfo(self, _: str, kind: int) -> int:
        return self.clocks[kind]

    def nvmlDeviceGetPowerUsage(self, _: str) -> int:
        return 121_400

    def nvmlDeviceGetTemperature(self, _: str, kind: int) -> int:
        assert kind == 0
        return 41

    def nvmlDeviceGetUtilizationRates(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(gpu=83, memory=10)

    def nvmlDeviceGetComputeRunningProcesses(self, _: str) -> list[SimpleNamespace]:
        if self.pids is None:
            raise self.NVMLError("Insufficient Permissions")
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in self.pids]

    def gpu(self) -> Gpu:
        return open_with(self, 0)
