"""The process pool of a judge: hosts, and the runners of kernels, baselines and the null kernel. Imports torch.

Each process gets only what it may know. Candidates, their rivals in a race and the trusted baselines have separate hosts: no
candidate shares a PID namespace with a process that knows expected values.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import torch

from engine.domain.memory_plan import ROOMY, MemoryPlan
from engine.domain.model import Device, Problem
from engine.problem.arguments.constant_parameters import Varied
from engine.problem.arguments.values import map_arguments
from engine.trial.judge.inputs.input_dump import module_arguments
from engine.trial.judge.runners.gate import DeviceGate
from engine.trial.judge.runners.host_client import Host, cores
from engine.trial.judge.runners.runner_client import RunnerClient
from engine.trial.judge.runners.spare_runners import SpareRunners
from engine.trial.judge.runners.trusted_runner import TrustedRunner
from engine.trial.judge.test_bed import TestBed
from engine.trial.judge.timing import stopping
from engine.trial.judge.timing.pair_times import BY_JUDGES_CLOCK, NATIVE, null_name, path_of
from engine.trial.messages import ArenaHandle, LoadKernel, RunKernel
from engine.trial.protocol import OTHER, Candidate, WorkloadBinary
from engine.trial.shared import arena

LOAD_S = 120.0
"""Seconds that loading an artefact may take."""
CALL_S = 20.0
"""Seconds that one call may take."""
_AT_A_TIME = 2
"""Processes of baselines in one pair of the ranking one against itself."""
_COMPILE_S = 600.0
"""Seconds that the first call of a ``compile`` baseline may take."""


class ProcessPool:
    """The hosts of one judge."""

    def __init__(
        self, problem: Problem, device: Device, *, cold: bool, confined: bool, supervisor: socket.socket | None = None,
        hosts: Sequence[Host] = (), keeps_weights: Callable[[Candidate], bool] = lambda _: False,
    ) -> None:  # fmt: skip
        """``hosts``: those that every session needs, if they were started before. ``keeps_weights``: whether a module keeps
        those of its constructor."""
        self._keeps_weights = keeps_weights
        self._problem = problem
        self._device = device
        self._cold = cold
        self._threads = device.units if device.kind == "cpu" else cores()
        new = (Host(device.label, self._threads, confined=confined, supervisor=supervisor) for _ in range(4))
        self._candidate_host, self._baseline_host, self._null_host, self._rival_host = islice(chain(hosts, new), 4)
        self._null_runners: dict[str, TrustedRunner] = {}
        self._baseline_runners: dict[tuple[str, int], TrustedRunner] = {}
        self._spares = SpareRunners(stopping.PAIRS[device.kind][0])
        self._few_queues = False
        self._checked: tuple[Candidate, RunnerClient] | None = None
        self.keeps_loads = False
        """Whether trusted runners keep what they have loaded for every workload: their test beds stay."""
        self._empty_arguments: dict[int, tuple[object, ...]] = {}
        """By reference (``id``): arguments of ``forward`` with empty tensors."""
        self._stopwatch_code = b""
        self._reaches_memory: bool | None = None
        self._plan = ROOMY

    def use(self, plan: MemoryPlan) -> None:
        """Keep to a memory plan from now on."""
        self._plan = plan

    @property
    def keeps_processes(self) -> bool:
        """Whether several process pairs may live at a time."""
        return self._plan.keeps_processes

    @property
    def pairs_together(self) -> int:
        """How many pairs of a measurement live at a time, where they do not all."""
        return self._plan.pairs_together

    @property
    def loads_baselines_together(self) -> bool:
        """Whether the processes of the ranking baseline against itself are loaded together."""
        return self._plan.keeps_processes or self._plan.baselines_together

    @property
    def _hosts(self) -> tuple[Host, ...]:
        return (*self._core_hosts, self._rival_host)

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
        """End every process of the trial; needed ones are started again."""
        for host in self._hosts:
            host.close()
        self._spares.close()
        self._end_checked()
        for runner in (*self._baseline_runners.values(), *self._null_runners.values()):
            runner.close()
        self._null_runners.clear()
        self._baseline_runners.clear()

    def kernel(self, contract: str, *, rival: bool = False, fresh: bool = False) -> RunnerClient:
        """A runner for a kernel of this contract: a spare or a new one. One without host code is renewed after its use.

        ``fresh``: its process has served no other kernel. In a race both sides' have not: a rival's never has.
        """
        self._end_checked()
        if rival:
            return RunnerClient(self._rival_host, seconds=CALL_S, party=OTHER, few_queues=_on_one_stream(contract))
        self._few_queues = _on_one_stream(contract)
        runner = self._spares.take(few_queues=self._few_queues, fresh=fresh) or self._new_runner()
        if self._plan.keeps_processes and not self._has_host_code(contract):
            self._spares.renew_after_use(runner)
        return runner

    def keep_checked(self, candidate: Candidate, runner: RunnerClient) -> None:
        """Keep the process of a kernel that was checked for its verification, or end it where the memory plan has no room."""
        if self._plan.keeps_checked:
            self._checked = candidate, runner
        else:
            runner.close()

    @property
    def has_checked(self) -> bool:
        """Whether the process of a checked kernel is kept."""
        return self._checked is not None

    def checked(self, candidate: Candidate) -> RunnerClient | None:
        """The process in which this kernel was checked, once, if it was kept."""
        kept, runner = self._checked or (None, None)
        if kept != candidate or runner is None or not runner.alive:
            return None
        self._checked = None
        return runner

    def _end_checked(self) -> None:
        """End the process that is kept of a checked kernel, and what its host code, if it has any, could reach."""
        if self._checked is not None:
            candidate, runner = self._checked
            self._checked = None
            self._spares.give_back(runner)
            if self._has_host_code(candidate.contract):
                self._spares.expose()
            self.discard_prestarted()

    def _new_runner(self) -> RunnerClient:
        return RunnerClient(self._candidate_host, seconds=CALL_S, few_queues=self._few_queues)

    def baselines(self, bed: TestBed, names: Sequence[str], pair: int) -> dict[str, RunnerClient]:
        """The baselines' runners of one pair, by name; started at first use and kept for the pairs of later kernels.

        A kernel always gets a fresh device context, and with host code a fresh process. Those of the baselines are reused, and
        the interval contains their spread.
        """
        return {name: self._kept_runner(bed, name, pair) for name in names}

    def start_baselines(self, name: str, pairs: int, *, checking: bool = False) -> None:
        """Start a baseline's runners for so many pairs without waiting, and load nothing; as many as the memory plan allows.

        ``checking``: while a kernel is being checked, which takes memory too. Where processes end with their pair, those of its
        first pairs start as well: they are idle while the baseline is measured against itself.
        """
        ahead = self._plan.pairs_ahead
        most = 1 + (2 * ahead + 1 if ahead else 0) if checking else _AT_A_TIME + self._plan.baselines_ahead
        wanted = pairs + ahead if checking else pairs
        for pair in range(pairs if self._plan.keeps_processes else min(wanted, most)):
            self._started_runner(name, pair)

    def start_next_baselines(self, name: str) -> None:
        """Start a baseline's runners for the pairs after a screen, where the memory plan ends the processes of each pair."""
        for pair in range(1, 1 + self._plan.pairs_ahead):
            self._started_runner(name, pair)

    def _started_runner(self, name: str, pair: int) -> TrustedRunner:
        runner = self._baseline_runners.get((name, pair))
        if runner is None or not runner.alive:
            seconds = _COMPILE_S if name.startswith("compile") else CALL_S
            runner = self._baseline_runners[name, pair] = TrustedRunner(self._baseline_host, seconds=seconds)
        return runner

    def _kept_runner(self, bed: TestBed, name: str, pair: int) -> RunnerClient:
        runner = self._started_runner(name, pair)
        if runner.loaded_for is not bed and not runner.switch(bed):
            self._load_baseline(runner, bed, name)
        runner.loaded_for = bed
        return runner

    def end_pair(self, spared: tuple[str, int] | None = None) -> None:
        """End the baselines' runners of a pair, where the memory plan does not keep them.

        ``spared``: a baseline and the pair to come in which its runner takes part again.
        """
        if self._plan.keeps_processes:
            return
        for key in [key for key, runner in self._baseline_runners.items() if runner.loaded_for is not None and key != spared]:
            self._baseline_runners.pop(key).close()

    def keep_for_screen(self, name: str, pair: int) -> None:
        """Use a baseline's runner of this pair in the first one of the next kernel, where pairs' runners are ended.

        Those that were started for further pairs serve the kernel's, as many as the memory plan allows.
        """
        if self._plan.keeps_processes or (name, 0) in self._baseline_runners:
            return
        self._baseline_runners[name, 0] = self._baseline_runners.pop((name, pair))
        unused = [key for key in self._baseline_runners if key[0] == name and key[1] > pair]
        for ahead, runner in enumerate([self._baseline_runners.pop(key) for key in unused], 1):
            if ahead <= self._plan.pairs_ahead:
                self._baseline_runners[name, ahead] = runner
            else:
                runner.close()

    def _load_baseline(self, runner: TrustedRunner, bed: TestBed, name: str) -> None:
        bed.draw_weights()  # it takes them while it loads
        load, fds = self._load(
            runner, bed, contract="baseline", source=self._problem.reference, filename="reference.py", baseline=name,
            settings=dict(bed.reference.workload.settings), attachments=self._problem.attachments,
            scalars=self._module_arguments(bed),
        )  # fmt: skip
        runner.warm(load, fds, keep_for=bed if self.keeps_loads else None)

    def prestart(self, kernels: int) -> None:
        """Start the runners of the next precise measurement: their contexts are created while the kernel is verified.

        The kernel is expected to be of the last one's contract. They share its PID namespace: those that its host code could
        reach serve no other.
        """
        self._spares.start(kernels if self._plan.keeps_processes else min(kernels, self._plan.pairs_ahead), self._new_runner)

    def start_early(self, contract: str | None, further: int) -> None:
        """Start the next kernel's runner, on a GPU, if that needs no waiting: its context is created while others calibrate.

        ``contract``: the kernel's, if known. ``further``: runners of its measurement, as many as the memory plan allows.
        """
        if self._device.kind != "cuda" or not self._candidate_host.is_up():
            return
        if contract is not None:
            self._few_queues = _on_one_stream(contract)
        self._spares.start(
            1 + (further if self._plan.keeps_processes else min(further, self._plan.pairs_ahead)), self._new_runner
        )

    def stand_by(self) -> None:
        """Wait until no runner is starting or ending: the device and the cores are idle."""
        self._spares.stand_by()
        self._settle()
        for runner in (*self._baseline_runners.values(), *self._null_runners.values()):
            runner.stand_by()

    def _settle(self) -> None:
        for host in self._hosts:
            host.settle()

    def discard_prestarted(self) -> None:
        """End the runners that were prestarted for another kernel, unless no kernel with host code was loaded since."""
        self._spares.discard_touched()

    def _has_host_code(self, contract: str) -> bool:
        """Whether a kernel of this contract runs code of its own in its process."""
        return self._device.kind == "cpu" or not _on_one_stream(contract)

    def load_kernel(self, runner: RunnerClient, bed: TestBed, candidate: Candidate, built: WorkloadBinary) -> None:
        """Send a kernel's artefact to its runner. Raises TrialFailed if the runner has died."""
        if self._has_host_code(candidate.contract):
            self._spares.expose(runner)
        artefact = [arena.sealed(built.content)] if built.binary else []
        load, fds = self._load(
            runner, bed, contract=candidate.contract, source=candidate.source, filename=candidate.name,
            tunables=candidate.tunables, plan=built.plan, starts_threads=built.starts_threads,
            own_weights=self._keeps_weights(candidate),
            scalars=self._module_arguments(bed) if candidate.contract == "module" else (),
        )  # fmt: skip
        runner.load(load, [*fds, *artefact], holds_outputs=self._plan.holds_outputs or built is not candidate.built)
        runner.loaded_for = bed

    def load_and_wait(self, runner: RunnerClient, bed: TestBed, candidate: Candidate, built: WorkloadBinary) -> None:
        """``load_kernel``, and wait until it is loaded, while the bed's weights are drawn. Raises TrialFailed."""
        self.load_kernel(runner, bed, candidate, built)
        bed.draw_weights()
        runner.wait_ready(LOAD_S)

    def null_runners(self, bed: TestBed, contracts: Mapping[str, str]) -> dict[str, RunnerClient]:
        """The null runners of these judged kernels' paths, by name; a module's if there are none. They load until ``stand_by``.

        A null runner makes an empty call on the same path and is frozen between calls like a kernel's: it shows what a call
        costs.
        """
        self.start_null_runners(contracts)
        return {null_name(path, contracts): self._null_runner(bed, path) for path in _paths(contracts)}

    def start_null_runners(self, contracts: Mapping[str, str]) -> None:
        """Start them without waiting: their contexts are created meanwhile."""
        for path in map(self._null_process, _paths(contracts)):
            runner = self._null_runners.get(path)
            if runner is None or not runner.alive:
                self._null_runners[path] = TrustedRunner(self._null_host, seconds=CALL_S)

    def _null_process(self, path: str) -> str:
        """The path whose null runner serves this one: on a GPU an empty call is the same on every path."""
        return path if self._device.kind == "cpu" else NATIVE

    def _null_runner(self, bed: TestBed, path: str) -> TrustedRunner:
        path = self._null_process(path)
        runner = self._null_runners[path]
        if runner.loaded_for is not bed and not runner.switch(bed):
            load, fds = self._load(runner, bed, contract="null", baseline=path)
            runner.warm(load, fds, keep_for=bed if self.keeps_loads else None)
        runner.loaded_for = bed
        return runner

    def _copies_outputs(self, bed: TestBed) -> bool:
        """Whether modules copy their outputs to lent memory: on a CPU where the judge cannot reach a runner's memory."""
        if self._reaches_memory is None:
            self._reaches_memory = self._device.kind == "cuda" or self._can_reach_memory(bed)
        return not self._reaches_memory

    def _can_reach_memory(self, bed: TestBed) -> bool:
        """Whether the judge can read and write the memory of a null runner, which is loaded for it as if it could."""
        self._reaches_memory = True
        runner = self.null_runners(bed, {})[null_name("module", {})]
        runner.stand_by()
        runner.call(RunKernel(0))
        try:
            if runner.delivered is not None:
                byte = torch.empty(1, dtype=torch.uint8)
                runner.delivered.copy_to(0, byte)
                runner.delivered.fill(0, 1, int(byte))
                return True
        except OSError:
            pass  # denied here: the caller has outputs copied
        runner.close()  # it was loaded without the copies that the others will make
        return False

    def _module_arguments(self, bed: TestBed) -> tuple[Any, ...]:
        """Encoded arguments of ``Model``, the template of ``forward``'s arguments, and the classes of objects among these."""
        if id(bed.reference) not in self._empty_arguments:
            self._empty_arguments[id(bed.reference)] = map_arguments(lambda _: torch.empty(0), bed.reference.inputs(0))
        return module_arguments(bed.reference, bed.init_seed, bed.with_scalars(self._empty_arguments[id(bed.reference)]))

    def _stopwatch(self) -> bytes:
        """Machine code of the stopwatch's hold kernel, linked once for all runners."""
        if self._device.kind != "cpu" and not self._stopwatch_code:
            from engine.trial.shared.cuda import driver, hold_kernel

            driver.Context.open(self._device.index)
            self._stopwatch_code = hold_kernel.link()
        return self._stopwatch_code

    def _gate(self, runner: RunnerClient, contract: str) -> tuple[ArenaHandle | None, Sequence[int]]:
        """The handle of the runner's gate; ``None`` on a CPU."""
        if self._device.kind == "cpu":
            return None, ()
        runner.gate = runner.gate or DeviceGate(self._device.index)
        runner.checks_gated = contract in BY_JUDGES_CLOCK
        return runner.gate.handle()

    def _load(self, runner: RunnerClient, bed: TestBed, *, contract: str, **more: Any) -> tuple[LoadKernel, list[int]]:
        if not self._plan.keeps_processes:
            self._settle()  # the memory of those that have ended is planned for this one
        copies_outputs = self._copies_outputs(bed)
        (inputs, input_fds), (outputs, output_fds) = bed.handles(runner.party, copies_outputs=copies_outputs)
        gate, gate_fds = self._gate(runner, contract)
        load = LoadKernel(
            contract=contract, gate=gate, device=self._device.label,
            slots=bed.layout.slots, inputs=inputs, outputs=outputs, threads=self._threads,
            init_seed=bed.init_seed, varied_constants=bed.varied_constants,
            alike_constants=bed.constants is Varied.ALIKE, stateful=bed.reference.side_effects.changes_state,
            changes_parameters=bed.reference.side_effects.changes_parameters, copies_outputs=copies_outputs, cold=self._cold,
            stopwatch=self._stopwatch(), warm_bytes=self._plan.warm_bytes, **more,
        )  # fmt: skip
        return load, [*input_fds, *output_fds, *gate_fds]


def _on_one_stream(contract: str) -> bool:
    """Whether kernels of a contract are launched by trusted code, on one stream; those with host code may use several."""
    return contract not in BY_JUDGES_CLOCK


def _paths(contracts: Mapping[str, str]) -> Sequence[str]:
    """The paths of these judged kernels; the baselines' if there are none."""
    return tuple(dict.fromkeys(map(path_of, contracts.values()))) or ("module",)
