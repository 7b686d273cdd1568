"""What the terminal UI costs while nobody types, through a pseudo-terminal of 120×40: bytes written and share of a core.

At rest: home, a paused replay, ideas that await approval. Then, approved, while their kernels on the CPU are built and
measured: the share is that of the process of engine and screen, without builders, judge and runners. ``benchmarks.screen``
prints these figures with their limits.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SIZE = (120, 40)
REST_CPU_PERCENT = 1.0
RUNNING_CPU_PERCENT = 3.0
REST_BYTES = 50.0
"""Bytes a second: a clock may tick, nothing is drawn again."""
PROGRAM = (sys.executable, "-m", "espalier")
_SEARCH = ("run", "softmax", "--device", "cpu", "--workload", "small", "--rounds", "1", "--ideas", "2", "--branch", "1")


@dataclass(frozen=True, slots=True)
class RestFigure:
    """One measurement of a screen."""

    name: str
    bytes_a_second: float
    cpu_percent: float
    cpu_limit: float
    bytes_limit: float | None


class _Terminal:
    """A program in a pseudo-terminal that is read all the time, as a terminal does."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
        self.process = subprocess.Popen(
            [*PROGRAM, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)

    def read_for(self, seconds: float, until: bytes = b"") -> bytes:
        """What it writes in this time, or until it has written this text."""
        shown, end = b"", time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not (until and until in shown):
            if select.select([self._master], [], [], min(left, 0.5))[0]:
                shown += os.read(self._master, 65536)
        return shown

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def cpu_seconds(self) -> float:
        """Of the process alone, without its children."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.process.terminate()
        with contextlib.suppress(OSError):
            while os.read(self._master, 65536):
                pass
        self.process.wait()
        os.close(self._master)


@contextlib.contextmanager
def _terminal(arguments: tuple[str, ...], environment: dict[str, str]) -> Iterator[_Terminal]:
    found = _Terminal(arguments, environment)
    try:
        yield found
    finally:
        found.close()


def _measured(terminal: _Terminal, name: str, seconds: float, cpu_limit: float, bytes_limit: float | None) -> RestFigure:
    before, begun = terminal.cpu_seconds(), time.monotonic()
    written = len(terminal.read_for(seconds))
    passed = time.monotonic() - begun
    share = 100 * (terminal.cpu_seconds() - before) / passed
    return RestFigure(name, written / passed, share, cpu_limit, bytes_limit)


def rest_figures(environment: dict[str, str], seconds: float) -> Iterator[RestFigure]:
    """Home and a paused replay, at rest; a session's open ideas at rest, then while their kernels run."""
    for name, arguments in (("home", ()), ("replay", ("replay", "softmax"))):
        with _terminal(arguments, environment) as terminal:
            terminal.read_for(15)
            yield _measured(terminal, name, seconds, REST_CPU_PERCENT, REST_BYTES)
    with _terminal((*_SEARCH, "--mode", "ask"), environment) as terminal:
        terminal.read_for(300, b"await approval")
        terminal.read_for(10)
        yield _measured(terminal, "gate", seconds, REST_CPU_PERCENT, REST_BYTES)
        terminal.type(b"A")
        terminal.read_for(3)
        yield _measured(terminal, "running", seconds, RUNNING_CPU_PERCENT, None)


def main() -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="espalier-rest-") as home:
        environment = {**os.environ, "ESPALIER_HOME": home, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        for one in rest_figures(environment, 20.0):
            print(
                f"{one.name}: {one.bytes_a_second:.0f} bytes/s, {one.cpu_percent:.2f} % of a core (limit {one.cpu_limit:g} %)"
            )


if __name__ == "__main__":
    main()
