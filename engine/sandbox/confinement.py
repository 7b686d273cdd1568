"""Confinement of commands that read untrusted text: bubblewrap, or resource limits where it does not work.

``Bubblewrap`` shows a compiler its toolchain and one private folder: no home, no network, no /proc, no other process.
``LimitsOnly`` limits memory, file size and CPU time and hides nothing: an ``#include`` of any file that the user can read
shows in the compiler's messages.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

from engine.domain.errors import SandboxError
from engine.sandbox import bubblewrap
from engine.sandbox.process import KEPT_OUTPUT, ProcessResult, run
from engine.sandbox.watchdog import TreeLimits

ConfinementName = Literal["bubblewrap", "limits"]

_SYSTEM_EXTRAS = ("/proc/cpuinfo",)
"""``-march=native`` reads it on ARM."""
_STARTS = 2
"""Attempts at starting bubblewrap for one command."""


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Limits of one confined command; ``None`` is unlimited."""

    seconds: float = 120.0
    """Wall time after which the whole process group is killed."""
    memory_bytes: int | None = 8 << 30
    """Address space of each process. Sanitized programs reserve terabytes and limit themselves."""
    file_bytes: int = 1 << 30
    """Largest file that may be written."""
    processes: int | None = None
    """Processes at once, in a namespace where only the command's count. Not for compilers: they do not run the code."""
    together: TreeLimits | None = None
    """Limits of all its processes together, which the engine watches."""


class Confinement(Protocol):
    """A way to run a command with bounded access and resources."""

    @property
    def name(self) -> ConfinementName: ...

    @property
    def reason(self) -> str:
        """Why there is no stronger confinement; empty for the strongest."""
        ...

    @property
    def limits(self) -> CommandLimits: ...

    def command(self, argv: Sequence[str], readable: Sequence[Path], writable: Sequence[Path]) -> list[str]:
        """The command line that runs ``argv`` confined, with ``writable[0]`` as its working folder.

        The environment is passed unchanged: the caller must clean it.
        """
        ...

    def within(self, limits: CommandLimits) -> Confinement:
        """This confinement with other limits."""
        ...

    def for_programs(self, limits: CommandLimits) -> Confinement:
        """The variant for programs that execute untrusted code: with a private /proc and these limits."""
        ...


@dataclass(frozen=True, slots=True)
class LimitsOnly:
    """Resource limits and nothing else."""

    reason: str = ""
    limits: CommandLimits = field(default_factory=CommandLimits)
    name: ConfinementName = "limits"

    def command(self, argv: Sequence[str], readable: Sequence[Path], writable: Sequence[Path]) -> list[str]:
        return _limited(argv, self.limits)

    def within(self, limits: CommandLimits) -> Confinement:
        return replace(self, limits=limits)

    def for_programs(self, limits: CommandLimits) -> Confinement:
        return replace(self, limits=replace(limits, processes=None))


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """Namespaces by bubblewrap, and the resource limits inside them."""

    executable: str = "bwrap"
    limits: CommandLimits = field(default_factory=CommandLimits)
    name: ConfinementName = "bubblewrap"
    reason: str = ""
    proc: bool = False

    def within(self, limits: CommandLimits) -> Confinement:
        return replace(self, limits=limits)

    def for_programs(self, limits: CommandLimits) -> Confinement:
        return replace(self, limits=limits, proc=True)

    def command(self, argv: Sequence[str], readable: Sequence[Path], writable: Sequence[Path]) -> list[str]:
        words = [self.executable, *bubblewrap.ISOLATION, *bubblewrap.readable([*bubblewrap.SYSTEM, *_SYSTEM_EXTRAS])]
        words += [*(bubblewrap.PROC if self.proc else ()), *bubblewrap.DEV, *bubblewrap.empty(["/tmp"], limited=True)]
        words += [*bubblewrap.mounted("--ro-bind", readable), *bubblewrap.mounted("--bind", writable)]
        folder = ("--chdir", str(writable[0])) if writable else ()
        return [*words, *folder, "--", *_limited(argv, self.limits)]


def _limited(argv: Sequence[str], limits: CommandLimits) -> list[str]:
    """``argv`` under POSIX ``ulimit``: a shell sets its own limits and execs the command.

    CPU time is limited to twice the wall time: a compiler ends even if the engine was killed. Lower limits in force are kept.
    """
    bounds = ["ulimit -c 0", f"ulimit -f {limits.file_bytes // 512}", f"ulimit -t {max(1, round(limits.seconds * 2))}"]
    if limits.memory_bytes is not None:
        bounds.append(f"ulimit -v {limits.memory_bytes // 1024}")
    if limits.processes is not None:  # dash and bash spell it differently
        bounds.append(f"ulimit -p {limits.processes} || ulimit -u {limits.processes}")
    script = f'{{ {"; ".join(bounds)}; }} 2>/dev/null; exec "$@"'
    return ["/bin/sh", "-c", script, "sh", *argv]


def probe(executable: str = "bwrap") -> Confinement:
    """The strongest compiler confinement that works here; ``LimitsOnly.reason`` is why bubblewrap does not."""
    reason = bubblewrap.bubblewrap_reason(executable, proc=False)
    return LimitsOnly(reason) if reason is not None else Bubblewrap(shutil.which(executable) or executable)


@cache
def _probe_once() -> Confinement:
    return probe()


async def detect() -> Confinement:
    """The result of ``probe``, cached for this process."""
    return await asyncio.to_thread(_probe_once)


async def run_confined(
    argv: Sequence[str],
    confinement: Confinement,
    folder: Path,
    readable: Sequence[Path] = (),
    path: Sequence[Path] = (),
    output_bytes: int = KEPT_OUTPUT,
) -> ProcessResult:
    """Run ``argv`` in ``folder``, which it may write, confined and within its limits; once more if bubblewrap did not start.

    Args:
        argv: the command; its first word is looked up in ``path`` and the system's own folders.
        confinement: how to run it.
        folder: private to this run; temporary files go there too.
        readable: files and folders beyond the system's that the command may read.
        path: folders with executables, before the system's.
        output_bytes: how much of its output is kept.

    Raises:
        OSError: the command line cannot be started.
        SandboxError: bubblewrap failed twice, although the probe succeeded.
        asyncio.CancelledError: after the whole process group has ended.
    """
    environment = {
        "PATH": ":".join([*map(str, path), "/usr/bin", "/bin"]),
        "LANG": "C",
        "LC_ALL": "C",
        "TMPDIR": str(folder),
    }
    words = confinement.command(argv, readable, (folder,))
    failed: list[str] = []
    while len(failed) < _STARTS:
        result = await run(
            words,
            seconds=confinement.limits.seconds,
            folder=folder,
            environment=environment,
            output_bytes=output_bytes,
            limits=confinement.limits.together,
        )
        reason = bubblewrap.own_error(result.output) if result.status != 0 and confinement.name == "bubblewrap" else ""
        if not reason:
            return result
        if not failed:
            bubblewrap.will_retry(reason)
        failed.append(reason)
    raise SandboxError(f"bubblewrap failed {_STARTS} times: {'; then '.join(dict.fromkeys(failed))}")
