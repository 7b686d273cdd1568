"""The process pool of a judge: hosts, and the runners of kernels, baselines and the null kernel. Imports torch.

Each process gets only what it may know. Candidates, their rivals in a race and the trusted baselines have separate hosts: no
candidate shares a PID namespace with a process that knows expected values.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.domain.model import Device, Problem
from engine.trial.judge.host_client import Host
from engine.trial.judge.input_dump import call_template, construction_arguments
from engine.trial.judge.runner_client import RunnerClient
from engine.trial.judge.test_bed import TestBed
from engine.trial.messages import LoadKernel
from engine.trial.protocol import Candidate, WorkloadBinary
from engine.trial.shared import arena

LOAD_S = 120.0
"""Seconds that loading an artefact may take."""
CALL_S = 20.0
"""Seconds that one call may take."""
_COMPILE_S = 600.0
"""Seconds that the first call of a ``compile`` baseline may take."""


class ProcessPool:
    """The hosts of one judge."""

    def __init__(self, problem: Problem, device: Device, *, cold: bool, confined: bool) -> None:
        self._problem = problem
        self._device = device
        self._cold = cold
        self._candidate_host = Host(device.label, device.units, confined=confined)
        self._rival_host = Host(device.label, device.units, confined=confined)
        self._baseline_host = Host(device.label, device.units, confined=confined)
        self._null_host = Host(device.label, device.units, confined=confined)
        self._null_runners: dict[str, RunnerClient] = {}
        self._baseline_runners: dict[tuple[str, int], RunnerClient] = {}
        self._prestarted: list[RunnerClient] = []
        self._prestarted_unused = False
        self._stopwatch_code = b""
        self._call_templates: dict[int, list[Any]] = {}

    @property
    def _core_hosts(self) -> tuple[Host, ...]:
        return (self._candidate_host, self._baseline_host, self._null_host)

    def launch(self) -> None:
        """Start the hosts that every session needs, in parallel."""
        for host in self._core_hosts:
            host.launch()

    def await_hosts(self) -> None:
        """Wait until they are up and the cores are idle. Raises SandboxError."""
        for host in self._core_hosts:
            host.start()

    def close(self) -> None:
        """End every process of the trial."""
        for host in (self._candidate_host, self._rival_host, self._baseline_host, self._null_host):
            host.close()

    def restart(self) -> None:
        """End every process of the trial; needed ones are started again."""
        self.close()
        self._null_runners.clear()
        self._baseline_runners.clear()
        self._prestarted.clear()
        self._prestarted_unused = False

    def kernel(self, *, rival: bool = False) -> RunnerClient:
        """A fresh runner for a kernel: a prestarted or a new one."""
        if not rival and self._prestarted:
            return self._prestarted.pop()
        return RunnerClient(self._rival_host if rival else self._candidate_host, seconds=CALL_S)

    def baselines(self, bed: TestBed, names: Sequence[str], pair: int) -> dict[str, RunnerClient]:
        """The baselines' runners of one pair, by name; started at first use and kept for the pairs of later kernels.

        A kernel always gets fresh processes. Those of the baselines are reused, and the interval contains their spread: a fresh
        device context costs a quarter of a second.
        """
        return {name: self._kept_runner(bed, name, pair) for name in names}

    def _kept_runner(self, bed: TestBed, name: str, pair: int) -> RunnerClient:
        runner = self._baseline_runners.get((name, pair))
        if runner is None or not runner.alive:
            runner = self._baseline_runners[name, pair] = self._new_baseline(bed, name)
        return runner

    def _new_baseline(self, bed: TestBed, name: str) -> RunnerClient:
        seconds = _COMPILE_S if name.startswith("compile") else CALL_S
        runner = RunnerClient(self._baseline_host, seconds=seconds, trusted=True)
        load, fds = self._load(
            bed, contract="baseline", source=self._problem.reference, filename="reference.py", baseline=name,
            settings=dict(bed.reference.workload.settings), scalars=self._module_arguments(bed),
        )  # fmt: skip
        runner.warm(load, fds)
        return runner

    def prestart(self, kernels: int) -> None:
        """Start the runners of the next precise measurement: their contexts are created while the kernel is verified.

        They serve one kernel only, because they share its PID namespace.
        """
        if not self._prestarted:
            self._prestarted_unused = True
        while len(self._prestarted) < kernels:
            self._prestarted.append(RunnerClient(self._candidate_host, seconds=CALL_S))

    def stand_by(self) -> None:
        """Wait until no runner is starting: the device and the cores are idle."""
        for runner in (*self._prestarted, *self._baseline_runners.values()):
            runner.stand_by()

    def discard_prestarted(self) -> None:
        """End the runners that were prestarted for another kernel, unless no kernel was loaded since."""
        if self._prestarted_unused:
            return
        for runner in self._prestarted:
            runner.close()
        self._prestarted.clear()

    def load_kernel(self, runner: RunnerClient, bed: TestBed, candidate: Candidate, built: WorkloadBinary) -> None:
        """Send a kernel's artefact to its runner. Raises TrialFailed if the runner has died."""
        self._prestarted_unused = False
        artefact = [arena.sealed(Path(built.binary).read_bytes())] if built.binary else []
        load, fds = self._load(
            bed, contract=candidate.contract, source=candidate.source, filename=candidate.name, tunables=candidate.tunables,
            plan=built.plan, starts_threads=built.starts_threads,
            scalars=self._module_arguments(bed) if candidate.contract == "module" else (),
        )  # fmt: skip
        runner.load(load, [*fds, *artefact])

    def null_runner(self, bed: TestBed, contract: str) -> RunnerClient:
        """The null runner: an empty call on the same path, frozen between calls like a kernel's. It shows what a call costs."""
        kind = "module" if contract == "module" else "native"
        runner = self._null_runners.get(kind)
        if runner is None or not runner.alive:
            runner = self._null_runners[kind] = RunnerClient(self._null_host, seconds=CALL_S, trusted=True)
            load, fds = self._load(bed, contract="null", baseline=kind)
            runner.load(load, fds)
            runner.wait_ready(LOAD_S)
        return runner

    def _module_arguments(self, bed: TestBed) -> tuple[Any, ...]:
        """Encoded arguments of ``Model``, and the template of ``forward``'s arguments."""
        if id(bed) not in self._call_templates:
            self._call_templates[id(bed)] = call_template(bed.reference)
        return (*construction_arguments(bed.reference, bed.init_seed), self._call_templates[id(bed)])

    def _stopwatch(self) -> bytes:
        """Machine code of the stopwatch's hold kernel, linked once for all runners."""
        if self._device.kind != "cpu" and not self._stopwatch_code:
            from engine.trial.shared.cuda import driver, hold_kernel

            driver.Context.open(self._device.index)
            self._stopwatch_code = hold_kernel.link()
        return self._stopwatch_code

    def _load(self, bed: TestBed, **more: Any) -> tuple[LoadKernel, list[int]]:
        (inputs, input_fds), (outputs, output_fds) = bed.handles()
        load = LoadKernel(
            device=self._device.label, slots=bed.layout.slots, inputs=inputs, outputs=outputs, threads=self._device.units,
            init_seed=bed.init_seed, stateful=bed.reference.stateful, cold=self._cold, stopwatch=self._stopwatch(), **more,
        )  # fmt: skip
        return load, [*input_fds, *output_fds]
