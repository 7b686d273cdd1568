"""Memory layout of launch arguments for the driver: configuration, attributes, parameters, and tensor map geometry.

Pure: calls no CUDA function. The structures are those of ``cuda.h`` (CUDA 12 and 13).
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

TENSOR_MAP_BYTES = 128
_TENSOR_MAP_ALIGNMENT = 128
_COOPERATIVE = 2
_CLUSTER_DIMENSION = 4

Dim3 = tuple[int, int, int]

_SCALARS: Mapping[str, struct.Struct] = {"i32": struct.Struct("<i"), "i64": struct.Struct("<q"), "fp32": struct.Struct("<f")}
SCALAR_BYTES: Mapping[str, int] = {kind: layout.size for kind, layout in _SCALARS.items()}
"""Bytes of a number that a kernel takes by value."""


class LaunchAttribute(ctypes.Structure):
    """``CUlaunchAttribute``: id, padding, and a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("value", ctypes.c_uint64 * 8))


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
    )


@dataclass(frozen=True, slots=True)
class PackedConfig:
    """A configuration, and the attributes it points to."""

    config: LaunchConfig
    attributes: ctypes.Array[LaunchAttribute]


def pack_config(
    grid: Dim3, block: Dim3, shared: int, stream: int, *, cluster: Dim3 = (1, 1, 1), cooperative: bool = False
) -> PackedConfig:
    """Lays out one launch; ``shared`` is dynamic shared memory in bytes, ``stream`` the driver's handle (0: the default)."""
    wanted: list[tuple[int, tuple[int, ...]]] = []
    if cooperative:
        wanted.append((_COOPERATIVE, (1,)))
    if cluster != (1, 1, 1):
        wanted.append((_CLUSTER_DIMENSION, (cluster[0] | cluster[1] << 32, cluster[2])))
    attributes = (LaunchAttribute * len(wanted))()
    for slot, (number, words) in zip(attributes, wanted, strict=True):
        slot.id = number
        for index, word in enumerate(words):
            slot.value[index] = word
    config = LaunchConfig(
        (ctypes.c_uint32 * 3)(*grid), (ctypes.c_uint32 * 3)(*block), shared, stream,
        ctypes.addressof(attributes) if wanted else None, len(wanted),
    )  # fmt: skip
    return PackedConfig(config, attributes)


class AlignedBuffer:
    """Host memory aligned to 128 bytes, as the driver requires of tensor maps."""

    def __init__(self, size: int) -> None:
        self._raw = ctypes.create_string_buffer(size + _TENSOR_MAP_ALIGNMENT)
        self.address = -(-ctypes.addressof(self._raw) // _TENSOR_MAP_ALIGNMENT) * _TENSOR_MAP_ALIGNMENT

    def write(self, data: bytes, offset: int = 0) -> int:
        """Copies ``data`` to ``offset`` and returns its address."""
        ctypes.memmove(self.address + offset, data, len(data))
        return self.address + offset

    def read(self, size: int) -> bytes:
        """The first ``size`` bytes."""
        return ctypes.string_at(self.address, size)


def pack_scalar(kind: Literal["i32", "i64", "fp32"], value: int | float) -> bytes:
    """A number as a kernel's parameter."""
    return _SCALARS[kind].pack(value)


@dataclass(frozen=True, slots=True)
class PackedParameters:
    """The ``void**`` of a launch, and the memory its entries point into."""

    table: ctypes.Array[ctypes.c_void_p]
    storage: AlignedBuffer


def pack_parameters(values: Sequence[int | bytes]) -> PackedParameters:
    """Lays out kernel parameters in order: an address as a 64-bit word, a tensor map by value."""
    storage = AlignedBuffer(TENSOR_MAP_BYTES * len(values))
    table = (ctypes.c_void_p * max(1, len(values)))()
    for index, value in enumerate(values):
        data = value if isinstance(value, bytes) else value.to_bytes(8, "little")
        table[index] = storage.write(data, TENSOR_MAP_BYTES * index)
    return PackedParameters(table, storage)


@dataclass(frozen=True, slots=True)
class TensorGeometry:
    """A tensor map in the driver's order: innermost dimension first, strides in bytes for all but that one."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    tile: tuple[int, ...]


def tensor_geometry(dims: Sequence[int], tile: Sequence[int], item: int) -> TensorGeometry:
    """Converts row-major dimensions (outermost first) of elements of ``item`` bytes to the driver's order.

    Limits were checked when the plan was resolved.
    """
    strides = tuple(item * math.prod(dims[index:]) for index in range(len(dims) - 1, 0, -1))
    return TensorGeometry(tuple(reversed(dims)), strides, tuple(reversed(tile)))
