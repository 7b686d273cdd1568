"""Describes the device of a session. Imports torch (for its version) lazily, and the CUDA driver only for ``cuda``."""

from __future__ import annotations

import glob
import os
import platform
from pathlib import Path

from engine.domain.errors import DeviceError
from engine.domain.model import Device

_EXTENSIONS = (
    "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "sme",
)  # fmt: skip
_OWN_LEVELS = 2
"""Cache levels that a core has to itself."""
_FALLBACK_CACHE = 32 << 20


def describe(label: str) -> Device:
    """``cpu`` or ``cuda:N`` as a Device. Raises DeviceError for an unknown device."""
    if label == "cpu":
        return _cpu()
    kind, _, index = label.partition(":")
    if kind != "cuda" or not (index or "0").isdigit():
        raise DeviceError(f"unknown device {label!r}: use cpu or cuda:N")
    from engine.trial.shared.cuda import driver

    return driver.describe(int(index or 0))


def bus_id(index: int) -> str:
    """The PCI bus id of ``cuda:index``. Raises DeviceError."""
    from engine.trial.shared.cuda import driver

    return driver.bus_id(index)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that a device has no memory left."""
    return "out of memory" in str(error).lower()


def _cpu() -> Device:
    import torch

    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    software = f"torch {torch.__version__}"
    return Device(
        "cpu", 0, f"{_cpu_name()} ({cores} cores)", platform.machine(), cores, _last_level_cache(), memory, software,
        _vector_extensions(), _core_caches(),
    )  # fmt: skip


def _vector_extensions() -> tuple[str, ...]:
    """The vector extensions of the first core, in the order of the list."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    line = next((line for line in text.splitlines() if line.lower().startswith(("flags", "features"))), "")
    present = set(line.partition(":")[2].split())
    return tuple(name for name in _EXTENSIONS if name in present)


def _core_caches() -> tuple[int, ...]:
    """Sizes of the first core's data caches that it shares with no other core (beside its hyperthread)."""
    sizes: dict[int, int] = {}
    for index in map(Path, sorted(glob.glob("/sys/devices/system/cpu/cpu0/cache/index*"))):
        try:
            level, kind = int((index / "level").read_text()), (index / "type").read_text().strip()
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and level <= _OWN_LEVELS:
            sizes[level] = _size_in_bytes(index / "size")
    return tuple(size for _, size in sorted(sizes.items()) if size)


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _last_level_cache() -> int:
    """Size of the first core's largest cache, in bytes."""
    sizes = [_size_in_bytes(Path(path)) for path in glob.glob("/sys/devices/system/cpu/cpu0/cache/index*/size")]
    return max(sizes, default=0) or _FALLBACK_CACHE


def _size_in_bytes(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    digits = text.rstrip("KMG")
    return int(digits) * units.get(text[-1:], 1) if digits.isdigit() else 0
