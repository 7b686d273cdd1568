"""Calls a CPU kernel many times outside a trial and samples the program counter of its threads during the calls.

``python -m engine.trial.runner.sample_loop SAMPLER WHOLE FLUSH SPEC INPUTS``: ``SAMPLER`` is the built ``pc_sampler.cpp``,
``WHOLE`` is 1 for a kernel that starts threads in its calls (a timer of the whole process, which fires less often), the others
are as for ``profile_loop``. The last line of output holds the samples (``SampledAddresses``). A kernel could forge them: they
count for no verdict. Imports torch.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from engine.trial.messages import SAMPLED_ADDRESSES, SampledAddresses
from engine.trial.runner.profile_loop import Work, calling

_INTERVAL_NS = 100_000
_ENOUGH = 4000
_LEAST_S, _MOST_S = 0.5, 5.0
_CALLER = ("python", "libpython", "_ctypes", "libffi", "pc_sampler")
"""Beginnings of the names of files that call the kernel and are no part of it."""
_UNMAPPED = "unknown"
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class Mapping:
    """Code that the loader has mapped. ``base`` is the address of the file's beginning."""

    start: int
    end: int
    base: int
    path: str


class Sampler:
    """The program counter of this process's threads, sampled while ``around`` runs."""

    def __init__(self, library: str, flush: int) -> None:
        self._library = ctypes.CDLL(library)
        self._library.first_sample.restype = ctypes.c_void_p
        self._library.samples_taken.restype = ctypes.c_long
        self._walked = np.zeros(flush // 8)

    def start(self, *, whole: bool) -> None:
        """Sample the threads that run now, or the ``whole`` process. Exits if the system refuses."""
        begin = self._library.sample_process if whole else self._library.sample_threads
        if not begin(ctypes.c_long(_INTERVAL_NS)):
            sys.exit("this system refuses timers: no program counter was sampled")

    def around(self, work: Work) -> None:
        """Run work, whose samples count."""
        if self._walked.size:
            np.add(self._walked, 1.0, out=self._walked)
        self._library.count_samples(1)
        work()
        self._library.count_samples(0)

    @property
    def taken(self) -> int:
        return int(self._library.samples_taken())

    def stop(self) -> list[tuple[int, int]]:
        """End sampling; the samples as (address, thread)."""
        self._library.stop_sampling()
        pairs = (ctypes.c_int64 * 2 * self.taken).from_address(self._library.first_sample())
        return [(pair[0], pair[1]) for pair in pairs]


def main() -> None:
    """Sample calls until there are enough. Exits with status 1 and one line if the kernel cannot be called."""
    library, whole, flush, spec, inputs = sys.argv[1:]
    own = os.dup(sys.stdout.fileno())
    # A kernel's output is dropped: it could push out the last line.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sampler = Sampler(library, int(flush))
    load, call = calling(Path(spec), Path(inputs), sampler.around)
    sampler.start(whole=whole == "1")
    began = time.monotonic()
    while (passed := time.monotonic() - began) < _MOST_S and (passed < _LEAST_S or sampler.taken < _ENOUGH):
        call()
    mappings = read_mappings(Path("/proc/self/maps").read_text().splitlines())
    found = by_place(sampler.stop(), mappings, os.path.realpath(load.source))
    os.write(own, b"\n" + SAMPLED_ADDRESSES.encode() + msgspec.json.encode(found) + b"\n")


def read_mappings(lines: Iterable[str]) -> list[Mapping]:
    """The executable mappings of ``/proc/PID/maps``, by address."""
    bases: dict[str, int] = {}
    found = []
    for line in lines:
        span, access, offset, _, _, *path = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        name = path[0] if path else ""
        base = bases.setdefault(name, start - int(offset, 16))
        if "x" in access:
            found.append(Mapping(start, end, base, name))
    return found


def by_place(samples: Sequence[tuple[int, int]], mappings: Sequence[Mapping], kernel: str) -> SampledAddresses:
    """Count samples by address in the file ``kernel`` and by name of every other file.

    Threads that were never seen in the kernel are left out: they idle. So is whatever calls the kernel.
    """
    starts = [one.start for one in mappings]
    placed = [(address, thread, _mapping_at(address, mappings, starts)) for address, thread in samples]
    working = {thread for _, thread, place in placed if place is not None and place.path == kernel}
    inside: Counter[int] = Counter()
    elsewhere: Counter[str] = Counter()
    for address, thread, place in placed:
        if place is not None and place.path == kernel:
            inside[address - place.base] += 1
        elif thread in working:
            elsewhere[_file_name(place)] += 1
    outside = {name: count for name, count in elsewhere.items() if not name.startswith(_CALLER)}
    return SampledAddresses(dict(inside), outside)


def _file_name(place: Mapping | None) -> str:
    name = os.path.basename(place.path) if place is not None else ""
    return re.sub(r"[^\w.+\[\]-]", "_", name)[:_LONGEST_NAME] or _UNMAPPED


def _mapping_at(address: int, mappings: Sequence[Mapping], starts: Sequence[int]) -> Mapping | None:
    place = bisect.bisect_right(starts, address) - 1
    return mappings[place] if place >= 0 and address < mappings[place].end else None


if __name__ == "__main__":
    main()
