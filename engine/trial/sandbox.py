"""A host process in its sandbox, seen from the judge: start it, fork runners in it, freeze them, reap them, end it.

With bubblewrap the host has no network, a read-only file system that holds Python, torch, the compiler's libraries and nothing
of the user's, a private ``/tmp`` and a process-id space of its own; when its first process dies, everything in it dies. Without
bubblewrap only resource limits are left, and every verdict says so.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import engine
from engine.build.confinement import UNWRITABLE
from engine.domain.errors import SandboxError
from engine.trial import syscalls
from engine.trial.interference import known_here
from engine.trial.wire import (
    NOBODY,
    PRIVATE,
    Channel,
    ChannelClosed,
    ChannelGarbled,
    ChannelTimeout,
    Ended,
    Freeze,
    HostReply,
    Message,
    Moving,
    Reap,
    Rests,
    Spawn,
    Spawned,
    Still,
    Thaw,
    ThawCompany,
)

_START_S = 120.0
_ANSWER_S = 20.0
_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/ld.so.conf.d", "/etc/passwd", "/etc/nsswitch.conf", "/opt/nvidia",
)  # fmt: skip
_NEEDED = ("torch", "msgspec", "numpy")
"""Packages that a runner imports, wherever they were installed."""
_LARGEST_FOLDER = 1 << 30
"""Bytes that ``/tmp`` and ``/dev/shm`` of a sandbox may each hold."""
_NVIDIA = ("/dev/nvidia*", "/dev/nvidia-caps/*")


def bubblewrap_reason() -> str | None:
    """Why bubblewrap cannot be used here, or ``None`` when it works. Runs it once."""
    if shutil.which("bwrap") is None:
        return "bubblewrap (bwrap) is not installed"
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not run here: {error}"
    if done.returncode == 0:
        return None
    first = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[0]
    return f"bubblewrap does not work here: {first}"


@cache
def filter_reason() -> str | None:
    """Why no filter of system calls can be put in force in bubblewrap here, or ``None`` when it works. Runs it once."""
    fd = syscalls.descriptor()
    if fd is None:
        return "system calls are not filtered: this machine's are not known"
    command = ["bwrap", "--ro-bind", "/", "/", "--seccomp", str(fd), "true"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, check=False, pass_fds=(fd,))
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"system calls are not filtered: {error}"
    finally:
        os.close(fd)
    if done.returncode == 0:
        return None
    first = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[0]
    return f"system calls are not filtered: {first}"


@cache
def _folder_size() -> tuple[str, ...]:
    """A limit on a private folder, which lies in memory, where this bubblewrap knows how to set one."""
    told = subprocess.run(["bwrap", "--help"], capture_output=True, timeout=20, check=False).stdout
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return ("--size", str(min(_LARGEST_FOLDER, memory // 16))) if b"--size" in told else ()


def _python_folders() -> Iterator[str]:
    """Everything a Python process of this installation reads, and nothing above it."""
    yield from {sys.prefix, sys.base_prefix, *(sysconfig.get_paths().values()), *site.getsitepackages()}
    yield os.path.dirname(os.path.realpath(sys.executable))
    for package in _NEEDED:
        spec = importlib.util.find_spec(package)
        if spec is not None:
            yield from (os.path.dirname(place) for place in spec.submodule_search_locations or ())


def _beneath(folder: str, roots: Sequence[str]) -> bool:
    return any(folder == root or folder.startswith(root + "/") for root in roots)


def _steps(folders: Iterable[str]) -> list[str]:
    """The first folder below a private one on the way to what must be seen there, as where Python itself was installed in
    ``/tmp``. Each is mounted by itself, so that no kernel can write to it, move it or take it away."""
    steps = set()
    for folder in folders:
        for private in PRIVATE:
            if folder.startswith(private + "/"):
                steps.add("/".join(folder.split("/")[: private.count("/") + 2]))
    return sorted(steps)


def _confined(command: Sequence[str], device: str, seccomp: int | None = None, readable: Sequence[Path] = ()) -> list[str]:
    package = Path(engine.__file__).parent
    python = sorted(folder for folder in set(_python_folders()) if not _beneath(folder, ("/usr", "/bin", "/lib")))
    steps = [step for step in _steps([*python, str(package)]) if step not in python]
    argv = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--unshare-user"]
    # As its first process the host can be neither killed nor stopped from within.
    argv += ["--as-pid-1", "--proc", "/proc", *UNWRITABLE, "--dev", "/dev"]
    if seccomp is not None:
        argv += ["--seccomp", str(seccomp)]
    for folder in PRIVATE:
        argv += [*_folder_size(), "--tmpfs", folder]
    for folder in steps:
        argv += ["--tmpfs", folder]
    for folder in _SYSTEM:
        argv += ["--ro-bind-try", folder, folder]
    for folder in python:
        argv += ["--ro-bind-try", folder, folder]
    argv += ["--ro-bind", str(package), str(package)]
    # The shipped references, wherever an installation put them: no kernel may find the answer on disk.
    for place in sorted({str(package.parent), sysconfig.get_paths()["purelib"], *site.getsitepackages()}):
        shipped = Path(place) / "engine" / "_shipped"
        if shipped.is_dir():
            argv += ["--tmpfs", str(shipped), "--remount-ro", str(shipped)]
    for more in readable:
        argv += ["--ro-bind", str(more), str(more)]
    if device != "cpu":
        argv += ["--ro-bind", "/sys", "/sys", "--ro-bind-try", "/usr/local/nvidia", "/usr/local/nvidia"]
        for pattern in _NVIDIA:
            for node in glob.glob(pattern):
                argv += ["--dev-bind", node, node]
    # What bubblewrap made for the mounts to lie on is in memory too, and nobody's to write.
    for folder in (*steps, "/dev", "/"):
        argv += ["--remount-ro", folder]
    return [*argv, "--chdir", "/tmp", "--", *command]


@contextlib.contextmanager
def _system_calls(*, filtered: bool) -> Iterator[int | None]:
    """The filter's descriptor while a bubblewrap is started; ``None`` where there is no filter."""
    fd = syscalls.descriptor() if filtered and filter_reason() is None else None
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


_STEADY = {
    # Freed memory is kept (see ``modules.warm_heap``).
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""What makes times on a CPU repeat, beside ``_pinned``. Not for a GPU's runners: held on one core, their contexts would be
made one by one."""


def _pinned() -> dict[str, str]:
    """A core of its own for each thread of a team: two on one spin against each other for whole time slices.

    Cores are named one by one. For ``threads`` OpenMP would read the machine's topology, which a sandbox does not show, and pin
    nobody.
    """
    places = ",".join(f"{{{core}}}" for core in sorted(os.sched_getaffinity(0)))
    return {"OMP_PROC_BIND": "close", "OMP_PLACES": places}


def _environment(device: str, *, alone: bool, threads: int) -> dict[str, str]:
    """What a host may see of the environment: nothing that could hold a key."""
    kept = {
        name: os.environ[name]
        for name in ("LD_LIBRARY_PATH", "CUDA_HOME", "PATH", "CUDA_VISIBLE_DEVICES")
        if name in os.environ
    }
    package_root = str(Path(engine.__file__).parent.parent)
    others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([package_root, *others])),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(threads),
        "ESPALIER_DEVICE": device,
        "CUDA_MODULE_LOADING": "LAZY",
        "CUDA_CACHE_DISABLE": "1",
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # a pool of workers does not live through being stopped
        "TRITON_CACHE_DIR": "/tmp/triton",
        "TORCH_EXTENSIONS_DIR": "/tmp/extensions",
        **({"ESPALIER_ALONE": "1"} if alone else {}),
        **({**_STEADY, **_pinned()} if device == "cpu" else {}),
    }


def python_once(
    module: str, arguments: Sequence[Path | str], device: str, before: Sequence[str], readable: Sequence[Path], *,
    confined: bool, threads: int = 1,
) -> tuple[list[str], dict[str, str]]:  # fmt: skip
    """Command line and environment to run one of our modules by itself in a sandbox like a runner's, behind other words."""
    command = [*before, sys.executable, "-s", "-P", "-m", module, *(str(a) for a in arguments)]
    environment = _environment(device, alone=confined, threads=threads)
    return (_confined(command, device, None, readable) if confined else command), environment


@dataclass(frozen=True, slots=True)
class RunnerHandle:
    """A runner as the judge sees it: a channel, the pid that its host knows it by, and the one it has here if it is known."""

    pid: int
    channel: Channel
    here: int | None = None


class Host:
    """One host process. ``confined`` says whether bubblewrap holds it."""

    def __init__(self, device: str, threads: int, *, confined: bool) -> None:
        self._device = device
        self._threads = threads
        self.confined = confined
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._up = False

    def launch(self) -> None:
        """Start it without waiting for it to come up, or do nothing where that was done."""
        if self._process is not None:
            return
        self._channel, theirs = Channel.pair()
        command = [sys.executable, "-s", "-P", "-m", "engine.trial.host", str(theirs.fileno())]
        environment = _environment(self._device, alone=self.confined, threads=self._threads)
        with theirs, _system_calls(filtered=self.confined) as seccomp:
            argv = _confined(command, self._device, seccomp) if self.confined else command
            passed = (theirs.fileno(), *([seccomp] if seccomp is not None else []))
            self._process = subprocess.Popen(
                argv, pass_fds=passed, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, start_new_session=True, cwd="/",
            )  # fmt: skip

    def start(self) -> None:
        """Have it running. Raises SandboxError when it does not come up."""
        if self._up and self._process is not None and self._process.poll() is not None:
            self.close()
        if self._up:
            return
        self.launch()
        assert self._process is not None
        assert self._channel is not None
        try:
            self._channel.receive(HostReply, _START_S)
        except (ChannelClosed, ChannelTimeout, ChannelGarbled) as error:
            message = self._last_words()
            self.close()
            raise SandboxError(f"the trial's host process did not start: {message or type(error).__name__}") from error
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._up = True

    def _last_words(self) -> str:
        process = self._process
        if process is None or process.stderr is None:
            return ""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        lines = process.stderr.read()[-4000:].decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def spawn(self) -> RunnerHandle:
        """A fresh runner. Starts the host again when a kernel has taken it down. Raises SandboxError."""
        for _ in range(2):
            self.start()
            channel, theirs = Channel.pair()
            with theirs:
                try:
                    reply = self._ask(Spawn(), (theirs.fileno(),))
                except SandboxError:
                    self.close()
                    continue
            assert isinstance(reply, Spawned)
            return RunnerHandle(reply.pid, channel, self._known_here(reply.pid))
        raise SandboxError("the trial's host process died twice while forking a runner; is the machine out of memory?")

    def _known_here(self, pid: int) -> int | None:
        assert self._process is not None
        return known_here(pid, self._process.pid) if self.confined else pid

    def freeze(self, runner: RunnerHandle) -> None:
        """Stop everything of the candidate's, so that nothing is written while its outputs are judged."""
        self._ask(Freeze(runner.pid))

    def at_rest(self, runner: RunnerHandle) -> Rests | Moving:
        """Whether everything that was frozen has come to rest; processes that wake each other never do."""
        reply = self._ask(Still(runner.pid))
        assert isinstance(reply, Rests | Moving)
        return reply

    def thaw(self, runner: RunnerHandle) -> None:
        """Let a runner run; the others of this host stay frozen."""
        self._ask(Thaw(runner.pid))

    def thaw_company(self, _: RunnerHandle) -> None:
        """Let run what is no runner; the runners stay as they are."""
        self._ask(ThawCompany())

    def thaw_all(self, _: RunnerHandle) -> None:
        """Let every runner run, so that they get ready side by side."""
        self._ask(Thaw(NOBODY))

    def reap(self, runner: RunnerHandle) -> Ended:
        """Kill a runner with all it left behind. A host that does not answer is killed as a whole."""
        runner.channel.close()
        try:
            reply = self._ask(Reap(runner.pid))
        except SandboxError:
            self.close()
            return Ended(-1, 0, 0)
        assert isinstance(reply, Ended)
        return reply

    def _ask(self, request: Message, fds: Sequence[int] = ()) -> HostReply:
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
        """End the host and everything in its sandbox."""
        if self._channel is not None:
            self._channel.close()
        process, self._process, self._channel, self._up = self._process, None, None, False
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
