"""Lists the machine code of a recorded kernel, as ``espalier kernel machine-code`` does. Needs a compiler, but no device.

A kernel whose program counter was sampled has its listing in the session: nothing is built for it.
"""

from __future__ import annotations

from pathlib import Path

from engine.domain.errors import KernelCodeError
from engine.domain.machine_listing import MachineListing
from engine.domain.state import Kernel, SessionState
from engine.journal import recorded_listing
from engine.journal.blobs import Blobs
from engine.problem import catalog
from engine.sandbox.confinement import detect
from engine.session.seeds import kernel_spec, recorded_code
from engine.toolchain.inspection import Uninspected
from engine.toolchain.listing import machine_listing
from engine.trial.kernel_builds import case_of


async def disassemble(folder: Path, state: SessionState, kernel: Kernel) -> MachineListing:
    """The kernel as it was sampled, else built for the session's device and its first workload.

    Raises EspalierError: the kernel does not build here, or no tool reads its machine code.
    """
    hot = kernel.profile.hot if kernel.profile is not None else None
    if hot is not None and hot.listing:
        return recorded_listing.decode(Blobs(folder).get(hot.listing), kernel.id)
    if state.opened is None or state.preparation is None or state.device is None:
        raise KernelCodeError("this session is not prepared yet: its device is unknown")
    settings = state.opened.settings
    workload = catalog.workloads_for(state.opened.problem, "", settings.suite, settings.workload)[0]
    spec = kernel_spec(recorded_code(folder, kernel), kernel.tunables)
    case = case_of(spec, workload, state.preparation.signature, state.device)
    found = await machine_listing(case.request, await detect())
    if isinstance(found, Uninspected):
        raise KernelCodeError(f"{kernel.id} has no listing: {found.reason}")
    return found
