"""Several device images in one artefact, with what their launches need to know. Triton makes one per compiled function.

A plan is resolved before its kernel is built; ``bind`` adds what only the compiler knows. An artefact of ``cuda`` is one plain
cubin and needs none of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from engine.domain.errors import KernelCodeError
from engine.toolchain.resolution import Argument, NullArg, ResolvedLaunch, ResolvedPlan, WorkspaceArg

MAGIC = b"espalier device images 1\n"
_ALIGNMENT = 512
"""Of the workspace, and of scratch memory in it."""


class DeviceImage(msgspec.Struct, frozen=True):
    """One cubin and how its only entry is launched."""

    entry: str
    threads: int
    """Threads of a block."""
    shared_bytes: int
    """Dynamic shared memory."""
    parameters: int
    """Parameters of the entry, those that the compiler added included."""
    scratch_bytes: int
    """Global memory for each block of the grid; its address is the first parameter that the compiler added."""
    scratch_align: int
    cubin: bytes


def pack(images: Sequence[DeviceImage]) -> bytes:
    """The artefact's bytes."""
    return MAGIC + msgspec.msgpack.encode(list(images))


def unpack(data: bytes) -> tuple[DeviceImage, ...] | None:
    """The images of an artefact; ``None`` for a plain cubin.

    Raises:
        KernelCodeError: damaged images.
    """
    if not data.startswith(MAGIC):
        return None
    try:
        return tuple(msgspec.msgpack.decode(data[len(MAGIC) :], type=list[DeviceImage]))
    except msgspec.MsgspecError as error:
        raise KernelCodeError(f"not device images: {error}") from error


def cubins(data: bytes) -> tuple[bytes, ...]:
    """The device code of an artefact, one or several."""
    images = unpack(data)
    return (data,) if images is None else tuple(image.cubin for image in images)


def bind(plan: ResolvedPlan, data: bytes) -> ResolvedPlan:
    """``plan`` with what the images of the artefact add to it; unchanged for a plain cubin.

    Raises:
        KernelCodeError: the images are not those of the plan.
    """
    images = unpack(data)
    if images is None:
        return plan
    if any(launch.image >= len(images) for launch in plan.launches):
        raise KernelCodeError("the plan launches a device image that the artefact lacks")
    size = plan.workspace_bytes
    launches: list[ResolvedLaunch] = []
    for launch in plan.launches:
        image = images[launch.image]
        start = -(-size // _ALIGNMENT) * _ALIGNMENT
        needed = image.scratch_bytes * math.prod(launch.grid)
        if needed:
            size = start + needed
        launches.append(_launch(launch, image, WorkspaceArg(start) if needed else NullArg()))
    return replace(plan, launches=tuple(launches), workspace_bytes=size)


def _launch(launch: ResolvedLaunch, image: DeviceImage, scratch: WorkspaceArg | NullArg) -> ResolvedLaunch:
    added = image.parameters - len(launch.arguments)
    hidden: tuple[Argument, ...] = (scratch, *(NullArg() for _ in range(added - 1))) if added > 0 else ()
    return replace(
        launch, kernel=image.entry, arguments=(*launch.arguments, *hidden), block=(image.threads, 1, 1),
        shared_bytes=image.shared_bytes,
    )  # fmt: skip
