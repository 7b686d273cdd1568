"""One runner at work for the judge: loaded, called, timed by the judge's own clock, frozen between its calls."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from engine.domain.errors import DeviceError, EspalierError, ProblemError, SandboxError
from engine.domain.model import Failure, FailureKind
from engine.domain.printable import printable
from engine.trial.sandbox import Host, RunnerHandle
from engine.trial.wire import (
    Call,
    Called,
    ChannelClosed,
    ChannelGarbled,
    ChannelTimeout,
    Fault,
    Load,
    Moving,
    Ready,
    RunnerReply,
)

_CONTEXT_S = 60.0
_FIRST = 3.0
"""Times as long as any other a module's first call may take: it may compile what it calls."""
_LEAST_US = 1e-3
"""A claim below a nanosecond is none."""
_LONGEST_TEXT = 4000
_LONGEST_REASON = 400
_SIGNALS = {
    4: "illegal instruction", 6: "aborted", 7: "bus error", 8: "arithmetic error", 9: "killed", 11: "segmentation fault",
}  # fmt: skip

Found = TypeVar("Found")


class TrustedLost(EspalierError):
    """A process of the baseline's or the null kernel's is gone or stuck: the machine's doing, or the reference's."""


class TrialFailed(Exception):
    """The kernel failed its trial; carries why. Control flow inside the judge only: the engine sees a value."""

    def __init__(self, kind: FailureKind, reason: str, log: str = "") -> None:
        super().__init__(reason)
        self.failure = Failure(kind, reason)
        self.log = log
        self.at_fault = ""
        """Which of several under judgement it was, by the name that it has in the contest; see ``blaming``."""


@contextmanager
def blaming(name: str) -> Iterator[None]:
    """What fails within is the fault of the kernel that has this name in the contest."""
    try:
        yield
    except TrialFailed as failed:
        failed.at_fault = failed.at_fault or name
        raise


@dataclass(frozen=True, slots=True)
class Timing:
    """One call: what the runner claims, and what the judge's clock says, in microseconds."""

    claimed_us: float
    wall_us: float
    """From the order to run until the answer."""
    idle_us: float
    disturbed: bool = False
    """Something else had the processor meanwhile."""
    awake_us: float = 0.0
    """From the moment it was let run until the order: time that it could have used, and that no clock of the call shows."""
    enqueue_us: float = 0.0
    """How long the host took to enqueue the call: a claim."""
    held: bool = False
    """Whether the device was held meanwhile: then the claimed time is the device's alone."""
    after_us: float = 0.0
    """How long the judge's own next piece of work took, right after everything of the runner's had been stopped."""
    charged_us: float = 0.0
    """Host time that the claimed time contains because nothing shows that it was not the device's."""


class Attendant(Protocol):
    """Who acts for the judge at the two ends of a call, while the runner is not frozen."""

    def before(self) -> None:
        """Right before the order to run: what was withheld is handed out."""

    def after(self) -> None:
        """The moment the answer is there, before anything can be stopped."""


class Seat:
    """A runner between its spawn and its reaping. Use as a context manager: it is reaped whatever happens."""

    def __init__(self, host: Host, *, seconds: float, trusted: bool = False) -> None:
        """``trusted``: its faults are the machine's or the reference's. Frozen between calls it is like any other, so that all
        begin a call in the same state."""
        self._host = host
        self._seconds = seconds
        self._trusted = trusted
        self._runner: RunnerHandle | None = host.spawn()
        self._standing = False
        self._warming = False
        self._company = True
        """Whether it may have processes of its own, which wait to be let run as well."""
        self._first_s = seconds

    def stand_by(self) -> None:
        """Wait until its device context stands and what ``warm`` asked for is done. Raises TrialFailed."""
        if self._standing and not self._warming:
            return
        self._thaw_all()
        if not self._standing:
            self._expect_ready(_CONTEXT_S, "while it made its device context")
            self._standing = True
        if self._warming:
            self._warming = False
            self._expect_ready(self._seconds, "while it was loaded")
            reply = self._receive(self._seconds, "while it ran")
            if isinstance(reply, Fault):
                self._fault(reply)
        self.freeze()

    def warm(self, load: Load, fds: list[int]) -> None:
        """Load a trusted runner and call it once, without waiting: ``stand_by`` waits."""
        self.load(load, fds)
        assert self._runner is not None
        try:
            self._runner.channel.send(Call(0))
        except ChannelClosed:
            self._dead("before it was called")
        self._warming = True

    def load(self, load: Load, fds: list[int]) -> None:
        """Hand it an artefact and its memory; takes the descriptors. ``wait_ready`` says whether it worked."""
        assert self._runner is not None
        self._first_s = self._seconds * (_FIRST if load.contract == "module" else 1)
        try:
            self._thaw_all()
            self._runner.channel.send(load, fds)
        except ChannelClosed:
            self._dead("while it was loaded")
        finally:
            for fd in fds:
                os.close(fd)

    def __enter__(self) -> Seat:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_ready(self, seconds: float) -> None:
        """Wait until the artefact is loaded; from then on it runs in its calls only. Raises TrialFailed."""
        self.stand_by()
        self._thaw_all()
        self._expect_ready(seconds, "while it was loaded")
        self.freeze()

    def _expect_ready(self, seconds: float, when: str) -> None:
        reply = self._receive(seconds, when)
        if isinstance(reply, Fault):
            self._fault(reply)
        if not isinstance(reply, Ready):
            raise self._out_of_turn()

    def call(self, slot: int, attendants: Sequence[Attendant] = (), hold_us: float = 0.0, *, at_once: bool = True) -> Timing:
        """Thaw, run the kernel once, freeze; on a GPU the device is held ``hold_us`` before. Raises TrialFailed.

        ``at_once``: it has its order before it is woken, so that it has no moment to work ahead in (where the runner's number
        is known here). Else it is woken first, and its threads have come to rest when the order arrives.
        """
        assert self._runner is not None
        if self._runner.channel.waiting():
            raise self._out_of_turn()
        here = self._runner.here if at_once else None
        awake = time.perf_counter_ns()
        if here is None:
            self.thaw()
        for attendant in attendants:
            attendant.before()
        start = time.perf_counter_ns()
        try:
            self._runner.channel.send(Call(slot, hold_us))
        except ChannelClosed:
            self._dead("before it was called")
        if here is not None:
            awake = start
            self._wake(here)
        reply = self._receive(self._first_s, "while it ran")
        self._first_s = self._seconds
        wall = (time.perf_counter_ns() - start) / 1e3
        for attendant in reversed(attendants):
            attendant.after()
        if isinstance(reply, Fault):
            self._fault(reply)
        if not isinstance(reply, Called):
            raise self._out_of_turn()
        self.freeze()
        self._company = self._at_rest()
        return self._timing(reply, wall, (start - awake) / 1e3)

    def _wake(self, here: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(here, signal.SIGCONT)
        if self._company:
            self._by_host(self._host.thaw_company)

    def _at_rest(self) -> bool:
        """Whether it has company, now that it was frozen. Raises TrialFailed where something of it did not stop."""
        found = self._by_host(self._host.at_rest)
        if isinstance(found, Moving):
            self.close()
            raise self._failed(FailureKind.REJECTED, "something of it kept running while everything was stopped")
        return found is not None and found.company

    def _timing(self, reply: Called, wall: float, awake: float) -> Timing:
        claims = (reply.device_us, reply.idle_us, reply.enqueue_us)
        if not all(0 <= c < 1e12 for c in claims) or not (self._trusted or reply.device_us >= _LEAST_US):
            raise self._failed(FailureKind.REJECTED, f"the runner claims an impossible time ({reply.device_us} us)")
        if reply.device_us > wall * 1.02 + 50:
            claimed = f"the runner claims {reply.device_us:.0f} us"
            raise self._failed(FailureKind.REJECTED, f"{claimed} within {wall:.0f} us of the judge's clock")
        return Timing(reply.device_us, wall, reply.idle_us, awake_us=awake, enqueue_us=reply.enqueue_us, held=reply.held)

    @property
    def process(self) -> int | None:
        """The runner's number among this machine's processes, where that is known."""
        return self._runner.here if self._runner is not None else None

    @property
    def alive(self) -> bool:
        return self._runner is not None

    def freeze(self) -> None:
        """Nothing of this runner's host runs until ``thaw``. Raises TrialFailed."""
        self._by_host(self._host.freeze)

    def thaw(self) -> None:
        """It alone of its host's runners runs again. Raises TrialFailed."""
        self._by_host(self._host.thaw)

    def _thaw_all(self) -> None:
        self._by_host(self._host.thaw_all)

    def _by_host(self, act: Callable[[RunnerHandle], Found]) -> Found | None:
        if self._runner is None:
            return None
        try:
            return act(self._runner)
        except SandboxError as error:
            self.close()
            raise self._lost(FailureKind.CRASHED, f"took its host process down: {error}") from error

    def _out_of_turn(self) -> Exception:
        self.close()
        return self._failed(FailureKind.REJECTED, "the runner answered out of turn: something in it speaks for the kernel")

    def _failed(self, kind: FailureKind, reason: str, log: str = "") -> Exception:
        """The exception for a fault: a trusted runner's is no kernel's failure but the reference's or the machine's."""
        if self._trusted:
            return ProblemError(f"the baseline cannot be measured: {reason}")
        return TrialFailed(kind, reason, log)

    def _lost(self, kind: FailureKind, reason: str) -> Exception:
        """The same for one that has gone or does not answer, which for a trusted one can be put right by starting it anew."""
        return TrustedLost(f"the baseline cannot be measured: {reason}") if self._trusted else TrialFailed(kind, reason)

    def _receive(self, seconds: float, when: str) -> RunnerReply:
        assert self._runner is not None
        try:
            reply: RunnerReply
            reply, fds = self._runner.channel.receive(RunnerReply, seconds)
        except ChannelTimeout:
            self.close()
            raise self._lost(FailureKind.TIMED_OUT, f"no answer within {seconds:g} s {when}; it was killed") from None
        except ChannelGarbled:
            self.close()
            raise self._failed(FailureKind.REJECTED, "something in the runner wrote to its channel") from None
        except ChannelClosed:
            self._dead(when)
        for fd in fds:
            os.close(fd)
        return reply

    def _dead(self, when: str) -> None:
        assert self._runner is not None
        ended = self._host.reap(self._runner)
        self._runner = None
        if os.WIFSIGNALED(ended.status) and ended.status >= 0:
            number = os.WTERMSIG(ended.status)
            how = f"{_SIGNALS.get(number, 'signal')} ({number})"
            hint = ": a write to an input or past a buffer?" if number in (7, 11) else ""
            raise self._lost(FailureKind.CRASHED, f"died of {how} {when}{hint}")
        raise self._lost(FailureKind.CRASHED, f"its process ended {when}")

    def _fault(self, fault: Fault) -> None:
        self.close()
        text = printable(fault.text[-_LONGEST_TEXT:])
        lines = [line for line in text.strip().splitlines() if line.strip()] or ["no message"]
        if fault.kind == "impossible" and self._trusted:
            raise DeviceError(lines[-1])
        kind = FailureKind(fault.kind) if fault.kind in set(FailureKind) else FailureKind.CRASHED
        raise self._failed(kind, lines[-1][:_LONGEST_REASON], text)

    def close(self) -> None:
        """Reap the runner; idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            self._host.reap(runner)
