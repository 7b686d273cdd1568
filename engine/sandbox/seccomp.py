"""The system-call filter of a sandbox, as a BPF program that bubblewrap installs.

Denied with ``EPERM``, for the judge, the hosts and every runner: tracing other processes, keys, BPF, perf counters,
userfaultfd, io_uring, mounts, namespaces, kernel modules, the clock, System V and POSIX IPC that outlives its creator,
scheduling and limits of other processes (a kernel that slows its host slows every later kernel), file leases (opening a
leased file blocks), timers but those of ``setitimer`` and ``alarm`` (they interrupt others while their process is stopped, and
resume it with ``SIGCONT``; so would a descriptor whose signal can be chosen) and asynchronous reads and writes (they go on
while it is stopped). Sockets are limited to two families: others reach out of the sandbox, or keep the system working while
every process is stopped. Torch, OpenMP and the CUDA driver need none of these. ``Party`` lists the exceptions. Available for
x86-64 and 64-bit ARM; elsewhere there is no filter, and the session's notes say so.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

_LOAD, _EQUAL, _AT_LEAST, _ANY_OF, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
"""Offsets in ``struct seccomp_data``; of arguments the lower halves (both machines are little-endian)."""
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NEW_NAMESPACES = 0x7E020000
"""``CLONE_NEW…`` of the mount, cgroup, uts, ipc, user, pid and network namespaces."""
_NEW_USER_NAMESPACE = 0x10000000
_OTHER_TABLE = 0x40000000
"""First system call number of x32, a second table of x86-64 that no honest program uses."""

DENIED: Mapping[str, tuple[int, int]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_setup": (206, 0), "io_submit": (209, 2),
    "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "open_by_handle_at": (304, 265), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171), "syslog": (103, 116),
    "iopl": (172, -1), "ioperm": (173, -1), "setpriority": (141, 140), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "ioprio_set": (251, 30),
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "timerfd_create": (283, 85),
    "timer_create": (222, 107),
}  # fmt: skip
"""Name → number on x86-64 and on ARM; -1: does not exist."""


@dataclass(frozen=True, slots=True)
class _Machine:
    audit: int
    column: int
    clone: int
    set_affinity: int
    limits: int
    socket: int
    fcntl: int
    clone3: int = 435


_MACHINES = {
    "x86_64": _Machine(0xC000003E, 0, 56, 203, 302, 41, 72),
    "aarch64": _Machine(0xC00000B7, 1, 220, 122, 261, 198, 25),
}
_FAMILIES = (1, 16)
"""``AF_UNIX``, and ``AF_NETLINK``, by which a driver may enumerate devices."""
_DENIED_CONTROLS = (10, 1024, 1026)
"""``F_SETSIG``, ``F_SETLEASE`` and ``F_NOTIFY``. A descriptor could send its process ``SIGCONT``. A lease blocks others from
opening a file, even if its holder can only read it."""
_HOST = 1
"""The host's process id in its sandbox: a runner may neither move it to another core nor limit it."""
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2


class Party(Enum):
    """Who a filter is for: the denied calls that it may make, and the namespaces that it may not create."""

    RUNNER = (frozenset[str](), _NEW_NAMESPACES)
    """Hosts and runners."""
    JUDGE = (frozenset({"process_vm_readv", "process_vm_writev"}), _NEW_NAMESPACES)
    """Reads the outputs of modules in the memory of runners, and writes to them."""
    SUPERVISOR = (
        frozenset({"process_vm_readv", "process_vm_writev", "mount", "umount2", "pivot_root", "setns"}), _NEW_USER_NAMESPACE,
    )  # fmt: skip
    """Starts the sandboxes of judge and hosts; the filters of these come on top."""


def program(machine: str = platform.machine(), party: Party = Party.RUNNER) -> bytes | None:
    """The filter as a BPF program; ``None`` for other CPU architectures."""
    known = _MACHINES.get(machine)
    return b"".join(_instructions(known, *party.value)) if known is not None else None


def install(party: Party) -> None:
    """Filter this process and all that it starts. Needs ``no_new_privs``, which bubblewrap sets. Raises OSError."""
    text = program(party=party)
    if text is None:
        return
    steps = ctypes.create_string_buffer(text, len(text))
    header = struct.pack("@HP", len(text) // 8, ctypes.addressof(steps))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header) != 0:
        raise OSError(ctypes.get_errno(), "the system-call filter cannot be installed")


def _instructions(machine: _Machine, allowed: frozenset[str], namespaces: int) -> Iterator[bytes]:
    denied = _ERRNO | errno.EPERM
    absent = _ERRNO | errno.ENOSYS
    yield _step(_LOAD, _ARCHITECTURE)
    yield from _unless(machine.audit, absent)
    yield _step(_LOAD, _NUMBER)
    if machine.column == 0:
        yield _step(_AT_LEAST, _OTHER_TABLE, 0, 1)
        yield _step(_RETURN, absent)
    for name, numbers in DENIED.items():
        if numbers[machine.column] >= 0 and name not in allowed:
            yield from _when(numbers[machine.column], denied)
    # clone3 takes its flags in memory, which a filter cannot read. The C library falls back to clone, whose flags are checked.
    yield from _when(machine.clone3, absent)
    yield _step(_EQUAL, machine.fcntl, 0, 2 + 2 * len(_DENIED_CONTROLS))
    yield _step(_LOAD, _SECOND_ARGUMENT)
    for control in _DENIED_CONTROLS:
        yield from _when(control, denied)
    yield _step(_RETURN, _ALLOW)
    yield _step(_EQUAL, machine.clone, 0, 4)
    yield _step(_LOAD, _FIRST_ARGUMENT)
    yield _step(_ANY_OF, namespaces, 0, 1)
    yield _step(_RETURN, denied)
    yield _step(_RETURN, _ALLOW)
    yield _step(_EQUAL, machine.set_affinity, 1, 0)
    yield _step(_EQUAL, machine.limits, 0, 4)
    yield _step(_LOAD, _FIRST_ARGUMENT)
    yield _step(_EQUAL, _HOST, 0, 1)
    yield _step(_RETURN, denied)
    yield _step(_RETURN, _ALLOW)
    yield _step(_EQUAL, machine.socket, 0, 5)
    yield _step(_LOAD, _FIRST_ARGUMENT)
    yield _step(_EQUAL, _FAMILIES[0], 1, 0)
    yield _step(_EQUAL, _FAMILIES[1], 0, 1)
    yield _step(_RETURN, _ALLOW)
    yield _step(_RETURN, denied)
    yield _step(_RETURN, _ALLOW)


def _step(code: int, value: int, when: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("<HBBI", code, when, otherwise, value)


def _when(number: int, result: int) -> tuple[bytes, bytes]:
    return _step(_EQUAL, number, 0, 1), _step(_RETURN, result)


def _unless(value: int, result: int) -> tuple[bytes, bytes]:
    return _step(_EQUAL, value, 1, 0), _step(_RETURN, result)


def descriptor(party: Party = Party.RUNNER) -> int | None:
    """A descriptor from which one bubblewrap reads the filter; the caller closes it. ``None`` without a filter."""
    text = program(party=party)
    if text is None:
        return None
    fd = os.memfd_create("filter", os.MFD_CLOEXEC)
    os.write(fd, text)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
