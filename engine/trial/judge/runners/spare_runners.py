"""The spare runners of a judge: processes that wait for the next kernel, started ahead or renewed. Imports torch.

A kernel without host code leaves its process as it was: trusted code loaded and launched it. On a GPU the process goes on with
a fresh device context, which saves the start and the end of a process; the driver serves those for one GPU at a time. A process
that a kernel's host code has run in, or could reach in their PID namespace, is ended.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.runners.runner_client import RunnerClient


class SpareRunners:
    """Those of one host."""

    def __init__(self, most: int) -> None:
        """``most``: so many wait at a time after they were renewed."""
        self._most = most
        self._waiting: list[RunnerClient] = []
        self._untouched = False
        """Whether no host code of a kernel could reach those that wait."""
        self._to_renew: WeakSet[RunnerClient] = WeakSet()
        """In use, by kernels without host code."""
        self._with_host_code: list[RunnerClient] = []
        """In use, by kernels with it."""

    def start(self, count: int, new: Callable[[], RunnerClient]) -> None:
        """Start runners until so many wait."""
        if count and not self._waiting:
            self._untouched = not self._beside_host_code()
        while len(self._waiting) < count:
            self._waiting.append(new())

    def take(self, *, few_queues: bool, fresh: bool) -> RunnerClient | None:
        """The one that has waited longest, if it has so many work queues; the others on the way are ended.

        ``fresh``: one whose process has served no kernel.
        """
        while self._waiting:
            runner = self._waiting.pop(0)
            if runner.few_queues == few_queues and not (fresh and runner.is_renewed) and _is_ready(runner):
                return runner
            runner.close()
        return None

    def renew_after_use(self, runner: RunnerClient) -> None:
        """This one is about to serve a kernel without host code: at the end of its ``with`` block it is renewed and waits."""
        if not self._beside_host_code():
            self._to_renew.add(runner)
            runner.give_back = self.give_back

    def give_back(self, runner: RunnerClient) -> None:
        """Renew one that was used, if it may and can serve another kernel, or end it."""
        if runner not in self._to_renew or len(self._waiting) >= self._most or not runner.alive:
            runner.close()
            return
        self._to_renew.discard(runner)
        with suppress(TrialFailed):  # it has ended
            renewed = runner.renewed()
            self._untouched = self._untouched or not self._waiting
            self._waiting.append(renewed)

    def expose(self, runner: RunnerClient | None = None) -> None:
        """Host code is about to run, in this runner: it can reach every process of the host."""
        self._untouched = False
        self._to_renew.clear()
        if runner is not None and runner not in self._with_host_code:
            self._with_host_code.append(runner)

    def _beside_host_code(self) -> bool:
        self._with_host_code = [runner for runner in self._with_host_code if runner.alive]
        return bool(self._with_host_code)

    def stand_by(self) -> None:
        """Wait until none is starting. One that could not be renewed is ended. Raises TrialFailed for one that cannot start."""
        self._waiting = [runner for runner in self._waiting if _is_ready(runner) or not runner.is_renewed]
        for runner in self._waiting:
            runner.stand_by()

    def discard_touched(self) -> None:
        """End those that host code of another kernel could reach."""
        if not self._untouched:
            self._end_waiting()

    def _end_waiting(self) -> None:
        for runner in self._waiting:
            runner.close()
        self._waiting.clear()

    def close(self) -> None:
        """End those that wait; none that is in use is renewed."""
        self._end_waiting()
        self._untouched = False
        self._to_renew.clear()


def _is_ready(runner: RunnerClient) -> bool:
    """Whether it lives. One that was renewed is waited for: its failure is not the next kernel's."""
    if runner.alive and runner.is_renewed:
        with suppress(TrialFailed):
            runner.stand_by()
    return runner.alive
