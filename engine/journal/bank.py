"""The bank: verified kernels of all sessions, offered as seeds.

Derived from the journals on every call. Unreadable sessions are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.domain import corroboration, queries
from engine.domain.errors import EspalierError
from engine.domain.model import Blob, Contract, Dialect, Interval
from engine.domain.state import Kernel, SessionState
from engine.journal import store
from engine.journal.blobs import Blobs


@dataclass(frozen=True, slots=True)
class BankEntry:
    """A verified and precisely measured kernel with its session."""

    problem: str
    workload: str
    dialect: Dialect
    contract: Contract
    device: str
    baseline: str
    speedup: Interval
    idea: str
    """Title of the idea that it implements."""
    name: str
    """File name or other origin of the code."""
    source: Blob
    source_path: Path
    tunables: Mapping[str, int]
    session: Path
    kernel: str
    doubts: tuple[str, ...] = ()
    """Doubts that the engineer dismissed by accepting the kernel. Its time is corroborated."""


def banked_kernels() -> list[BankEntry]:
    """All banked kernels, best first by the lower end of their speedup.

    The same code with the same tunables on the same device and workload counts once, with the measurement of the latest
    session.
    """
    kernels: dict[object, BankEntry] = {}
    for _, entries in sorted(_contributions(), key=lambda pair: pair[0], reverse=True):
        for entry in entries:
            identity = (entry.problem, entry.workload, entry.device, entry.source, tuple(sorted(entry.tunables.items())))
            kernels.setdefault(identity, entry)
    return sorted(kernels.values(), key=lambda entry: (-entry.speedup.low, str(entry.session), entry.kernel))


def kernels_to_bank(folder: Path, state: SessionState) -> tuple[BankEntry, ...]:
    """The kernels that one session adds to the bank, best first. Raises JournalCorrupt for an invalid blob name."""
    entries = (_entry(folder, state, kernel) for kernel in queries.ranked(state) if _is_sound(kernel))
    return tuple(entry for entry in entries if entry.source_path.is_file())


def _contributions() -> Iterator[tuple[float, tuple[BankEntry, ...]]]:
    for folder in store.folders():
        try:
            state = store.state_of(folder)
            yield state.at, kernels_to_bank(folder, state)
        except EspalierError:
            continue  # `espalier session list` shows what is wrong with it


def _is_sound(kernel: Kernel) -> bool:
    return queries.is_precise(kernel) and kernel.measurement is not None and kernel.measurement.corroborated


def _entry(folder: Path, state: SessionState, kernel: Kernel) -> BankEntry:
    problem, workload = queries.problem_and_workload(state)
    speedup = queries.speedup(state, kernel)
    assert speedup is not None, "ranked kernels have one"
    assert state.device is not None, "measured kernels have a device"
    idea = state.ideas.get(kernel.idea)
    return BankEntry(
        problem, workload, kernel.dialect, kernel.contract, state.device.name, queries.ranking_baseline(state), speedup,
        idea.text.title if idea else "", kernel.name, kernel.source, Blobs(folder).path(kernel.source), dict(kernel.tunables),
        folder, kernel.id, corroboration.of_kernel(kernel),
    )  # fmt: skip
