"""What a session needs from this machine, checked before it begins: what is missing, what that changes, what provides it."""

from __future__ import annotations

import asyncio
import importlib.util

from engine.domain import queries
from engine.domain.errors import DeviceError, EspalierError, ToolchainError
from engine.domain.model import Dialect
from engine.domain.state import SessionState
from engine.sandbox.bubblewrap import bubblewrap_reason
from engine.sandbox.trial_sandbox import judge_reason
from engine.session import devices
from engine.session.seeds import needed_device
from engine.toolchain import compilers
from engine.toolchain.cache import Cache, cache_folder
from engine.toolchain.triton.build import find_triton

TORCH = "pip install 'torch>=2.6,<2.14'"
BUBBLEWRAP = "apt install bubblewrap (Debian, Ubuntu) or dnf install bubblewrap (Fedora)"
USER_NAMESPACES = "allow unprivileged user namespaces on this machine, or in its container"


def check_torch() -> None:
    """Raises ToolchainError if torch is missing. Does not import it."""
    if importlib.util.find_spec("torch") is None:
        raise ToolchainError(f"torch not found: the reference and the baselines run in it; {TORCH}")


async def check_requirements(device: str, dialect: str = "") -> None:
    """What building and judging needs.

    Raises ToolchainError if torch, or the compiler for kernels of the dialect or else of the device, is missing;
    EspalierError if nothing can be written to the build cache.
    """
    check_torch()
    with Cache(cache_folder()).build_folder():
        pass
    if dialect == Dialect.TRITON:
        await find_triton()
    elif device == "cpu":
        await compilers.find_gxx()
    else:
        await compilers.find_nvcc()


def session_device(state: SessionState, asked: str = "") -> str:
    """The device to run a session on: ``asked``, or else its own. Raises DeviceError if its kernels cannot run there."""
    label = asked or queries.device_label(state)
    for kernel in state.kernels.values():
        if needed := needed_device(kernel.dialect, label):
            raise DeviceError(f"{kernel.id} of this session is a {kernel.dialect} kernel and {needed}")
        if needed_device(kernel.dialect, "cpu") and not devices.gpu_names():
            where = "open the session on a machine with one, or look at it with `espalier replay`"
            raise DeviceError(f"no GPU found, and {kernel.id} of this session is a {kernel.dialect} kernel: {where}")
    return devices.checked_device(label)


def sandbox_warning() -> str:
    """Why kernels or the reference run without a sandbox, and what to do; empty if neither does."""
    reason = bubblewrap_reason()
    if reason is None:
        outside = judge_reason()
        return f"the reference runs outside the sandbox, with your rights: {outside}" if outside is not None else ""
    remedy = BUBBLEWRAP if "not installed" in reason else USER_NAMESPACES
    return f"no sandbox, {reason}: kernels and the reference run with resource limits only and can read your files; {remedy}"


async def missing_tools() -> tuple[str, ...]:
    """One line for each tool that the default device needs and this machine lacks."""
    lines = [warning] if (warning := await asyncio.to_thread(sandbox_warning)) else []
    try:
        await check_requirements(devices.devices()[0][0])
    except EspalierError as error:
        lines.append(str(error))
    return tuple(lines)
