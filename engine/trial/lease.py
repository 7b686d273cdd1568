"""The lease on a device: one process at a time measures on it, in the order in which they asked. No torch.

Each device has a folder of tickets. A process that wants the device adds a ticket with the next number and keeps it locked.
The device belongs to the lowest locked ticket. Locks are held by the kernel: a process that dies gives its place back at once,
and a ticket without a lock is skipped. The lease is advisory, and machine-wide: users share the folder, and nobody can remove
another user's ticket.

A holder keeps the lease between two uses until another process asks for it: no judge is restarted for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import pwd
import stat
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.domain.device_waits import free_text, waiting_text
from engine.domain.errors import EspalierError

LEASES = "ESPALIER_LEASES"
"""Environment variable: the folder of leases. Containers that share a device share this folder."""
_SHARED = Path("/tmp/espalier-leases")
_QUEUE, _DEVICE = "queue", "device"
"""Files that are locked while a ticket is added, and while the device is held."""
_POLL_S, _LONG_POLL_S, _HEARTBEAT_S = 0.05, 0.25, 5.0
"""Seconds between two looks at the queue, at first and once the wait was reported; and between two reports."""
_SLICE_S = 30.0
"""Seconds after which a holder gives the device to a waiting process, between two uses."""
_IDLE_S = 0.5
"""Seconds without use after which it does so at once: a process awaits its engineer, or a compiler."""
_LONGEST_TICKET = 4096

Say = Callable[[str], None]


def lease_folder() -> Path:
    """The folder of all leases: ESPALIER_LEASES, else one in /tmp, which all users of the machine share."""
    named = os.environ.get(LEASES)
    return Path(named).absolute() if named else _SHARED


def device_key(label: str) -> str:
    """The name of a device on this machine: a GPU's UUID, or ``cores``."""
    if label == "cpu":
        return "cores"
    index = int(label.partition(":")[2] or 0)
    return _gpu_uuid(index) or f"cuda-{index}"


def _gpu_uuid(index: int) -> str:
    """The UUID of a GPU, or of a part of one (MIG), as the driver numbers them; empty without a driver."""
    device, uuid = ctypes.c_int(0), ctypes.create_string_buffer(16)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        get = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
        if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index) or get(ctypes.byref(uuid), device):
            return ""
    except (OSError, AttributeError):
        return ""
    return f"gpu-{uuid.raw.hex()}"


@dataclass(frozen=True, slots=True)
class Ticket:
    """A living process in the queue of a device."""

    number: int
    pid: int
    user: str
    """Empty if it is the user of this process."""
    cores: tuple[int, ...] = ()
    """The cores that it wants, of the machine's; empty: the whole device."""

    def conflicts(self, cores: tuple[int, ...]) -> bool:
        """Whether it excludes a process that wants ``cores``."""
        return not (self.cores and cores) or bool(set(self.cores) & set(cores))

    def describe(self) -> str:
        """``process 4711``, with its user if that is another one."""
        stopped = " (stopped)" if _is_stopped(self.pid) else ""
        return f"process {self.pid}{f' of {self.user}' if self.user else ''}{stopped}"


@dataclass(frozen=True, slots=True)
class DeviceQueue:
    """Who holds a device and who waits for it."""

    device: str
    """As ``device_key``."""
    tickets: tuple[Ticket, ...]
    """The holder first."""


def queues() -> tuple[DeviceQueue, ...]:
    """The devices that are held on this machine."""
    found = []
    with contextlib.suppress(OSError):
        for folder in sorted(lease_folder().iterdir()):
            with contextlib.suppress(OSError), _opened_folder(folder) as fd:
                tickets = tuple(_living(fd))
                found += [DeviceQueue(folder.name, tickets)] if tickets else []
    return tuple(found)


class QueuePlace:
    """A place in the queue of one device, until ``leave`` or the end of this process. Raises OSError."""

    def __init__(self, folder: Path, cores: tuple[int, ...] = ()) -> None:
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._cores = cores
        self._files: list[int] = []
        self.number, self._name = 0, ""

    @classmethod
    async def join(cls, folder: Path, cores: tuple[int, ...] = ()) -> QueuePlace:
        """A new place at the end of the queue, for the whole device or for some of the machine's cores."""
        place = cls(folder, cores)
        try:
            await place._take_ticket()
        except BaseException:
            place.leave()
            raise
        return place

    async def _take_ticket(self) -> None:
        queue = _lock_file(self._folder, _QUEUE)
        try:
            while not _locked(queue):  # held for microseconds
                await asyncio.sleep(_POLL_S / 10)
            self.number = max(_numbers(self._folder), default=0) + 1
            self._name = f"{self.number:012d}"
            mode = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
            self._files.append(os.open(self._name, mode, 0o644, dir_fd=self._folder))
            fcntl.flock(self._files[0], fcntl.LOCK_EX)  # only a reader of the queue can hold it, for microseconds
            os.write(self._files[0], json.dumps({"pid": os.getpid(), "cores": self._cores}).encode())
        finally:
            os.close(queue)

    def ahead(self) -> tuple[Ticket, ...]:
        """The living processes before this one that exclude it; removes what dead ones have left."""
        return tuple(ticket for ticket in _living(self._folder, below=self.number) if ticket.conflicts(self._cores))

    def wanted(self) -> bool:
        """Whether another living process that it excludes is in the queue."""
        try:
            return any(one.number != self.number and one.conflicts(self._cores) for one in _living(self._folder))
        except OSError:
            return False

    def try_hold(self) -> bool:
        """Take the device, if nobody ahead excludes it. The device's own lock also holds where somebody removed tickets."""
        if self.ahead():
            return False
        device = _lock_file(self._folder, _DEVICE)
        if not _locked(device, fcntl.LOCK_SH if self._cores else fcntl.LOCK_EX):
            os.close(device)
            return False
        self._files.append(device)
        return True

    def leave(self) -> None:
        """Give up the place, and the device if it is held; idempotent."""
        folder, self._folder = self._folder, -1
        if folder < 0:
            return
        if self._files:
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=folder)
        for fd in (*self._files, folder):
            os.close(fd)


class Lease:
    """This process's lease on one device. Uses may overlap and nest; ``evict`` ends what occupies the device before it is given
    to another process."""

    def __init__(self, label: str, evict: Callable[[], None], cores: tuple[int, ...] = ()) -> None:
        """``cores``: the machine's cores to hold, instead of all of them."""
        self._label = label
        self._cores = cores
        self._evict = evict
        self._place: QueuePlace | None = None
        self._users = 0
        self._since = self._last_used = 0.0
        self._guard = threading.Lock()
        self._entering = asyncio.Lock()
        self._watched = threading.Event()
        self.waited_s = 0.0
        """Seconds that uses have waited for the device."""
        self.note = ""
        """Why there is no lease; empty if there is one."""

    @contextlib.asynccontextmanager
    async def held(self, say: Say) -> AsyncIterator[None]:
        """Wait for the device and hold it; ``say`` gets a line on whom it waits for.

        Where the common folder cannot be used, ``say`` gets a line on that and the device is used without a lease. Raises
        EspalierError if the folder was named by ESPALIER_LEASES.
        """
        await self._enter(say)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, say: Say) -> None:
        async with self._entering:
            with self._guard:
                if self._users == 0 and self._place is not None and self._slice_is_over() and self._place.wanted():
                    self._release()
                if self._place is not None or self.note or self._users:
                    self._users += 1
                    return
            began = time.monotonic()
            try:
                place = await self._wait(say)
            except OSError as error:
                self._without(error, say)
                place = None
            with self._guard:
                self.waited_s += time.monotonic() - began
                self._place, self._since, self._users = place, time.monotonic(), self._users + 1
            if place is not None:
                self._watched = threading.Event()
                threading.Thread(target=self._watch, args=(self._watched,), name="lease", daemon=True).start()

    def _leave(self) -> None:
        with self._guard:
            self._users -= 1
            self._last_used = time.monotonic()

    def _slice_is_over(self) -> bool:
        return time.monotonic() - self._since > _SLICE_S

    async def _wait(self, say: Say) -> QueuePlace:
        folder = _device_folder(device_key(self._label))
        place = await QueuePlace.join(folder, self._cores)
        shown, shown_at = "", 0.0
        try:
            while not place.try_hold():
                text = _waiting_text(self._label, place.ahead())
                if text and (text != shown or time.monotonic() - shown_at > _HEARTBEAT_S):
                    shown, shown_at = text, time.monotonic()
                    say(text)
                await asyncio.sleep(_LONG_POLL_S if shown else _POLL_S)
        except BaseException:
            place.leave()
            raise
        if shown:
            say(free_text(self._label))
        return place

    def _without(self, error: OSError, say: Say) -> None:
        reason = f"the folder of leases {lease_folder()} cannot be used: {error.strerror or error}"
        if os.environ.get(LEASES):
            raise EspalierError(f"{reason}; set {LEASES} to a folder that every user of the device can write") from error
        self.note = f"no lease on {self._label}: {reason}"
        say(f"{self.note}; another process may measure at the same time")

    def _watch(self, ended: threading.Event) -> None:
        """Give the device to a process that waits while it is not used here. A thread: the event loop may not be running."""
        while not ended.wait(_LONG_POLL_S):
            with self._guard:
                idle = self._users == 0 and time.monotonic() - self._last_used > _IDLE_S
                if idle and self._place is not None and self._place.wanted():
                    self._release()

    def _release(self) -> None:
        place, self._place = self._place, None
        self._watched.set()
        if place is not None:
            try:
                self._evict()
            finally:
                place.leave()

    def close(self) -> None:
        """Give the device back, after everything that used it has ended; idempotent."""
        with self._guard:
            place, self._place = self._place, None
            self._watched.set()
            if place is not None:
                place.leave()


def _waiting_text(label: str, ahead: tuple[Ticket, ...]) -> str:
    if not ahead:
        return ""
    others = f", {len(ahead) - 1} ahead" if len(ahead) > 1 else ""
    return waiting_text(label, f"{ahead[0].describe()}{others}")


def _device_folder(key: str) -> Path:
    """The folder of a device, made if it is missing: any user can add files, and remove only their own. Raises OSError."""
    root = lease_folder()
    for folder in (root, root / key):
        try:
            folder.mkdir()
            folder.chmod(0o1777)
        except FileExistsError:
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise NotADirectoryError(20, f"{folder.name} is not a folder") from None
    return root / key


@contextlib.contextmanager
def _opened_folder(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _lock_file(folder: int, name: str) -> int:
    """A file that all users lock, opened. Reading is enough to lock it. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDONLY | os.O_CLOEXEC, 0o644, dir_fd=folder))
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)


def _locked(fd: int, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _numbers(folder: int) -> list[int]:
    return sorted(int(name) for name in os.listdir(folder) if name.isdigit())


def _living(folder: int, below: int = sys.maxsize) -> Iterator[Ticket]:
    """The tickets of living processes in order, up to a number. Others are removed, where this user may.

    Without ``below`` nothing is removed: a new ticket is not locked yet.
    """
    for number in _numbers(folder):
        if number >= below:
            return
        name = f"{number:012d}"
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            continue  # it has just left
        try:
            if not _locked(fd, fcntl.LOCK_SH):
                yield _read_ticket(fd, number)
            elif below != sys.maxsize:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
        finally:
            os.close(fd)


def _read_ticket(fd: int, number: int) -> Ticket:
    pid = 0
    cores: tuple[int, ...] = ()
    with contextlib.suppress(ValueError, KeyError, TypeError):
        written = json.loads(os.pread(fd, _LONGEST_TICKET, 0))
        pid = int(written["pid"])
        cores = tuple(int(core) for core in written.get("cores", ()))
    owner = os.fstat(fd).st_uid
    user = ""
    if owner != os.geteuid():
        try:
            user = pwd.getpwuid(owner).pw_name
        except KeyError:
            user = f"user {owner}"
    return Ticket(number, pid, user, cores)


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "Tt"
    except (OSError, IndexError):
        return False
