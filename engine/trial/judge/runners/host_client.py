"""The judge's side of a host process: starts and ends it; has it fork, freeze, resume and reap runners."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from engine.domain.errors import SandboxError
from engine.sandbox import bubblewrap, python_process
from engine.sandbox.supervisor import HostProcess, start_host
from engine.trial.channel import Channel, ChannelClosed, ChannelGarbled, ChannelTimeout
from engine.trial.judge.timing.contention import await_off_core, find_local_pid, processor_ns
from engine.trial.messages import (
    NOBODY,
    AllStopped,
    Freeze,
    HostReply,
    Message,
    Reap,
    RunnerEnded,
    Spawn,
    Spawned,
    StillRunning,
    Stop,
    Thaw,
    ThawChildren,
)

_libc = ctypes.CDLL(None)
_START_S = 120.0
_ANSWER_S = 20.0


@dataclass(frozen=True, slots=True)
class RunnerHandle:
    """A runner: its channel, its pid in the sandbox, and its pid here if known."""

    pid: int
    channel: Channel
    local_pid: int | None = None


class Host:
    """One host process; ``confined``: in a bubblewrap sandbox."""

    def __init__(self, device: str, threads: int, *, confined: bool, supervisor: socket.socket | None = None) -> None:
        """``supervisor`` starts it if this process is itself in the trial's sandbox."""
        self._device = device
        self._threads = threads
        self.confined = confined
        self._supervisor = supervisor
        self._process: subprocess.Popen[bytes] | HostProcess | None = None
        self._channel: Channel | None = None
        self._up = False
        self._ending = 0
        """Runners that it was told to end, and has not said that they have."""
        self._used_ns: dict[int, int] = {}
        """Runner → its processor time when it had stopped, until it may run again."""

    def launch(self) -> None:
        """Start it without waiting for it; idempotent."""
        if self._process is not None:
            return
        self._channel, theirs = Channel.pair()
        with theirs:
            self._process = self._started(theirs.fileno())

    def _started(self, channel: int) -> subprocess.Popen[bytes] | HostProcess:
        """The process, which inherits its end of the channel. Raises SandboxError."""
        if self._supervisor is not None:
            try:
                return start_host(self._supervisor, channel, self._threads)
            except OSError as error:
                raise SandboxError(f"the trial's host process did not start: {error}") from error
        command = [sys.executable, "-s", "-P", "-m", "engine.trial.runner.host", str(channel)]
        environment = python_process.environment(self._device, alone=self.confined, threads=self._threads)
        with bubblewrap.system_calls(filtered=self.confined) as filter_fd:
            argv = python_process.in_bubblewrap(command, self._device, filter_fd) if self.confined else command
            passed = (channel, *([filter_fd] if filter_fd is not None else []))
            return subprocess.Popen(
                argv, pass_fds=passed, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, start_new_session=True, cwd="/",
            )  # fmt: skip

    def is_up(self) -> bool:
        """Whether it forks runners without being waited for."""
        return self._up or (self._channel is not None and self._channel.waiting())

    def start(self) -> None:
        """Start it and wait until it is ready, once more if bubblewrap did not start; idempotent. Raises SandboxError."""
        if self._up and not self._runs():
            self.close()
        if self._up:
            return
        error = self._start_error()
        if reason := bubblewrap.own_error(error):
            bubblewrap.will_retry(reason)
            second = self._start_error()
            error = second and f"{error}; then {second}"
        if error:
            raise SandboxError(f"the trial's host process did not start: {error}")
        self._up = True

    def _start_error(self) -> str:
        """Start it and wait; what went wrong, and it is ended, or nothing."""
        self.launch()
        assert self._process is not None
        assert self._channel is not None
        try:
            self._channel.receive(HostReply, _START_S)
        except (ChannelClosed, ChannelTimeout, ChannelGarbled) as error:
            message = self._last_words()
            self.close()
            return message or type(error).__name__
        assert self._process.stderr is not None
        self._process.stderr.close()
        return ""

    def _runs(self) -> bool:
        try:
            return self._process is not None and self._process.poll() is None
        except OSError as error:
            raise SandboxError(f"the sandbox of the trial has ended: {error}") from error

    def _last_words(self) -> str:
        process = self._process
        if process is None or process.stderr is None:
            return ""
        _kill(process)
        lines = process.stderr.read()[-4000:].decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def spawn(self, *, few_queues: bool = False) -> RunnerHandle:
        """Fork a runner. Restarts the host if a kernel has ended it. Raises SandboxError.

        ``few_queues``: its device context gets two work queues (``messages.Spawn``).
        """
        for _ in range(2):
            self.settle()
            self.start()
            channel, theirs = Channel.pair()
            with theirs:
                try:
                    reply = self._ask(Spawn(few_queues), (theirs.fileno(),))
                except SandboxError:
                    channel.close()
                    self.close()
                    continue
            assert isinstance(reply, Spawned)
            return RunnerHandle(reply.pid, channel, self._local_pid(reply.pid))
        raise SandboxError("the trial's host process died twice while forking a runner; is the machine out of memory?")

    def _local_pid(self, pid: int) -> int | None:
        assert self._process is not None
        return find_local_pid(pid, self._process.pid) if self.confined else pid

    def freeze(self, runner: RunnerHandle) -> None:
        """Stop every process but the host: nothing is written while outputs are judged."""
        self._ask(Freeze(runner.pid))

    def halt(self, runner: RunnerHandle, *, children: bool) -> None:
        """Begin to stop a runner as soon as it has replied; ``stop`` waits for that. ``children``: whether there may be
        processes that are no runners, which its host has to stop."""
        if runner.local_pid is not None:
            _stop_threads(runner.local_pid)
        if runner.local_pid is None or children:
            self.freeze(runner)

    def stop(self, runner: RunnerHandle) -> AllStopped | StillRunning:
        """``freeze``, and whether every process has stopped; processes that wake each other never do."""
        reply = self._ask(Stop(runner.pid))
        assert isinstance(reply, AllStopped | StillRunning)
        if self._device == "cpu":
            await_off_core(runner.local_pid)
        self._used_ns[runner.pid] = processor_ns(runner.local_pid)
        return reply

    def used_since_stop_us(self, runner: RunnerHandle) -> float:
        """Processor time of a runner since ``stop``; 0 where that is unknown, or it may have run since."""
        before, now = self._used_ns.get(runner.pid, -1), processor_ns(runner.local_pid)
        return (now - before) / 1e3 if min(before, now) >= 0 else 0.0

    def resume(self, runner: RunnerHandle, *, children: bool) -> None:
        """Resume a runner for a call; ``children``: whether there are processes that are no runners. The others stay frozen."""
        self._used_ns.pop(runner.pid, None)
        if runner.local_pid is None:
            self.thaw(runner)
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(runner.local_pid, signal.SIGCONT)
        if children:
            self._ask(ThawChildren())

    def thaw(self, runner: RunnerHandle) -> None:
        """Resume a runner; the others of this host stay frozen."""
        self._used_ns.pop(runner.pid, None)
        self._ask(Thaw(runner.pid))

    def thaw_all(self, _: RunnerHandle) -> None:
        """Resume every runner: they get ready in parallel."""
        self._used_ns.clear()
        self._ask(Thaw(NOBODY))

    def reap(self, runner: RunnerHandle) -> RunnerEnded:
        """Kill a runner and everything it left behind. A host that does not reply is killed too."""
        runner.channel.close()
        self._used_ns.pop(runner.pid, None)
        try:
            reply = self._ask(Reap(runner.pid))
        except SandboxError:
            self.close()
            return RunnerEnded(-1, 0)
        assert isinstance(reply, RunnerEnded)
        return reply

    def end(self, runner: RunnerHandle, *, trusted: bool = False) -> None:
        """``reap`` without waiting: the next request does, or ``settle``.

        ``trusted``: it runs no candidate's code. Several of these end at the same time, where their ids are known: their host
        kills one after the other.
        """
        runner.channel.close()
        self._used_ns.pop(runner.pid, None)
        if self._channel is None:
            return
        if trusted and runner.local_pid is not None:  # no other process can have this id before its host is told to reap it
            with contextlib.suppress(ProcessLookupError):
                os.kill(runner.local_pid, signal.SIGKILL)
        try:
            self._channel.send(Reap(runner.pid))
            self._ending += 1
        except (ChannelClosed, ChannelTimeout):
            self.close()

    def settle(self) -> None:
        """Wait until every runner has ended that was told to. A host that does not reply is killed."""
        while self._ending:
            self._ending -= 1
            assert self._channel is not None
            try:
                self._channel.receive(HostReply, _ANSWER_S)
            except (ChannelClosed, ChannelTimeout, ChannelGarbled):
                self.close()

    def _ask(self, request: Message, fds: Sequence[int] = ()) -> HostReply:
        self.settle()
        if self._channel is None:
            raise SandboxError("the trial's host process has ended")
        try:
            self._channel.send(request, fds)
            reply: HostReply
            reply, _ = self._channel.receive(HostReply, _ANSWER_S)
        except (ChannelClosed, ChannelTimeout, ChannelGarbled) as error:
            raise SandboxError(f"the trial's host process does not answer ({type(error).__name__})") from error
        return reply

    def close(self) -> None:
        """Kill the host and everything in its sandbox."""
        if self._channel is not None:
            self._channel.close()
        process, self._process, self._channel, self._up = self._process, None, None, False
        self._ending = 0
        self._used_ns.clear()
        if process is None:
            return
        _kill(process)
        if process.stderr is not None:
            process.stderr.close()


class EarlyHosts:
    """The hosts that every session on a GPU needs, started while the judge imports torch: they import it too."""

    COUNT = 3

    def __init__(self, device: str, supervisor: socket.socket) -> None:
        self._hosts = [Host(device, cores(), confined=True, supervisor=supervisor) for _ in range(self.COUNT)]
        self._decided = False
        self._lock = threading.Lock()

    def launch(self, *, wanted: bool) -> None:
        """Start them from the thread that this is called in, if they are ``wanted``; only the first call decides.

        What fails is started again later.
        """
        with self._lock:
            if not self._decided:
                self._decided = True
                with contextlib.suppress(SandboxError):
                    for host in self._hosts if wanted else ():
                        host.launch()

    def take(self) -> Sequence[Host]:
        """The hosts, once: for the first problem. They are started here if no thread has seen the request for them."""
        self.launch(wanted=True)
        with self._lock:
            hosts, self._hosts = self._hosts, []
        return hosts


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def _stop_threads(process: int) -> None:
    """Send each thread of a process a stop signal: the first that takes it stops all of them.

    The signal of a process is taken by its first thread. While that waited for a core, a thread that spins went on for 4 ms.
    """
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            _libc.tgkill(process, int(thread), signal.SIGSTOP)


def _kill(process: subprocess.Popen[bytes] | HostProcess) -> None:
    """Kill a host with everything in its sandbox, and wait for it."""
    if isinstance(process, HostProcess):
        with contextlib.suppress(OSError):  # the supervisor has ended, and every host with it
            process.kill()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
