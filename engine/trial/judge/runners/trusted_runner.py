"""The judge's side of a trusted runner, of a baseline or a null kernel: it keeps what is loaded for several workloads."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from msgspec.structs import replace

from engine.trial.channel import ChannelClosed
from engine.trial.judge.runners.host_client import Host
from engine.trial.judge.runners.runner_client import RunnerClient
from engine.trial.messages import Fault, LoadKernel, RunKernel, Switch


class TrustedRunner(RunnerClient):
    """A runner whose faults are the machine's or the reference's."""

    def __init__(self, host: Host, *, seconds: float) -> None:
        """``seconds``: time limit of a call."""
        super().__init__(host, seconds=seconds, trusted=True)
        self._warming = self._switching = False
        self._kept: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        """Test bed → the number under which the runner keeps what was loaded for it."""
        self._numbers = 0

    def stand_by(self) -> None:
        """Wait until its device context exists and ``warm`` or ``switch`` is done. Raises ProblemError, TrustedProcessLost."""
        if self._has_context and not (self._warming or self._switching):
            return
        self._thaw_all()
        self._await_context()
        if self._warming:
            self._warming = False
            self._expect_ready(self._seconds, "while loading")
            reply = self._receive(self._seconds)
            if isinstance(reply, Fault):
                self._fault(reply)
            self.has_run = True
        if self._switching:
            self._switching = False
            self._expect_ready(self._seconds, "while loading")
        self.freeze()

    def warm(self, load: LoadKernel, fds: list[int], *, keep_for: object = None) -> None:
        """Load it and call it once, without waiting: ``stand_by`` waits. ``keep_for``: a test bed, for which it is to be kept
        beside others."""
        if self._warming or self._switching:
            self.stand_by()  # for another workload: its replies come first
        if keep_for is None:
            self._kept.clear()
        else:
            self._numbers += 1
            self._kept[keep_for] = self._numbers
            load = replace(load, kept=self._numbers)
        self.load(load, fds)
        try:
            self._live.channel.send_order(RunKernel(0))
        except ChannelClosed:
            self._dead("before the call")
        self._warming = True

    def switch(self, bed: object) -> bool:
        """Go on with what is kept for a test bed, without waiting: ``stand_by`` waits. False if there is nothing."""
        number = self._kept.get(bed)
        if number is None:
            return False
        self.stand_by()
        self._request(Switch(number))
        self._switching = True
        return True

    def close(self) -> None:
        """End the runner; idempotent. Its host waits for the end, and whoever asks that host next."""
        self._warming = self._switching = False
        super().close()
