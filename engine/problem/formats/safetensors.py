"""Reads one tensor of a safetensors file, as text that an attachment holds. Checks the header; executes nothing.

A file is 8 bytes with the header's length (little-endian), the header (a JSON object: name → dtype, shape, data_offsets), data.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from engine.domain.errors import ProblemError
from engine.problem.formats.documents import MOST_DIMENSIONS, shown

LARGEST_TENSOR = 64 << 20
_LARGEST_HEADER = 16 << 20
_LENGTH = 8

DTYPES: Mapping[str, tuple[str, int]] = {
    "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1),
    "I64": ("int64", 8), "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1), "U8": ("uint8", 1), "BOOL": ("bool", 1),
}  # fmt: skip
"""Safetensors' dtype → torch's name and bytes per element."""


class _TensorEntry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_tensor(path: Path, key: str, where: str, dtype: str, shape: tuple[int, ...]) -> str:
    """The tensor ``key`` as an attachment's text. It must have this dtype and shape. Raises ProblemError."""
    try:
        with path.open("rb") as file:
            entry, start, size = _entry(file, path, key, where)
            name, width = DTYPES.get(entry.dtype, ("", 0))
            first, last = entry.data_offsets
            if not name:
                raise ProblemError(f"{path}: tensor {key}: dtype {entry.dtype!r} is not supported")
            if not 0 <= first <= last <= size - start or last - first != math.prod(entry.shape) * width:
                raise ProblemError(f"{path}: tensor {key}: its offsets do not match its shape or the file: it is damaged")
            if (name, tuple(entry.shape)) != (dtype, shape):
                raise ProblemError(
                    f"{where}: tensor {key} of {path.name} is {name} {entry.shape}; the definition says {dtype} {list(shape)}"
                )
            if last - first > LARGEST_TENSOR:
                raise ProblemError(f"{where}: tensor {key} of {path.name} has more than {LARGEST_TENSOR >> 20} MiB")
            file.seek(start + first)
            data = file.read(last - first)
    except OSError as error:
        raise ProblemError(f"{path}: cannot be read ({error.strerror})") from error
    packed = base64.b64encode(zlib.compress(data, 6)).decode("ascii")
    return json.dumps({"dtype": name, "shape": entry.shape, "zlib": packed})


def _entry(file: BinaryIO, path: Path, key: str, where: str) -> tuple[_TensorEntry, int, int]:
    """The tensor's entry, where the data begins, and the file's size."""
    size = path.stat().st_size
    length = int.from_bytes(file.read(_LENGTH), "little")
    if size < _LENGTH or length > min(size - _LENGTH, _LARGEST_HEADER):
        raise ProblemError(f"{path}: not a safetensors file: its header does not fit into it")
    try:
        table = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        if key not in table or key == "__metadata__":
            names = sorted(name for name in table if name != "__metadata__")
            raise ProblemError(f"{where}: {path.name} has no tensor {key!r}: it has {shown(names)}")
        entry = msgspec.json.decode(table[key], type=_TensorEntry)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProblemError(f"{path}: not a safetensors file: its header cannot be read ({error})") from None
    if len(entry.shape) > MOST_DIMENSIONS:
        raise ProblemError(f"{path}: tensor {key}: {len(entry.shape)} dimensions are more than {MOST_DIMENSIONS}")
    if any(n < 0 for n in entry.shape):
        raise ProblemError(f"{path}: tensor {key}: negative shape {entry.shape}")
    return entry, _LENGTH + length, size
