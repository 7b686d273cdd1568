"""Kernels from outside a session: a file, a text, a kernel of another session as ``SESSION:kN``, or an empty one to fill in.

Reads and checks them before a session is given the command that brings one in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.codegen import scaffold
from engine.domain.commands import SeedKernel
from engine.domain.errors import KernelCodeError, ProblemError
from engine.domain.model import Device, Dialect, Signature
from engine.domain.state import Kernel, SessionState
from engine.journal import store
from engine.journal.blobs import Blobs
from engine.session.ports import StoreBlob
from engine.toolchain import tunables
from engine.toolchain.kernel_file import KernelCode, classify, read_kernel_file
from engine.trial.bench import KernelSpec


@dataclass(frozen=True, slots=True)
class Seed:
    """A kernel brought in by hand, with the value of each of its tunables."""

    kernel: KernelCode
    tunables: Mapping[str, int]


def read_seed(text: str, chosen: Mapping[str, int] | None = None) -> Seed:
    """The kernel in a file, or ``SESSION:kN``, with these values of its tunables.

    Raises KernelCodeError for a file that holds no kernel or an unknown tunable, JournalError when there is no such session.
    """
    session, colon, name = text.rpartition(":")
    if not colon or Path(text).exists():
        return seed_of(read_kernel_file(Path(text)), chosen or {})
    folder = store.resolve(session)
    kernel = kernel_of(store.state_of(folder), name, folder)
    return seed_of(recorded_code(folder, kernel), {**kernel.tunables, **(chosen or {})})


def seed_from_text(text: str, name: str) -> Seed:
    """A kernel that was written or pasted, under a file name. Raises KernelCodeError when it fits no contract."""
    return seed_of(KernelCode(text, *classify(text, name), name), {})


def seed_of(kernel: KernelCode, chosen: Mapping[str, int]) -> Seed:
    """A kernel with these values of its tunables, and the defaults of the others.

    Raises KernelCodeError for a tunable that the source does not declare, or lines that cannot be read.
    """
    declared = tunables.default_values(tunables.parse_tunables(kernel.text, kernel.dialect))
    for name in chosen:
        if name not in declared:
            there = f"it has {', '.join(declared)}" if declared else "it has none"
            raise KernelCodeError(f"{kernel.name} declares no tunable {name!r}: {there}")
    return Seed(kernel, {**declared, **chosen})


def kernel_of(state: SessionState, name: str, folder: Path) -> Kernel:
    """A session's kernel by its id. Raises KernelCodeError when there is none."""
    kernel = state.kernels.get(name)
    if kernel is None:
        raise KernelCodeError(f"unknown kernel {name!r} in {folder.name}: `espalier kernel list {store.short_name(folder)}` lists them")
    return kernel


def recorded_code(folder: Path, kernel: Kernel) -> KernelCode:
    """The code of a recorded kernel. Raises JournalCorrupt when its blob is missing or damaged."""
    return KernelCode(Blobs(folder).text(kernel.source), kernel.dialect, kernel.contract, kernel.name)


def bench_source(kernel: KernelCode, chosen: Mapping[str, int]) -> KernelSpec:
    """A kernel with these values of its tunables, for a bench."""
    return KernelSpec(kernel.name, kernel.text, kernel.dialect, kernel.contract, chosen)


def recorded_source(folder: Path, kernel: Kernel, device: str) -> KernelSpec:
    """A recorded kernel for a bench. Raises JournalCorrupt, and ProblemError where it cannot run on this device."""
    code = recorded_code(folder, kernel)
    check_dialect(code, device)
    return bench_source(code, kernel.tunables)


def check_dialect(kernel: KernelCode, device: str) -> None:
    """Raises ProblemError for a kernel that cannot run on this device (``cpu`` or ``cuda:N``)."""
    match kernel.dialect, device:
        case Dialect.CUDA, "cpu":
            raise ProblemError(f"{kernel.name} is a cuda kernel and runs on no CPU: use a GPU with --device cuda:0")
        case Dialect.CPP, other if other != "cpu":
            raise ProblemError(f"{kernel.name} is a cpp kernel and runs on no GPU: use --device cpu")
        case _:
            pass


def seed_command(
    store_blob: StoreBlob, seed: Seed, parent: str | None = None, idea: str | None = None, title: str = ""
) -> SeedKernel:
    """The command that brings a kernel into this session; ``store_blob`` keeps its source there."""
    kernel = seed.kernel
    source = store_blob(kernel.text.encode("utf-8", "replace"))
    return SeedKernel(kernel.name, kernel.dialect, kernel.contract, source, seed.tunables, parent, idea, title)


def dialect_for(device: Device, signature: Signature) -> Dialect:
    """The dialect of a naive port: what this problem is written in for this device."""
    if not signature.scalar_only:
        return Dialect.PYTHON
    return Dialect.CUDA if device.kind == "cuda" else Dialect.CPP


def empty_kernel(device: Device, signature: Signature) -> tuple[str, str]:
    """(file name, text) of a kernel that computes nothing yet, with every operand explained."""
    dialect = dialect_for(device, signature)
    return f"kernel{dialect.suffix}", scaffold.empty_kernel(signature, dialect)
