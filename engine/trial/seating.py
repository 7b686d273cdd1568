"""Who sits where: hosts, and the runners of kernels, baselines and the null kernel, each handed only what it may know.

Candidates, their rivals and the trusted baselines live in hosts of their own, so that nothing of a candidate's shares a process
space with what knows an expected value. Imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.domain.model import Device, Problem
from engine.trial import lending
from engine.trial.drawing import called_with, made_with
from engine.trial.protocol import Built, Candidate
from engine.trial.rig import Rig
from engine.trial.sandbox import Host
from engine.trial.seat import Seat
from engine.trial.wire import Load

LOAD_S = 120.0
"""Seconds that loading an artefact may take."""
CALL_S = 20.0
"""Seconds that one call may take."""
_COMPILE_S = 600.0
"""Seconds that the first call of a ``compile`` baseline may take."""


class Seating:
    """The hosts of one judge."""

    def __init__(self, problem: Problem, device: Device, *, cold: bool, confined: bool) -> None:
        self._problem = problem
        self._device = device
        self._cold = cold
        self._candidates = Host(device.label, device.units, confined=confined)
        self._rivals = Host(device.label, device.units, confined=confined)
        self._baselines = Host(device.label, device.units, confined=confined)
        self._idlers = Host(device.label, device.units, confined=confined)
        self._nulls: dict[str, Seat] = {}
        self._pool: dict[tuple[str, int], Seat] = {}
        self._ahead: list[Seat] = []
        self._untouched = False
        self._linked = b""
        self._calls: dict[int, list[Any]] = {}

    @property
    def _needed(self) -> tuple[Host, ...]:
        return (self._candidates, self._baselines, self._idlers)

    def launch(self) -> None:
        """Start the hosts that every session needs, side by side."""
        for host in self._needed:
            host.launch()

    def await_hosts(self) -> None:
        """Wait until they are up and the cores are quiet. Raises SandboxError."""
        for host in self._needed:
            host.start()

    def close(self) -> None:
        """End every process of the trial."""
        for host in (self._candidates, self._rivals, self._baselines, self._idlers):
            host.close()

    def start_over(self) -> None:
        """End every process of the trial and know none of them any more: all that are needed again are made anew."""
        self.close()
        self._nulls.clear()
        self._pool.clear()
        self._ahead.clear()
        self._untouched = False

    def kernel(self, *, rival: bool = False) -> Seat:
        """A fresh runner for a kernel: one that stands by, or a new one."""
        if not rival and self._ahead:
            return self._ahead.pop()
        return Seat(self._rivals if rival else self._candidates, seconds=CALL_S)

    def baselines(self, rig: Rig, names: Sequence[str], pair: int) -> dict[str, Seat]:
        """The trusted runners of one pair, one for each name; made at first use and kept for the pairs of later kernels.

        A kernel always gets fresh processes. The baseline's are a fixed handful, whose spread the interval shows: a fresh
        device context costs a quarter of a second.
        """
        return {name: self._kept(rig, name, pair) for name in names}

    def _kept(self, rig: Rig, name: str, pair: int) -> Seat:
        seat = self._pool.get((name, pair))
        if seat is None or not seat.alive:
            seat = self._pool[name, pair] = self._new_baseline(rig, name)
        return seat

    def _new_baseline(self, rig: Rig, name: str) -> Seat:
        seconds = _COMPILE_S if name.startswith("compile") else CALL_S
        seat = Seat(self._baselines, seconds=seconds, trusted=True)
        load, fds = self._load(
            rig, contract="baseline", source=self._problem.reference, filename="reference.py", baseline=name,
            settings=dict(rig.reference.workload.settings), scalars=self._call_of(rig),
        )  # fmt: skip
        seat.warm(load, fds)
        return seat

    def look_ahead(self, kernels: int) -> None:
        """Start the processes of the next precise measurement, so that their contexts are made while the kernel is verified.

        They are only ever kept for one kernel, since they share its process space.
        """
        if not self._ahead:
            self._untouched = True
        while len(self._ahead) < kernels:
            self._ahead.append(Seat(self._candidates, seconds=CALL_S))

    def stand_by(self) -> None:
        """Wait until nothing is being started any more: the device and the cores are quiet."""
        for seat in (*self._ahead, *self._pool.values()):
            seat.stand_by()

    def dismiss(self) -> None:
        """End the runners that were started ahead for another kernel; not those that were there before any."""
        if self._untouched:
            return
        for seat in self._ahead:
            seat.close()
        self._ahead.clear()

    def load_kernel(self, seat: Seat, rig: Rig, candidate: Candidate, built: Built) -> None:
        """Hand a kernel's artefact to its runner. Raises TrialFailed when it has died already."""
        self._untouched = False
        artefact = [lending.sealed(Path(built.binary).read_bytes())] if built.binary else []
        load, fds = self._load(
            rig, contract=candidate.contract, source=candidate.source, filename=candidate.name, tunables=candidate.tunables,
            plan=built.plan, scalars=self._call_of(rig) if candidate.contract == "module" else (),
        )  # fmt: skip
        seat.load(load, [*fds, *artefact])

    def null(self, rig: Rig, contract: str) -> Seat:
        """A runner that does nothing through the same path, frozen in between like a kernel's: what a call costs beside it."""
        kind = "module" if contract == "module" else "native"
        seat = self._nulls.get(kind)
        if seat is None or not seat.alive:
            seat = self._nulls[kind] = Seat(self._idlers, seconds=CALL_S, trusted=True)
            load, fds = self._load(rig, contract="null", baseline=kind)
            seat.load(load, fds)
            seat.wait_ready(LOAD_S)
        return seat

    def _call_of(self, rig: Rig) -> tuple[Any, ...]:
        """How a module is constructed and called for a rig's workload: arguments of Model, shape of forward's arguments."""
        if id(rig) not in self._calls:
            self._calls[id(rig)] = called_with(rig.reference)
        return (*made_with(rig.reference, rig.init_seed), self._calls[id(rig)])

    def _stopwatch(self) -> bytes:
        """Machine code of the stopwatch's own kernel, linked once for all runners."""
        if self._device.kind != "cpu" and not self._linked:
            from engine.trial.gpu import driver, timing

            driver.Context.open(self._device.index)
            self._linked = timing.linked_tools()
        return self._linked

    def _load(self, rig: Rig, **more: Any) -> tuple[Load, list[int]]:
        (inputs, input_fds), (outputs, output_fds) = rig.loans()
        load = Load(
            device=self._device.label, slots=rig.layout.slots, inputs=inputs, outputs=outputs, threads=self._device.units,
            init_seed=rig.init_seed, stateful=rig.reference.stateful, cold=self._cold, stopwatch=self._stopwatch(), **more,
        )  # fmt: skip
        return load, [*input_fds, *output_fds]
