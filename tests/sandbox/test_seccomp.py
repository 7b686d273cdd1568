"""The seccomp filter: listed system calls fail in a sandbox, and those that torch and OpenMP need do not."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator

import pytest
from trial.ground import BareRunner, module

from engine.domain.model import FailureKind
from engine.sandbox import seccomp
from engine.sandbox.bubblewrap import bubblewrap_reason, filter_reason
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.runners.host_client import Host

COLUMN = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_well_formed_and_allows_by_default(machine: str) -> None:
    text = seccomp.program(machine)
    assert text is not None
    assert len(text) % 8 == 0
    assert len(text) // 8 < 4096
    assert struct.unpack("<HBBI", text[-8:]) == (6, 0, 0, 0x7FFF0000)


def decided(machine: str, audit: int, number: int, argument: int = 0, second: int = 0) -> int:
    """The filter's result, by an interpreter of the few instructions it uses."""
    text = seccomp.program(machine)
    assert text is not None
    steps = [struct.unpack("<HBBI", text[i : i + 8]) for i in range(0, len(text), 8)]
    data = {0: number, 4: audit, 16: argument, 24: second}
    held, place = 0, 0
    while True:
        code, when, otherwise, value = steps[place]
        place += 1
        match code:
            case 0x20:
                held = data[value]
            case 0x06:
                return int(value)
            case 0x15:
                place += when if held == value else otherwise
            case 0x35:
                place += when if held >= value else otherwise
            case 0x45:
                place += when if held & value else otherwise


ALLOW, DENY, ABSENT = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS


@pytest.mark.parametrize(
    ("machine", "audit", "column", "clone"), [("x86_64", 0xC000003E, 0, 56), ("aarch64", 0xC00000B7, 1, 220)]
)
def test_exactly_the_listed_calls_are_denied(machine: str, audit: int, column: int, clone: int) -> None:
    denied = {numbers[column] for numbers in seccomp.DENIED.values()} - {-1}
    assert (222, 107)[column] in denied, "timer_create"
    socket = (41, 198)[column]
    for number in set(range(470)) - {socket}:
        wanted = DENY if number in denied else ABSENT if number == 435 else ALLOW
        assert decided(machine, audit, number) == wanted, number
    assert decided(machine, audit, clone, 0x11) == ALLOW
    assert decided(machine, audit, clone, 0x10000000) == DENY
    assert decided(machine, 0x40000003, 1) == ABSENT
    for of_the_host in ((203, 122)[column], (302, 261)[column]):  # sched_setaffinity, prlimit64
        assert decided(machine, audit, of_the_host, 0) == ALLOW
        assert decided(machine, audit, of_the_host, 1) == DENY
        assert decided(machine, audit, of_the_host, 2) == ALLOW
    fcntl = (72, 25)[column]
    assert {second for second in range(1100) if decided(machine, audit, fcntl, 0, second) == DENY} == {10, 1024, 1026}
    families = [family for family in range(64) if decided(machine, audit, socket, family) == ALLOW]
    assert families == [1, 16]
    assert decided(machine, audit, socket, 40) == DENY


def test_an_unknown_architecture_has_no_filter() -> None:
    assert seccomp.program("riscv64") is None


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    if bubblewrap_reason() is not None or filter_reason() is not None or COLUMN is None:
        pytest.skip(str(bubblewrap_reason() or filter_reason()))
    found = Host("cpu", 2, confined=True)
    yield found
    found.close()


def attempt(host: Host, number: int, *arguments: int) -> int:
    """errno of a system call in a runner; 0 for success."""
    words = ", ".join(f"ctypes.c_long({a})" for a in (number, *arguments, *[0] * (6 - len(arguments))))
    bare = BareRunner(host)
    before = ("import ctypes", "libc = ctypes.CDLL(None, use_errno=True)")
    source = module(f"raise ValueError(ctypes.get_errno() if libc.syscall({words}) == -1 else 0)", before=before)
    with pytest.raises(TrialFailed) as caught:
        bare.load(source).call()
    bare.close()
    assert caught.value.failure.kind is FailureKind.CRASHED
    return int(caught.value.failure.reason.rpartition("ValueError: ")[2])


@pytest.mark.parametrize(
    "name",
    [
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "bpf",
        "userfaultfd",
        "io_uring_setup",
        "io_submit",
        "mount",
        "unshare",
        "keyctl",
        "timer_create",
        "timerfd_create",
    ],
)  # fmt: skip
def test_denied_calls_fail_in_a_runner(host: Host, name: str) -> None:
    assert COLUMN is not None
    assert attempt(host, seccomp.DENIED[name][COLUMN]) == errno.EPERM


def test_leases_and_the_choice_of_a_signal_are_denied(host: Host) -> None:
    fcntl = (72, 25)[COLUMN or 0]
    assert attempt(host, fcntl, 0, 10, 18) == errno.EPERM, "F_SETSIG: SIGCONT would resume a stopped process"
    assert attempt(host, fcntl, 0, 1024, 1) == errno.EPERM, "F_SETLEASE, which for lack of a file would fail by another name"
    assert attempt(host, fcntl, 0, 1) == 0


def test_a_runner_has_no_terminals(host: Host) -> None:
    """One that closes sends its stopped session SIGCONT, some ms after the last process closed it."""
    bare = BareRunner(host)
    with pytest.raises(TrialFailed) as caught:
        bare.load(module("raise ValueError(os.path.exists('/dev/ptmx'), os.listdir('/dev/pts'))")).call()
    bare.close()
    assert caught.value.failure.reason.endswith("ValueError: (False, [])")


def test_namespaces_are_denied_and_child_processes_are_not(host: Host) -> None:
    clone = (56, 220)[COLUMN or 0]
    assert attempt(host, clone, 0x10000000 | 17) == errno.EPERM
    bare = BareRunner(host)
    bare.x.fill_(2.0)
    lines = (
        "pid = os.fork()",
        "pid or os._exit(7)",
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7",
        "return x",
    )
    assert bare.load(module(*lines)).call() == [2.0] * 8
    bare.close()


PLACE = "(len(os.sched_getaffinity(0)), os.nice(0), os.sched_getscheduler(0))"


@pytest.mark.slow
def test_a_runner_cannot_slow_its_host(host: Host) -> None:
    def here(*lines: str) -> str:
        bare = BareRunner(host)
        with pytest.raises(TrialFailed) as caught:
            bare.load(module(*lines, f"raise ValueError({PLACE})")).call()
        bare.close()
        return caught.value.failure.reason

    before = here()
    slow = (
        "os.sched_setaffinity(1, {0})",
        "os.setpriority(os.PRIO_PROCESS, 1, 19)",
        "os.sched_setscheduler(1, 5, os.sched_param(0))",
    )
    for attempt in slow:
        here("try:", f"    {attempt}", "except OSError: pass")
    assert here() == before
    assert "PermissionError" in here("os.sched_setaffinity(os.getppid(), {0})")


def test_a_runner_has_few_timers_where_there_is_no_filter() -> None:
    """They expire while it is stopped, and would interrupt the next contestant's calls."""
    unconfined = Host("cpu", 2, confined=False)
    bare = BareRunner(unconfined)
    bare.x.fill_(1.0)
    lines = (
        "libc, timer, made = ctypes.CDLL(None), ctypes.c_void_p(), 0",
        "while made < 1000 and libc.timer_create(1, None, ctypes.byref(timer)) == 0: made += 1",
        "return x * made",
    )
    made = set(bare.load(module(*lines, before=("import ctypes",))).call())
    bare.close()
    unconfined.close()
    assert 1 <= made.pop() <= 64


def test_a_runner_may_pin_its_own_threads(host: Host) -> None:
    bare = BareRunner(host)
    bare.x.fill_(1.0)
    assert bare.load(module("os.sched_setaffinity(0, os.sched_getaffinity(0))", "return x")).call() == [1.0] * 8
    bare.close()


def test_python_and_torch_threads_start(host: Host) -> None:
    bare = BareRunner(host)
    bare.x.fill_(1.0)
    lines = (
        "t = threading.Thread(target=lambda: None); t.start(); t.join()",
        "torch.set_num_threads(2)",
        "big = torch.rand(512, 512); assert torch.isfinite(big @ big).all()",
        "return x",
    )
    assert bare.load(module(*lines)).call() == [1.0] * 8
    bare.close()
