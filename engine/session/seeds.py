"""Reads and checks kernels to seed: from a file, a text, another session (``SESSION:kN``), or an empty skeleton."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.codegen import scaffold
from engine.domain.commands import SeedKernel
from engine.domain.errors import KernelCodeError, ProblemError
from engine.domain.model import Device, Dialect, Problem, Signature, Workload
from engine.domain.state import Kernel, SessionState
from engine.journal import store
from engine.journal.blobs import Blobs
from engine.problem.formats import solutions
from engine.report.text.shell import shell_name
from engine.session import devices
from engine.session.ports import StoreBlob
from engine.toolchain import tunables
from engine.toolchain.dispatch import is_dispatch, parse_dispatch
from engine.toolchain.kernel_build import choices
from engine.toolchain.kernel_file import KernelCode, classify, read_kernel_file
from engine.trial.bench import KernelSpec


@dataclass(frozen=True, slots=True)
class Seed:
    """A kernel to seed, with the values of its tunables."""

    kernel: KernelCode
    tunables: Mapping[str, int]


def read_kernel(path: Path, problem: Problem | None) -> KernelCode:
    """The kernel in a file; one in the format of the problem becomes a module. Raises KernelCodeError."""
    if problem is None or problem.origin_format is None or not solutions.is_solution(path, problem.origin_format):
        return read_kernel_file(path)
    name, text = solutions.module_of(path, problem.origin_format, problem.reference, problem.attachments)
    return KernelCode(text, *classify(text, name), name)


def read_seed(text: str, chosen: Mapping[str, int] | None = None, problem: Problem | None = None) -> Seed:
    """The kernel in a file, or ``SESSION:kN``, with these values of its tunables. A file may be in the format of ``problem``.

    Raises KernelCodeError for a file without a kernel or an unknown tunable, JournalError for an unknown session.
    """
    session, colon, name = text.rpartition(":")
    file = Path(os.path.expanduser(text))  # that of pathlib raises for an unknown user
    if not colon or file.exists():
        return seed_of(read_kernel(file, problem), chosen or {})
    folder = store.resolve(session)
    kernel = kernel_of(store.state_of(folder), name, folder)
    return seed_of(recorded_code(folder, kernel), {**kernel.tunables, **(chosen or {})})


def seed_from_text(text: str, name: str) -> Seed:
    """A written or pasted kernel, named like a file. Raises KernelCodeError if it fits no contract."""
    return seed_of(KernelCode(text, *classify(text, name), name), {})


def seed_of(kernel: KernelCode, chosen: Mapping[str, int]) -> Seed:
    """A kernel with these values of its tunables, and defaults for the others.

    Raises KernelCodeError for a tunable that the code does not declare, or for malformed lines of tunables or requirements.
    """
    try:
        declared = tunables.default_values(tunables.parse_tunables(kernel.text, kernel.dialect))
        tunables.parse_requires(kernel.text, kernel.dialect)
    except KernelCodeError as error:
        raise KernelCodeError(f"{kernel.name}: {error}") from error
    for name in chosen:
        if name not in declared:
            advice = f"use {', '.join(declared)}" if declared else "it declares no tunables"
            raise KernelCodeError(f"unknown tunable {name!r} of {kernel.name}: {advice}")
    return Seed(kernel, {**declared, **chosen})


def kernel_of(state: SessionState, name: str, folder: Path) -> Kernel:
    """A session's kernel by its id. Raises KernelCodeError for an unknown one."""
    kernel = state.kernels.get(name)
    if kernel is None:
        advice = f"list its kernels with `espalier kernel list {shell_name(folder)}`"
        raise KernelCodeError(f"unknown kernel {name!r} in {folder.name}: {advice}")
    return kernel


def recorded_code(folder: Path, kernel: Kernel) -> KernelCode:
    """The code of a recorded kernel. Raises JournalCorrupt if its blob is missing or damaged."""
    return KernelCode(Blobs(folder).text(kernel.source), kernel.dialect, kernel.contract, kernel.name)


def kernel_spec(kernel: KernelCode, chosen: Mapping[str, int]) -> KernelSpec:
    """A kernel with these values of its tunables, as a bench takes it."""
    return KernelSpec(kernel.name, kernel.text, kernel.dialect, kernel.contract, chosen)


def recorded_spec(folder: Path, kernel: Kernel, device: str) -> KernelSpec:
    """A recorded kernel, as a bench takes it. Raises JournalCorrupt, and ProblemError if it cannot run on this device."""
    code = recorded_code(folder, kernel)
    check_dialect(code, device)
    return kernel_spec(code, kernel.tunables)


def device_for(kernels: Iterable[Kernel | KernelCode], asked: str | None) -> str:
    """``asked``, or else the default device, as ``cpu`` or ``cuda:N``. Raises DeviceError if this machine lacks it.

    Raises ProblemError for a kernel that needs a GPU where there is none: no other device would do.
    """
    if not devices.gpu_names():
        for kernel in kernels:
            check_dialect(kernel, "cpu")
    return devices.checked_device(asked)


def check_dialect(kernel: Kernel | KernelCode, device: str) -> None:
    """Raises ProblemError for a kernel that cannot run on this device (``cpu`` or ``cuda:N``)."""
    if needed := needed_device(kernel.dialect, device):
        raise ProblemError(f"{kernel.name} is a {kernel.dialect} kernel and {needed}")


def check_session_runs(kernel: KernelCode, device: str) -> None:
    """Raises ProblemError for a kernel that cannot run on the device of a session, which stays the same."""
    if needed_device(kernel.dialect, device):
        kind = "the CPU" if device == "cpu" else "a GPU"
        other = "cuda:0" if device == "cpu" else "cpu"
        raise ProblemError(
            f"{kernel.name} is a {kernel.dialect} kernel, and this session measures on {kind}: start another with "
            f"--device {other}"
        )


def needed_device(dialect: Dialect, device: str) -> str:
    """What a dialect needs that this device is not; empty if it runs there."""
    match dialect, device:
        case ((Dialect.CUDA | Dialect.TRITON), "cpu"):
            if devices.gpu_names():
                return "needs a GPU: use --device cuda:0"
            return "needs a GPU, and this machine has none: `espalier doctor` shows what is missing"
        case Dialect.CPP, other if other != "cpu":
            return "needs a CPU: use --device cpu"
        case _:
            return ""


def seed_command(
    store_blob: StoreBlob, seed: Seed, parent: str | None = None, idea: str | None = None, title: str = "",
    workloads: Sequence[Workload] = (),
) -> SeedKernel:  # fmt: skip
    """The command that seeds a kernel; ``store_blob`` stores its code in the session. ``workloads``: those of the session."""
    kernel = seed.kernel
    code = store_blob(kernel.text.encode("utf-8", "replace"))
    members = parse_dispatch(kernel.text, kernel.dialect).members if is_dispatch(kernel.text, kernel.dialect) else ()
    names = tuple(one.name for one in members)
    return SeedKernel(
        kernel.name, kernel.dialect, kernel.contract, code, seed.tunables, parent, idea, title, names,
        choices(kernel, workloads),
    )  # fmt: skip


def dialect_for(device: Device, signature: Signature, asked: str = "") -> Dialect:
    """The dialect of this problem's naive port on this device; ``asked``: by the session's settings."""
    if not signature.scalar_only:
        return Dialect.PYTHON
    if asked:
        return Dialect(asked)
    return Dialect.CUDA if device.kind == "cuda" else Dialect.CPP


def empty_kernel(device: Device, signature: Signature, asked: str = "") -> tuple[str, str]:
    """(file name, text) of a kernel skeleton that documents every operand and computes nothing."""
    dialect = dialect_for(device, signature, asked)
    return f"kernel{dialect.suffix}", scaffold.empty_kernel(signature, dialect)
