"""The judge's side of a runner: loads it, calls it, times it by the judge's clock and freezes it between calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import NoReturn, TypeVar

from msgspec.structs import replace

from engine.domain.errors import DeviceError, SandboxError
from engine.domain.model import FailureKind
from engine.trial.channel import Channel, ChannelClosed, ChannelGarbled, ChannelTimeout
from engine.trial.judge import failures
from engine.trial.judge.runners.gate import ArmingLimit, DeviceGate, DeviceOutputs, Segments
from engine.trial.judge.runners.held_outputs import HeldOutputs
from engine.trial.judge.runners.host_client import Host, RunnerHandle
from engine.trial.judge.runners.runner_memory import Outputs, RunnerMemory
from engine.trial.judge.runners.written_memory import TRUSTED
from engine.trial.judge.timing.call_times import CallHook, During, Timing, claim_flaw
from engine.trial.judge.timing.cores import on_first_core
from engine.trial.judge.timing.pair_times import KERNEL
from engine.trial.messages import (
    ArenaHandle,
    Armed,
    CheckWorkspace,
    ClaimedTimes,
    Fault,
    LoadKernel,
    Renew,
    RunKernel,
    RunnerReady,
    RunnerReply,
    Segment,
    SegmentFreed,
    StillRunning,
    Switch,
)
from engine.trial.shared.arena import close_descriptors

_CONTEXT_S = 60.0
_MOST_AT_REST_US = 200.0
"""Processor time of a stopped process. The host waits for threads that end, and then nothing works: honest kernels with threads
used less than 10 µs on a loaded machine. What resumed a kernel at rest could compute a small output ahead of its call."""
_LIMITS = 2
"""Calls of an order that have a time limit each. A burst of more lasts a fraction of a second: one of two has shown that."""
_FIRST = 3.0
"""Factor on the time limit of a module's first call, in which it may compile."""

Found = TypeVar("Found")


class RunnerClient:
    """A runner from fork to end, or until it is renewed. Use it as a context manager: the process is always ended, or given
    back."""

    def __init__(
        self, host: Host, *, seconds: float, trusted: bool = False, party: str = KERNEL, few_queues: bool = False,
        renewed: RunnerHandle | None = None,
    ) -> None:  # fmt: skip
        """``seconds``: time limit of a call. ``trusted``: its faults are the machine's or the reference's; it is frozen between
        calls like any other, and all start a call in the same state. ``party``: whose memory a kernel writes. ``few_queues``:
        its device context gets two work queues. ``renewed``: a process that goes on, instead of a new one."""
        self.party = TRUSTED if trusted else party
        self.few_queues = few_queues
        self._host = host
        self._seconds = seconds
        self._trusted = trusted
        self.is_renewed = renewed is not None
        self.give_back: Callable[[RunnerClient], None] | None = None
        """What is done with it at the end of its ``with`` block, instead of ending it."""
        self._runner: RunnerHandle | None = renewed or host.spawn(few_queues=few_queues)
        self._has_context = False
        self._awaits_reply = False
        self._has_children = True  # perhaps: they must be resumed too
        self._first_s = seconds
        self.delivered: Outputs | None = None
        """A module's outputs after a call, where it made them; ``None`` if they are in lent memory."""
        self.held = HeldOutputs()
        self.delivers = False
        """Whether a call must say where its outputs are: of a module, whose outputs the judge can read."""
        self.gate: DeviceGate | None = None
        self.checks_gated = False  # every call of the loaded kernel is: on a GPU, where the judge's clock counts for it
        self._arming, self._segments = ArmingLimit(), Segments()
        self.loaded_for: object = None  # the test bed whose memory it was last lent
        self.has_run = False  # for this workload or another

    def stand_by(self) -> None:
        """Wait until its device context exists. Raises TrialFailed."""
        if self._has_context:
            return
        self._thaw_all()
        self._await_context()
        self.freeze()

    def _await_context(self) -> None:
        if not self._has_context:
            awaits, self._has_context = self._awaits_reply, True
            self._expect_ready(_CONTEXT_S, "while creating its device context")
            self._awaits_reply = awaits  # of what was sent meanwhile

    def renewed(self) -> RunnerClient:
        """The same process with a fresh device context, for another kernel. This object is done with.

        It is not waited for, as at a start: ``stand_by`` waits. A process that was sent nothing stays as it is. One that owes a
        reply cannot go on. Raises TrialFailed if it has ended, also by this.
        """
        if self._awaits_reply or (self._has_context and self._live.channel.waiting()):
            raise self._out_of_turn()
        if not self._has_context:
            return self
        self._request(Renew())
        runner, self._runner = self._runner, None
        self.close()  # its gate
        return RunnerClient(
            self._host, seconds=self._seconds, party=self.party, few_queues=self.few_queues, renewed=runner
        )  # fmt: skip

    def load(self, load: LoadKernel, fds: list[int], *, holds_outputs: bool = True) -> None:
        """Send an artefact and its memory; closes the descriptors. ``wait_ready`` waits for the result."""
        self._first_s = self._seconds * (_FIRST if load.contract == "module" else 1)
        self._arming = ArmingLimit()
        self.held, self.delivers = HeldOutputs(never=not holds_outputs), load.contract == "module" and not load.copies_outputs
        try:
            self._request(load, fds)
        finally:
            close_descriptors(fds)

    def _request(self, request: LoadKernel | Switch | CheckWorkspace | Renew, fds: Sequence[int] = ()) -> None:
        """Send what is answered by ``RunnerReady``, to a runner that is resumed. Raises TrialFailed."""
        self._awaits_reply = True
        try:
            self._thaw_all()
            self._live.channel.send(request, fds)
        except ChannelClosed:
            self._dead("while loading")

    def __enter__(self) -> RunnerClient:
        return self

    def __exit__(self, *_: object) -> None:
        if self.give_back is not None:
            self.give_back(self)
        else:
            self.close()

    def wait_ready(self, seconds: float, when: str = "while loading") -> None:
        """Wait until the artefact is loaded. From then on the runner runs during calls only. Raises TrialFailed."""
        self.stand_by()
        self._thaw_all()
        self._expect_ready(seconds, when)
        self.freeze()

    def check_workspace(self) -> None:
        """Raises TrialFailed if the kernel wrote past its workspace. Only a plan cannot hide it."""
        self._request(CheckWorkspace())
        self.wait_ready(self._seconds, "after its calls")

    def _expect_ready(self, seconds: float, when: str) -> None:
        reply = self._receive(seconds, when)
        if isinstance(reply, Fault):
            self._fault(reply)
        if not isinstance(reply, RunnerReady):
            raise self._out_of_turn()
        self._awaits_reply = False
        self.unmatched, self.different = reply.unmatched, reply.different

    def call(self, order: RunKernel, hooks: Sequence[CallHook] = (), *, during: During | None = None) -> Timing:
        """Run the kernel as ordered, freeze. ``during`` is done meanwhile. Raises TrialFailed.

        The order is sent before the runner is resumed: none of its processes runs before its time is taken.
        """
        channel = self._at_rest()
        for hook in hooks:
            hook.before()
        with on_first_core() if self.gate is None else nullcontext():
            start = time.perf_counter_ns()
            self._order(order)
            if during is not None and not channel.waiting(during.after_s):
                during.act()
            # A module may report memory: its calls that are not gated are bursts, be it of one call.
            seconds = self._first_s * min(order.calls, _LIMITS)
            reply = self._gated_reply(time.monotonic() + seconds) if self.checks_gated else self._receive(seconds)
            wall = (time.perf_counter_ns() - start) / 1e3
            if self.gate is None:  # before anything else: what it did now for its next call would be in no call's time
                self._by_host(partial(self._host.halt, children=self._has_children))
        self._first_s = self._seconds
        self.delivered = self._delivered(reply)
        for hook in reversed(hooks):
            hook.after()
        return self._ended(reply, wall)

    def _at_rest(self) -> Channel:
        """Its channel, if it has sent nothing and worked no more since it was stopped. Raises TrialFailed."""
        if self._live.channel.waiting():
            raise self._out_of_turn()
        judged = self.gate is None and not self._trusted
        if judged and (used := self._host.used_since_stop_us(self._live)) > _MOST_AT_REST_US:
            raise self._failed(FailureKind.REJECTED, f"its process used {used / 1e3:.1f} ms of processor time while stopped")
        return self._live.channel

    def _order(self, order: RunKernel) -> None:
        """Send an order, then resume the runner. Raises TrialFailed."""
        self._awaits_reply = True
        try:
            self._live.channel.send_order(replace(order, holding=self.held.holding))
        except ChannelClosed:
            self._dead("before the call")
        self._by_host(partial(self._host.resume, children=self._has_children))

    def gated_call(self, slot: int, release: Callable[[], None], hook: CallHook | None) -> Timing:
        """``call`` on a GPU, behind the gate: ``release`` enqueues inputs and cache flush. Raises TrialFailed."""
        assert self.gate is not None
        gate = self.gate
        self._at_rest()
        gate.number += 1
        self.delivered = None
        self._order(RunKernel(slot, gate=gate.number))
        early = self._until_armed()
        if isinstance(early, Fault):
            self._fault(early)
        if early is not None and not isinstance(early, Armed):
            raise self._out_of_turn()
        follow = partial(gate.follow, hook.after if hook is not None else lambda: None)
        gate.open(release)
        try:
            if early is not None:
                follow()
            reply = self._gated_reply(time.monotonic() + self._first_s, follow)
            if not isinstance(reply, Fault):
                follow()
        except BaseException:
            gate.abandon()
            raise
        self._first_s = self._seconds
        if isinstance(reply, Fault):
            gate.abandon()
            self._fault(reply)
        if not gate.end():
            self.close()
            raise self._failed(FailureKind.REJECTED, "the runner replied and the device has not reported the end of the call")
        wall, released = gate.device_us()
        return self._ended(reply, wall, released, late=early is None)

    def _gated_reply(self, deadline: float, enqueued: Callable[[], None] = lambda: None) -> RunnerReply:
        """The reply. ``enqueued`` is done for each message that the call is enqueued, which come before it."""
        while isinstance(reply := self._next_reply(max(0.0, deadline - time.monotonic())), Armed | None):
            if reply is not None:
                enqueued()
        return reply

    def _until_armed(self) -> RunnerReply | None:
        """``Armed``, an early reply, or ``None`` if the runner has not enqueued the call in time."""
        began, most, reply = time.monotonic(), self._arming.seconds, None
        while reply is None and (left := began + most - time.monotonic()) > 0 and self._live.channel.waiting(left):
            reply = self._next_reply(self._first_s)
        self._arming.ended(time.monotonic() - began, armed=isinstance(reply, Armed))
        return reply

    def _next_reply(self, seconds: float) -> RunnerReply | None:
        """The next message; ``None`` for one on memory, which is acted upon. Raises TrialFailed."""
        channel = self._live.channel
        with self._channel_errors(seconds, "during the call"):
            reply, fds = channel.receive_times(RunnerReply, seconds)
            match reply:
                case Segment(address, handle):
                    self._map(address, handle, fds)
                    return None
                case SegmentFreed(address):
                    self._segments.drop(address)
                    return None
                case Armed(outputs) if outputs:
                    self.delivered = DeviceOutputs(self._segments, outputs)
        close_descriptors(fds)
        return reply  # type: ignore[no-any-return]

    def _map(self, address: int, handle: ArenaHandle, fds: list[int]) -> None:
        """Map memory in which a module allocates. What the runner says of it may be forged. Raises TrialFailed."""
        try:
            self._segments.map(address, handle, fds)
        except DeviceError as error:
            self.close()
            raise self._failed(FailureKind.REJECTED, f"the memory of its outputs cannot be mapped: {error}") from error

    def _ended(self, reply: RunnerReply, wall: float, released: float = 0.0, *, late: bool = False) -> Timing:
        """Freeze; the times of the call. Raises TrialFailed."""
        if isinstance(reply, Fault):
            self._fault(reply)
        if not isinstance(reply, ClaimedTimes):
            raise self._out_of_turn()
        self._awaits_reply = False
        self._has_children = self._stop()
        self.has_run = True
        return self._timing(reply, wall, released, late)

    def _delivered(self, reply: RunnerReply) -> Outputs | None:
        if not isinstance(reply, ClaimedTimes) or not reply.outputs:
            return None
        if self.gate is not None:
            return DeviceOutputs(self._segments, reply.outputs)
        return RunnerMemory(self.process, reply.outputs) if self.process is not None else None

    def _stop(self) -> bool:
        """Freeze, and wait until it has stopped: whether it has child processes. Raises TrialFailed if one does not stop."""
        found = self._by_host(self._host.stop)
        if isinstance(found, StillRunning):
            self.close()
            raise self._failed(FailureKind.REJECTED, "one of its processes kept running while the sandbox was frozen")
        return found is not None and found.children

    def _timing(self, reply: ClaimedTimes, wall: float, released: float, late: bool) -> Timing:
        if flaw := claim_flaw(reply, wall, trusted=self._trusted):
            raise self._failed(FailureKind.REJECTED, flaw)
        times = reply.device_us, wall, reply.idle_us
        return Timing(*times, enqueue_us=reply.enqueue_us, held=reply.held, late=late, release_us=released)

    @property
    def _live(self) -> RunnerHandle:
        """The runner, which must not have ended."""
        assert self._runner is not None
        return self._runner

    @property
    def process(self) -> int | None:
        """The runner's pid here, if known."""
        return self._runner.local_pid if self._runner is not None else None

    @property
    def alive(self) -> bool:
        return self._runner is not None

    def freeze(self) -> None:
        """Stop every process of this runner's host until it is resumed. Raises TrialFailed."""
        self._by_host(self._host.freeze)

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
        return self._failed(FailureKind.REJECTED, "unexpected reply from the runner: did the kernel forge it?")

    def _failed(self, kind: FailureKind, reason: str) -> Exception:
        return failures.failure(kind, reason, trusted=self._trusted)

    def _lost(self, kind: FailureKind, reason: str) -> Exception:
        return failures.loss(kind, reason, trusted=self._trusted)

    def _receive(self, seconds: float, when: str = "during the call") -> RunnerReply:
        channel = self._live.channel
        with self._channel_errors(seconds, when):
            reply, fds = channel.receive_times(RunnerReply, seconds)
        close_descriptors(fds)
        return reply  # type: ignore[no-any-return]

    @contextmanager
    def _channel_errors(self, seconds: float, when: str) -> Iterator[None]:
        try:
            yield
        except ChannelTimeout:
            self.close()
            raise self._lost(FailureKind.TIMED_OUT, f"no reply within {seconds:g} s {when}; killed") from None
        except ChannelGarbled:
            self.close()
            raise self._failed(FailureKind.REJECTED, "invalid reply from the runner: the kernel wrote to its channel") from None
        except ChannelClosed:
            self._dead(when)

    def _dead(self, when: str) -> NoReturn:
        """Reap a runner that ended by itself, and raise TrialFailed with how it ended."""
        ended = self._host.reap(self._live)
        self._runner = None
        raise failures.death(ended.status, ended.text, when, trusted=self._trusted)

    def _fault(self, fault: Fault) -> NoReturn:
        """End a runner that reported a fault, and raise TrialFailed with it."""
        self.close()
        raise failures.reported(fault, trusted=self._trusted)

    def close(self) -> None:
        """End the runner; idempotent. Its host waits for the end, and whoever asks that host next."""
        runner, self._runner = self._runner, None
        gate, self.gate = self.gate, None
        if runner is not None:
            self._host.end(runner, trusted=self._trusted)
        if gate is not None:
            gate.close()
            self._segments.close()
