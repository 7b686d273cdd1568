"""What a compiler may touch while it reads a stranger's source: two confinements, and which of them works here.

``Bubblewrap`` shows the compiler its toolchain and one private folder: no home, no network, no /proc, no other
process. ``LimitsOnly`` bounds memory, file size and processor time, and hides nothing: an ``#include`` of any file
the user can read reaches the compiler's messages. Knows nothing of compilers; running commands is ``process``'s job.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from engine.build.process import KEPT_OUTPUT, ProcessResult, run
from engine.domain.errors import SandboxError

ConfinementName = Literal["bubblewrap", "limits"]

_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64")
_SYSTEM_EXTRAS = ("/etc/alternatives", "/etc/ld.so.cache", "/proc/cpuinfo")
"""Debian's compiler links, the loader's cache, and what ``-march=native`` reads on ARM."""
UNWRITABLE = tuple(word for place in ("/proc/sys", "/proc/sysrq-trigger") for word in ("--ro-bind-try", place, place))
"""Behind ``--proc``: files that root may write to without any capability, which bubblewrap then does not cover."""


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Bounds of one confined command. ``None`` is no bound."""

    seconds: float = 120.0
    """Wall time, after which the whole process group is killed."""
    memory_bytes: int | None = 8 << 30
    """Address space of each process; the sanitizers reserve terabytes of it, and bound themselves."""
    file_bytes: int = 1 << 30
    """Largest file that may be written."""
    processes: int | None = None
    """At most so many at once, where only the command's own are counted. A compiler runs no code of the source's."""


class Confinement(Protocol):
    """A way to run a command that keeps it from what it has no business with."""

    @property
    def name(self) -> ConfinementName: ...

    @property
    def reason(self) -> str:
        """Why there is no stronger confinement; empty when there is nothing to say."""
        ...

    @property
    def limits(self) -> CommandLimits: ...

    def command(self, argv: Sequence[str], readable: Sequence[Path], writable: Sequence[Path]) -> list[str]:
        """The command line that runs ``argv`` confined, with ``writable[0]`` as its working folder.

        The environment is the caller's to scrub: what the command line is started with is what ``argv`` sees.
        """
        ...

    def for_programs(self, limits: CommandLimits) -> Confinement:
        """The same for what a compiler made, which runs a stranger's code: with /proc of its own, and these limits."""
        ...


@dataclass(frozen=True, slots=True)
class LimitsOnly:
    """Resource limits and nothing else."""

    reason: str = ""
    limits: CommandLimits = field(default_factory=CommandLimits)
    name: ConfinementName = "limits"

    def command(self, argv: Sequence[str], readable: Sequence[Path], writable: Sequence[Path]) -> list[str]:
        return _limited(argv, self.limits)

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

    def for_programs(self, limits: CommandLimits) -> Confinement:
        return replace(self, limits=limits, proc=True)

    def command(self, argv: Sequence[str], readable: Sequence[Path], writable: Sequence[Path]) -> list[str]:
        words = [self.executable, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        for folder in _SYSTEM:
            words += ["--ro-bind-try", folder, folder]
        for extra in _SYSTEM_EXTRAS:
            words += ["--ro-bind-try", extra, extra]
        words += [*(["--proc", "/proc", *UNWRITABLE] if self.proc else []), "--dev", "/dev", "--tmpfs", "/tmp"]
        for path in readable:
            words += ["--ro-bind", str(path), str(path)]
        for path in writable:
            words += ["--bind", str(path), str(path)]
        if writable:
            words += ["--chdir", str(writable[0])]
        return [*words, "--", *_limited(argv, self.limits)]


def _limited(argv: Sequence[str], limits: CommandLimits) -> list[str]:
    """``argv`` under POSIX ``ulimit``: the shell sets its own limits and becomes the command.

    Processor time is bounded at twice the wall time, so that a compiler whose keeper was killed ends by itself. Where a
    lower limit is in force already, it stays.
    """
    bounds = ["ulimit -c 0", f"ulimit -f {limits.file_bytes // 512}", f"ulimit -t {max(1, round(limits.seconds * 2))}"]
    if limits.memory_bytes is not None:
        bounds.append(f"ulimit -v {limits.memory_bytes // 1024}")
    if limits.processes is not None:  # spelled in two ways
        bounds.append(f"ulimit -p {limits.processes} || ulimit -u {limits.processes}")
    script = f'{{ {"; ".join(bounds)}; }} 2>/dev/null; exec "$@"'
    return ["/bin/sh", "-c", script, "sh", *argv]


class _Detected:
    """The answer of the first probe, for the life of this process."""

    confinement: Confinement | None = None


async def detect() -> Confinement:
    """The strongest confinement that works here: bubblewrap is run once to see, and the answer kept.

    A ``LimitsOnly`` says in ``reason`` why bubblewrap is not to be had.
    """
    if _Detected.confinement is None:
        _Detected.confinement = await probe()
    return _Detected.confinement


async def probe(executable: str = "bwrap") -> Confinement:
    """Run bubblewrap now and see; ``detect`` keeps the answer of this."""
    path = shutil.which(executable)
    if path is None:
        return LimitsOnly("bubblewrap (bwrap) is not installed")
    confinement = Bubblewrap(path)
    try:
        result = await run(confinement.command(["/bin/true"], (), ()), seconds=10.0)
    except OSError as error:
        return LimitsOnly(f"bubblewrap does not start: {error.strerror}")
    if result.status == 0:
        return confinement
    return LimitsOnly(f"bubblewrap does not work here: {_first_line(result)}")


def _first_line(result: ProcessResult) -> str:
    lines = [line.strip() for line in result.output.splitlines() if line.strip()]
    return lines[0] if lines else ("no answer in 10 s" if result.timed_out else f"exit status {result.status}")


async def run_confined(
    argv: Sequence[str],
    confinement: Confinement,
    folder: Path,
    readable: Sequence[Path] = (),
    path: Sequence[Path] = (),
    output_bytes: int = KEPT_OUTPUT,
) -> ProcessResult:
    """Run ``argv`` in ``folder``, which it may write, within ``confinement`` and its limits.

    Args:
        argv: the command; its first word is looked up in ``path`` and the system's own folders.
        confinement: how to run it.
        folder: private to this run; temporary files go there too.
        readable: files and folders beyond the system's that the command may read.
        path: folders with executables, before the system's.
        output_bytes: of its output, how much is kept.

    Raises:
        OSError: the command line cannot be started.
        SandboxError: bubblewrap itself failed, though it had worked when it was tried.
        asyncio.CancelledError: after the whole process group is gone.
    """
    environment = {
        "PATH": ":".join([*map(str, path), "/usr/bin", "/bin"]),
        "LANG": "C",
        "LC_ALL": "C",
        "TMPDIR": str(folder),
    }
    words = confinement.command(argv, readable, (folder,))
    result = await run(
        words,
        seconds=confinement.limits.seconds,
        folder=folder,
        environment=environment,
        output_bytes=output_bytes,
    )
    if result.status != 0 and confinement.name == "bubblewrap" and result.output.startswith("bwrap: "):
        raise SandboxError(f"bubblewrap failed: {result.output.splitlines()[0].removeprefix('bwrap: ')}")
    return result
