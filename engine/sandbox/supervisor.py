"""The supervisor: first process of a trial's sandbox. It starts the judge, and at the judge's request the hosts of runners.

``python -m engine.sandbox.supervisor FD`` reads ``Orders`` from an inherited socket. It ends when the engine closes it or the
judge ends, and every process of the sandbox ends with it. The judge runs a reference that nobody may have read: it can ask for
a host and for the end of one, and has no say in what is started. Standard library only: it starts within 0.1 s.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from engine.sandbox import seccomp

HOSTS = "hosts"
"""The last argument of a judge whose hosts are needed as soon as it is asked something."""
HOSTS_NOW = "hosts now"
"""The same where they start at once."""
CHANNEL, REQUESTS, FILTER, NAMESPACE = "@channel@", "@requests@", "@filter@", "@namespace@"
"""Words of a command that stand for descriptors: a host's channel, the judge's socket to the supervisor, the filter, the user
namespace of hosts."""
THREADS = "OMP_NUM_THREADS"
_MOST_HOSTS = 32
_MOST_THREADS = 1 << 16
_REQUEST_BYTES = 4096
_PR_SET_DUMPABLE = 4
_NEW_USER_NAMESPACE = 0x10000000
_DEVICE_FILES = frozenset(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))
_READ_ONLY, _REMOUNT, _BIND = 1, 32, 4096
_KEPT_FLAGS = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
"""Of a mount that is mounted again: without them the operating system refuses."""


@dataclass(frozen=True, slots=True)
class SandboxedCommand:
    """A command line with an absolute path, and its environment."""

    argv: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Orders:
    """What the supervisor starts."""

    judge: SandboxedCommand
    host: SandboxedCommand
    channel: int
    """The judge's inherited channel to the engine."""
    filtered: bool
    """Whether system calls are filtered."""
    probe: bool = False
    """Start one host beside the judge and report on standard error what fails."""

    def encode(self) -> bytes:
        """One line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Orders:
        """The inverse of ``encode``."""
        plain = json.loads(line)
        return cls(**{**plain, "judge": SandboxedCommand(**plain["judge"]), "host": SandboxedCommand(**plain["host"])})


class HostProcess:
    """A host that the supervisor has started, as the judge sees it. The interface of ``subprocess.Popen``, as far as needed."""

    def __init__(self, supervisor: socket.socket, pid: int, stderr: int) -> None:
        self._supervisor = supervisor
        self.pid = pid
        """The id of its bubblewrap process in the judge's PID namespace."""
        self.stderr = os.fdopen(stderr, "rb")

    def poll(self) -> int | None:
        """Its exit status; ``None`` while it runs."""
        status: int | None = _ask(self._supervisor, {"do": "poll", "pid": self.pid}).get("status")
        return status

    def kill(self) -> None:
        """Kill it with everything in its sandbox, and wait for it."""
        _ask(self._supervisor, {"do": "end", "pid": self.pid})

    def wait(self) -> int:
        """Its exit status. Only after ``kill``."""
        return self.poll() or 0


def start_host(supervisor: socket.socket, channel: int, threads: int) -> HostProcess:
    """Have the supervisor start a host with this channel. Raises OSError."""
    reading, writing = os.pipe()
    try:
        pid = _ask(supervisor, {"do": "start", "threads": threads}, (channel, writing)).get("pid")
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    if not isinstance(pid, int):
        os.close(reading)
        raise OSError("the supervisor has not started a host")
    return HostProcess(supervisor, pid, reading)


def _ask(supervisor: socket.socket, request: Mapping[str, object], fds: Sequence[int] = ()) -> dict[str, int | None]:
    text = json.dumps(request).encode()
    if fds:
        socket.send_fds(supervisor, [text], fds)
    else:
        supervisor.send(text)
    reply = supervisor.recv(_REQUEST_BYTES)
    if not reply:
        raise OSError("the supervisor has ended")
    found: dict[str, int | None] = json.loads(reply)
    return found


def main() -> None:
    """Start the judge and serve it until it ends or the engine closes the socket."""
    lifeline = socket.socket(fileno=int(sys.argv[1]))
    with lifeline.makefile("rb") as file:
        orders = Orders.decode(file.readline())
    # Neither the judge nor a sandboxed process may trace this one: it holds every capability of the sandbox.
    namespace = _user_namespace()
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _keep_device_files()
    if orders.filtered:
        seccomp.install(seccomp.Party.SUPERVISOR)
    supervisor = _Supervisor(orders, namespace)
    if orders.probe:
        sys.exit(supervisor.probe())
    supervisor.serve(lifeline)


def _keep_device_files() -> None:
    """Mount the usual device files read-only, here and in all that is started: they are the machine's own. Raises OSError.

    Their owner could change their permissions and times, for every process of the machine and past the end of the sandbox. A
    device is written through such a file as before. Bubblewrap cannot mount it so: it would forbid devices, too.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.split() for line in file]
    for _, _, _, _, place, options, *_ in mounts:
        if place not in _DEVICE_FILES:
            continue
        flags = _READ_ONLY | _REMOUNT | _BIND | sum(_KEPT_FLAGS.get(option, 0) for option in options.split(","))
        if libc.mount(None, place.encode(), None, flags, None):
            raise OSError(ctypes.get_errno(), f"{place} cannot be mounted read-only")


def _user_namespace() -> int:
    """The user namespace of the hosts, a child of this one: the judge may read the memory of what runs in it."""
    ready, entered = os.pipe()
    done, go_on = os.pipe()
    pid = os.fork()
    if pid == 0:
        failed = ctypes.CDLL(None).unshare(_NEW_USER_NAMESPACE)
        os.write(entered, b"n" if failed else b"y")
        os.read(done, 1)
        os._exit(0)
    try:
        if os.read(ready, 1) != b"y":
            raise OSError("no user namespace inside the sandbox")
        for name, text in (("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")):
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write(text)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    finally:
        os.write(go_on, b".")
        os.waitpid(pid, 0)
        for fd in (ready, entered, done, go_on):
            os.close(fd)


class _Supervisor:
    def __init__(self, orders: Orders, namespace: int) -> None:
        self._orders = orders
        self._namespace = namespace
        self._hosts: dict[int, int | None] = {}
        """Process id → exit status, ``None`` while it runs."""

    def probe(self) -> int:
        """Start the judge's and a host's command; 0 if both end well. Their error messages are the reason."""
        for started in (self._start(self._orders.host, {}), self._start(self._orders.judge, {}, seccomp.Party.JUDGE)):
            _, status = os.waitpid(started, 0)
            if status != 0:
                return 1
        return 0

    def serve(self, lifeline: socket.socket) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        judge = self._start(
            self._orders.judge, {REQUESTS: theirs.fileno()}, seccomp.Party.JUDGE, (theirs.fileno(), self._orders.channel)
        )
        theirs.close()
        os.close(self._orders.channel)  # the engine notices the judge's end by it
        ended, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poller = select.poll()
        for fd in (lifeline.fileno(), ours.fileno(), ended):
            poller.register(fd, select.POLLIN)
        while self._reap(judge):
            happened = [fd for fd, _ in poller.poll()]
            if lifeline.fileno() in happened:
                return
            if ended in happened:
                os.read(ended, _REQUEST_BYTES)
            elif ours.fileno() in happened and not self._answer(ours):
                poller.unregister(ours)

    def _reap(self, judge: int) -> bool:
        """Take note of ended processes; whether the judge still runs."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == judge:
                    return False
                if ended[0] in self._hosts:
                    self._hosts[ended[0]] = os.waitstatus_to_exitcode(ended[1])
        return True

    def _answer(self, judge: socket.socket) -> bool:
        """Answer one request; whether there can be more."""
        text, fds, _, _ = socket.recv_fds(judge, _REQUEST_BYTES, 8)
        if not text:
            return False
        try:
            reply = self._reply(json.loads(text), fds)
        except Exception as error:  # whatever a hostile reference makes the judge send
            reply = {"error": type(error).__name__}
        finally:
            for fd in fds:
                os.close(fd)
        judge.send(json.dumps(reply).encode())
        return True

    def _reply(self, request: Mapping[str, object], fds: Sequence[int]) -> Mapping[str, object]:
        if request["do"] == "start":
            if sum(status is None for status in self._hosts.values()) >= _MOST_HOSTS:
                return {"error": "too many hosts"}
            threads = int(str(request["threads"]))
            if not 0 < threads < _MOST_THREADS:
                return {"error": "invalid number of threads"}
            channel, stderr = fds
            started = self._start(
                self._orders.host, {CHANNEL: channel}, fds=(channel,), stderr=stderr, threads=threads
            )  # fmt: skip
            self._hosts[started] = None
            return {"pid": started}
        pid = int(str(request["pid"]))
        if pid not in self._hosts:
            return {"error": "not a host"}
        if request["do"] == "end" and self._hosts[pid] is None:
            os.kill(pid, signal.SIGKILL)
            self._hosts[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return {"status": self._hosts[pid]}

    def _start(
        self, program: SandboxedCommand, named: Mapping[str, int], party: seccomp.Party = seccomp.Party.RUNNER,
        fds: Sequence[int] = (), *, stderr: int = 2, threads: int = 1,
    ) -> int:  # fmt: skip
        """Start a program that inherits only these descriptors; its process id."""
        filter_fd = seccomp.descriptor(party) if self._orders.filtered else None
        places = {**named, NAMESPACE: self._namespace, **({FILTER: filter_fd} if filter_fd is not None else {})}
        argv = [str(places.get(word, word)) for word in program.argv]
        inherited = [fd for fd in (*fds, self._namespace, filter_fd) if fd is not None]
        for fd in inherited:
            os.set_inheritable(fd, True)
        try:
            return os.posix_spawn(
                argv[0], argv, {**program.environment, THREADS: str(threads)}, setsid=True,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, stderr, 2),
                ],
            )  # fmt: skip
        finally:
            for fd in inherited:
                os.set_inheritable(fd, False)
            if filter_fd is not None:
                os.close(filter_fd)


if __name__ == "__main__":
    main()
