"""Whether verdicts have become slower: ``python -m benchmarks.verdict_ratio --against REVISION --rounds 5``, in a checkout.

The checkout and another revision of it, in a temporary git worktree, evaluate the same kernels in turns A-B-B-A, each in a
fresh process with caches of its own and the problem prepared before. Prints for each kernel the ratio of the times of a
verdict, this checkout's to the other's, as the median over the turns with its range, and the load of the machine: beside other
work the range is wide. The bound is 1.10.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.verdict_stages import kernels

ROOT = Path(__file__).parents[1]
_BOUND = 1.10
_KINDS = "host,module,wrong"
_EXPECTED = (0, 1, 4)
"""Exit statuses of a verdict: measured, failed, doubted."""


@dataclass(frozen=True)
class Checkout:
    """One revision's files, with caches of its own."""

    code: Path
    caches: Path

    def verdict(self, kernel: Path, device: str) -> float:
        """Evaluate ``kernel`` in a fresh process; the seconds that it took."""
        workload = "small" if device == "cpu" else "full"
        command = [sys.executable, "-m", "espalier", "eval", "softmax", str(kernel), "--workload", workload]
        paths = {"PYTHONPATH": self.code, "ESPALIER_HOME": self.caches / "home", "ESPALIER_CACHE": self.caches / "cache"}
        environment = {**os.environ, **{name: str(path) for name, path in paths.items()}}
        began = time.monotonic()
        done = subprocess.run(
            [*command, "--device", device],
            env=environment,
            cwd=self.code,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in _EXPECTED:
            sys.exit(f"{self.code}: exit status {done.returncode}: {done.stderr}")
        return time.monotonic() - began


@contextmanager
def other_revision(revision: str, folder: Path) -> Iterator[Path]:
    """The files of ``revision`` in a worktree that is removed afterwards."""
    place = folder / "other"
    _git("worktree", "add", "--detach", "--quiet", str(place), revision)
    try:
        yield place
    finally:
        _git("worktree", "remove", "--force", str(place))


def _git(*words: str) -> None:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"git {words[0]}: {done.stderr.strip()}")


def compared(mine: Checkout, other: Checkout, kernel: Path, device: str, rounds: int) -> list[tuple[float, float]]:
    """The seconds of the verdicts in (``mine``, ``other``), turn by turn; the order alternates. One each comes before."""
    for checkout in (mine, other):
        checkout.verdict(kernel, device)
    found = []
    for turn in range(rounds):
        order = (mine, other) if turn % 2 == 0 else (other, mine)
        spent = {checkout.code: checkout.verdict(kernel, device) for checkout in order}
        found.append((spent[mine.code], spent[other.code]))
    return found


def ratio(turns: Sequence[tuple[float, float]]) -> float:
    """The median of mine ÷ other."""
    return statistics.median(mine / other for mine, other in turns)


def summary(kind: str, turns: Sequence[tuple[float, float]]) -> str:
    """One line on one kernel."""
    ratios = [mine / other for mine, other in turns]
    seconds = statistics.median(mine for mine, _ in turns)
    load = os.getloadavg()[0]
    return f"{kind}: {ratio(turns):.3f} [{min(ratios):.3f}, {max(ratios):.3f}], {seconds:.1f} s; load {load:.1f}"


def main() -> None:
    """Print the ratios; exit status 1 if one exceeds the bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", required=True, help="the revision to compare with")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", default=_KINDS, help=f"kernels of verdict_stages; default: {_KINDS}")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the worktree is removed
    chosen = kernels(options.device)
    slower = False
    with tempfile.TemporaryDirectory() as made, other_revision(options.against, Path(made)) as place:
        mine, other = Checkout(ROOT, Path(made) / "mine"), Checkout(place, Path(made) / "theirs")
        for kind in options.kinds.split(","):
            kernel = chosen[kind]
            file = kernel if isinstance(kernel, Path) else Path(made) / f"{kind}.py"
            if not isinstance(kernel, Path):
                file.write_text(kernel)
            turns = compared(mine, other, file, options.device, options.rounds)
            print(summary(kind, turns), flush=True)
            slower |= ratio(turns) > _BOUND
    sys.exit(int(slower))


if __name__ == "__main__":
    main()
