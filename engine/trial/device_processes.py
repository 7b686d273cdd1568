"""Other processes on a GPU, as the engine sees them. No torch.

The judge runs in a PID namespace and cannot name processes outside it. The engine therefore asks NVML, before and after the
judge's work, which processes use the device. In a container NVML may report ids of the machine, or hide processes. Then none of
the trial's own processes is listed, and the others are reported as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.trial.judge import nvml
from engine.trial.judge.timing import conditions

UNKNOWN = "other processes on the device unknown: not visible from here"


class DeviceProcesses:
    """Watches one device."""

    def __init__(self, gpu: nvml.Gpu | None) -> None:
        self._gpu = gpu
        self._listed: set[int] = set()
        self._known = True

    @classmethod
    def on(cls, bus_id: str) -> DeviceProcesses:
        """The device with this PCI bus id; without one, or without NVML, the processes are unknown."""
        try:
            return cls(nvml.open_gpu(bus_id) if bus_id else None)
        except nvml.NvmlMissing:
            return cls(None)

    def observe(self, trial: int | None) -> None:
        """Read which processes use the device; ``trial`` is the process below which the trial runs."""
        found = self._gpu.processes() if self._gpu is not None else None
        if found is None or trial is None:
            self._known = False
            return
        ours = {pid for pid in found if conditions.descends(pid, trial)}
        self._known = self._known and bool(ours)
        self._listed |= found - ours

    def lines(self) -> Sequence[str]:
        """Conditions of what was measured since the last call."""
        found, known = sorted(self._listed), self._known
        self._listed, self._known = set(), True
        if not known:
            return (UNKNOWN,)
        named = conditions.other_processes_line([conditions.process_name(pid) for pid in found])
        return (named,) if named else ()
