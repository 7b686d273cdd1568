"""Calls kernels of the plan contract one after the other, in runners that are renewed; without a judge."""

from __future__ import annotations

from collections.abc import Callable

from trial.ground import OPERANDS

from engine.toolchain import resolution
from engine.toolchain.resolution import OperandArg, ResolvedLaunch, ResolvedPlan, WorkspaceArg
from engine.trial.judge.runners.host_client import Host
from engine.trial.judge.runners.runner_client import RunnerClient
from engine.trial.judge.runners.spare_runners import SpareRunners
from engine.trial.messages import LoadKernel, RunKernel
from engine.trial.shared import arena
from engine.trial.shared.layout import plan_layout

WORKSPACE = 64
"""Bytes."""
LAUNCH = ResolvedLaunch("kernel", (OperandArg("out"), WorkspaceArg(0)), (1, 1, 1), (1, 1, 1))
PLAN = resolution.encode(ResolvedPlan((LAUNCH,), (), WORKSPACE, workspace_zeroed=False))
Lend = Callable[[int, bool], arena.Arena]
"""Memory of so many bytes, writable or not."""


def pid_of(runner: RunnerClient) -> int:
    assert runner.process is not None
    return runner.process


class PlanBench:
    """One launch of a kernel with ``out`` and a workspace."""

    def __init__(self, host: Host, lend: Lend, most: int) -> None:
        """``most``: so many renewed runners wait at a time."""
        self.host = host
        self.spares = SpareRunners(most)
        self._layout = plan_layout(OPERANDS, 1)
        self._inputs = lend(self._layout.input_bytes, False)
        self._outputs = lend(self._layout.output_bytes, True)

    def runner(self, *, few_queues: bool = True, fresh: bool = False) -> RunnerClient:
        """A spare one or a new one, which is renewed at the end of its ``with`` block."""
        found = self.spares.take(few_queues=few_queues, fresh=fresh) or self.new(few_queues=few_queues)
        self.spares.renew_after_use(found)
        return found

    def new(self, *, few_queues: bool = True) -> RunnerClient:
        return RunnerClient(self.host, seconds=20.0, few_queues=few_queues)

    def send(self, runner: RunnerClient, image: bytes) -> None:
        """Load a kernel without waiting."""
        (inputs, input_fds), (outputs, output_fds) = self._inputs.handle(), self._outputs.handle()
        load = LoadKernel("plan", "cuda:0", self._layout.slots, inputs, outputs, 1, plan=PLAN)
        runner.load(load, [*input_fds, *output_fds, arena.sealed(image)])

    def call(self, runner: RunnerClient, image: bytes, calls: int = 1) -> list[float]:
        """Load a kernel and call it; what it wrote at last."""
        self.send(runner, image)
        runner.wait_ready(20.0)
        for _ in range(calls):
            runner.call(RunKernel(0))
        found: list[float] = self._outputs.tensor(self._layout.slots[0][1]).tolist()
        return found

    def close(self) -> None:
        self.spares.close()
        self.host.settle()
        self._inputs.close()
        self._outputs.close()
