"""Which kernel a person means: a file, or one of a session's by ``SESSION:kN``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from engine.build.source import KernelSource, read_kernel
from engine.cli.reading import state_of
from engine.domain.errors import SourceError
from engine.domain.state import Kernel, SessionState
from engine.journal import store
from engine.journal.blobs import Blobs
from engine.session.assembly import Seed, seed_of


def read_seed(text: str, chosen: Mapping[str, int]) -> Seed:
    """A kernel file, or ``SESSION:kN``, with these values of its tunables.

    Raises SourceError for a file that is no kernel or an unknown tunable, JournalError when there is no such session.
    """
    session, colon, kernel = text.rpartition(":")
    if not colon or Path(text).exists():
        return seed_of(read_kernel(Path(text)), chosen)
    folder = store.resolve(session)
    state = state_of(folder)
    known = kernel_of(state, kernel, folder)
    return seed_of(source_of(folder, known), {**known.tunables, **chosen})


def kernel_of(state: SessionState, kernel: str, folder: Path) -> Kernel:
    """Raises SourceError when the session has no such kernel."""
    found = state.kernels.get(kernel)
    if found is None:
        raise SourceError(f"there is no kernel {kernel!r} in {folder.name}: `espalier replay {folder} --headless` lists them")
    return found


def source_of(folder: Path, kernel: Kernel) -> KernelSource:
    """A recorded kernel's source. Raises JournalCorrupt when its blob is missing or damaged."""
    return KernelSource(Blobs(folder).text(kernel.source), kernel.dialect, kernel.contract, kernel.name)
