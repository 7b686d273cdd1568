"""NVRTC, the CUDA compiler that needs no toolkit, through ``cuda.bindings``. Nothing is imported before its first use."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from engine.domain.errors import DeviceError


def compiled(source: str, options: Sequence[str]) -> bytes:
    """CUDA C++ as machine code. Raises :class:`DeviceError` where NVRTC is missing, and with its message where it fails."""
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        code, program = nvrtc.nvrtcCreateProgram(source.encode(), b"source.cu", 0, [], [])
    except (ImportError, RuntimeError) as error:  # the latter where the bindings do not find the library
        reason = " ".join(str(error).split())
        raise DeviceError(f"NVRTC cannot be used ({reason}): pip install 'espalier[gpu]'") from error
    if int(code):
        raise DeviceError(f"NVRTC cannot be used ({code.name})")
    try:
        words = [option.encode() for option in options]
        (code,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
        if int(code):
            log = _read(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
            raise DeviceError(f"NVRTC failed ({code.name}): {log}")
        return _read(nvrtc, program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _read(nvrtc: Any, program: Any, what: str) -> bytes:
    code, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    content = b"\0" * int(size)
    (read,) = getattr(nvrtc, f"nvrtcGet{what}")(program, content)
    if int(code) or int(read):
        raise DeviceError(f"NVRTC gave no {what}")
    return content
